import gzip
import json

import fsspec
import pytest

from engine.sources.passages.read import read_corpus
from tests.commands import erag
from tests.expected import as_expected


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "a.jsonl"
    records = [{"id": str(n), "title": f"T{n}", "text": "one two three four"} for n in range(2)]
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return path


def test_several_sources_are_cut_into_one_corpus(source, tmp_path, capsys):
    other = tmp_path / "b.json"
    document = {"data": [{"title": "C", "paragraphs": [{"context": "five six", "qas": []}]}]}
    other.write_text(json.dumps(document))
    out = tmp_path / "c.parquet"
    assert erag("passages", source, other, "--out", out, "--words", 3) == 0
    assert capsys.readouterr().out == f"5 passages of 3 articles -> {out}\n"
    table = read_corpus(out)
    assert table["text"].to_list() == ["one two three", "four"] * 2 + ["five six"]
    assert table["article_id"].to_list() == ["T0", "T0", "T1", "T1", "C"]


def test_passages_of_characters_into_a_directory(source, tmp_path, capsys):
    out = tmp_path / "shards"
    assert erag("passages", source, "--out", out, "--characters", 9, "--overlap", 0) == 0
    assert read_corpus(out)["text"].to_list() == ["one two", "three", "four"] * 2
    capsys.readouterr()
    assert erag("passages", source, "--out", out) == 2
    as_expected(capsys.readouterr().err)


def test_skipped_records_and_empty_articles_are_reported(source, tmp_path, capsys):
    with source.open("a") as stream:
        stream.write('{"id": "8", "text": ""}\n{"id": "9"\n')
    out = tmp_path / "c.parquet"
    assert erag("passages", source, "--out", out) == 2
    assert f"{source}:4: broken JSON" in capsys.readouterr().err
    assert not out.exists()
    assert erag("passages", source, "--out", out, "--skip-bad", 1) == 0
    told = capsys.readouterr().out.splitlines()
    as_expected([told[0].split(" -> ")[0], *told[1:]])


@pytest.mark.parametrize(
    "options",
    [
        ["--words", 5, "--characters", 5],
        ["--overlap", 5],
        ["--characters", 5],
        ["--skip-bad", -1],
        ["--workers", 0],
        ["--out", "s3://bucket/shards"],
        ["--out", "c.jsonl"],
    ],
)
def test_meaningless_options_are_refused(source, tmp_path, capsys, options):
    out = [] if "--out" in options else ["--out", tmp_path / "c.parquet"]
    assert erag("passages", source, *out, *options) == 2
    as_expected(capsys.readouterr().err)
    assert not (tmp_path / "c.parquet").exists()


def test_sources_may_be_addresses(source, tmp_path, capsys):
    memory = fsspec.filesystem("memory")
    memory.pipe("/wiki/a.jsonl.gz", gzip.compress(source.read_bytes()))
    out = tmp_path / "c.parquet"
    try:
        for address in ("memory://wiki/a.jsonl.gz", "memory://wiki", f"file://{source}"):
            assert erag("passages", address, "--out", out, "--words", 3) == 0
            assert capsys.readouterr().out.startswith("4 passages of 2 articles")
        assert erag("passages", "memory://wiki/none.xml", "--out", out) == 2
        as_expected(capsys.readouterr().err)
    finally:
        memory.store.clear()
