"""Commands whose standard output or error is closed, full or not of UTF-8, without docstrings, and with small files."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.expected import as_expected

ERAG = [sys.executable, "-m", "jobs.cli"]
NAMES = ("Café ☕.trec", "other.trec")
FUSE = ("fuse", "--out", "fused ☕.trec", "--run", *NAMES)
DOORS = {
    "prints": ("--version",),
    "helps": ("evaluate", "--help"),
    "writes": FUSE,
    "refuses": ("fuse", "--run", "☕.trec"),
}


@pytest.fixture
def run(tmp_path):
    """Runs a command in a folder with two runs, in a shell that redirects its output."""
    for name in NAMES:
        (tmp_path / name).write_text(f"q1 Q0 d1 1 0.5 {name.split()[0]}\n", encoding="utf-8")

    def done(arguments, redirected="", files=-1, **environment):
        command = f'exec "$@" {redirected}'
        own = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])} | environment
        own.pop("PYTHONUNBUFFERED", None)  # else a print of the command fails, not the end of it
        limit = resource.RLIM_INFINITY if files < 0 else files
        return subprocess.run(
            ["/bin/sh", "-c", command, "sh", *ERAG, *arguments],
            cwd=tmp_path,
            env=own,
            capture_output=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        )

    return done


def told(done):
    """The lines on standard error, all of which are the engine's own."""
    lines = done.stderr.decode("utf-8", "replace").splitlines()
    assert all(line.startswith("erag: ") for line in lines), lines
    return lines


# A full buffer is written at once, and one that is not at the end: each has its line.
@pytest.mark.parametrize("redirected", [">&-", "<&- >&-", ">/dev/full"])
def test_output_that_cannot_be_printed_is_one_line_and_status_1(run, tmp_path, redirected):
    for door in ("prints", "helps", "writes"):
        done = run(DOORS[door], redirected)
        assert (done.returncode, len(told(done))) == (1, 1)
        as_expected(told(done)[0])
    # What was to be written is.
    assert (tmp_path / "fused ☕.trec").read_text(encoding="utf-8").startswith("q1 Q0 d1 1 ")
    done = run(DOORS["refuses"], redirected)
    assert (done.returncode, len(told(done))) == (2, 1)


@pytest.mark.parametrize("redirected", ["2>&-", "2>/dev/full", ">&- 2>&-"])
def test_where_nobody_can_be_told_the_status_stays(run, redirected):
    done = run(DOORS["refuses"], redirected)
    assert (done.returncode, done.stdout, done.stderr) == (2, b"", b"")


@pytest.mark.parametrize(
    "environment",
    [{"PYTHONIOENCODING": "ascii"}, {"PYTHONIOENCODING": "latin-1"}, {"PYTHONOPTIMIZE": "2"}],
)
def test_every_terminal_can_be_printed_to(run, environment):
    for door, arguments in DOORS.items():
        done = run(arguments, **environment)
        assert done.returncode == (2 if door == "refuses" else 0), done.stderr
        assert len(told(done)) == (door == "refuses")
        if door == "helps":
            assert b"Questions with answers" in b" ".join(done.stdout.split())


def test_a_limit_on_the_size_of_files_is_named(run, tmp_path):
    for name in NAMES:
        rows = [f"q{i} Q0 d{i} 1 0.5 {name.split()[0]}\n" for i in range(500)]
        (tmp_path / name).write_text("".join(rows), encoding="utf-8")
    done = run(FUSE, files=4096)
    (line,) = told(done)
    assert done.returncode == 1
    as_expected(line)
    assert not (tmp_path / "fused ☕.trec").exists()
