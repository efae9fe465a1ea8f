"""Results replace earlier ones together: whatever happens, the old ones are there or the new ones."""

import os
import subprocess
import sys

import pytest

from engine.sources.io import replacing, temporary
from engine.sources.io.replacing import replaced_together

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
    with replaced_together(
        directory, lambda: [directory / name for name in OLD], last="summary.json"
    ) as work:
        write(work, NEW)


@pytest.fixture
def place(tmp_path):
    write(tmp_path / "out", OLD | OWN)
    return tmp_path / "out"


def test_new_files_replace_the_old_and_no_others(place):
    replace(place)
    assert content(place) == NEW | OWN
    assert not [path for path in place.iterdir() if path.name.startswith(".")]


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

        monkeypatch.setattr(replacing.os, "replace", fail)
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
from engine.sources.io import replacing
from tests.sources.io.test_replacing import replace
rename, done = os.replace, []
def kill(source, target):
    done.append(source)
    if len(done) == int(sys.argv[3]):
        os._exit(9)
    rename(source, target)
replacing.os.replace = kill
replace(Path(sys.argv[2]))
"""


@pytest.mark.parametrize("rename", [2, 6])
def test_a_kill_between_renames_leaves_no_summary_and_nothing_mixed(place, rename):
    status = subprocess.run([sys.executable, "-c", KILLED, os.getcwd(), str(place), str(rename)])
    assert status.returncode == 9
    left = content(place)
    assert "summary.json" not in left
    assert left.items() <= (OLD | OWN).items() or left.items() <= (NEW | OWN).items()
    temporary._remove_abandoned_once.cache_clear()
    replace(place)
    assert content(place) == NEW | OWN
    assert not [path for path in place.iterdir() if path.name.startswith(".")]
