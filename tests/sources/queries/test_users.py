"""What users asked: logs of text, JSON lines without ids, and every layout of queries."""

import bz2
import gzip
import json

import pytest

from engine import tables
from engine.messages.errors import InputError
from engine.sources.queries.read import read_queries
from engine.sources.queries.users import read_user_queries


def written(path, content):
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_a_text_file_has_one_query_per_line_with_the_line_number_as_id(tmp_path):
    path = written(tmp_path / "log.txt", "\ufeffwhich sea \n\n  \nwho, wrote it\r\n[solved] why\n")
    table = read_user_queries(path).table
    assert dict(table.schema) == tables.QUERIES
    assert table.select("query_id", "query").rows() == [
        ("1", "which sea"),
        ("4", "who, wrote it"),
        ("5", "[solved] why"),
    ]


@pytest.mark.parametrize(("suffix", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress)])
def test_a_compressed_text_file_gives_the_same_queries(tmp_path, suffix, pack):
    path = written(tmp_path / f"log.2026.txt{suffix}", pack("wo ist süd\nдругой\n".encode()))
    assert read_user_queries(path).table["query"].to_list() == ["wo ist süd", "другой"]


@pytest.mark.parametrize("field", ["query", "question", "text", "input"])
@pytest.mark.parametrize("name", ["log.jsonl", "log.txt"])
def test_json_lines_with_only_a_text_are_numbered(tmp_path, field, name):
    lines = [json.dumps({field: text, "at": "noon"}) for text in ("which sea", "who wrote it")]
    table = read_user_queries(written(tmp_path / name, "\n".join(lines))).table
    assert table.select("query_id", "query").rows() == [("1", "which sea"), ("2", "who wrote it")]


def test_other_layouts_are_read_as_by_read_query_set(tmp_path):
    beir = tmp_path / "beir"
    beir.mkdir()
    written(beir / "queries.jsonl", '{"_id": "7", "text": "which sea"}\n')
    kilt = written(tmp_path / "q.jsonl", '{"id": "7", "input": "which sea", "output": []}\n')
    table = written(tmp_path / "q.csv", "query\nwhich sea\n")
    for path in (beir, kilt, table):
        found = read_user_queries(path).table
        assert found.equals(read_queries(path, need_answers=False))
        assert found["query"].to_list() == ["which sea"]
    entry = {"id": "1", "question": "which sea", "answers": [{"text": "Caribbean"}]}
    without = {"id": "2", "question": "why", "answers": [], "is_impossible": True}
    paragraph = {"context": "Caribbean", "qas": [entry, without]}
    document = {"data": [{"title": "A", "paragraphs": [paragraph]}]}
    assert read_user_queries(written(tmp_path / "s.json", json.dumps(document))).unanswerable == 1


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("log.txt", "", "log.txt: no queries; give a text file"),
        ("log.txt", " \n\n", "log.txt: no queries"),
        ("log.txt", b"which\n\xff\xfe\n", "log.txt:2: not UTF-8 text"),
        ("log.txt.gz", b"which sea\n", "log.txt.gz:1: cannot be read"),
        ("log.txt.gz", gzip.compress(b"which sea\n" * 99, mtime=0)[:-9], "cannot be read"),
        ("log.txt", '{"query": "a"\n', "log.txt:1: broken JSON"),
        ("log.jsonl", "", "no queries"),
        ("log.jsonl", '{"input": "a"}\n{"input": " "}\n', "log.jsonl:2: a query without text"),
        ("log.jsonl", '{"input": "a"}\n{"input": 7}\n', "log.jsonl:2: a query without text"),
        ("log.jsonl", '{"input": "a"}\n{"output": []}\n', "log.jsonl:2: a query without text"),
        ("log.jsonl", '{"input": "a"}\n{"id": 1, "input": "b"}\n', "jsonl:2: a query with an id"),
        ("log.jsonl", '{"input": "\\ud800"}\n', "log.jsonl:1: query '1' holds half a surrogate"),
        ("log.jsonl", '{"query": "a"}\n{"query": ""}\n', "log.jsonl:2: query '2' has no text"),
        ("log.log", "which sea\n", "log.log:1: no header with a column"),
    ],
)  # fmt: skip
def test_bad_files_give_one_line_that_names_the_place(tmp_path, name, content, words):
    with pytest.raises(InputError) as caught:
        read_user_queries(written(tmp_path / name, content))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
