"""What a person reads of an evaluation, on queries made so that the figures are known."""

import math

import polars as pl
import pytest
from rich.console import Console

from engine import tables
from engine.evaluation.evaluate import evaluate
from engine.evaluation.settings import Settings
from engine.inputs.files import EvaluationInputs
from engine.report import printed
from engine.report.printed import full_lines, full_tables
from tests.conftest import ScriptedReader, make_run
from tests.expected import as_expected
from tests.tables import findings_of

# 40 queries with two passages each; the reader answers from the first passage that it is given. The
# first passage of every third query says the answer; its article is the gold one for every other.
N = 40
QUERIES = pl.DataFrame(
    [(f"q{i:02}", f"question {i}", ["Ann"], [f"A{i}" if i % 2 else "none"]) for i in range(N)],
    schema=tables.QUERIES,
    orient="row",
)
CORPUS = pl.DataFrame(
    [(f"d{i}", f"A{i}", "says Ann" if i % 3 == 0 else "says Bo", f"A{i}") for i in range(N)]
    + [(f"e{i}", f"B{i}", "says nothing", f"B{i}") for i in range(N)],
    schema=tables.CORPUS,
    orient="row",
)
GOOD = make_run([(f"q{i:02}", f"{'de'[rank]}{i}", rank + 1) for i in range(N) for rank in (0, 1)])
POOR = make_run(
    [(f"q{i:02}", f"{'ed'[rank]}{i}", rank + 1) for i in range(N) for rank in (0, 1)], "poor"
)


def read_last(prompt):
    """What the passage nearest to the question says."""
    return prompt.rsplit("says ", 1)[-1].split("\n")[0]


def evaluated(tmp_path, runs=GOOD, qrels=None, cut_runs=(), reader=None, **options):
    """An evaluation of these queries."""
    settings = Settings.of(**{"k": 2, "end_to_end_k": 1} | options)
    given = {} if qrels is None else {"qrels": qrels}
    inputs = EvaluationInputs(
        queries=QUERIES, corpus=CORPUS, runs=runs, tables=given, cut_runs=cut_runs
    )
    reader = reader or ScriptedReader(read_last)
    return evaluate(inputs, settings, store=tmp_path, executor=reader)


def shown(tmp_path, runs=GOOD, **options):
    options = {"measures": "P@1", "resamples": 2000} | options
    result = findings_of(evaluated(tmp_path, runs, **options))
    console = Console(width=100, record=True, file=None)
    with console.capture() as captured:
        for table in full_tables(result):
            console.print(table)
    return captured.get(), full_lines(result)


@pytest.mark.parametrize("first", ["erag", "provenance"])
def test_comparisons_are_with_the_first_annotator_named(tmp_path, first):
    second = {"erag": "provenance", "provenance": "erag"}[first]
    text, _ = shown(tmp_path, annotators=(first, second, "containment"))
    title, table = text.split("Kendall's \N{GREEK SMALL LETTER TAU} of ")[1].split("\n", 1)
    assert title.split(",")[0] == first
    compared = [line.split()[0] for line in table.splitlines() if "P@1" in line]
    assert sorted(compared) == sorted({"erag", "provenance", "containment"} - {first})


def test_small_p_values_are_not_printed_as_0(tmp_path):
    text, _ = shown(tmp_path, annotators=("erag", "provenance"), resamples=5000)
    assert "p (Holm, 1 test)" in text
    assert "<0.001" in text
    assert "0.000" not in text


def test_without_resamples_no_interval_is_spoken_of(tmp_path):
    text, _ = shown(tmp_path, annotators=("erag", "provenance"), resamples=0)
    assert "%" not in text
    assert "Holm" not in text


def test_figures_over_fewer_queries_say_over_how_many(tmp_path):
    text, _ = shown(tmp_path, annotators=("erag", "provenance"))
    assert " n" not in text.split("\n")[2]
    runs = pl.concat([GOOD, POOR.filter(pl.col("query_id") >= "q10")])
    text, said = shown(tmp_path / "new", runs=runs, annotators=("erag",), missing="skip")
    rows = [line.split() for line in text.splitlines() if "P@1" in line]
    # means and correlations of poor and sys; tau's limit, which poor has not; their difference and order
    assert [row[-1] for row in rows] == ["30", "40", "40", "30", "30"]
    assert any("of poor" in line and line.endswith("over 30 queries") for line in said)
    assert any("of sys" in line and "over" not in line for line in said)


