import json

import polars as pl
import pytest

from engine.errors import InputError
from engine.sources.corpus import read_corpus
from engine.sources.files import write_parquet


def write(path, *records):
    path.write_text("".join(json.dumps(r) + "\n" for r in records), encoding="utf-8")
    return path


def test_field_names_of_the_usual_layouts_are_understood(tmp_path):
    path = write(
        tmp_path / "c.jsonl",
        {"doc_id": "1", "title": "T", "text": "a", "article_id": "A"},
        {"_id": "2", "title": "T", "text": "b"},
        {"id": 3, "contents": "c"},
        {"id": "4", "title": "T", "text": "d", "wikipedia_id": "77"},
    )
    frame = read_corpus(path)
    assert frame["doc_id"].to_list() == ["1", "2", "3", "4"]
    assert frame["article_id"].to_list() == ["A", "T", "3", "77"]


def test_only_wanted_passages_are_kept_from_either_format(tmp_path):
    path = write(tmp_path / "c.jsonl", *({"id": str(i), "text": f"t{i}"} for i in range(5)))
    write_parquet(read_corpus(path), tmp_path / "c.parquet")
    for source in (path, tmp_path / "c.parquet"):
        assert read_corpus(source, wanted={"3", "1"})["doc_id"].to_list() == ["1", "3"]


@pytest.mark.parametrize(
    ("records", "where", "words"),
    [
        ([{"id": "1", "text": "a"}, {"id": "1", "text": "b"}], ":2", "stands in line 1"),
        ([{"text": "a"}], ":1", "without an id"),
        ([{"id": "1"}], ":1", "has no text"),
        ([{"id": "1", "text": None}], ":1", "has no text"),
        ([{"id": "1", "text": "a", "title": 5}], ":1", "title"),
        ([], "", "corpus is empty"),
    ],
)
def test_bad_corpora_are_refused(tmp_path, records, where, words):
    path = write(tmp_path / "c.jsonl", *records)
    with pytest.raises(InputError) as caught:
        read_corpus(path, wanted={"9"})
    assert str(caught.value).startswith(f"{path}{where}: ")
    assert words in str(caught.value)


def test_bad_parquet_corpora_are_refused(tmp_path):
    path = tmp_path / "c.parquet"
    columns = {
        "doc_id": ["1", "1"],
        "title": ["", ""],
        "text": ["a", "b"],
        "article_id": ["x", "y"],
    }
    pl.DataFrame(columns).write_parquet(path)
    for wanted in (None, {"1"}):
        with pytest.raises(InputError, match="'1' occurs more than once"):
            read_corpus(path, wanted=wanted)
    pl.DataFrame(columns).clear().write_parquet(path)
    for wanted in (None, {"1"}):
        with pytest.raises(InputError, match="corpus is empty"):
            read_corpus(path, wanted=wanted)
    pl.DataFrame({"doc_id": ["1"], "text": ["a"]}).write_parquet(path)
    for wanted in (None, {"1"}):
        with pytest.raises(InputError, match="lacks the columns title, article_id"):
            read_corpus(path, wanted=wanted)
    path.write_text("not parquet")
    for wanted in (None, {"1"}):
        with pytest.raises(InputError, match="not a readable Parquet file"):
            read_corpus(path, wanted=wanted)


def test_integer_ids_in_parquet_are_read_as_text(tmp_path):
    path = tmp_path / "c.parquet"
    columns = {"doc_id": [1, 2], "title": ["", ""], "text": ["a", "b"], "article_id": ["x", "y"]}
    pl.DataFrame(columns).write_parquet(path)
    assert read_corpus(path, wanted={"2"})["doc_id"].to_list() == ["2"]
    assert read_corpus(path)["doc_id"].to_list() == ["1", "2"]
