"""Results replace earlier ones together: whatever happens, the old ones are there or the new ones."""

import contextlib
import os
import subprocess
import sys

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from engine.messages.errors import WriteError
from engine.sources.io import files, outputs
from engine.sources.io.folders import folder_at
from engine.sources.io.outputs import replaced_together
from tests.expected import as_expected

OLD = {"a.txt": "old a", "b.txt": "old b", "deep/c.txt": "old c", "summary.json": "old"}
NEW = {"a.txt": "new a", "deep/d.txt": "new d", "summary.json": "new"}
OWN = {"notes.txt": "a user's", "deep/own.txt": "a user's"}


def write(directory, files):
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def content(directory):
    return {
        str(path.relative_to(directory)): path.read_text()
        for path in directory.rglob("*")
        if path.is_file() and ".erag" not in str(path)
    }


def replace(directory):
    with replaced_together(directory, lambda: OLD, last="summary.json") as work:
        write(work, NEW)


@pytest.fixture
def place(tmp_path):
    write(tmp_path / "out", OLD | OWN)
    return tmp_path / "out"


def test_an_error_while_writing_leaves_the_old_files(place):
    with pytest.raises(KeyboardInterrupt), replaced_together(place) as work:
        write(work, NEW)
        raise KeyboardInterrupt
    assert content(place) == OLD | OWN


@pytest.mark.parametrize("error", [OSError(5, "Input/output error"), KeyboardInterrupt()])
@pytest.mark.parametrize("after", [False, True])
def test_an_error_in_any_rename_leaves_the_old_files_or_the_new(place, monkeypatch, error, after):
    rename, done = os.replace, []
    for failing in range(1, 20):
        done.clear()

        def fail(source, target, failing=failing):
            done.append(source)
            if len(done) == failing and not after:
                raise error
            rename(source, target)
            if len(done) == failing:
                raise error

        monkeypatch.setattr(outputs.os, "replace", fail)
        try:
            replace(place)
        except (OSError, KeyboardInterrupt):
            assert content(place) == OLD | OWN
        else:
            break
    assert failing == len(OLD) + len(NEW) + 1
    assert content(place) == NEW | OWN


KILLED = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from engine.sources.io import outputs
from tests.sources.io.test_outputs import replace
rename, done = os.replace, []
def kill(source, target):
    done.append(source)
    if len(done) == int(sys.argv[3]):
        os._exit(9)
    rename(source, target)
outputs.os.replace = kill
replace(Path(sys.argv[2]))
"""


@pytest.mark.parametrize("rename", [2, 6])
def test_a_kill_between_renames_leaves_no_summary_and_nothing_mixed(place, rename):
    status = subprocess.run([sys.executable, "-c", KILLED, os.getcwd(), str(place), str(rename)])
    assert status.returncode == 9
    left = content(place)
    assert "summary.json" not in left
    assert left.items() <= (OLD | OWN).items() or left.items() <= (NEW | OWN).items()
    files._remove_abandoned_once.cache_clear()
    replace(place)
    assert content(place) == NEW | OWN
    assert not [path for path in place.iterdir() if path.name.startswith(".")]


@pytest.fixture
def address(tmp_path):
    folder = folder_at(f"memory://{tmp_path.name}/out")
    for name, text in (OLD | OWN).items():
        folder.write(name, text.encode())
    return folder


def content_at(folder, inside=""):
    here = folder / inside if inside else folder
    names = [*here.names(), *(f"deep/{name}" for name in (here / "deep").names())]
    return {name: here.read(name).decode() for name in names}


def replace_at(folder):
    with replaced_together(folder.at, lambda: OLD, last="summary.json") as work:
        write(work, NEW)
        assert content_at(folder) == OLD | OWN
        assert work.stat().st_mode & 0o777 == 0o700
    return work


def test_an_error_before_the_upload_leaves_the_old_files_at_an_address(address):
    with pytest.raises(KeyboardInterrupt), replaced_together(address.at, last="summary.json"):
        raise KeyboardInterrupt
    assert content_at(address) == OLD | OWN


@pytest.mark.parametrize("number", range(7))
def test_a_lost_connection_at_any_step_leaves_no_summary_beside_a_mixture(
    address, monkeypatch, number
):
    """Three deletions (the summary, and what has no successor) and three uploads; the seventh is none."""
    left = [number]

    def failing(method):
        original = getattr(MemoryFileSystem, method)

        def run(self, *arguments, **more):
            if not left[0]:
                raise ConnectionError("lost")
            left[0] -= 1
            return original(self, *arguments, **more)

        monkeypatch.setattr(MemoryFileSystem, method, run)

    failing("rm_file")
    failing("put_file")
    if number == 6:
        assert not replace_at(address).exists()
    else:
        with pytest.raises(WriteError, match="ConnectionError: lost"):
            replace_at(address)
    found = content_at(address)
    assert {name: found[name] for name in OWN} == OWN
    if "summary.json" in found:
        assert found == (NEW if number == 6 else OLD) | OWN
        assert number in (0, 6)


IN_ONE = {"labels.parquet": "all", "summary.json": "in one"}
IN_PARTS = {"labels.parquet/0": "some", "labels.parquet/1": "others", "summary.json": "in parts"}


@pytest.mark.parametrize(("old", "new"), [(IN_ONE, IN_PARTS), (IN_PARTS, IN_ONE)])
@pytest.mark.parametrize("failing", range(1, 7))
def test_a_table_in_one_file_and_in_parts_replace_each_other_or_stay(
    old, new, failing, tmp_path, monkeypatch
):
    """Whichever rename is interrupted; with the sixth, all five are done."""
    write(tmp_path, old)
    rename, renames = os.replace, []

    def interrupted(source, target):
        renames.append(source)
        if len(renames) == failing:
            raise KeyboardInterrupt
        rename(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    with contextlib.suppress(KeyboardInterrupt), replaced_together(tmp_path, lambda: old) as work:
        write(work, new)
    assert content(tmp_path) == (old if failing < 6 else new)


def test_a_users_file_among_the_parts_of_a_table_is_not_replaced(tmp_path):
    write(tmp_path, IN_PARTS | {"labels.parquet/mine": "a user's"})
    with pytest.raises(WriteError) as caught, replaced_together(tmp_path, lambda: IN_PARTS) as work:
        write(work, IN_ONE)
    as_expected(str(caught.value))
    assert content(tmp_path) == IN_PARTS | {"labels.parquet/mine": "a user's"}


def test_a_table_in_parts_becomes_one_file_at_an_address():
    place = "memory://parts/out"
    for new, old in ((IN_PARTS, {}), (IN_ONE, IN_PARTS)):
        with replaced_together(place, lambda old=old: old, last="summary.json") as work:
            write(work, new)
    assert folder_at(place).read("labels.parquet") == b"all"
