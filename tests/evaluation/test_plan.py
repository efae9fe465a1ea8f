"""Whole lists that are read of some queries alone: the same of every run, and figures that say so."""

import json
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from engine.evaluation.evaluate import evaluate
from engine.evaluation.settings import Settings
from engine.messages.errors import InputError
from engine.reading.backends import NamedExecutor
from engine.report.printed import answer_parts
from engine.report.results import write_results
from engine.report.verdict import summarize_verdict
from engine.statistics.runs import is_drawn
from tests.adaptive.test_queries import in_order, made, says
from tests.conftest import ScriptedReader
from tests.tables import amount

HALF = {"k": 3, "lists": 0.5, "actors": 0, "dtype": "float32"}


def run(tmp_path, inputs, reader=None, **options):
    executor = NamedExecutor("scripted", reader or ScriptedReader(says))
    settings = Settings.of(**{**HALF, **options})
    return evaluate(inputs, settings, store=tmp_path, executor=executor)


def test_lists_of_the_queries_drawn_are_read_and_stand_for_all(tmp_path):
    inputs = made(queries=120)
    ids = inputs.queries["query_id"]
    drawn = set(ids.filter(is_drawn(ids, 0, 0.5)))
    assert 40 < len(drawn) < 80
    reader, everything = ScriptedReader(says), ScriptedReader(says)
    result = run(tmp_path / "half", inputs, reader)
    full = run(tmp_path / "full", inputs, everything, lists=None)
    for name in ("good", "poor"):
        of_run = result.downstream.filter(run=name)["query_id"]
        assert set(of_run) == drawn
    assert len(everything.asked) - len(reader.asked) == 2 * (120 - len(drawn))
    # All labels are read, and the lists here are right just where a passage is useful.
    assert result.query_scores.equals(full.query_scores)
    good, poor = result.end_to_end.sort("run").rows(named=True)
    assert (good["n"], good["of"]) == (len(drawn), 120)
    assert good["value"] == pytest.approx(full.end_to_end.sort("run")["value"][0], abs=0.02)
    assert good["rho"] > 0.95
    alone = result.downstream.filter(run="good")["value"].mean()
    assert abs(good["value"] - full.end_to_end.sort("run")["value"][0]) < abs(alone - good["value"])
    assert poor["value"] == pytest.approx(0)
    assert good["value_low"] < good["low_these_queries"] < good["high_these_queries"]
    lead = result.statistics.choice.leads[0]
    assert (result.statistics.choice.best, lead.significant) == ("good", True)
    assert lead.difference == pytest.approx(good["value"] - poor["value"], abs=1e-12)
    of_runs = result.statistics.run_pairs["end_to_end_difference"]
    assert of_runs.to_list() == [pytest.approx(lead.difference, abs=1e-12)] * len(of_runs)
    assert 0 < lead.low < lead.difference < lead.high
    assert lead.p < 0.05
    # What the labels prefer is known of all queries.
    assert result.statistics.choice.opinions == full.statistics.choice.opinions


def test_the_answer_and_the_summary_say_how_many_lists_were_read(tmp_path):
    result = run(tmp_path / "reads", made(queries=60))
    n = result.end_to_end["n"][0]
    assert amount(result, "sampled_lists") == n
    said = " ".join(summarize_verdict(result)["sentences"])
    assert f"{n} of 60 queries, with whole lists read" in said
    found = write_results(result, {}, tmp_path / "out")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["end_to_end"] == result.end_to_end.to_dicts()
    # The printed answer and the page have the estimates and not the means of the lists that were read.
    text = "; ".join(part for part in answer_parts(found, "out") if isinstance(part, str))
    assert f"note: {n} lists of each run were read, of 60 queries" in text
    good = found.end_to_end("good")
    row = result.end_to_end.row(by_predicate=pl.col("run") == "good", named=True)
    assert (good.value, good.low, good.n) == (row["value"], row["value_low"], n)


def test_a_number_of_lists_is_read_exactly(tmp_path):
    inputs = made(queries=60)
    few, more = (run(tmp_path / "reads", inputs, lists=number) for number in (1, 23))
    ids = [set(result.downstream["query_id"]) for result in (few, more)]
    assert [len(drawn) for drawn in ids] == [1, 23]
    assert ids[0] < ids[1]
    summary = write_results(more, {}, tmp_path / "out").summary
    assert summary["configuration"]["lists"] == 23
    assert amount(more, "sampled_lists") == 23


