import bz2
import gzip
import json
from pathlib import Path

import fsspec
import pytest

from engine.messages.errors import InputError
from engine.sources.io.files import write_parquet
from engine.sources.io.folders import require_output
from engine.sources.io.lines import read_lines
from engine.sources.io.locations import list_files, locate, name_of, suffix_of
from engine.sources.passages.read import read_corpus
from engine.sources.queries.read import read_queries
from engine.sources.runs.qrels import read_qrels
from engine.sources.runs.read import read_run

ROWS = [{"_id": "1", "title": "T", "text": "a"}, {"_id": "2", "title": "", "text": "b"}]
JSONL = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


@pytest.fixture
def memory():
    """fsspec's file system in memory, empty before and after."""
    system = fsspec.filesystem("memory")
    system.store.clear()
    yield system
    system.store.clear()


@pytest.mark.parametrize(
    ("name", "packed"),
    [
        ("c.jsonl", JSONL),
        ("c.jsonl.gz", gzip.compress(JSONL, mtime=0)),
        ("c.jsonl.bz2", bz2.compress(JSONL)),
    ],
)
def test_reading_an_address_equals_reading_the_file(memory, tmp_path, name, packed):
    (tmp_path / name).write_bytes(packed)
    memory.pipe(f"/data/{name}", packed)
    local = read_corpus(tmp_path / name)
    assert local["doc_id"].to_list() == ["1", "2"]
    for address in (f"memory://data/{name}", f"file://{tmp_path / name}"):
        assert read_corpus(address).equals(local)


def test_directories_at_addresses_are_listed(memory, tmp_path):
    corpus = tmp_path / "c.parquet"
    memory.pipe("/beir/corpus.jsonl", JSONL)
    table = read_corpus("memory://beir")
    for part in range(2):
        write_parquet(table[part : part + 1], corpus)
        memory.pipe(f"/shards/{part}.parquet", corpus.read_bytes())
    memory.pipe("/shards/.hidden", b"")
    assert read_corpus("memory://shards").equals(table)
    assert list_files("memory://shards") == [f"memory://shards/{n}.parquet" for n in range(2)]


def test_queries_runs_and_qrels_are_read_from_addresses(memory, tmp_path):
    memory.pipe("/q.jsonl", b'{"id": "1", "input": "who", "output": [{"answer": "Ann"}]}\n')
    memory.pipe("/r.trec", b"1 Q0 d 1 2.5 mine\n")
    memory.pipe("/j.trec", b"1 0 d 1\n")
    queries = read_queries("memory://q.jsonl")
    write_parquet(queries, tmp_path / "q.parquet")
    memory.pipe("/q.parquet", (tmp_path / "q.parquet").read_bytes())
    assert read_queries("memory://q.parquet").equals(queries)
    assert read_queries(Path("memory://q.parquet")).equals(queries)
    assert read_run("memory://r.trec")["doc_id"].to_list() == ["d"]
    assert read_qrels("memory://j.trec")["label"].to_list() == [1.0]


def test_addresses_that_cannot_be_opened_end_in_one_line(memory):
    for address, words in (
        ("memory://none.jsonl", "no such file"),
        ("nowhere://x/c.jsonl", "Protocol not known: nowhere"),
    ):
        with pytest.raises(InputError, match=words) as caught:
            read_corpus(address)
        assert caught.value.path == address
    memory.pipe("/c.jsonl.gz", gzip.compress(JSONL * 50)[:-9])
    with pytest.raises(InputError, match=r"^memory://c\.jsonl\.gz:\d+: cannot be read"):
        read_corpus("memory://c.jsonl.gz")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ImportError("Install s3fs to access S3"), r"s3:// is not installed \(Install s3fs"),
        (TimeoutError("no answer"), r"cannot be opened \(TimeoutError: no answer\)"),
    ],
)
def test_a_missing_driver_or_network_is_named(monkeypatch, error, words):
    def fails(address):
        raise error

    monkeypatch.setattr(fsspec.core, "url_to_fs", fails)
    with pytest.raises(InputError, match=words):
        read_corpus("s3://bucket/c.parquet")


def test_addresses_are_distinguished_from_paths(tmp_path):
    assert locate(f"file://{tmp_path}") == tmp_path
    assert locate("s3://b/c.d.gz") == "s3://b/c.d.gz"
    assert locate(Path("s3://b/c.d.gz")) == "s3://b/c.d.gz"
    assert locate(Path("file:///a/b")) == locate("file:///a/b") == Path("/a/b")
    assert (name_of("s3://b/c.d.gz"), suffix_of("s3://b/c.d.gz")) == ("c.d.gz", ".gz")
    assert locate("a/b:c/d") == Path("a/b:c/d")


def test_results_are_not_written_to_addresses(tmp_path):
    for address in ("s3://b/c.parquet", Path("s3://b/c.parquet")):
        with pytest.raises(InputError, match="written to local files"):
            require_output(address, directory=False)


def test_files_of_a_directory_keep_what_opens_them(memory):
    memory.pipe("/user:secret@bucket/a", b"a")
    (file,) = list_files("memory://user:secret@bucket/")
    assert file == "memory://user:secret@bucket/a"
    assert list(read_lines(file, "lines")) == [(1, "a")]
