"""Ctrl-C and SIGTERM: one line that says what is kept, the right status, and no process left."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest

from engine.retrieval import lucene
from jobs._signals import children
from tests.expected import as_expected
from tests.faults.test_kills import is_alive

# Background jobs of a shell, of which the tests may be one, ignore Ctrl-C.
HEEDED = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
"""
# A command that reads with a reader that takes its time.
READING = """
import sys, time
from pathlib import Path
from cyclopts import App
from jobs._command import run_app
from jobs._signals import keeps
from tests.faults import driver

app = App(name="read")
driver.SECONDS_PER_READ = 0.2

@app.default
def read(store: Path, ray: bool = False):
    keeps(f"finished reads are kept in {store}")
    if ray:
        from engine.machine import cluster
        cluster.start_ray()
    print("reading", flush=True)
    driver.get(store, str(store) + ".log", count=400, ray=ray)

run_app(app, sys.argv[1:])
"""
# Native code that does not come back, below which a process runs.
STUCK = """
import signal, subprocess, sys, threading, time
from cyclopts import App
from jobs import _signals
from jobs._command import run_app

app = App(name="stuck")
_signals._PATIENCE = 0.5

@app.default
def stuck():
    below = subprocess.Popen(["sleep", "600"])
    print("reading", flush=True)
    while True:
        try:
            time.sleep(600)
        except KeyboardInterrupt:
            pass

run_app(app, [])
"""
# A command that writes a file.
WRITING = """
import sys, time
from pathlib import Path
from cyclopts import App
from engine.sources.io import files
from jobs._command import run_app

app = App(name="write")

def flush(path):
    print("reading", flush=True)
    time.sleep(600)

files.flush = flush

@app.default
def write(out: Path):
    files.write_text("new", out)

run_app(app, sys.argv[1:])
"""


# A command that is interrupted while a module of it is imported.
EARLY = """
import os, runpy, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[2]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
module, sys.argv[0] = sys.argv[1], "-m"  # as python -m has it while it looks for the module
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


def stopped(script, number, *arguments, group=False, after=0.5):
    """Start a command, signal it while it works; its status, what it said, and the seconds it took."""
    process = subprocess.Popen(
        [sys.executable, "-c", HEEDED + script, *map(str, arguments)],
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "reading\n", process.stderr.read()
    time.sleep(after)
    below = children(process.pid)
    start = time.monotonic()
    # To the group as a terminal does, and twice as timeout does: to the command, and to its group.
    for _ in range(2 if number == signal.SIGTERM else 1):
        (os.killpg if group else os.kill)(process.pid, number)
    said = process.communicate(timeout=60)[1]
    took = time.monotonic() - start
    deadline = time.monotonic() + 10
    while any(map(is_alive, below)) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not [one for one in below if is_alive(one)]
    return process.returncode, said, took, below


@pytest.mark.parametrize(
    ("module", "imported"),
    [("erag_engine", "erag_engine.own"), ("jobs.cli", "jobs._command"), ("jobs.cli", "pyarrow")],
)
def test_an_interruption_of_the_first_imports_is_one_line(module, imported):
    command = [sys.executable, "-c", HEEDED + EARLY, module, imported]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 130
    assert re.fullmatch("erag: interrupted; .*\n", done.stderr)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_reading_in_this_process_stops_and_goes_on(tmp_path, number, status):
    store = tmp_path / "store"
    code, said, _, _ = stopped(READING, number, store)
    assert code == status
    as_expected(said)


def test_a_command_that_writes_leaves_the_old_file(tmp_path):
    (tmp_path / "out").write_text("old")
    code, said, _, _ = stopped(WRITING, signal.SIGTERM, tmp_path / "out")
    assert code == 143
    as_expected(said)
    assert [p.read_text() for p in tmp_path.iterdir()] == ["old"]


def test_a_command_that_does_not_end_is_ended_with_its_children():
    code, said, _, below = stopped(STUCK, signal.SIGINT)
    assert code == 130
    as_expected(said)
    assert below


@pytest.mark.parametrize("moment", ["feeding", "waiting"])
def test_lucene_does_not_outlive_a_search_or_a_build(monkeypatch, moment):
    started = []

    class Process(subprocess.Popen):
        def __init__(self, command, **streams):
            super().__init__(["sleep", "600"], **streams)
            started.append(self)

        def wait(self, *arguments):
            if moment == "waiting" and not started[1:]:
                started.append("interrupted")
                raise KeyboardInterrupt
            return super().wait(*arguments)

    def feed(stream):
        if moment == "feeding":
            raise KeyboardInterrupt

    monkeypatch.setattr(lucene.subprocess, "Popen", Process)
    with pytest.raises(KeyboardInterrupt):
        lucene._run("search", feed)
    assert started[0].returncode == -signal.SIGKILL


@pytest.mark.faults
@pytest.mark.parametrize("group", [False, True])
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_reading_on_ray_stops_within_seconds(tmp_path, number, status, group):
    code, said, took, below = stopped(
        READING, number, tmp_path / "store", "--ray", group=group, after=15
    )
    assert below
    assert took < 10
    # Ray's own processes got it too, and Ray ends a driver whose node has gone; the line came before.
    assert code == status or (group and number == signal.SIGTERM and code == 1)
    assert said.count("\n") == 1, said
