"""UDCG against its definition, written out once more."""

import math

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import tables
from engine.ranking.measures import parse_measure, parse_measures, why_undefined
from engine.ranking.scores import score_runs, score_utility
from tests.expected import as_expected, refused
from tests.tables import framed

UTILITIES = st.floats(-1 / 3, 1, allow_nan=False)
LISTS = st.dictionaries(st.sampled_from("abcd"), st.lists(UTILITIES, max_size=6), max_size=4)


def scores(lists, measures="UDCG@3 UDCG", missing="zero", queries="abcd"):
    rows = [
        (q, f"d{i}", i, -float(i), "run")
        for q, own in lists.items()
        for i in range(1, len(own) + 1)
    ]
    rows.append(("a", "x", 1, 0.0, "other"))
    runs = framed(rows, tables.RUNS)
    labels = [
        (q, f"d{i}", "utility", value) for q, own in lists.items() for i, value in enumerate(own, 1)
    ] + [("a", "x", "utility", 1.0)]
    table = framed(labels, tables.LABELS)
    return score_utility(runs, table, list(queries), parse_measures(measures), missing=missing)


@given(LISTS)
def test_a_list_scores_the_sigmoid_of_its_mean_utility(lists):
    found = scores(lists)
    assert found.schema == tables.QUERY_SCORES
    values = {(r, m, q): v for r, _, m, q, v in found.iter_rows()}
    for query in "abcd":
        for measure, own in (("UDCG@3", lists.get(query, [])[:3]), ("UDCG", lists.get(query, []))):
            expected = 1 / (1 + math.exp(-sum(own) / len(own))) if own else 0.0
            if ("run", measure, query) in values:
                assert values["run", measure, query] == pytest.approx(expected, abs=1e-12)
            else:
                assert not any(lists.values())  # a run that lists nothing has no rows, and no name


def test_rows_follow_run_measure_and_query():
    found = scores({"b": [1.0], "a": [-1 / 3, 1.0]})
    keys = found.select("run", "measure", "query_id").rows()
    assert keys == [
        (run, measure, query)
        for run in ("run", "other")
        for measure in ("UDCG@3", "UDCG")
        for query in "abcd"
    ]
    assert set(found["annotator"]) == {"utility"}


def test_queries_without_results_can_be_left_out():
    found = scores({"b": [1.0]}, missing="skip").filter(pl.col("run") == "run")
    assert set(found["query_id"]) == {"b"}


def test_udcg_takes_no_options_and_no_other_labels():
    with refused("measure.optionless"):
        parse_measure("UDCG(rel=0.5)@3")
    udcg, precision, ap = parse_measures("UDCG@5 P@5 AP@5")
    assert why_undefined(udcg, utilities=True, graded="") == ""
    as_expected(why_undefined(udcg, utilities=False, graded=""))
    as_expected(why_undefined(precision, utilities=True, graded=""))
    assert why_undefined(precision, utilities=False, graded="shares") == ""
    assert why_undefined(ap, utilities=False, graded="") == ""
    assert why_undefined(ap, utilities=False, graded="shares").endswith("as in AP(rel=0.5)@5")


def test_other_labels_are_not_scored_by_udcg():
    empty = tables.empty
    with refused("measure.utility"):
        score_runs(
            empty(tables.RUNS), empty(tables.LABELS), [], parse_measures("UDCG"), relevant="list"
        )
