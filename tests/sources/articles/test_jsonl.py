import pytest

from engine.messages.errors import InputError
from engine.sources.articles.article import Article
from engine.sources.articles.jsonl import kilt_text, parse_record


def test_articles_of_the_usual_layouts_are_read():
    for record, expected in (
        ({"id": 1, "title": "T", "text": "x"}, Article("1", "T", "x")),
        ({"_id": "a", "title": "", "text": "x", "metadata": {}}, Article("a", "", "x")),
        ({"doc_id": "d", "contents": "x", "article_id": "A"}, Article("d", "", "x", "A")),
        (
            {"_id": "7", "wikipedia_id": "7", "wikipedia_title": "T", "text": ["T\n", "x\n"]},
            Article("7", "T", "x", "7"),
        ),
    ):
        assert parse_record("a.jsonl", 1, record) == expected


def test_kilt_paragraphs_lose_title_headings_markers_and_back_matter():
    paragraphs = [
        "Cat\n",
        "A cat purrs.\n",
        "Section::::History.\n",
        "Old.\n",
        "Section::::History.:Ancient Egypt.\n",
        "BULLET::::- A goddess\n",
        "Section::::References.\n",
        "Smith\n",
        "Section::::References.:Books.\n",
        "BULLET::::- A book\n",
        "Section::::Later.\n",
        "More.\n",
    ]
    assert kilt_text(paragraphs, "Cat") == "A cat purrs.\nOld.\nA goddess\nMore."
    assert kilt_text(["A cat purrs.\n"], "Cat") == "A cat purrs."


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"id": "1"}, "without id or text"),
        ({"text": "x"}, "without id or text"),
        ({"id": ["1"], "text": "x"}, "without id or text"),
        ({"id": "1", "text": ["x", 3]}, "without id or text"),
        ({"id": "1", "text": "\ud800"}, "surrogate"),
    ],
)
def test_bad_records_are_refused(record, words):
    with pytest.raises(InputError, match=words) as caught:
        parse_record("a.jsonl", 5, record)
    assert caught.value.line == 5
