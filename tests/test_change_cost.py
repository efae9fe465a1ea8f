"""Typical changes of the code: each still applies, touches few files, and works."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
CHANGES = sorted(path.stem for path in (ROOT / "tests" / "changes").glob("*.diff"))
DIFF = """An example.
tests: -k nothing

--- a/f.py
+++ b/f.py
@@ -1 +1 @@
-one
+two
--- /dev/null
+++ b/g/h.py
@@
+new
"""


def cost(*words, root=ROOT):
    command = [sys.executable, root / ".ci" / "change-cost", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_all_changes_apply_and_touch_as_many_files_as_is_documented():
    done = cost()
    assert done.returncode == 0, done.stdout + done.stderr
    counted = re.findall(r"^([\w-]+) +(\d+) of (\d+)", done.stdout, re.M)
    section = (ROOT / "CONTRIBUTING.md").read_text().split("## What a change costs")[1]
    assert counted == re.findall(r"^\| ([\w-]+) \| (\d+) \| (\d+) \|$", section, re.M)
    assert sorted(change for change, *_ in counted[:-1]) == CHANGES
    assert counted[-1][2] == "37"


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_each_change_works(change):
    done = cost(change, "--check")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("zero\none\nthree\n", 0, "metric          2 of 5  f.py g/h.py\n"),
        ("zero\nthree\n", 2, "change-cost: metric: f.py has 0 times, not once: one\n"),
        ("one\none\n", 2, "change-cost: metric: f.py has 2 times, not once: one\n"),
        ("none\n", 2, "change-cost: metric: f.py has 0 times, not once: one\n"),
    ],
)
def test_a_change_is_applied_by_its_text_or_refused_in_one_line(tmp_path, text, status, said):
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "change-cost", tmp_path / ".ci")
    (tmp_path / "tests" / "changes").mkdir(parents=True)
    (tmp_path / "tests" / "changes" / "metric.diff").write_text(DIFF)
    (tmp_path / "f.py").write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "-A"], cwd=tmp_path, check=True)
    done = cost("metric", root=tmp_path)
    assert (done.returncode, (done.stdout + done.stderr).startswith(said)) == (status, True)
    assert done.returncode == 0 or done.stdout + done.stderr == said
    assert (tmp_path / "f.py").read_text() == text
