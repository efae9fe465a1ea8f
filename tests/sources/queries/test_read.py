import bz2
import gzip
import json

import polars as pl
import pytest

from engine import tables
from engine.sources.io.files import write_parquet
from engine.sources.queries.read import line_of, read_queries, read_user_queries
from tests.expected import refused


def write(path, *records):
    path.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    return path


def kilt(query_id, text="who", answers=("Ann",), articles=()):
    output = [{"answer": a} for a in answers]
    if articles:
        output.append({"provenance": [{"wikipedia_id": a, "title": a} for a in articles]})
    return {"id": query_id, "input": text, "output": output}


def test_kilt_answers_and_provenance_are_read_in_order_and_once(tmp_path):
    path = write(tmp_path / "q.jsonl", kilt("1", "who?", ["Ann ", "Bo", "Ann"], ["X", "Y", "X"]))
    (row,) = read_queries(path).to_dicts()
    assert row == {
        "query_id": "1",
        "query": "who?",
        "answers": ["Ann", "Bo"],
        "provenance": ["X", "Y"],
    }


def test_gzip_and_parquet_give_the_same_table(tmp_path):
    path = write(tmp_path / "q.jsonl", kilt("1"), kilt("2", articles=["X"]))
    plain = read_queries(path)
    (tmp_path / "q.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    write_parquet(plain, tmp_path / "q.parquet")
    assert read_queries(tmp_path / "q.jsonl.gz").equals(plain)
    assert read_queries(tmp_path / "q.parquet").equals(plain)


@pytest.mark.parametrize(
    ("records", "line", "code"),
    [
        ([kilt("1"), kilt("1")], 2, "queries.twice"),
        ([kilt("1", answers=("  ",))], 1, "queries.no-answers"),
        ([kilt("1", text=" ")], 1, "queries.empty"),
        ([{"id": "1", "input": "x", "output": "Ann"}], 1, "queries.objects"),
        ([{"id": "1", "input": "x", "output": [{"answer": 3}]}], 1, "queries.answers"),
        ([{"id": "1", "output": [{"answer": "a"}]}], 1, "queries.text"),
        ([kilt("1") | {"output": [{"answer": "a", "provenance": ["Aruba"]}]}], 1, "queries.objects"),
        ([kilt("1") | {"output": [{"answer": "a", "provenance": 3}]}], 1, "queries.objects"),
        ([kilt("1", text="half \ud800")], 1, "queries.surrogate"),
        ([kilt("1", answers=("x", "\udfff"))], 1, "queries.surrogate"),
    ],
)  # fmt: skip
def test_bad_queries_name_line_and_remedy(tmp_path, records, line, code):
    path = write(tmp_path / "q.jsonl", *records)
    with refused(code, path=path, line=line):
        read_queries(path)


def test_the_line_of_a_query_is_that_of_its_file(tmp_path):
    path = write(tmp_path / "q.jsonl", kilt("1"), kilt("2"))
    assert [line_of(path, name) for name in ("1", "2", "3")] == [1, 2, None]
    read_queries(path).write_parquet(tmp_path / "q.parquet")
    assert line_of(tmp_path / "q.parquet", "2") is None


def test_parquet_queries_are_cleaned_and_checked_like_jsonl(tmp_path):
    path = tmp_path / "q.parquet"
    columns = {"query_id": ["1"], "query": ["q"], "provenance": [["A", None, "A"]]}
    pl.DataFrame(columns | {"answers": [[" SUPPORTS", "", None, "SUPPORTS"]]}).write_parquet(path)
    (row,) = read_queries(path).to_dicts()
    assert (row["answers"], row["provenance"]) == (["SUPPORTS"], ["A"])
    pl.DataFrame(columns | {"answers": [["x"]], "query_id": ["a b"]}).write_parquet(path)
    with refused("queries.id"):
        read_queries(path)


def test_damaged_files_end_in_one_line(tmp_path):
    path = tmp_path / "q.jsonl.gz"
    packed = bytearray(gzip.compress(json.dumps(kilt("1")).encode() * 500))
    packed[40] ^= 0xFF
    path.write_bytes(packed)
    with refused("files.unreadable", text=False):
        read_queries(path)


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
    ("name", "content", "line", "code"),
    [
        ("log.txt", "", None, "queries.none"),
        ("log.txt", " \n\n", None, "queries.none"),
        ("log.txt", b"which\n\xff\xfe\n", 2, "files.encoding"),
        ("log.txt.gz", b"which sea\n", 1, "files.unreadable"),
        pytest.param("log.txt.gz", gzip.compress(b"which sea\n" * 99, mtime=0)[:-9], None, "files.unreadable", id="cut"),
        ("log.txt", '{"query": "a"\n', 1, "json.broken"),
        ("log.jsonl", "", None, "queries.none"),
        ("log.jsonl", '{"input": "a"}\n{"input": " "}\n', 2, "queries.text"),
        ("log.jsonl", '{"input": "a"}\n{"input": 7}\n', 2, "queries.text"),
        ("log.jsonl", '{"input": "a"}\n{"output": []}\n', 2, "queries.text"),
        ("log.jsonl", '{"input": "a"}\n{"id": 1, "input": "b"}\n', 2, "queries.mixed"),
        ("log.jsonl", '{"input": "\\ud800"}\n', 1, "queries.surrogate"),
        ("log.jsonl", '{"query": "a"}\n{"query": ""}\n', 2, "queries.text"),
        ("log.log", "which sea\n", 1, "table.header"),
    ],
)  # fmt: skip
def test_bad_files_give_one_line_that_names_the_place(tmp_path, name, content, line, code):
    with refused(code, path=tmp_path / name, line=line):
        read_user_queries(written(tmp_path / name, content))
