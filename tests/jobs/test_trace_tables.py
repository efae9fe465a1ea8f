"""Tables of traces and the credit of steps, from traces on the command line to files, screen and page."""

import json
import re
import sys

import polars as pl
import pytest

from engine.messages.errors import ReadError
from tests.commands import erag
from tests.expected import as_expected

READER = """
from pathlib import Path
CALLS = Path(__file__).with_name("calls")

def read(prompts):
    CALLS.open("a").write("x" * len(prompts))
    return ["yes" if "key" in prompt else "no" for prompt in prompts]

read.version = "1"
"""
# The passages of each step. The reader answers right from a list with a key (k).
ONE = {
    "q1": ["k n", "m"],
    "q2": ["n", "k"],
    "q3": ["k", "k n"],
    "q4": ["n", "m", "k"],
    "q5": ["n"],
    "q6": ["k"],
}
TWO = {query_id: ["n k"] for query_id in ONE}
TEXTS = {"k": "a key", "n": "noise", "m": "more noise"}


def write_traces(path, traces, wrong):
    """Traces whose answer is right but for some questions."""
    lines = []
    for query_id, steps in traces.items():
        for number, docs in enumerate(steps, 1):
            search = {"query_id": query_id, "step": number, "search": f"search {number}"}
            lines.append(search | {"passages": docs.split()})
        lines[-1]["output"] = "no" if query_id in wrong else "yes"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture
