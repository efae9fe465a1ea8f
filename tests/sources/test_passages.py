import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.errors import InputError
from engine.sources.mediawiki import Article
from engine.sources.passages import cut_words, passages, read_source


@given(st.lists(st.text(alphabet="abc", min_size=1, max_size=3), max_size=350))
def test_passages_joined_again_give_the_words(words):
    cut = cut_words(" \n".join(words), 100)
    assert " ".join(cut).split() == words
    assert len(cut) == -(-len(words) // 100)
    assert all(len(part.split()) == 100 for part in cut[:-1])


def test_passages_never_cross_articles_and_name_theirs():
    articles = [Article("7", "Cat", "a b c"), Article("8", "Dog", ""), Article("9", "Elk", "d")]
    frame = passages(articles, words=2)
    assert frame.rows() == [
        ("7-0", "Cat", "a b", "Cat"),
        ("7-1", "Cat", "c", "Cat"),
        ("9-0", "Elk", "d", "Elk"),
    ]
    assert passages(articles, words=2, article_id="page")["article_id"].to_list() == ["7", "7", "9"]


def test_jsonl_articles(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"id": "1", "title": "T", "text": "x y"}) + "\n")
    assert list(read_source(path)) == [Article("1", "T", "x y")]
    path.write_text(json.dumps({"id": "1", "text": "x"}) + "\n" + json.dumps({"id": "2"}) + "\n")
    with pytest.raises(InputError, match=r":2: an article without id or text"):
        list(read_source(path))
