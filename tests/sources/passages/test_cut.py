import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.sources.articles.read import Article
from engine.sources.passages.cut import CutSettings, cut, cut_characters, cut_words, passages
from tests.expected import refused

TEXTS = st.text(alphabet="ab \n.", max_size=400)


@settings(deadline=None)
@given(st.lists(st.text(alphabet="abc", min_size=1, max_size=3), max_size=350))
def test_pieces_together_have_exactly_the_words_of_the_text(words):
    cut = cut_words(" \n".join(words), 100)
    assert " ".join(cut).split() == words
    assert len(cut) == -(-len(words) // 100)
    assert all(len(part.split()) == 100 for part in cut[:-1])


@settings(deadline=None)
@given(TEXTS, st.integers(1, 60), st.data())
def test_pieces_of_characters_are_short_and_lose_no_word_but_white_space(text, characters, data):
    overlap = data.draw(st.integers(0, characters - 1))
    pieces = cut_characters(text, characters, overlap)
    assert all(0 < len(piece) <= characters for piece in pieces)
    at = 0
    for piece in pieces:  # each is found in the text, not before the one before it
        at = text.index(piece, at)
    assert sum(len("".join(p.split())) for p in pieces) >= len("".join(text.split()))


def test_characters_are_cut_at_paragraphs_before_words():
    # By hand: 'one two' and 'three' fit into 12 with no room for both (7 + 1 + 5 = 13).
    assert cut_characters("one two\nthree four", 12, 0) == ["one two", "three four"]
    # ' bbb' (4, with its space) is shared: it fits the overlap, and 4 + 4 fit into 8.
    assert cut_characters("aaa bbb ccc", 8, 4) == ["aaa bbb", "bbb ccc"]


def test_a_cutting_decides_between_words_and_characters():
    text = "one two three four"
    assert cut(text, CutSettings(words=3)) == ["one two three", "four"]
    assert cut(text, CutSettings(characters=9, overlap=0)) == ["one two", "three", "four"]
    assert cut(" \n", CutSettings()) == cut("  ", CutSettings(characters=9, overlap=0)) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"words": 0}, "settings.value"),
        ({"characters": 0}, "settings.value"),
        ({"characters": 20}, "settings.cutting"),
        ({"characters": 9, "overlap": -1}, "settings.value"),
        ({"words": 5, "characters": 9}, "settings.lengths"),
        ({"overlap": 5}, "settings.overlap"),
    ],
)
def test_impossible_cuttings_are_refused(options, words):
    with refused(words):
        CutSettings(**options)


def test_passages_never_cross_articles_and_name_their_article():
    articles = [Article("7", "Cat", "a b c"), Article("8", "Dog", ""), Article("9", "Elk", "d")]
    frame = passages(articles, cutting=CutSettings(words=2))
    assert frame.rows() == [
        ("7-0", "Cat", "a b", "Cat"),
        ("7-1", "Cat", "c", "Cat"),
        ("9-0", "Elk", "d", "Elk"),
    ]
    paged = passages(articles, cutting=CutSettings(words=2), article_id="page")
    assert paged["article_id"].to_list() == ["7", "7", "9"]


def test_a_source_may_give_its_articles_another_name():
    article = Article("7", "Cat", "a", "Q7")
    assert passages([article])["article_id"].to_list() == ["Q7"]
    assert passages([article], article_id="title")["article_id"].to_list() == ["Cat"]
    assert passages([Article("7", "", "a")])["article_id"].to_list() == ["7"]
