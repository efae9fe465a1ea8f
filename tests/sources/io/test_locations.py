import bz2
import contextlib
import gzip
import json
import os
import threading
from pathlib import Path

import fsspec
import polars as pl
import pytest

from engine.sources.io import locations
from engine.sources.io.files import write_parquet
from engine.sources.io.folders import require_output
from engine.sources.io.locations import list_files, locate, name_of, open_binary, suffix_of
from engine.sources.io.records import read_lines
from engine.sources.passages.read import read_corpus
from engine.sources.queries.read import read_queries, read_query_set, read_user_queries
from engine.sources.runs.qrels import read_preferences, read_qrels
from engine.sources.runs.read import read_run, write_run
from tests.commands import erag
from tests.conftest import make_run
from tests.expected import refused


@pytest.fixture(autouse=True)
def forgetting():
    yield
    locations.forget_pipes()


@pytest.fixture
def piped():
    """A function from bytes to the path of a pipe that gives them, as <(…) makes it."""
    ends, threads = [], []

    def path(content):
        end, other = os.pipe()

        def feed():
            with contextlib.suppress(BrokenPipeError), os.fdopen(other, "wb") as stream:
                stream.write(content)

        ends.append(end)
        threads.append(threading.Thread(target=feed, daemon=True))
        threads[-1].start()
        return f"/proc/self/fd/{end}"

    yield path
    locations.forget_pipes()
    for end in ends:
        os.close(end)
    for thread in threads:
        thread.join(10)  # the frames of a test that failed keep their end of the pipe open


# More than what a pipe holds at once, and than what a look at the beginning takes.
RUN = "".join(f"q{i} Q0 d{j} {j} {9 - j} mine\n" for i in range(5000) for j in range(3))
CONTENTS = {
    read_run: RUN,
    read_query_set: "".join(
        f'{{"id": "{i}", "input": "x", "output": [{{"answer": "a"}}]}}\n' for i in range(4000)
    ),
    read_user_queries: '{"input": "x"}\n' * 9000,
    read_corpus: "".join(f'{{"id": "{i}", "text": "x"}}\n' for i in range(5000)),
    read_qrels: "".join(f"{i} 0 d 1\n" for i in range(9000)),
    read_preferences: '{"query_id": "1", "shown": ["a", "b"], "best": "a"}\n' * 3000,
}


@pytest.mark.parametrize("read", CONTENTS, ids=lambda read: read.__name__)
def test_what_comes_through_a_pipe_is_what_a_file_holds(tmp_path, piped, read):
    (tmp_path / "file").write_text(CONTENTS[read])
    found, expected = read(piped(CONTENTS[read].encode())), read(tmp_path / "file")
    if read is read_run:  # both are named; a file of JSON would be named after its path
        assert found.height == 15_000
    if hasattr(found, "table"):
        found, expected = found.table, expected.table
    assert found.equals(expected) if isinstance(found, pl.DataFrame) else found == expected


def test_a_named_pipe_with_a_suffix_is_read_as_its_name_says(tmp_path):
    run = make_run([("1", "a", 1), ("1", "b", 2)])
    write_run(run, tmp_path / "r.parquet")
    os.mkfifo(tmp_path / "pipe.parquet")
    content = (tmp_path / "r.parquet").read_bytes()
    feed = threading.Thread(target=(tmp_path / "pipe.parquet").write_bytes, args=(content,))
    feed.start()
    assert read_run(tmp_path / "pipe.parquet").equals(run)
    feed.join()


def test_options_may_come_through_a_pipe(tmp_path, piped, capsys):
    for name in ("one", "two"):
        (tmp_path / name).write_text(f"1 Q0 a 1 2 {name}\n1 Q0 b 2 1 {name}\n")
    given = ["--run", tmp_path / "one", "--run", piped((tmp_path / "two").read_bytes())]
    more = ["--out", tmp_path / "out.trec", "--config", piped(b"k: 1\nname: both\n")]
    assert erag("fuse", *given, *more) == 0
    assert capsys.readouterr().out.startswith("1 result for 1 query")
    assert (tmp_path / "out.trec").read_text().endswith(" both\n")


def test_a_pipe_can_be_sought_in_by_several_readers_at_once(piped):
    path = piped(b"abcdef")
    one, other = open_binary(path), open_binary(path)
    assert one.read(2) == b"ab"
    assert (other.seek(-2, os.SEEK_END), other.read()) == (4, b"ef")
    assert (one.read(1), one.seek(1), one.read(2), one.tell()) == (b"c", 1, b"bc", 3)
    locations.forget_pipes()
    assert other.read() == b""


def test_a_pipe_without_an_end_is_refused(piped, monkeypatch):
    monkeypatch.setattr(locations, "LARGEST_PIPE", 1 << 16)
    with refused("files.size", text=False):
        read_run(piped(RUN.encode()))


def test_devices_are_refused_and_nothing_is_an_empty_file():
    with refused("files.device"):
        read_run("/dev/zero")
    with refused("runs.empty"):
        read_run(os.devnull)


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
        ("memory://none.jsonl", "files.missing"),
        ("nowhere://x/c.jsonl", "files.missing"),
    ):
        with refused(words) as caught:
            read_corpus(address)
        assert caught.value.path == address
    memory.pipe("/c.jsonl.gz", gzip.compress(JSONL * 50)[:-9])
    with refused("files.unreadable"):
        read_corpus("memory://c.jsonl.gz")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ImportError("Install s3fs to access S3"), "files.driver"),
        (TimeoutError("no answer"), "files.missing"),
    ],
)
def test_a_missing_driver_or_network_is_named(monkeypatch, error, words):
    def fails(address):
        raise error

    monkeypatch.setattr(fsspec.core, "url_to_fs", fails)
    with refused(words):
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
        with refused("files.remote"):
            require_output(address, directory=False)


def test_files_of_a_directory_keep_what_opens_them(memory):
    memory.pipe("/user:secret@bucket/a", b"a")
    (file,) = list_files("memory://user:secret@bucket/")
    assert file == "memory://user:secret@bucket/a"
    assert list(read_lines(file, "lines")) == [(1, "a")]
