"""The heartbeat: how it ends in the file, what is said of it, and that no evaluation ends for it."""

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest

from engine.machine.remote.api_settings import ApiSettings
from engine.messages.errors import InputError, LaterError, ReadError
from engine.report import heartbeat
from engine.report.heartbeat import PROGRESS, Heartbeat, progress_of
from tests.commands import erag
from tests.expected import as_expected

# A signal that the main thread does not heed, as native code may not.
STUCK = """
import sys, time
from cyclopts import App
from engine.machine.remote.api_settings import ApiSettings
from engine.report.heartbeat import Heartbeat
from jobs import _signals
from jobs._command import run_app

app = App(name="stuck")
_signals._PATIENCE = 1.0

@app.default
def stuck(out: str):
    with Heartbeat(out, ApiSettings(), print) as beating:
        beating.begin()
        _signals.keeps("all is kept", beating.interrupt)
        print("reading", flush=True)
        while True:
            try:
                time.sleep(60)
            except KeyboardInterrupt:
                pass

run_app(app, sys.argv[1:])
"""


def written(out):
    return json.loads((out / PROGRESS).read_text())


def beat_until(out, error=None):
    with Heartbeat(out, ApiSettings(), print) as beating:
        beating.begin()
        assert written(out)["state"] == "running"
        if error:
            raise error


@pytest.mark.parametrize(
    ("error", "state", "said", "status"),
    [
        (None, "done", None, 0),
        (ReadError("all failed at\ns3://me:secret@host/x"), "failed", "all failed at s3://***@host/x", 1),
        (LaterError("ask again later"), "interrupted", "ask again later", 1),
        (KeyboardInterrupt(), "interrupted", None, 1),
    ],
)  # fmt: skip
def test_the_end_is_in_the_file_and_in_the_status(tmp_path, capsys, error, state, said, status):
    if error:
        with pytest.raises(type(error)):
            beat_until(tmp_path, error)
    else:
        beat_until(tmp_path)
    assert (written(tmp_path)["state"], written(tmp_path)["last_error"]) == (state, said)
    assert erag("report", "--progress", tmp_path) == status
    printed = capsys.readouterr().out
    assert printed.startswith(f"{state}: 0 of 0 ")
    assert (f"last error: {said}" in printed) == bool(said)
    assert (heartbeat._GO_ON in printed) == (state == "interrupted")


def test_a_signal_is_in_the_file_though_the_process_had_to_be_ended(tmp_path):
    command = [sys.executable, "-c", STUCK, "--out", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "reading\n", process.stderr.read()
    process.terminate()
    assert process.communicate(timeout=60)[1].startswith("erag: terminated")
    assert written(tmp_path)["state"] == "interrupted"


@pytest.mark.parametrize(
    ("age", "beats", "silent"),
    [
        (3, False, None),
        (-3, False, None),
        (50, False, 50),
        (
            -3600,
            False,
            0,
        ),  # a clock that is ahead: nothing is known but that it stood still while it was looked at
        (3600, True, None),
        (-3600, True, None),
    ],
)
def test_silence_is_told_apart_from_another_clock(tmp_path, monkeypatch, age, beats, silent):
    beat_until(tmp_path)
    record = written(tmp_path) | {"state": "running", "every": 0.1 if abs(age) > 9 else 1.0}
    record |= {"calls_done": 7, "calls_expected": 25}

    def write(seconds):
        at = datetime.now(UTC) - timedelta(seconds=seconds)
        (tmp_path / PROGRESS).write_text(json.dumps(record | {"at": at.isoformat()}))

    write(age)
    monkeypatch.setattr(
        heartbeat.time, "sleep", lambda seconds: write(age - 0.1) if beats else None
    )
    lines, is_well = progress_of(tmp_path)
    assert "(28%)" in lines[0]
    told = [line for line in lines if line.startswith("no heartbeat")]
    assert [f" {silent} s; " in line for line in told] == [True] * (silent is not None)
    as_expected(told)
    assert is_well == (silent is None)


@pytest.mark.parametrize("content", [None, "[1]", "{}", "no JSON"])
def test_a_folder_without_a_heartbeat_is_refused(tmp_path, capsys, content):
    if content is not None:
        (tmp_path / PROGRESS).write_text(content)
    assert erag("report", "--progress", tmp_path) == 2
    as_expected(capsys.readouterr().err)


def test_an_evaluation_goes_on_where_the_heartbeat_cannot_be_written(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(heartbeat, "_AT_A_PATH", 0.01)
    (tmp_path / PROGRESS).mkdir()
    with Heartbeat(tmp_path, ApiSettings(), told.append) as beating:
        beating.begin()
        beating._thread.join(0.1)
    (line,) = told
    assert line.startswith("no heartbeat: ")


def test_nothing_is_written_before_the_beginning(tmp_path):
    with pytest.raises(InputError), Heartbeat(tmp_path, ApiSettings(), print) as beating:
        beating.interrupt()
        raise InputError("is taken", "go elsewhere")
    assert not list(tmp_path.iterdir())
