"""The hook that checks messages of commits."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent.parent / ".ci" / "commit-msg"


def said(tmp_path, message):
    """Exit status, and what is printed of a message."""
    (path := tmp_path / "COMMIT_EDITMSG").write_text(message, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, SCRIPT, path], capture_output=True, text=True, check=False
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "message",
    [
        "Fix the mean of an empty list\n",
        "Bring tests to the new sentences\n\nAs long a body as one likes, " + "x" * 100 + ".\n",
        "x" * 72,
        "Keep é" + "x" * 66,  # characters, not bytes
        "Merge branch 'a' into b, whose name is rather long, so long that it does not fit into it",
        "\n# Please enter the message\nFix it\n# On branch main\n\nWhy.\n",
        "Fix it\n# ------------------------ >8 ------------------------\ndiff --git a b\n",
    ],
)
def test_messages_of_the_wanted_form_pass(tmp_path, message):
    assert said(tmp_path, message) == (0, "")


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("x" * 73, "73 characters"),
        ("Fix the mean.", "period"),
        ("Fix the mean\nof an empty list", "second line is not blank"),
        ("Fixed the mean", "begins with 'fixed'"),
        ("Fixing the mean", "begins with 'fixing'"),
        ("The mean of an empty list is NaN", "begins with 'the'"),
    ],
)
def test_other_messages_are_refused_with_what_is_wrong(tmp_path, message, fault):
    status, text = said(tmp_path, message)
    assert status == 1
    assert text.startswith("commit message: ")
    assert fault in text
    assert text.count("\n") == 1


def test_every_fault_is_said(tmp_path):
    _, text = said(tmp_path, f"Added {'x' * 80}.\nmore")
    assert text.count("\n") == 4
