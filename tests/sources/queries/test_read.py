import gzip
import json

import polars as pl
import pytest

from engine.messages.errors import InputError
from engine.sources.io.files import write_parquet
from engine.sources.queries.read import line_of, read_queries


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
    ("records", "line", "words"),
    [
        ([kilt("1"), kilt("1")], 2, "duplicate query id '1' (see line 1)"),
        ([kilt("1", answers=("  ",))], 1, "no answers"),
        ([kilt("1", text=" ")], 1, "is empty"),
        ([{"id": "1", "input": "x", "output": "Ann"}], 1, "not a list of objects"),
        ([{"id": "1", "input": "x", "output": [{"answer": 3}]}], 1, "not a string"),
        ([{"id": "1", "output": [{"answer": "a"}]}], 1, "has no text"),
        ([kilt("1") | {"output": [{"answer": "a", "provenance": ["Aruba"]}]}], 1, "provenance"),
        ([kilt("1") | {"output": [{"answer": "a", "provenance": 3}]}], 1, "provenance"),
        ([kilt("1", text="half \ud800")], 1, "surrogate"),
        ([kilt("1", answers=("x", "\udfff"))], 1, "surrogate"),
    ],
)
def test_bad_queries_name_line_and_remedy(tmp_path, records, line, words):
    path = write(tmp_path / "q.jsonl", *records)
    with pytest.raises(InputError) as caught:
        read_queries(path)
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert words in str(caught.value)
    assert caught.value.remedy


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
    with pytest.raises(InputError, match="white space"):
        read_queries(path)


def test_damaged_files_end_in_one_line(tmp_path):
    path = tmp_path / "q.jsonl.gz"
    packed = bytearray(gzip.compress(json.dumps(kilt("1")).encode() * 500))
    packed[40] ^= 0xFF
    path.write_bytes(packed)
    with pytest.raises(InputError):
        read_queries(path)
