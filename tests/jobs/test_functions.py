"""Options that name functions of a user's as FILE.py:function."""

import json
import subprocess
import sys

import polars as pl
import pytest

from tests.commands import CONTAINMENT, erag
from tests.expected import as_expected

MINE = """
from pathlib import Path
Path(__file__).with_name("ran").touch()
CALLS = Path(__file__).with_name("calls")

def read(prompts):
    CALLS.open("a").write("x" * len(prompts))
    words = ("Oranjestad", "George Orwell")
    return [next((word for word in words if word in prompt), "none") for prompt in prompts]

read.version = "1"

def unversioned(prompts):
    return read(prompts)

def begins_alike(output, references):
    return float(any(output[:2] == reference[:2] for reference in references))

def too_much(output, references):
    return 2

def broken(*arguments):
    raise KeyError("x")

def titled(query, answers, title, text):
    return float(title in text)

def short(prompts):
    return prompts[1:]
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mine.py").write_text(MINE)
    return lambda name: f"{tmp_path / 'mine.py'}:{name}"


@pytest.fixture
def evaluate(files, tmp_path):
    given = [part for name in ("queries", "corpus", "run") for part in (f"--{name}", files[name])]

    def run(*options, command="evaluate"):
        store = ("--store", tmp_path / "store", "--out", files["out"])
        return erag(
            command, *given, "--k", 2, "--resamples", 0, "--measures", "P@1", *store, *options
        )

    return run


def labels(files):
    frame = pl.read_parquet(files["out"] / "labels.parquet").sort("query_id", "doc_id")
    return {name: of["label"].to_list() for (name,), of in frame.group_by("annotator")}


def test_functions_read_score_and_label(mine, evaluate, files, tmp_path):
    options = ("--reader", mine("read"), "--metric", mine("begins_alike"))
    assert evaluate(*options, "--annotators", f"erag,{mine('titled')}") == 0
    assert labels(files) == {"erag": [1, 0, 1, 0], "titled": [1, 0, 1, 0]}
    summary = json.loads((files["out"] / "summary.json").read_text())
    settings = summary["configuration"]
    assert [settings[key] for key in ("reader", "metric", "own_annotators")] == [
        "read",
        "begins_alike",
        ["titled"],
    ]
    assert summary["reader"]["version"] == "1"
    assert len(summary["reader"]["code_sha256"]) == len(summary["metric_code_sha256"]) == 32
    # Reads are stored under name and version, whatever is computed from them.
    calls = tmp_path / "calls"
    assert len(calls.read_text()) == 6
    assert evaluate("--reader", mine("read"), "--metric", "match", "--overwrite") == 0
    assert len(calls.read_text()) == 6
    assert evaluate("--reader", mine("unversioned"), "--metric", "match", "--overwrite") == 0
    assert len(calls.read_text()) == 12


def test_files_run_only_where_a_function_of_them_is_named(mine, evaluate, tmp_path):
    assert evaluate(*CONTAINMENT) == 0
    assert erag("evaluate", "--help") == 0
    assert not (tmp_path / "ran").exists()


def test_shards_and_plans_take_a_function_as_the_reader(mine, evaluate, files, capsys):
    assert evaluate("--reader", mine("read"), command="plan") == 0
    assert "6" in capsys.readouterr().out
    assert evaluate("--reader", mine("read"), "--shard-pairs", 2, "--actors", 0) == 0
    summary = json.loads((files["out"] / "summary.json").read_text())
    frame = pl.read_parquet(files["out"] / "labels.parquet").sort("query_id", "doc_id")
    assert frame["label"].to_list() == [1, 0, 1, 0]
    assert summary["reader"]["name"] == "read"


def test_readers_of_a_study_may_be_functions(mine, evaluate, files):
    assert evaluate("--reader", mine("read"), mine("unversioned")) == 0
    study = json.loads((files["out"] / "summary.json").read_text())["study"]
    assert [one["reader"] for one in study["conditions"]] == ["read", "unversioned"]


@pytest.mark.parametrize(
    "options",
    [
        ("--metric", "{nope}"),
        ("--annotators", "erag,other.py:f"),
        ("--reader", "{read}", "--metric", "{too_much}"),
        ("--reader", "{read}", "--metric", "{broken}"),
        ("--no-end-to-end", "--annotators", "{broken}"),
        ("--reader", "{short}"),
        ("--reader", "{read}", "--dtype", "float32"),
        ("--reader", "{read}", "--augmentation", "fid"),
        ("--reader", "{read}", "--annotators", "judge"),
    ],
)  # fmt: skip
def test_errors_are_one_line(mine, evaluate, capsys, options):
    filled = [
        mine(o[1:-1]) if o[0] == "{" else o.replace("{broken}", mine("broken")) for o in options
    ]
    assert evaluate(*filled) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith("erag: ")
    line = MINE.splitlines().index('    raise KeyError("x")') + 1
    as_expected(error.replace(f"mine.py:{line})", "mine.py:LINE)"))


def test_a_function_that_always_fails_is_one_line(mine, evaluate, capsys):
    assert evaluate("--reader", mine("broken")) == 1
    error = capsys.readouterr().err.splitlines()[-1]
    as_expected(error)


def test_shards_of_a_function_without_a_version_go_when_the_results_are_there(
    mine, evaluate, files
):
    assert evaluate("--reader", mine("unversioned"), "--shard-pairs", 2, "--actors", 0) == 0
    assert pl.read_parquet(files["out"] / "labels.parquet").height == 4
    assert list(files["out"].glob("shards/inputs/*/*.zip"))
    assert not [path for path in files["out"].glob("shards/[!i]*/**/*") if path.is_file()]


LOUD = """
import os, signal
from pathlib import Path

def loud(prompts):
    print("asking")
    os.write(1, b"past Python\\n")
    os.system("echo by another process")
    if (mark := Path({mark!r})).exists():
        mark.unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return ["Oranjestad" for _ in prompts]
"""


@pytest.mark.parametrize("actors", [0, 1])
def test_standard_output_is_json_alone_whoever_prints(files, tmp_path, actors):
    mark = tmp_path / "to be killed"
    if actors:
        mark.touch()
    (tmp_path / "loud.py").write_text(LOUD.format(mark=str(mark)))
    reader = ("--reader", f"{tmp_path / 'loud.py'}:loud", "--actors", str(actors))
    given = [part for name, place in files.items() for part in (f"--{name}", str(place))]
    command = [sys.executable, "-m", "jobs.evaluate", *given, *reader, "--resamples", "0", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["reading"]
    assert ("worker died" if actors else "by another process") in done.stderr


def test_a_gate_wants_the_code_of_functions_to_be_the_same(mine, evaluate, files, tmp_path, capsys):
    first, same, other = (tmp_path / name for name in ("first", "same", "other"))
    asked = "--reader", mine("unversioned"), "--metric", mine("begins_alike"), "--overwrite"
    changed = MINE.replace("output[:2]", "output[:1]")
    for out, code in ((first, MINE), (same, f"# A comment.\n{MINE}"), (other, changed)):
        (tmp_path / "mine.py").write_text(code)
        assert evaluate(*asked) == 0
        files["out"].rename(out)
    for candidate, differing in ((same, "reader"), (other, "metric,reader")):
        capsys.readouterr()
        gate = ("gate", "--baseline", first, "--candidate", candidate, "--margin", 0.5)
        assert erag(*gate) == 2
        as_expected(capsys.readouterr().err)
        assert erag(*gate, "--allow", differing) == 3  # of so few queries