def test_how_far_tau_reaches_is_shown_of_each_annotators_primary_measure(tmp_path):
    text, _ = shown(tmp_path, annotators=("erag", "containment"), measures="P@1 P@2")
    table = text.split("How far ")[1].split("limit: ")[0]
    header, first, second = (
        line.split() for line in table.splitlines()[1:] if "0" in line or "AUC" in line
    )
    as_expected(" ".join(header))
    # the reader answers from the first passage: P@1 says what the outcome will be
    assert first == ["erag", "P@1", "1.00", "1.00", "1.00", "1.00"]
    assert second == ["containment", "P@1", "1.00", "1.00", "1.00", "1.00"]
    assert max(map(len, table.splitlines())) <= 80
    continuous, _ = shown(tmp_path, annotators=("erag",), metric="f1", measures="P@1")
    assert "How far" in continuous


def test_the_order_of_runs_comes_with_soft_pairwise_accuracy(tmp_path):
    third = POOR.with_columns(run=pl.lit("third"))
    runs = pl.concat([GOOD, POOR, third])
    text, _ = shown(tmp_path, runs=runs, annotators=("erag",))
    table = text.split("Order of ")[1]
    (row,) = (line.split() for line in table.splitlines() if "P@1" in line)
    # eRAG's P@1 is the end-to-end score itself here, so both are as certain
    assert row[:2] == ["erag", "P@1"]
    assert row[2:] == ["1.00", "2", "of", "3", "(1", "tied)"]
    text, _ = shown(tmp_path, runs=runs, annotators=("erag",), resamples=0)
    assert "SPA" not in text


def test_two_runs_are_in_the_same_order_or_the_other_and_have_no_coefficient_of_it(tmp_path):
    # the reader answers from what GOOD lists first, and judges prefer what POOR does
    qrels = pl.DataFrame(
        [(f"q{i:02}", f"e{i}", 1.0) for i in range(N)], schema=tables.QRELS, orient="row"
    )
    runs = pl.concat([GOOD, POOR])
    text, _ = shown(tmp_path, runs=runs, qrels=qrels, annotators=("erag", "qrels"))
    table = text.split("Order of the 2 runs")[1].split("order: same as")[0]
    rows = [line.split() for line in table.splitlines() if "P@1" in line]
    assert [(row[0], row[-1]) for row in rows] == [("erag", "same"), ("qrels", "reversed")]
    assert "SPA" not in text


def test_two_runs_that_tie_have_no_winner(tmp_path):
    twin = GOOD.with_columns(run=pl.lit("twin"))
    text, _ = shown(tmp_path, runs=pl.concat([GOOD, twin]), annotators=("erag",))
    table = text.split("Order of the 2 runs")[1].split("order: same as")[0]
    assert [line.split()[-1] for line in table.splitlines() if "P@1" in line] == ["tied"]


def test_what_one_might_not_expect_is_said(tmp_path):
    qrels = pl.DataFrame(
        [("q00", "d0", 0.5), ("q00", "d1", 1.0)], schema=tables.QRELS, orient="row"
    )
    runs = pl.concat([GOOD, POOR])
    _, said = shown(
        tmp_path,
        runs=runs,
        qrels=qrels,
        cut_runs=("poor",),
        annotators=("erag", "qrels"),
        relevant="list",
        measures="P nDCG",
        resamples=100,
    )
    as_expected([line for line in said if line.startswith("note: ")])
    _, quiet = shown(tmp_path, annotators=("erag",))
    as_expected([line for line in quiet if line.startswith("note: ")])


def test_too_few_resamples_for_so_many_comparisons_are_said(tmp_path):
    _, said = shown(
        tmp_path,
        runs=pl.concat([GOOD, POOR]),
        annotators=("erag", "containment", "provenance"),
        measures="P@1 RR@1",
        resamples=100,
        confidence=0.97,
    )
    (note,) = (line for line in said if "`resamples`" in line)
    # the constant measure of poor leaves annotators on sys and none between the runs: erag against
    # two rivals by two measures, and these two against each other, corrected apart
    # A permutation test of 100 orders has a least p-value of 1 / 101.
    as_expected(note)


def test_differences_without_a_p_value_have_their_reason(tmp_path):
    # 2 of 40 lists begin with a passage that says the answer
    swapped = GOOD.filter(pl.col("query_id") < "q06")
    rare = pl.concat([swapped, POOR.filter(pl.col("query_id") >= "q06")]).with_columns(
        run=pl.lit("sys")
    )
    _, said = shown(tmp_path, runs=rare, annotators=("erag", "provenance"), measures="P@2 RR")
    as_expected([line for line in said if line.startswith("note: erag minus ")])


def test_differences_with_a_p_value_and_no_interval_have_their_reason():
    row = {
        "run": "s", "run_b": "s", "annotator": "erag", "annotator_b": "judge",
        "measure": "RR", "measure_b": "RR", "tau_difference": 0.1,
        "tau_low": math.nan, "tau_p": 0.3, "note": "no interval: so it is",
    }  # fmt: skip
    rows = [row, row | {"measure": "AP", "tau_low": -0.1}, row | {"measure": "R", "note": ""}]
    found = printed._untested(pl.DataFrame(rows))
    assert found == ["erag minus judge RR: no interval: so it is"]
