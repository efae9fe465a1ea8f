"""Temporary files: whose process is gone is removed, whose process lives stays."""

import os
import socket
import subprocess
import sys
import time

import pytest

from engine.sources.io import temporary
from engine.sources.io.files import write_text
from engine.sources.io.temporary import (
    held_folder,
    remove_abandoned,
    temporary_directory,
    temporary_file,
)

HOLD = """
import sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from engine.sources.io.temporary import temporary_directory, temporary_file
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
    temporary._remove_abandoned_once.cache_clear()
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
        temporary._machine.cache_clear()
        make = temporary_file if kind == "file" else temporary_directory
        with make(tmp_path / "a.txt") as path:
            name = path.name if named == "another" else f".a.{'0' * 32}.erag"
    temporary._machine.cache_clear()
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
