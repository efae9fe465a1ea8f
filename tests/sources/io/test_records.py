import gzip
import json

import pytest

from engine.sources.articles.read import is_squad
from engine.sources.io import records
from engine.sources.io.records import (
    DuplicateKeyError,
    parse_json,
    raw_lines,
    read_settings,
    start_of,
)
from engine.sources.queries.read import read_queries, read_user_queries
from engine.sources.runs.qrels import read_qrels
from engine.sources.runs.read import read_run
from tests.expected import as_expected, refused


def test_lines_come_with_their_numbers_and_without_a_byte_order_mark(tmp_path):
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbfa\n\n \nb\r\nc")
    assert list(raw_lines(tmp_path / "f", "text")) == [(1, b"a\n"), (4, b"b\r\n"), (5, b"c")]
    assert [n for n, _ in raw_lines(tmp_path / "f", "text", blank=True)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("read", [read_run, read_qrels, read_queries, read_user_queries])
@pytest.mark.parametrize("name", ["f.trec", "f.txt", "f.gz"])
def test_a_line_without_an_end_is_refused_at_the_limit(tmp_path, monkeypatch, read, name):
    monkeypatch.setattr(records, "LONGEST_LINE", 1 << 20)
    content = b"query\n" + b"\0" * (1 << 21)
    content = gzip.compress(content, 1) if name.endswith("gz") else content
    (tmp_path / name).write_bytes(content)
    first = {read_run: ("runs.columns", 1), read_qrels: ("qrels.columns", 1)}  # no line of theirs
    code, line = first.get(read, ("files.line", 2))
    with refused(code, path=tmp_path / name, line=line):
        read(tmp_path / name)


def test_the_limit_is_64_mib_and_a_line_of_that_length_is_read(tmp_path):
    path = tmp_path / "f"
    with path.open("wb") as stream:
        stream.truncate(64 << 20)
    assert [len(line) for _, line in raw_lines(path, "text")] == [64 << 20]
    with path.open("r+b") as stream:
        stream.truncate((64 << 20) + 1)
    with refused("files.line"):
        next(raw_lines(path, "text"))


def test_documents_on_one_line_may_be_longer(tmp_path, monkeypatch):
    monkeypatch.setattr(records, "LONGEST_LINE", 1 << 10)
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"1": {f"d{i}": i for i in range(500)}}))
    assert read_run(path).height == 500
    path.write_text(json.dumps({"data": [{"title": "x" * 5000, "paragraphs": []}]}))
    assert is_squad(path)


def test_the_start_of_a_file_is_looked_for_beyond_blank_lines(tmp_path):
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbf" + b" \n" * 1000 + b"{x")
    assert start_of(tmp_path / "f", "text") == b"{x"
    (tmp_path / "f").write_bytes(b"")
    assert start_of(tmp_path / "f", "text") == b""


def test_json_is_what_the_standard_library_makes_of_it_but_for_keys_given_twice():
    for text in ('{"a": [1, 2.5, null, true, "é"], "b": {"a": {}}}', " 3 ", '"\\ud800"', "[NaN]"):
        assert repr(parse_json(text)) == repr(json.loads(text)) == repr(parse_json(text.encode()))
    assert parse_json('{"a": 1}'.encode("utf-8-sig")) == {"a": 1}
    for text in ('{"a": 1, "a": 1}', '[{"b": {"a": 1, "c": 2, "a": 3}}]'):
        with pytest.raises(DuplicateKeyError) as caught:
            parse_json(text)
        as_expected(str(caught.value))
    with pytest.raises(ValueError) as caught:
        parse_json("[" * 100_000)
    as_expected(str(caught.value))


TEXT = """
# a comment
k: 10
n: ["no", 5, -0.25, 0.90, "x", null]
time: '1:30'
empty:
name: bm25
quoted: "yes"
end_to_end: false
block: |
  two
  lines
"""


def test_values_are_given_as_they_are_written():
    values, lines = read_settings(TEXT, "o.yaml")
    assert values == {
        "k": "10",
        "n": ["no", "5", "-0.25", "0.90", "x", None],
        "time": "1:30",
        "empty": None,
        "name": "bm25",
        "quoted": "yes",
        "end_to_end": "false",
        "block": "two\nlines\n",
    }
    assert [lines[key] for key in ("k", "n", "block")] == [3, 4, 10]


CHANGED = "010 1e3 yes no On off 1:30 0x10 0o17 1_000 1. .5 +1 2026-01-01 2026-99-99 .inf nan True"


@pytest.mark.parametrize("text", [*CHANGED.split(), "!!binary aGk=", "!own x"])
def test_a_value_that_yaml_would_change_is_to_be_put_in_quotes(text):
    shown = text.split()[-1]
    for yaml, line in ((f"a: {text}", 2), (f"b: 1\na: [x,\n {text}]", 4)):
        with refused("files.yaml", path="o.yaml", line=line):
            read_settings(yaml, "o.yaml", first_line=2)
    assert read_settings(f"a: '{shown}'", "o.yaml")[0] == {"a": shown}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1, [2]]", "files.yaml"),
        ("b: 1\na: 1\na: 2", "files.yaml"),
        ("[a]: 1", "files.yaml"),
        ("a: 1\nb: \0", "files.yaml"),
        ("a: 1\n\tb: 2", "files.yaml"),
        ("- a", "files.yaml"),
    ],
)
def test_what_is_no_list_of_settings_is_refused_with_its_line(text, words):
    with refused(words):
        read_settings(text, "o.yaml", first_line=2)


def test_an_empty_text_has_no_settings():
    for text in ("", "# only this\n", "null"):
        assert read_settings(text, "o.yaml") == ({}, {})