def traced(tmp_path, monkeypatch):
    """A command on two runs of traces."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mine.py").write_text(READER)
    (tmp_path / "q.jsonl").write_text(
        "".join(
            json.dumps({"id": q, "question": f"question {q}", "answers": ["yes"]}) + "\n"
            for q in ONE
        )
    )
    corpus = tmp_path / "c.jsonl"
    corpus.write_text(
        "".join(json.dumps({"id": doc, "text": text}) + "\n" for doc, text in TEXTS.items())
    )
    one = write_traces(tmp_path / "one.jsonl", ONE, wrong=["q5", "q6"])
    two = write_traces(tmp_path / "two.jsonl", TWO, wrong=["q1"])
    traces = ["--traces", one, "--traces", two]

    def run(*options, command="evaluate", traces=traces):
        return erag(
            command, "--queries", tmp_path / "q.jsonl", "--corpus", corpus, *traces,
            "--reader", f"{tmp_path / 'mine.py'}:read", "--out", tmp_path / "out",
            "--store", tmp_path / "store", "--k", 3, *options,
        )  # fmt: skip

    return run


def calls(tmp_path):
    return (tmp_path / "calls").stat().st_size


def test_tables_of_traces_stand_beside_the_others_and_on_the_screen(traced, tmp_path, capsys):
    assert traced() == 0
    printed = [line for line in capsys.readouterr().out.splitlines() if "(erag)" in line]
    as_expected("\n".join(printed))
    found = pl.read_parquet(tmp_path / "out" / "trace_questions.parquet")
    first = dict(found.filter(run="one").select("query_id", "first_useful").iter_rows())
    assert first == {"q1": 1, "q2": 2, "q3": 1, "q4": 3, "q5": None, "q6": 1}
    scores = dict(found.filter(run="one").select("query_id", "score").iter_rows())
    assert scores == {"q1": 1.0, "q2": 1.0, "q3": 1.0, "q4": 1.0, "q5": 0.0, "q6": 0.0}
    by_step = pl.read_parquet(tmp_path / "out" / "trace_steps.parquet").filter(
        run="one", query_id="q3"
    )
    assert by_step.select("search", "passages", "new", "label", "RR").rows() == [
        ("search 1", 1, 1, 1.0, 1.0),
        ("search 2", 2, 1, 0.5, 1.0),
    ]
    # Single passages alone: three of q1 and q4, two of the others.
    assert calls(tmp_path) == 14
    assert not (tmp_path / "out" / "trace_credit.parquet").exists()


def test_a_step_has_credit_for_the_answers_that_turn_wrong_without_it(traced, tmp_path, capsys):
    assert traced("--leave-out", "steps", "--resamples", 0) == 0
    out = tmp_path / "out"
    found = pl.read_parquet(out / "trace_credit.parquet").drop("low", "high")
    # Without the first step, q1 and q6 of one have no key; q3 finds it again. Two has but one step.
    assert found.rows() == [
        ("one", 1, 6, 5, 2, pytest.approx(2 / 6)),
        ("one", 2, 4, 4, 1, pytest.approx(1 / 4)),
        ("one", 3, 1, 1, 1, 1.0),
        ("two", 1, 6, 6, 6, 1.0),
    ]
    # Beside the 14 single passages: four lists of one; two that q1 and q4 have left with several passages less the
    # equal one of two, and [n m] of q4; four other lists of two; and each question without a passage.
    assert calls(tmp_path) == 14 + 4 + 4 + 4 + 6
    summary = json.loads((out / "summary.json").read_text())
    as_expected(summary["notes"]["steps_left_out"][0]["text"])
    assert summary["configuration"]["end_to_end"] == "recorded"
    # Again: every read is stored.
    assert traced("--leave-out", "steps") == 0
    assert calls(tmp_path) == 32


def test_a_plan_counts_the_lists_without_steps(traced, tmp_path, capsys):
    assert traced("--leave-out", "steps", command="plan") == 0
    planned = capsys.readouterr().out
    assert traced("--leave-out", "steps") == 0
    assert re.search(r"all +\d+ +\d+ +0 +32\b", planned)
    assert calls(tmp_path) == 32


def test_steps_are_left_out_of_traces_alone(traced, capsys):
    assert traced("--leave-out", "steps", traces=[]) == 2
    as_expected(capsys.readouterr().err)


@pytest.mark.pages
def test_an_evaluation_without_traces_leaves_none_of_their_tables(traced, tmp_path):
    page = tmp_path / "out" / "report.html"
    assert traced("--leave-out", "steps") == 0
    assert "listAlone" in page.read_text()
    run = ["--run", tmp_path / "run.jsonl"]
    run[1].write_text(json.dumps({"query_id": "q1", "results": ["k", "n"]}) + "\n")
    assert traced("--overwrite", traces=run) == 0
    assert not list((tmp_path / "out").glob("trace_*"))
    assert "listAlone" not in page.read_text()


def test_credit_in_shards_is_that_of_the_whole(traced, tmp_path):
    assert traced("--leave-out", "steps") == 0
    whole = pl.read_parquet(tmp_path / "out" / "trace_credit.parquet")
    assert traced("--leave-out", "steps", "--shard-pairs", 4, "--overwrite") == 0
    assert pl.read_parquet(tmp_path / "out" / "trace_credit.parquet").equals(whole)
    assert calls(tmp_path) == 32


def test_reads_stay_stored_where_the_second_evaluation_fails(traced, tmp_path, monkeypatch, capsys):
    def fail(*given):
        raise ReadError("calls failed")

    with monkeypatch.context() as patch:
        patch.setattr("engine.report.traces.evaluate_shards", fail)
        assert traced("--leave-out", "steps") == 1
    assert "calls failed" in capsys.readouterr().err
    assert not (tmp_path / "out" / "summary.json").exists()
    assert calls(tmp_path) == 14
    # The same command goes on.
    assert traced("--leave-out", "steps") == 0
    assert calls(tmp_path) == 32


def test_a_refused_evaluation_leaves_earlier_traces(traced, tmp_path):
    assert traced() == 0
    folder = tmp_path / "out" / "traces"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    other = write_traces(tmp_path / "other.jsonl", TWO, wrong=[])
    assert traced(traces=["--traces", other]) == 2
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    (folder / "run-1-two.parquet").write_bytes(b"of an earlier version")
    assert traced("--overwrite", traces=["--traces", other]) == 0
    names = {path.name for path in folder.iterdir()}
    assert {name[:-17] for name in names} == {"run-other", "steps", "outputs"}
    assert len(names) == 3


def test_failed_calls_leave_their_questions_out_of_the_tables(traced, tmp_path):
    reader = (tmp_path / "mine.py").read_text()
    failing = reader.replace(
        'return ["yes"', 'return [ValueError("no answer") if "question q6" in prompt else "yes"'
    )
    (tmp_path / "mine.py").write_text(failing)
    assert traced("--failed-reads", "skip") == 0
    found = pl.read_parquet(tmp_path / "out" / "trace_questions.parquet")
    assert sorted({*found["query_id"]}) == ["q1", "q2", "q3", "q4", "q5"]