def test_a_width_is_reached_with_some_of_the_lists(tmp_path):
    inputs, reader = made(queries=400), ScriptedReader(says)
    result = run(tmp_path / "reads", inputs, reader, lists=None, width=0.1)
    n = amount(result, "width_reached")
    lead = result.statistics.choice.leads[0]
    assert 20 <= n == result.end_to_end["n"][0] < 200
    assert (lead.high - lead.low) / 2 <= 0.1
    # As with so many lists, and only what these need was read: each once.
    fixed = run(tmp_path / "fixed", inputs, fresh := ScriptedReader(says), lists=n)
    assert result.end_to_end.equals(fixed.end_to_end)
    assert result.statistics.choice == fixed.statistics.choice
    assert sorted(reader.asked) == sorted(fresh.asked)
    assert result.readings["reader"].costs.done == fixed.readings["reader"].costs.done
    again = run(tmp_path / "reads", inputs, none := ScriptedReader(says), lists=None, width=0.1)
    assert not none.asked
    assert again.end_to_end.equals(result.end_to_end)
    found = write_results(result, {}, tmp_path / "out")
    text = "; ".join(part for part in answer_parts(found, "out") if isinstance(part, str))
    assert f"note: the interval of every lead reaches {(lead.high - lead.low) / 2:.3f}" in text
    assert (found.configuration["width"], found.configuration["lists"]) == (0.1, None)


def test_a_width_of_one_run_is_that_of_its_mean(tmp_path):
    inputs = made(queries=300)
    alone = replace(inputs, runs=inputs.runs.filter(pl.col("run") == "good"), names=("good",))
    result = run(tmp_path, alone, lists=None, width=0.12, measures="P@3", lazy=True)
    row = result.end_to_end.row(0, named=True)
    assert row["n"] < 200
    assert (row["value_high"] - row["value_low"]) / 2 <= 0.12


@pytest.mark.parametrize("queries", [30, 90])
def test_a_width_out_of_reach_is_the_full_evaluation(tmp_path, queries):
    inputs = made(queries=queries)
    found = run(tmp_path / "width", inputs, lists=None, width=0.02)
    full = run(tmp_path / "full", inputs, lists=None)
    assert amount(found, "width_reached") == queries
    assert found.downstream.equals(full.downstream)
    assert found.end_to_end.equals(full.end_to_end)
    assert summarize_verdict(found) == summarize_verdict(full)


@pytest.mark.parametrize(
    ("lists", "problem"),
    [(0.001, "draws none of 20 queries"), (20, "draws all of 20"), (1e6, "1000000 draws all")],
)
def test_lists_of_no_query_or_of_all_are_refused_before_anything_is_read(tmp_path, lists, problem):
    reader = ScriptedReader(says)
    with pytest.raises(InputError, match=problem):
        run(tmp_path, made(queries=20), reader, lists=lists)
    assert not reader.asked


def test_a_run_without_a_list_that_is_read_has_no_mean(tmp_path):
    inputs = made(queries=60)
    ids = inputs.queries["query_id"]
    drawn = pl.col("query_id").is_in(ids.filter(is_drawn(ids, 0, 0.5)).implode())
    left = replace(inputs, runs=inputs.runs.filter(~(drawn & (pl.col("run") == "poor"))))
    result = run(tmp_path / "reads", left, missing="skip")
    assert result.end_to_end["run"].to_list() == ["good"]
    found = write_results(result, {}, tmp_path / "out")
    assert any("good" in str(part) for part in answer_parts(found, "out"))


def test_few_lists_have_no_interval(tmp_path):
    result = run(tmp_path, made(queries=20))
    assert result.end_to_end["value_low"].is_nan().all()
    assert np.isnan(result.statistics.choice.leads[0].low)
    assert not result.statistics.choice.leads[0].significant


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"end_to_end": False}, "`lists` without whole lists"),
        ({"until": "verdict"}, "`lists` with `until`"),
        ({"cluster": "article"}, "`lists` with `cluster`"),
        ({"resamples": 0}, "`lists` with `resamples`"),
        ({"width": 0.1}, "`lists` with `width`"),
        ({"lists": None, "width": 0.1, "cluster": "article"}, "`width` with `cluster`"),
        ({"lists": None, "width": 1.0}, "`width` is 1"),
        ({"lists": 1.5}, "`lists` is 1.5; use a share below 1, or a whole number"),
    ],
)
def test_what_sampled_lists_cannot_serve_is_refused(options, problem):
    with pytest.raises(InputError, match=problem):
        Settings.of(**{**HALF, **options})


@pytest.mark.parametrize("apart", [True, False])
def test_a_width_waits_until_every_run_has_scores(tmp_path, apart):
    """Runs that share no query have no lead; a run that lists nothing for the first queries has none yet."""
    inputs = made()
    ids = inputs.queries["query_id"].to_list()
    first = set(in_order(ids)[:40])
    of_poor = pl.col("query_id").is_in(ids[:100])
    halves = pl.col("run") == pl.when(of_poor).then(pl.lit("poor")).otherwise(pl.lit("good"))
    late = (pl.col("run") == "good") | ~pl.col("query_id").is_in(first)
    runs = inputs.runs.filter(halves if apart else late)
    result = run(tmp_path, replace(inputs, runs=runs), lists=None, width=0.1, missing="skip")
    assert set(result.downstream["run"]) == {"good", "poor"}
    assert amount(result, "width_reached") == 200 if apart else amount(result, "width_reached") > 40
