"""``erag evaluate`` in shards: the files it leaves, what it prints, and what cannot be done so."""

import json
import shutil

import polars as pl
import pytest
from polars.testing import assert_frame_equal

from engine.inputs import partition
from tests.commands import evaluate as run_evaluate
from tests.commands import scores_of
from tests.expected import as_expected


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


def exported(place):
    """Each exported file with its rows, in an order of their own; metadata hold digests of files and shards."""
    folder = place / "exported"
    return {
        name: sorted(
            pl.read_parquet(folder / name).rows()
            if name.endswith(".parquet")
            else (folder / name).read_text().splitlines()
        )
        for name in json.loads((folder / "exported.json").read_text())
        if name != "ir_metadata.yaml"
    }


def assert_same_passages(place, whole):
    for name in ("labels", "traces", "reads", "dual_labels"):
        assert (place / f"{name}.parquet").is_dir()
        parts = pl.read_parquet(place / f"{name}.parquet")
        assert_frame_equal(parts, pl.scan_parquet(place / f"{name}.parquet").collect())
        held = pl.read_parquet(whole / f"{name}.parquet")
        assert_frame_equal(parts, held, check_row_order=False)
    assert exported(place) == exported(whole)


def test_shards_leave_the_figures_of_the_whole_and_tables_of_passages_in_parts(evaluate):
    annotators = ("--annotators", "containment,dual")
    status, printed, place = evaluate("--shard-pairs", "2", *annotators)
    assert status == 0
    status, of_the_whole, whole = evaluate(*annotators, out="whole")
    assert status == 0
    (summary, shards), (expected, none) = figures(place), figures(whole)
    assert (shards, none) == (2, None)
    assert summary == expected
    assert [line for line in printed.out.splitlines() if "results ->" not in line] == [
        line for line in of_the_whole.out.splitlines() if "results ->" not in line
    ]
    assert_frame_equal(
        *(scores_of(out).sort("query_id", "annotator", "measure") for out in (place, whole))
    )
    assert_frame_equal(
        pl.read_parquet(place / "dual.parquet"), pl.read_parquet(whole / "dual.parquet")
    )
    assert len(list((place / "labels.parquet").iterdir())) == 2
    assert_same_passages(place, whole)
    assert not list(place.glob("shards/*/plans/*/*"))
    # What is left in the folder of shards is needed to go on alone.
    shutil.rmtree(place / "shards")
    assert_same_passages(place, whole)


def test_an_evaluation_replaces_the_shards_of_an_earlier_one(evaluate):
    def shards():
        names = (path.parent.parent.name for path in place.glob("shards/*/labels/*"))
        return set(names)

    _, _, place = evaluate("--shard-pairs", "2")
    first = shards()
    (place / "shards" / "notes.txt").write_text("mine")
    status, printed, place = evaluate("--shard-pairs", "2", "--limit", "1")
    assert status == 2
    as_expected(printed.err.splitlines()[-1])
    assert shards() == first
    assert figures(place)[1] == 2
    _, _, place = evaluate("--shard-pairs", "2", "--measures", "RR@2", "--overwrite")
    assert len(shards()) == len(first) == 1
    assert shards() != first
    assert (place / "labels.parquet").is_dir()
    _, _, place = evaluate("--overwrite")
    assert figures(place)[1] is None
    assert not shards()
    assert pl.read_parquet(place / "labels.parquet").height == 4
    assert (place / "labels.parquet").is_file()
    _, _, place = evaluate("--shard-pairs", "2", "--overwrite")
    assert (place / "labels.parquet").is_dir()
    assert pl.read_parquet(place / "labels.parquet").height == 4
    assert (place / "shards" / "notes.txt").read_text() == "mine"


def test_large_evaluations_are_cut_into_shards_unless_told_otherwise(evaluate, monkeypatch):
    monkeypatch.setattr(partition, "LARGE", 4)
    _, _, place = evaluate()
    assert figures(place)[1] is not None
    _, _, place = evaluate("--shard-pairs", "0", out="never")
    assert figures(place)[1] is None


def test_a_study_in_shards_has_the_figures_of_one_that_is_held(evaluate, tiny_t5):
    options = ("--reader", tiny_t5, "--k-sweep", "1,2", "--annotators", "erag")
    status, printed, whole = evaluate(*options, out="whole")
    assert status == 0, printed.err
    status, printed, parts = evaluate(*options, "--shard-pairs", "2", out="parts")
    assert status == 0, printed.err
    for place in (".", "conditions"):
        names = {path.name for path in (whole / place).iterdir()}
        shown = {path.name for path in (parts / place).iterdir()}
        assert shown - {"shards"} == names
    for name in ("correlations", "query_scores"):
        expected = pl.read_parquet(whole / f"{name}.parquet")
        found = pl.read_parquet(parts / f"{name}.parquet")
        assert_frame_equal(expected.sort(expected.columns), found.sort(expected.columns))
    (condition,) = (parts / "conditions").iterdir()
    summary = json.loads((condition / "summary.json").read_text())
    assert summary["shards"] == 2
    labels = pl.read_parquet(condition / "labels.parquet")
    held = pl.read_parquet(whole / "conditions" / condition.name / "labels.parquet")
    assert sorted(labels.rows()) == sorted(held.rows())
    assert exported(condition) == exported(whole / "conditions" / condition.name)


def test_a_reader_that_is_not_there_is_refused_before_anything_is_cut(evaluate):
    status, printed, place = evaluate(
        "--shard-pairs", "2", "--annotators", "erag", "--reader", "no-such-reader"
    )
    assert status == 2
    (line,) = printed.err.strip().splitlines()
    assert "no-such-reader" in line
    assert not (place / "shards" / "inputs").exists()
