import gzip
import json

import pytest

from engine.messages.errors import InputError
from engine.sources.articles.squad import is_squad
from engine.sources.io import lines
from engine.sources.io.json_text import DuplicateKeyError, parse_json
from engine.sources.io.lines import raw_lines, start_of
from engine.sources.queries.read import read_queries
from engine.sources.queries.users import read_user_queries
from engine.sources.runs.qrels import read_qrels
from engine.sources.runs.read import read_run


def test_lines_come_with_their_numbers_and_without_a_byte_order_mark(tmp_path):
    (tmp_path / "f").write_bytes(b"\xef\xbb\xbfa\n\n \nb\r\nc")
    assert list(raw_lines(tmp_path / "f", "text")) == [(1, b"a\n"), (4, b"b\r\n"), (5, b"c")]
    assert [n for n, _ in raw_lines(tmp_path / "f", "text", blank=True)] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("read", [read_run, read_qrels, read_queries, read_user_queries])
@pytest.mark.parametrize("name", ["f.trec", "f.txt", "f.gz"])
def test_a_line_without_an_end_is_refused_at_the_limit(tmp_path, monkeypatch, read, name):
    monkeypatch.setattr(lines, "LONGEST_LINE", 1 << 20)
    content = b"query\n" + b"\0" * (1 << 21)
    content = gzip.compress(content, 1) if name.endswith("gz") else content
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError) as caught:
        read(tmp_path / name)
    first = read in (read_run, read_qrels)  # the first line is no line of theirs
    assert f"{name}:{1 if first else 2}: " in str(caught.value)
    if not first:
        assert "a line of more than 1 MiB" in str(caught.value)


def test_the_limit_is_64_mib_and_a_line_of_that_length_is_read(tmp_path):
    path = tmp_path / "f"
    with path.open("wb") as stream:
        stream.truncate(64 << 20)
    assert [len(line) for _, line in raw_lines(path, "text")] == [64 << 20]
    with path.open("r+b") as stream:
        stream.truncate((64 << 20) + 1)
    with pytest.raises(InputError, match="f:1: a line of more than 64 MiB"):
        next(raw_lines(path, "text"))


def test_documents_on_one_line_may_be_longer(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "LONGEST_LINE", 1 << 10)
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
        with pytest.raises(DuplicateKeyError, match="'a' is given twice"):
            parse_json(text)
    with pytest.raises(ValueError, match="nested too deep"):
        parse_json("[" * 100_000)
