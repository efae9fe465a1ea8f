import json

import pytest

from engine.messages.errors import InputError
from engine.sources.articles.article import Article
from engine.sources.articles.squad import is_squad, read_squad


def document(*entries):
    return {"version": "1", "data": list(entries)}


def entry(title, *contexts):
    return {"title": title, "paragraphs": [{"context": c, "qas": []} for c in contexts]}


def test_contexts_are_articles_that_share_their_title(tmp_path):
    path = tmp_path / "s.json"
    path.write_text(json.dumps(document(entry("Cat", "a", "b"), entry("", "c"))))
    assert [article for article, _ in read_squad(path)] == [
        Article("s-0.0", "Cat", "a", "Cat"),
        Article("s-0.1", "Cat", "b", "Cat"),
        Article("s-1.0", "", "c", "1"),
    ]


def test_squad_documents_are_distinguished_from_json_lines(tmp_path):
    whole = document(entry("Cat", "a"))
    for name, text, expected in (
        ("a.json", json.dumps(whole), True),
        ("b.jsonl", json.dumps(whole), True),
        ("c.txt", json.dumps(whole, indent=1), True),
        ("d.json", '{"version": "1",\n"data": []}', True),
        ("e.json", '{"id": "1", "text": "x"}\n{"id": "2"}\n', False),
        ("f.jsonl", '{"id": "1", "te\n', False),
        ("g.jsonl", '{"id": "1", "data": "x"}\n', False),
        ("h.jsonl", "", False),
    ):
        (tmp_path / name).write_text(text)
        assert is_squad(tmp_path / name) is expected, name


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('{\n"data": [\n{"title": }]}', 3, "broken JSON"),
        ('{"data": 3}', None, 'without a list "data"'),
        ('{"data": [{"title": "x"}]}', None, r"data\[0\] has no paragraphs"),
        ('{"data": [{"paragraphs": [{"qas": []}]}]}', None, r"paragraphs\[0\] has no context"),
        (
            '{"data": [{"paragraphs": [{"context": "x", "qas": [1]}]}]}',
            None,
            "not a list of objects",
        ),
    ],
)
def test_bad_documents_are_refused(tmp_path, text, line, words):
    path = tmp_path / "s.json"
    path.write_text(text)
    with pytest.raises(InputError, match=words) as caught:
        list(read_squad(path))
    assert caught.value.line == line
