import gzip
import json

import polars as pl
import pytest

from engine.errors import InputError
from engine.sources.articles import read as articles
from engine.sources.io import parallel
from engine.sources.io.skipping import SkipBad
from engine.sources.passages import write as passage_files
from engine.sources.passages.read import read_corpus
from engine.sources.passages.splitting import Cutting
from engine.sources.passages.write import Written, write_passages


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


@pytest.fixture
def small(monkeypatch):
    """Chunks, row groups and shards so small that a few articles fill several."""
    monkeypatch.setattr(articles, "_CHUNK_BYTES", 5000)
    monkeypatch.setattr(parallel, "_PATIENCE", 0)
    monkeypatch.setattr(passage_files, "_GROUP_ROWS", 7)
    monkeypatch.setattr(passage_files, "SHARD_PASSAGES", 21)


def test_any_number_of_workers_writes_the_same_bytes(tmp_path, small):
    sources = [
        source(tmp_path / "a.jsonl", range(30)),
        source(tmp_path / "b.jsonl.gz", range(30, 41)),
    ]
    written = {}
    for workers in (1, 2):
        out = tmp_path / f"{workers}.parquet"
        done = write_passages(sources, out, cutting=Cutting(), workers=workers)
        assert done == Written(passages=41 * 3, articles=41, empty=0, files=1)
        written[workers] = out.read_bytes()
    assert written[1] == written[2]
    table = read_corpus(tmp_path / "1.parquet")
    assert table["doc_id"].to_list() == [f"{n}-{i}" for n in range(41) for i in range(3)]
    joined = table.group_by("article_id", maintain_order=True).agg(pl.col("text").str.join(" "))
    assert joined["text"][40] == " ".join(f"w40.{i}" for i in range(250))


def test_shards_in_a_directory_hold_the_same_passages_as_a_single_file(tmp_path, small):
    articles_ = source(tmp_path / "a.jsonl", range(20))
    write_passages([articles_], tmp_path / "one.parquet", cutting=Cutting(), workers=1)
    done = write_passages([articles_], tmp_path / "many", cutting=Cutting(), workers=1)
    shards = sorted((tmp_path / "many").iterdir())
    assert [p.name for p in shards] == ["00000.parquet", "00001.parquet", "00002.parquet"]
    assert done.files == 3
    assert [pl.read_parquet(p).height for p in shards] == [21, 21, 18]
    assert read_corpus(tmp_path / "many").equals(read_corpus(tmp_path / "one.parquet"))
    with pytest.raises(InputError, match="a directory with content"):
        write_passages([articles_], tmp_path / "many", cutting=Cutting(), workers=1)


@pytest.mark.parametrize(("name", "workers"), [("out.parquet", 2), ("out", 1)])
def test_a_failed_run_leaves_no_files(tmp_path, small, workers, name):
    path = source(tmp_path / "a.jsonl", range(40))
    with path.open("a") as stream:
        stream.write('{"id": "broken"\n')
    out = tmp_path / "to" / name
    with pytest.raises(InputError, match=":41: broken JSON"):
        write_passages([path], out, cutting=Cutting(), workers=workers)
    assert list(out.parent.iterdir()) == []
    skip = SkipBad(1)
    done = write_passages([path], out, cutting=Cutting(), workers=1, skip_bad=skip)
    assert (done.articles, skip.count) == (40, 1)
    assert [p.name for p in out.parent.iterdir()] == [name]


def test_duplicate_article_ids_are_refused_and_both_places_named(tmp_path, small):
    first = source(tmp_path / "a.jsonl", range(30), words=120)
    second = source(tmp_path / "b.jsonl", [30, 7], words=3)
    with pytest.raises(InputError) as caught:
        write_passages([first, second], tmp_path / "o.parquet", cutting=Cutting(), workers=1)
    assert str(caught.value).startswith(
        f"{second}:2: article id '7' already occurs in line 8 of {first}"
    )
    with first.open("a") as stream:
        stream.write('{"id": "3", "text": ""}\n')
    with pytest.raises(InputError, match=r"a\.jsonl:31: article id '3' already occurs in line 4"):
        write_passages([first], tmp_path / "o.parquet", cutting=Cutting(), workers=1)
    pl.DataFrame({"id": ["1", "1"], "text": ["a", "b"]}).write_parquet(tmp_path / "p.parquet")
    with pytest.raises(InputError, match="article id '1' occurs more than once"):
        write_passages(
            [tmp_path / "p.parquet"], tmp_path / "o.parquet", cutting=Cutting(), workers=1
        )


def test_articles_without_text_are_counted_and_a_corpus_needs_others(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"id": "1", "text": " "}\n{"id": "2", "text": "x"}\n')
    done = write_passages([path], tmp_path / "o.parquet", cutting=Cutting(), workers=1)
    assert done == Written(passages=1, articles=1, empty=1, files=1)
    path.write_text('{"id": "1", "text": " "}\n')
    with pytest.raises(InputError, match="no article with text"):
        write_passages([path], tmp_path / "p.parquet", cutting=Cutting(), workers=1)
    assert not (tmp_path / "p.parquet").exists()
