"""An evaluation with an edited run: what is read, and what becomes of the figures."""

import json
from dataclasses import asdict, replace

import polars as pl
import pytest

from engine.evaluation.evaluate import evaluate
from engine.evaluation.perturbed import PerturbedReads
from engine.evaluation.settings import Settings
from engine.reading.executors import NamedExecutor
from engine.report import printed
from engine.report.printed import full_lines
from engine.report.summary import summarize
from engine.sources.runs.edits import Edit, Insert, Swap, apply_edits
from tests.commands import evaluate as evaluate_files
from tests.conftest import ScriptedReader
from tests.tables import RUN, findings_of, inputs, say_last

# q1 lists d4, d1, d2; q2 and q3, of one text, list d2, d3.
EDITS = [
    Edit(1, "q1", None, Swap(1, 2)),  # d1, d4, d2
    Edit(2, "q1", None, Insert("d3", 1)),  # d3, d1, d4 | d2
    Edit(3, "q2", None, Insert("d1", 2)),  # d2, d1, d3
]
SETTINGS = Settings.of(
    k=3,
    end_to_end_k=2,
    resamples=0,
    relevant="list",
    measures="P@3 nDCG@3 AP R@3 Success@1",
    annotators=("erag", "containment"),
)


def with_edits(edits=EDITS, k=3):
    further, edited = apply_edits(RUN, edits, path="edits", query_ids=["q1", "q2", "q3"])
    runs = pl.concat([RUN, further]).filter(pl.col("rank") <= k)
    return replace(inputs(runs), edited=edited)


def test_only_what_the_edits_bring_in_is_read(tmp_path):
    first = ScriptedReader(say_last)
    before = evaluate(inputs(), SETTINGS, store=tmp_path, executor=NamedExecutor("scripted", first))
    assert len(first.asked) == 7  # as in test_evaluation
    fresh = ScriptedReader(say_last)
    after = evaluate(
        with_edits(), SETTINGS, store=tmp_path, executor=NamedExecutor("scripted", fresh)
    )
    # alone: d3 for q1, d1 for q2; lists: (d3, d1) for q1, (d2, d1) for q2
    assert len(fresh.asked) == 4
    costs = after.readings["reader"].costs
    assert (costs.reused, costs.done) == (7, 4)
    assert after.edited == (PerturbedReads("sys-edited", "sys", 3, 2, 8, 2, 3, 2),)
    # The figures of the run itself are what they were.
    for name in ("query_scores", "downstream"):
        now = getattr(after, name).filter(run="sys")
        assert now.equals(getattr(before, name)), name
    assert before.edited == ()
    # P@3 of q1: d1 says Ann, one of three before and after; Success@1 sees d3 first
    values = {(r, m, q): v for r, a, m, q, v in after.query_scores.iter_rows() if a == "erag"}
    assert values["sys-edited", "P@3", "q1"] == values["sys", "P@3", "q1"] == pytest.approx(1 / 3)
    assert values["sys-edited", "AP", "q1"] == values["sys", "AP", "q1"] == 1 / 2
    again = ScriptedReader(say_last)
    evaluate(
        with_edits(EDITS[:1]), SETTINGS, store=tmp_path, executor=NamedExecutor("scripted", again)
    )
    # a swap brings nothing new in but the list (d1, d4)
    assert len(again.asked) == 1


def test_over_the_pool_of_both_measures_without_an_ideal_stay(tmp_path):
    settings = SETTINGS.but(relevant=None, measures="P@3 RR Success@1")
    before = evaluate(inputs(), settings, store=tmp_path, executor=ScriptedReader(say_last))
    after = evaluate(with_edits(), settings, store=tmp_path, executor=ScriptedReader(say_last))
    assert (before.relevant, after.relevant) == ("list", "pool")
    assert after.query_scores.filter(run="sys").equals(before.query_scores)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            SETTINGS,
            "sys-edited: 3 edits in 2 queries; 2 of 8 LLM calls on single passages and 2 of 3 LLM calls on whole lists "
            "are new, the others are those of sys",
        ),
        (
            SETTINGS.but(end_to_end=False),
            "sys-edited: 3 edits in 2 queries; 2 of 8 LLM calls on single passages are new, the "
            "others are those of sys",
        ),
        (
            SETTINGS.but(annotators=("containment",)),
            "sys-edited: 3 edits in 2 queries; 2 of 3 LLM calls on whole lists are new, the others are those of "
            "sys",
        ),
        (
            SETTINGS.but(annotators=("containment",), end_to_end=False),
            "sys-edited: 3 edits in 2 queries",
        ),
    ],
)
def test_what_was_wanted_is_counted_and_said(tmp_path, settings, words):
    found = evaluate(with_edits(), settings, store=tmp_path, executor=ScriptedReader(say_last))
    assert words in full_lines(findings_of(found))
    (written,) = summarize(found, {})["edits"]
    assert (written["run"], written["edits"], written["queries"]) == ("sys-edited", 3, 2)
    assert (written["new_passages"] is None) == ("erag" not in settings.labels.names())
    assert (written["new_lists"] is None) == (not settings.reader.end_to_end)


def test_one_is_no_plural():
    found = PerturbedReads("a-edited", "a", 1, 1, None, None, 9, 1)
    assert printed.edits_line(asdict(found)) == (
        "a-edited: 1 edit in 1 query; 1 of 9 LLM calls on whole lists are new, the others are those of a"
    )


def test_the_command_reads_edits(files, tmp_path, capsys):
    edits = tmp_path / "edits.jsonl"
    edits.write_text(
        '{"query_id": "1", "insert": "b", "rank": 1}\n{"query_id": "2", "delete": "c"}\n'
    )
    more = ["--k", 2, "--no-end-to-end", "--annotators", "containment", "--resamples", 0]
    more += ["--store", tmp_path / "store", "--edits", edits]
    assert evaluate_files(files, *more) == 0
    assert "mine-edited: 2 edits in 2 queries\n" in capsys.readouterr().out
    out = files["out"]
    summary = json.loads((out / "summary.json").read_text())
    assert summary["configuration"]["edits"] == str(edits)
    assert summary["edits"][0]["original"] == "mine"
    assert (out / "exported/runs/mine-edited.trec").read_text().splitlines() == [
        "1 Q0 b 1 3.0 mine-edited",
        "1 Q0 a 2 2.0 mine-edited",
        "2 Q0 b 1 1.0 mine-edited",
    ]
    edits.write_text('{"query_id": "1", "insert": "z", "rank": 1}\n')
    assert evaluate_files(files, *more) == 2
    error = capsys.readouterr().err
    assert f"{edits}:1: document 'z' of query '1' not in the corpus" in error
    assert "insert passages of the corpus" in error


def test_an_edited_run_is_compared_and_is_none_to_choose(tmp_path):
    other = RUN.with_columns(pl.lit("other").alias("run")).filter(pl.col("rank") == 1)
    settings = SETTINGS.but(relevant=None, resamples=200, measures="P@3 Success@1")
    given = with_edits()
    given = replace(given, runs=pl.concat([given.runs, other]))
    result = evaluate(given, settings, store=tmp_path, executor=ScriptedReader(say_last))
    compared = result.statistics.run_pairs
    assert "sys-edited" in set(compared["run"]) | set(compared["run_b"])
    assert set(result.statistics.choice.means) == {"sys", "other"}
    assert all(
        "sys-edited" not in line
        for line in full_lines(findings_of(result))
        if line.startswith("verdict")
    )
    alone = evaluate(with_edits(), settings, store=tmp_path, executor=ScriptedReader(say_last))
    assert alone.statistics.choice is None
