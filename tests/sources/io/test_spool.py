"""Pipes: read once, and given again from the beginning."""

import contextlib
import os
import threading

import polars as pl
import pytest

from engine.messages.errors import InputError
from engine.sources.io import spool
from engine.sources.io.locations import open_binary
from engine.sources.passages.read import read_corpus
from engine.sources.queries.read import read_query_set
from engine.sources.queries.users import read_user_queries
from engine.sources.runs.preferences import read_preferences
from engine.sources.runs.qrels import read_qrels
from engine.sources.runs.read import read_run, write_run
from tests.commands import erag
from tests.conftest import make_run


@pytest.fixture(autouse=True)
def forgetting():
    yield
    spool.forget_pipes()


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
        threads.append(threading.Thread(target=feed))
        threads[-1].start()
        return f"/proc/self/fd/{end}"

    yield path
    spool.forget_pipes()
    for end in ends:
        os.close(end)
    for thread in threads:
        thread.join()


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
    spool.forget_pipes()
    assert other.read() == b""


def test_a_pipe_without_an_end_is_refused(piped, monkeypatch):
    monkeypatch.setattr(spool, "LARGEST_PIPE", 1 << 16)
    with pytest.raises(InputError, match="save it as a file"):
        read_run(piped(RUN.encode()))


def test_devices_are_refused_and_nothing_is_an_empty_file():
    with pytest.raises(InputError, match="/dev/zero: is a device"):
        read_run("/dev/zero")
    with pytest.raises(InputError, match="the run is empty"):
        read_run(os.devnull)
