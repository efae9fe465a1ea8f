"""Files are written whole or not at all; whose process is gone is removed, whose process lives stays."""

import errno
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time

import pytest

from engine.messages.errors import InputError
from engine.sources.io import files
from engine.sources.io.files import (
    atomic_path,
    held_folder,
    make_folder,
    no_room,
    remove_abandoned,
    temporary_directory,
    temporary_file,
    write_text,
)
from engine.sources.io.folders import require_output
from tests.expected import refused


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "deep" / "f.txt"
    write_text("old", path)
    with pytest.raises(RuntimeError), atomic_path(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert [p.name for p in path.parent.iterdir()] == ["f.txt"]
    write_text("new", path)
    assert path.read_text() == "new"


def test_outputs_are_checked_in_advance(tmp_path):
    (tmp_path / "file").write_text("x")
    require_output(tmp_path / "new" / "deep", directory=True)
    require_output(tmp_path / "file", directory=False)
    require_output(tmp_path, directory=True)
    for path, directory in (
        (tmp_path / "file", True),
        (tmp_path / "file" / "below", True),
        (tmp_path, False),
        (tmp_path / "file" / "out.parquet", False),
    ):
        with pytest.raises(InputError):
            require_output(path, directory=directory)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_a_full_disk_is_found_among_causes_that_go_in_a_circle():
    outer, inner = RuntimeError("outer"), RuntimeError("inner")
    outer.__cause__, inner.__cause__ = inner, outer
    assert not no_room(outer)
    inner.args = (os.strerror(errno.ENOSPC),)
    assert no_room(outer)


HOLD = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from engine.sources.io.files import temporary_directory, temporary_file
target = Path(sys.argv[1])
with temporary_directory(target / "folder") as folder, temporary_file(target / "file.txt") as file:
    (folder / "part").write_text("half")
    file.write_text("half")
    print("held", flush=True)
    time.sleep(600)
"""


def names(directory):
    return sorted(path.name for path in directory.iterdir())


def test_what_a_killed_process_left_is_removed_and_what_a_living_one_holds_is_not(tmp_path):
    holding = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path), os.getcwd()], stdout=subprocess.PIPE
    )
    try:
        assert holding.stdout.readline() == b"held\n"
        held = names(tmp_path)
        assert len(held) == 2
        remove_abandoned(tmp_path)
        assert names(tmp_path) == held
    finally:
        holding.kill()
        holding.wait()
        holding.stdout.close()
    (tmp_path / ".mine.tmp").write_text("a user's")
    files._remove_abandoned_once.cache_clear()
    write_text("new", tmp_path / "other.txt")  # whoever writes there next clears up
    assert names(tmp_path) == [".mine.tmp", "other.txt"]


DAY = 24 * 3600
AGED = [("file", DAY - 60, True), ("file", DAY + 60, False), ("folder", DAY + 60, False), ("within", DAY + 60, True)]  # fmt: skip


@pytest.mark.parametrize("named", ["another", "none"])
@pytest.mark.parametrize(("kind", "age", "stays"), AGED)
def test_what_another_machine_may_be_writing_stays_for_a_day(
    kind, age, stays, named, tmp_path, monkeypatch
):
    """Its locks are not seen here, as with NFS's ``local_lock``; older engines named no machine."""
    with monkeypatch.context() as there:
        there.setattr(socket, "gethostname", lambda: "another")
        files._machine.cache_clear()
        make = temporary_file if kind == "file" else temporary_directory
        with make(tmp_path / "a.txt") as path:
            name = path.name if named == "another" else f".a.{'0' * 32}.erag"
    files._machine.cache_clear()
    left = tmp_path / name
    left.touch() if kind == "file" else left.mkdir()
    when = time.time() - age
    if kind == "within":  # a folder is not changed by what is written into its files
        (left / "part").touch()
    os.utime(left, (when, when))
    remove_abandoned(tmp_path)
    assert left.exists() == stays


def test_names_of_any_length_have_a_temporary_one(tmp_path):
    long = "ㄱ" * 80 + ".txt"  # 244 bytes
    write_text("x", tmp_path / long)
    assert names(tmp_path) == [long]


def test_nothing_is_left_where_the_block_fails(tmp_path):
    for make in (temporary_file, temporary_directory):
        try:
            with make(tmp_path / "a.txt"):
                raise FileNotFoundError
        except FileNotFoundError:
            pass
    assert names(tmp_path) == []


def test_a_folder_is_held_by_one_and_removed_where_nothing_was_written(tmp_path):
    out = tmp_path / "a" / "out"
    with held_folder(out) as first:
        with held_folder(out) as second:
            assert (first, second) == (True, False)
        assert out.is_dir()  # the second had not made it
    assert not out.exists()
    with held_folder(out) as again:
        assert again
        (out / "summary.json").write_text("{}")
    with held_folder(out) as again:
        assert again
    assert names(out) == ["summary.json"]


CHILD = """
import sys, time
from engine.sources.io.files import make_folder
folder = make_folder("erag-own-", longest=4000, parent=sys.argv[1])
(folder.path / "r").mkdir()
(folder.path / "r" / "log").write_text("what was done")
print(folder.path, flush=True)
time.sleep(600)
"""


def test_a_folder_is_private_and_is_removed(tmp_path):
    folder = make_folder("erag-own-", longest=4000, parent=str(tmp_path))
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    (folder.path / "sub").mkdir()
    folder.remove()
    assert not folder.path.exists()
    folder.remove()


def test_what_a_killed_process_left_is_removed_at_the_next_start_and_no_earlier(tmp_path):
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        left = child.stdout.readline().strip()
        other = make_folder("erag-own-", longest=4000, parent=str(tmp_path))
        assert os.path.isdir(left)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        assert os.path.isdir(left)
        make_folder("erag-own-", longest=4000, parent=str(tmp_path)).remove()
        assert not os.path.exists(left)
        assert other.path.is_dir()  # this process still has it
        other.remove()
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


def test_folders_whose_names_only_begin_alike_are_left_alone(tmp_path):
    """The cache of this very session was taken for one that a killed process had left."""
    others = [tmp_path / name for name in ("erag-own-cache-2yfer9v7", "erag-own-", "erag-own-kept")]
    for other in others:
        other.mkdir()
    abandoned = tmp_path / "erag-own-2yfer9v7"
    abandoned.mkdir()
    make_folder("erag-own-", longest=4000, parent=str(tmp_path)).remove()
    assert all(other.is_dir() for other in others)
    assert not abandoned.exists()


def test_a_path_too_long_for_sockets_is_avoided_or_refused(tmp_path, monkeypatch):
    long = tmp_path / ("x" * 60)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    for parent in (None, str(long)):
        folder = make_folder("erag-own-", longest=37, parent=parent)
        assert folder.path.parent.as_posix() == "/tmp"
        folder.remove()
    with refused("files.path"):
        make_folder("erag-own-", longest=20, parent=str(long))
