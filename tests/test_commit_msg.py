"""The hook that checks messages of commits."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / ".ci" / "commit-msg"


@pytest.mark.parametrize(
    ("message", "faults"),
    [
        ("Fix the mean of an empty list\n", ()),
        ("Bring tests to new words\n\nA body of any length, " + "x" * 100 + ".\n", ()),
        ("Keep é" + "x" * 66, ()),  # 72 characters, not bytes
        ("Merge branch 'a' into " + "x" * 73, ()),
        ("\n# Please enter the message\nFix it\n# On branch main\n\nWhy.\n", ()),
        ("Fix it\n# ------------------------ >8 ------------------------\ndiff --git a b\n", ()),
        ("x" * 73, ["73 characters"]),
        ("Fix the mean.", ["period"]),
        ("Fix the mean\nof an empty list", ["second line is not blank"]),
        ("Fixing the mean", ["begins with 'fixing'"]),
        ("The mean of an empty list is NaN", ["begins with 'the'"]),
        (f"Added {'x' * 80}.\nmore", ["87 characters", "period", "begins with 'added'", "second line"]),
    ],
)  # fmt: skip
def test_every_fault_of_a_message_is_said(message, faults, tmp_path):
    (path := tmp_path / "COMMIT_EDITMSG").write_text(message, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, SCRIPT, path], capture_output=True, text=True, check=False
    )
    assert done.returncode == bool(faults)
    assert all(line.startswith("commit message: ") for line in done.stderr.splitlines())
    assert len(done.stderr.splitlines()) == len(faults)
    assert all(fault in done.stderr for fault in faults)
