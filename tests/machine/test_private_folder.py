"""Folders that only their user may enter, gone with their process."""

import os
import signal
import stat
import subprocess
import sys
import tempfile

import pytest

from engine.machine.private_folder import make_folder
from engine.messages.errors import InputError

CHILD = """
import sys, time
from engine.machine.private_folder import make_folder
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
    with pytest.raises(InputError, match="too long a path for temporary files"):
        make_folder("erag-own-", longest=20, parent=str(long))
