import gzip
import json

import polars as pl
import pytest

from engine.sources.io.records import SkipBad
from engine.sources.passages import write as write_module
from engine.sources.passages.cut import CutSettings
from engine.sources.passages.read import read_corpus
from engine.sources.passages.write import PassageCounts, write_passages
from tests.expected import refused


def source(path, numbers, words=250):
    lines = [
        json.dumps(
            {"id": str(n), "title": f"T{n}", "text": " ".join(f"w{n}.{i}" for i in range(words))}
        )
        for n in numbers
    ]
    data = "".join(line + "\n" for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Portions so small that a few articles fill several chunks, row groups and shards."""
    for name, value in {"_CHUNK": 5000, "_GROUP": 7, "_SHARD": 21, "_PATIENCE": 0}.items():
        monkeypatch.setattr(write_module, name, value)


def write(sources, out, **options):
    return write_passages(sources, out, cutting=CutSettings(), **options)


def test_any_number_of_workers_writes_the_same_bytes(tmp_path):
    sources = [
        source(tmp_path / "a.jsonl", range(30)),
        source(tmp_path / "b.jsonl.gz", range(30, 41)),
    ]
    written = {}
    for workers in (1, 2):
        out = tmp_path / f"{workers}.parquet"
        done = write(sources, out, workers=workers)
        assert done == PassageCounts(passages=41 * 3, articles=41, empty=0, files=1)
        written[workers] = out.read_bytes()
    assert written[1] == written[2]
    table = read_corpus(tmp_path / "1.parquet")
    assert table["doc_id"].to_list() == [f"{n}-{i}" for n in range(41) for i in range(3)]
    joined = table.group_by("article_id", maintain_order=True).agg(pl.col("text").str.join(" "))
    assert joined["text"][40] == " ".join(f"w40.{i}" for i in range(250))


def test_shards_in_a_directory_hold_the_same_passages_as_a_single_file(tmp_path):
    articles_ = source(tmp_path / "a.jsonl", range(20))
    write([articles_], tmp_path / "one.parquet", workers=1)
    done = write([articles_], tmp_path / "many", workers=1)
    shards = sorted((tmp_path / "many").iterdir())
    assert [p.name for p in shards] == ["00000.parquet", "00001.parquet", "00002.parquet"]
    assert done.files == 3
    assert [pl.read_parquet(p).height for p in shards] == [21, 21, 18]
    assert read_corpus(tmp_path / "many").equals(read_corpus(tmp_path / "one.parquet"))
    with refused("files.occupied"):
        write([articles_], tmp_path / "many", workers=1)


@pytest.mark.parametrize(("name", "workers"), [("out.parquet", 2), ("out", 1)])
def test_a_failed_run_leaves_no_files(tmp_path, workers, name):
    path = source(tmp_path / "a.jsonl", range(40))
    with path.open("a") as stream:
        stream.write('{"id": "broken"\n')
    out = tmp_path / "to" / name
    with refused("json.broken"):
        write([path], out, workers=workers)
    assert list(out.parent.iterdir()) == []
    skip = SkipBad(1)
    done = write([path], out, workers=1, skip_bad=skip)
    assert (done.articles, skip.count) == (40, 1)
    assert [p.name for p in out.parent.iterdir()] == [name]


def test_duplicate_article_ids_are_refused_and_both_places_named(tmp_path):
    first = source(tmp_path / "a.jsonl", range(30), words=120)
    second = source(tmp_path / "b.jsonl", [30, 7], words=3)
    with refused("articles.twice", path=second, line=2):
        write([first, second], tmp_path / "o.parquet", workers=1)
    with first.open("a") as stream:
        stream.write('{"id": "3", "text": ""}\n')
    with refused("articles.twice"):
        write([first], tmp_path / "o.parquet", workers=1)
    pl.DataFrame({"id": ["1", "1"], "text": ["a", "b"]}).write_parquet(tmp_path / "p.parquet")
    with refused("articles.twice"):
        write([tmp_path / "p.parquet"], tmp_path / "o.parquet", workers=1)


def test_articles_without_text_are_counted_and_a_corpus_needs_others(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": "1", "text": " "}\n{"id": "2", "text": "x"}\n')
    done = write_passages([path], tmp_path / "o.parquet", cutting=CutSettings(), workers=1)
    assert done == PassageCounts(passages=1, articles=1, empty=1, files=1)
    path.write_text('{"id": "1", "text": " "}\n')
    with refused("articles.none"):
        write_passages([path], tmp_path / "p.parquet", cutting=CutSettings(), workers=1)
    assert not (tmp_path / "p.parquet").exists()
