"""``make reader``: what an interruption leaves is gone on from, and every training has its own folder."""

import contextlib
import json
import subprocess
from pathlib import Path

import pytest

from engine.messages.errors import InputError
from jobs.bundled_reader import __main__ as command
from jobs.bundled_reader.make import Size
from tests.jobs.bundled_reader.test_make import ARTICLES


class InterruptedTrainingError(Exception):
    pass


@pytest.fixture
def make(monkeypatch):
    """Makes a reader of few articles in 13 steps; what was told of each phase, until an interruption."""
    monkeypatch.setattr(command, "wikipedia_dump", lambda: None)
    monkeypatch.setattr(command, "read_source", lambda source: ARTICLES)
    monkeypatch.setitem(command.SIZES, "2m", Size(width=128, encoder=3, decoder=1))

    def made(out, *, until=None, hours=0.004, precision="float32"):
        told = []

        @contextlib.contextmanager
        def shown(metric, doing):
            def on_progress(progress, steps):
                told.append((doing, progress.step))
                if told[-1] == until:
                    raise InterruptedTrainingError

            yield on_progress

        monkeypatch.setattr(command, "shown_training", shown)
        given = {"size": "2m", "hours": hours, "precision": precision, "questions": 8}
        with contextlib.suppress(InterruptedTrainingError):
            command.make_reader(out=out, **given)
        return told

    return made


@pytest.mark.slow
def test_an_interrupted_reader_goes_on_where_it_was(make, tmp_path, capsys):
    whole = make(tmp_path / "whole")
    steps = {"spans": 1, "short": 2, "passages": 6, "lists": 2}
    assert whole == [(phase, step) for phase, last in steps.items() for step in range(last + 1)]
    assert make(tmp_path / "out", until=("passages", 3))[-1] == ("passages", 3)
    assert not (tmp_path / "out" / "model").exists()
    # What was done is not done again: no step of the phases before, nor of this one.
    assert make(tmp_path / "out") == whole[whole.index(("passages", 3)) :]
    for name in ("model/model.safetensors", "curve.json", "ability.json", "questions.parquet"):
        one, other = (tmp_path / folder / name for folder in ("whole", "out"))
        assert one.read_bytes() == other.read_bytes(), name
    curve = json.loads((tmp_path / "out" / "curve.json").read_text())
    assert [(one["phase"], one["step"]) for one in curve] == whole[2:]
    assert [one["examples"] for one in curve[-3:]] == [32 * 9, 32 * 9 + 8, 32 * 9 + 16]
    assert "lists: 2 steps in float32" in capsys.readouterr().out
    # Other hours, and another arithmetic, are other trainings.
    for other in ({"hours": 0.008}, {"precision": "bfloat16"}):
        with pytest.raises(InputError, match="another training .*; train in another folder"):
            make(tmp_path / "out", **other)


@pytest.mark.parametrize(
    ("given", "folder"),
    [
        ([], "build/reader"),
        (["HOURS=1"], "build/reader"),
        (["HOURS=4"], "build/reader-4h"),
        (["PRECISION=float32"], "build/reader-float32"),
        (["HOURS=4", "PRECISION=float32"], "build/reader-4h-float32"),
    ],
)
def test_each_training_has_a_folder_of_its_own(given, folder):
    root = Path(__file__).parents[3]
    made = subprocess.run(
        ["make", "--dry-run", "reader", *given],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    (line,) = [one for one in made.stdout.splitlines() if "jobs.bundled_reader" in one]
    words = line.split()
    assert words[words.index("--out") + 1] == folder
    assert ("--precision float32" in line) == ("PRECISION=float32" in given)
