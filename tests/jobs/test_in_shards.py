"""``erag evaluate`` in shards: the files it leaves, what it prints, and what cannot be done so."""

import json

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from engine.evaluation.sharded import size
from engine.labels.registry import ANNOTATORS
from tests.commands import evaluate as run_evaluate


@pytest.fixture
def evaluate(files, capsys):
    def call(*options, out="out"):
        place = files["out"].parent / out
        usual = ["--no-end-to-end", "--k", "2", "--actors", "0"]
        if "--annotators" not in options:
            usual += ["--annotators", "containment"]
        store = ("--store", files["out"].parent / "store")
        status = run_evaluate({**files, "out": place}, *usual, *store, *options)
        return status, capsys.readouterr(), place

    return call


def figures(place):
    summary = json.loads((place / "summary.json").read_text())
    assert summary.pop("seconds") >= 0
    del summary["audit"], summary["configuration"]["shard_pairs"]
    return summary, summary.pop("shards", None)


def test_shards_leave_the_figures_of_the_whole_and_tables_of_passages_in_parts(evaluate):
    status, printed, place = evaluate("--shard-pairs", "2")
    assert status == 0
    status, of_the_whole, whole = evaluate(out="whole")
    assert status == 0
    (summary, shards), (expected, none) = figures(place), figures(whole)
    assert none is None
    assert summary == expected
    assert [line for line in printed.out.splitlines() if "results ->" not in line] == [
        line for line in of_the_whole.out.splitlines() if "results ->" not in line
    ]
    assert_frame_equal(
        pl.read_parquet(place / "query_scores.parquet").sort("query_id", "measure"),
        pl.read_parquet(whole / "query_scores.parquet").sort("query_id", "measure"),
    )
    parts = sorted((place / shards / "labels").iterdir())
    assert len(parts) > 1
    labels = pl.concat(map(pl.read_parquet, parts))
    assert_frame_equal(
        labels.sort(labels.columns),
        pl.read_parquet(whole / "labels.parquet").sort(labels.columns),
    )
    assert not (place / "labels.parquet").exists()
    assert not (place / shards / "plans").is_dir() or not any((place / shards / "plans").iterdir())


def test_an_evaluation_replaces_the_shards_of_an_earlier_one(evaluate):
    _, _, place = evaluate("--shard-pairs", "2")
    first = figures(place)[1]
    (place / "shards" / "notes.txt").write_text("mine")
    status, printed, place = evaluate("--shard-pairs", "2", "--limit", "1")
    assert status == 2
    assert f"{place}: holds another evaluation (other inputs); give another folder" in printed.err
    assert figures(place)[1] == first
    _, _, place = evaluate("--shard-pairs", "2", "--measures", "RR@2", "--overwrite")
    second = figures(place)[1]
    assert first != second
    assert not (place / first).exists() or not any((place / first).rglob("*.parquet"))
    assert any((place / second).rglob("*.parquet"))
    _, _, place = evaluate("--overwrite")
    assert figures(place)[1] is None
    assert not any((place / second).rglob("*.parquet"))
    assert (place / "shards" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (["--k-sweep", "1,2"], "several readers, augmentations or cutoffs"),
        (["--annotators", "dual"], "the annotator dual, whose figures are of all queries"),
    ],
)
def test_what_cannot_be_done_in_shards_is_refused_where_they_are_asked_for(
    evaluate, options, reason
):
    status, printed, place = evaluate("--shard-pairs", "2", *options)
    assert status == 2
    assert printed.err.strip().endswith(f"--shard-pairs 2 with {reason}; leave one of them out")
    assert not (place / "summary.json").exists()


def test_large_evaluations_are_done_in_shards_unless_something_forbids_it(evaluate, monkeypatch):
    monkeypatch.setattr(size, "LARGE", 4)
    _, _, place = evaluate()
    assert figures(place)[1] is not None
    _, _, place = evaluate("--shard-pairs", "0", out="never")
    assert figures(place)[1] is None
    _, printed, place = evaluate("--k-sweep", "1,2", out="study")
    assert figures(place)[1] is None
    assert "held as a whole in this process's memory, because of several readers" in printed.err


def test_tables_of_all_queries_are_those_of_dual_labels_alone():
    """Whoever adds one that cannot be made in parts says so, and these tests fail until they know it."""
    whole = {
        name
        for name, annotator in ANNOTATORS.items()
        if any(table.of_all_queries for table in annotator.further_tables)
    }
    assert whole == {"dual"}


def test_a_reader_that_is_not_there_is_refused_before_anything_is_cut(evaluate):
    status, printed, place = evaluate(
        "--shard-pairs", "2", "--annotators", "erag", "--reader", "no-such-reader"
    )
    assert status == 2
    (line,) = printed.err.strip().splitlines()
    assert "no-such-reader" in line
    assert not (place / "shards" / "inputs").exists()
