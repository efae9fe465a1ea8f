import json
import subprocess
import sys

import polars as pl
import pytest

from engine.conformance import ranking
from engine.ranking.scores import score_runs
from jobs import cli
from jobs._command import run_app


def conformance(*arguments):
    """Run the command in this process; its exit status."""
    try:
        run_app(cli.app, ["conformance", *(str(a) for a in arguments)])
    except SystemExit as stop:
        return stop.code or 0
    return 0


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A run with a tie and a query named like markup, its qrels, and a KILT and an eRAG file."""
    monkeypatch.setitem(sys.modules, "ranx", None)  # takes seconds to load
    paths = {name: tmp_path / name for name in ("run", "qrels", "gold", "guess", "lists")}
    paths["run"].write_text("q[/b] Q0 a 1 2 s\nq[/b] Q0 b 2 2 s\nq2 Q0 a 1 1 s\n")
    paths["qrels"].write_text("q[/b] 0 a 1\nq2 0 b 1\nq3 0 a 1\n")
    item = {"id": "i1", "input": "x", "output": [{"answer": "y"}]}
    paths["gold"].write_text(json.dumps(item))
    paths["guess"].write_text(json.dumps(item))
    paths["lists"].write_text('{"query": "who?", "labels": [0.5, 1]}')
    return paths


def test_all_references_are_compared_in_one_command(files, capsys):
    options = ["--run", files["run"], "--qrels", files["qrels"], "--measures", "P@1 RR@5 F1@2"]
    options += ["--kilt", files["gold"], files["guess"], "--erag", files["lists"]]
    assert conformance(*options) == 0
    printed = capsys.readouterr().out
    lines = [line.split() for line in printed.splitlines()]
    # One of two queries in both, three in the qrels; b is the first of the tie to trec_eval.
    assert ["P@1", "P_1", "2", "0.0000", "0.0000", "0"] in lines
    assert ["RR@5", "RR@5", "3", "0.3333", "0.1667", "0.5", "q[/b]", "0", "(ties)"] in lines
    assert "ranx: not installed: pip install ranx" in printed
    assert "not compared, since it lacks them: RR@5, F1@2" in printed
    assert "pytrec_eval has no mean of its own" in printed
    assert "P@1 0.0000, RR@5 0.1667, F1@2" not in printed  # F1@2 does not depend on the order
    assert (
        "1 list of s has equal scores, whose order moves means: P@1 0.0000, RR@5 0.1667; in"
        in printed
    )
    for package in ("pytrec-eval-terrier", "ir-measures", "transformers", "rouge", "erag"):
        assert any(line[:1] == [package] for line in lines), package
    assert lines[-1][:2] == ["conforms:", "12"]
    assert "1 of them after applying the reference's declared rule" in printed


def test_a_difference_is_exit_status_1_and_named(files, capsys, monkeypatch):
    def wrong(*args, **kwargs):
        scores = score_runs(*args, **kwargs)
        hit = (pl.col("measure") == "P@1") & (pl.col("query_id") == "q2")
        return scores.with_columns(pl.when(hit).then(0.25).otherwise("value").alias("value"))

    monkeypatch.setattr(ranking, "score_runs", wrong)
    options = ["--run", files["run"], "--qrels", files["qrels"], "--measures", "P@1 AP"]
    assert conformance(*options) == 1
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("differs: 2 of 4 comparisons by more than 1e-12: P@1 and P_1 of pytrec")
    assert "by 0.25 at 'q2'" in last
    assert conformance(*options, "--tolerance", "0.3") == 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "nothing to compare; give --run and --qrels, --kilt or --erag"),
        (["--run", "run"], "--run and --qrels go together"),
        (["--qrels", "qrels"], "--run and --qrels go together"),
        (["--measures", "P@1", "--erag", "lists"], "--measures without --run"),
        (
            ["--run", "run", "--qrels", "qrels", "--measures", "MRX"],
            "unknown measure 'MRX'; did you mean RR?",
        ),
        (["--run", "none", "--qrels", "qrels"], "none: no such file"),
        (["--run", "qrels", "--qrels", "qrels"], "qrels:1: 4 columns, a TREC run has 6"),
        (["--kilt", "gold"], "--kilt"),
        (["--kilt", "guess", "none"], "none: no such file"),
        (["--erag", "run"], "run:1: broken JSON"),
        (["--erag", "lists", "--tolerance", "-1"], "--tolerance is -1"),
        (["--erag", "lists", "--tolerance", "nan"], "--tolerance is nan"),
    ],
)
def test_bad_input_is_one_line_and_status_2(files, capsys, options, words, monkeypatch):
    monkeypatch.chdir(files["run"].parent)
    assert conformance(*options) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert captured.out == ""


def test_no_reference_at_all_is_status_2(files, capsys, monkeypatch):
    for module in ("pytrec_eval", "ir_measures"):
        monkeypatch.setitem(sys.modules, module, None)
    assert conformance("--run", files["run"], "--qrels", files["qrels"]) == 2
    error = capsys.readouterr().err
    assert "no reference implementation of ranking measures is installed; pip install" in error


def test_help_loads_no_reference():
    code = (
        "import sys; from jobs.cli import app; app(['conformance', '--help'], result_action='return_value');"
        "print([m for m in ('torch', 'transformers', 'ranx', 'pytrec_eval', 'ir_measures') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")
    assert "--kilt" in done.stdout
