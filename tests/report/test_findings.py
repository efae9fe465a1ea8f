"""What an evaluation found, in memory and read back from its folder."""

import json
import math
import shutil
from pathlib import Path

import polars as pl
import pytest
from rich.console import Console
from scipy import stats

from engine.report.findings import Findings, read_findings
from engine.report.printed import answer_parts, full_parts
from engine.report.results import write_results
from engine.statistics.runs import mean_interval
from tests.expected import refused
from tests.report.made import as_earlier
from tests.report.test_printed import GOOD, POOR, evaluated


def test_intervals_of_proportions_are_scipys_exact_ones():
    values = pl.Series([1.0] * 13 + [0.0] * 27)
    found = mean_interval(values, 0.95)
    expected = stats.binomtest(13, 40).proportion_ci(0.95, method="exact")
    assert found.value == pytest.approx(13 / 40)
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize("shape", [(0.3, 0.3), (0.5, 2.0), (5.0, 0.4)])
def test_intervals_of_scores_between_hold_at_least_as_often_as_said(shape):
    # Scores of a beta distribution; the skewed ones are where intervals by resampling fail.
    samples = stats.beta(*shape).rvs((80, 12), random_state=1)
    held = [
        found.low <= stats.beta(*shape).mean() <= found.high
        for sample in samples
        for found in [mean_interval(pl.Series(sample), 0.95)]
    ]
    assert sum(held) >= 0.95 * 80


def test_scores_beyond_one_have_no_interval():
    found = mean_interval(pl.Series([-0.2, 0.5]), 0.95)
    assert found.value == pytest.approx(0.15)
    assert math.isnan(found.low)
    assert math.isnan(found.high)


def test_the_best_run_comes_first(folder):
    findings = read_findings(folder, None)
    assert findings.runs == ["good", "poor <&>"]
    assert findings.best_run == "good"
    assert findings.primary_measures == findings.summary["primary_measures"]
    assert list(findings.primary_measures) == ["erag", "containment"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "results.unreadable"),
        ("{", "results.json"),
        ('{"clusters": 1}', "results.summary"),
    ],
)
def test_folders_without_an_evaluation_are_refused(tmp_path, content, problem):
    if content is not None:
        (tmp_path / "summary.json").write_text(content)
    with refused(problem):
        read_findings(tmp_path, None)


def test_tables_of_an_earlier_version_are_refused_by_name(tmp_path, folder):
    copy = tmp_path / "out"
    shutil.copytree(folder, copy)
    pl.read_parquet(folder / "traces.parquet").drop("confidence").write_parquet(
        copy / "traces.parquet"
    )
    summary = as_earlier(json.loads((copy / "summary.json").read_text()))
    (copy / "summary.json").write_text(json.dumps(summary))
    with refused("results.version"):
        _ = read_findings(copy, None).traces


def test_what_is_printed_at_the_end_is_printed_of_the_files_too(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "engine.report.page.remake.make_page", lambda *_, **__: None
    )  # takes seconds
    options = {"annotators": ("erag", "dual"), "measures": "P@1 Success@2", "resamples": 100}
    runs, store = pl.concat([GOOD, POOR]), tmp_path / "store"
    result = evaluated(store, runs, end_to_end_k=None, relevant="pool", **options)
    ended = write_results(result, {}, tmp_path / "out")
    earlier = read_findings(tmp_path / "out", None)
    for parts in (answer_parts, full_parts):
        texts = [shown(parts(found, "out")) for found in (ended, earlier)]
        assert "Choose sys." in texts[0]
        assert texts[0] == texts[1]
    shutil.rmtree(tmp_path / "out")
    assert shown(full_parts(ended, "out")) == texts[0]  # of what is in memory


def shown(parts):
    console = Console(width=200)
    with console.capture() as captured:
        console.print(*parts, markup=False, highlight=False)
    return captured.get()


def found(**summary):
    known = {"annotators": ["erag"], "own_annotators": ["mine"]}
    content = {"configuration": known, "means": [], "end_to_end": [], "verdict": None} | summary
    return Findings(content, Path(), None)


def test_annotators_are_in_the_order_in_which_they_were_asked_for():
    means = [{"annotator": name, "run": "a"} for name in ("mine", "erag", "mine")]
    assert found(means=means).annotators == ["mine", "erag"]
    assert found(means=means[1:2]).annotators == ["erag", "mine"]


def test_runs_are_in_the_order_of_their_scores_and_the_first_is_best_unless_decided():
    rows = [{"run": run, "value": value} for run, value in (("a", 0.0), ("b", -0.1), ("c", 0.2))]
    open_ = found(end_to_end=rows)
    assert (open_.runs, open_.best_run) == (["c", "a", "b"], "c")
    decided = found(end_to_end=rows, verdict={"best": "a", "means": {"a": 0.0, "b": -0.1}})
    assert (decided.runs, decided.best_run) == (["c", "a", "b"], "a")


def test_of_runs_with_equal_scores_the_one_to_choose_comes_first():
    rows = [{"run": run, "value": 0.5} for run in ("a", "b")]
    tied = found(end_to_end=rows, verdict={"best": "b", "means": {"a": 0.5, "b": 0.5}})
    assert tied.runs == ["b", "a"]
    # Of runs that were read on other queries, the verdict knows the order.
    known = {"annotators": [], "own_annotators": [], "until": "verdict"}
    ahead = {"best": "b", "means": {"b": 0.5, "a": 0.6}}
    assert found(configuration=known, end_to_end=rows, verdict=ahead).runs == ["b", "a"]
