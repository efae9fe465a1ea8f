"""The text that the bundled reader learns from."""

from engine.sources.articles.article import Article
from jobs.bundled_reader.spans import Span
from jobs.bundled_reader.text import Asked, around, asked, exchanged, parts

SENTENCE = "Albert Einstein was born in the city of Ulm."


def test_articles_are_in_one_part_each_whatever_their_order():
    titles = [f"Article {number}" for number in range(106)]
    found = parts(titles)
    assert found == parts(reversed(titles))
    sizes = {part: list(found.values()).count(part) for part in ("train", "dev", "test")}
    assert sizes == {"train": 84, "dev": 6, "test": 16}


def test_what_can_be_asked_for_stands_in_its_passage():
    filler = ["word"] * 149
    text = " ".join([*filler[:60], "end.", SENTENCE, "Another", *filler, "end."])
    found = list(asked([Article("1", "Physicists", text)]))
    assert {one.answer for one in found} == {"Albert Einstein", "Ulm"}
    assert all(one.sentence in one.passage and one.title == "Physicists" for one in found)
    # Cut at 0, 25 and 50 words, the sentence is whole.
    assert len({one.passage for one in found}) >= 3


def test_a_sentence_with_what_stands_around_it():
    one = Asked("", f"Before it. {SENTENCE} After it.", SENTENCE, Span(40, 43, "name"))
    assert around(one, 0, 0) == SENTENCE
    assert around(one, 1, 5) == f"it. {SENTENCE} After it."


def test_an_answer_is_exchanged_where_it_stands_as_words():
    assert exchanged("Ulm, not Ulmus, is Ulm.", "Ulm", "Bern") == "Bern, not Ulmus, is Bern."
    assert exchanged("1.5 and 11.5", "1.5", r"\1") == r"\1 and 11.5"
