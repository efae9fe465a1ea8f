"""Conventions, options and errors of ``score_runs``."""

from __future__ import annotations

import math

import polars as pl
import pytest

from engine import tables
from engine.ranking.measures import parse_measures
from engine.ranking.scores import score_runs
from tests.conftest import make_labels, make_run
from tests.expected import refused
from tests.ranking.ragged import BURGES, by_key

RELEVANT = pytest.mark.parametrize("relevant", ["list", "pool", "qrels"])
BINARY = "P P@2 R R@2 F1 F1@2 AP AP@2 RR RR@2 Success Success@2 Rprec DCG nDCG nDCG@2"


def values(runs, labels, queries, measures, relevant="list", **options):
    measures = parse_measures(measures)
    return by_key(score_runs(runs, labels, queries, measures, relevant=relevant, **options))


def listing(lists, name="sys"):
    """A run from query -> passages, best first."""
    return make_run([(q, d, i) for q, docs in lists.items() for i, d in enumerate(docs, 1)], name)


@pytest.fixture
def two_runs():
    """s lists both queries, t only q1; a is useful for both."""
    runs = pl.concat([listing({"q1": "ab", "q2": "ba"}, "s"), listing({"q1": "ba"}, "t")])
    return runs, make_labels([(q, d, float(d == "a")) for q in ("q1", "q2") for d in "ab"])


# What comes out.


def test_scores_come_by_annotator_run_measure_and_query(two_runs):
    runs, labels = two_runs
    both = pl.concat([labels, labels.with_columns(annotator=pl.lit("b"))])
    queries, measures = ["q2", "q1"], parse_measures("RR P@1")
    frame = score_runs(runs, both, queries, measures, relevant="qrels")
    assert dict(frame.schema) == dict(tables.QUERY_SCORES)
    keys = frame.select("annotator", "run", "measure", "query_id").rows()
    expected = [
        (a, r, m, q) for a in ("a", "b") for r in ("s", "t") for m in ("RR", "P@1") for q in queries
    ]
    assert keys == expected


@RELEVANT
def test_labels_are_found_real_valued_for_each_annotator_separately(relevant):
    run = listing({"q": "a"})
    labels = pl.concat([make_labels([("q", "a", 3.0)], "x"), make_labels([("q", "a", 0.5)], "y")])
    frame = score_runs(run, labels, ["q"], parse_measures("P@1 Success"), relevant=relevant)
    got = {(r["annotator"], r["measure"]): r["value"] for r in frame.to_dicts()}
    expected = {("x", "P@1"): 1.0, ("x", "Success"): 1.0, ("y", "P@1"): 0.5, ("y", "Success"): 0.5}
    assert got == expected


@RELEVANT
def test_without_labels_runs_or_queries_there_are_no_scores(two_runs, relevant):
    runs, labels = two_runs
    for given in ((runs, labels.clear(), ["q1"]), (runs.clear(), labels, ["q1"]), (*two_runs, [])):
        frame = score_runs(*given, parse_measures(BINARY), relevant=relevant)
        assert frame.is_empty()
        assert dict(frame.schema) == dict(tables.QUERY_SCORES)


# What is relevant.


def test_passages_that_a_run_missed_count_against_it_under_pool_but_not_under_list():
    # s finds one of three useful passages at rank 1, t all three.
    runs = pl.concat([listing({"q": "axy"}, "s"), listing({"q": "abc"}, "t")])
    labels = make_labels([("q", d, float(d in "abc")) for d in "abcxy"])
    own = values(runs, labels, ["q"], "Success AP R@3 nDCG@3 P@3", "list")
    pooled = values(runs, labels, ["q"], "AP R@3 nDCG@3 P@3", "pool")
    assert own["s", "AP", "q"] == own["t", "AP", "q"] == own["s", "nDCG@3", "q"] == 1
    assert own["s", "R@3", "q"] == own["s", "Success", "q"] == 1
    assert pooled["s", "AP", "q"] == pooled["s", "R@3", "q"] == pytest.approx(1 / 3)
    assert pooled["s", "nDCG@3", "q"] == pytest.approx(1 / (1 + 1 / math.log2(3) + 1 / 2))
    assert pooled["t", "AP", "q"] == 1
    assert own["s", "P@3", "q"] == pooled["s", "P@3", "q"] == pytest.approx(1 / 3)


def test_passages_that_no_run_lists_count_under_qrels_but_not_under_pool():
    labels = make_labels([("q", d, 1.0) for d in "abcd"])
    runs = pl.concat([listing({"q": "a"}, "s"), listing({"q": "b"}, "t")])
    recall = {
        relevant: values(runs, labels, ["q"], "R", relevant)["s", "R", "q"]
        for relevant in ("list", "pool", "qrels")
    }
    assert recall == {"list": 1.0, "pool": 1 / 2, "qrels": 1 / 4}


@RELEVANT
def test_listed_passages_without_a_label_are_not_relevant(relevant):
    labels = make_labels([("q", "b", 1.0)])
    got = values(listing({"q": "xb"}), labels, ["q"], "P@2 RR DCG nDCG", relevant)
    second = 1 / math.log2(3)
    expected = {"P@2": 1 / 2, "RR": 1 / 2, "DCG": second, "nDCG": second}
    assert {m: v for (_, m, _), v in got.items()} == pytest.approx(expected, abs=1e-12)


@RELEVANT
def test_labels_below_zero_mean_the_same_as_none(relevant):
    run = listing({"q": "abc"})
    with_it = make_labels([("q", "a", -1.0), ("q", "b", 2.0), ("q", "z", -2.0), ("q", "c", 0.0)])
    measures = BINARY if relevant == "list" else f"{BINARY} Judged Judged@2"
    without = with_it.filter(pl.col("label") >= 0)
    got = values(run, with_it, ["q"], measures, relevant)
    assert got == values(run, without, ["q"], measures, relevant)
    if relevant != "list":
        assert got["sys", "Judged@2", "q"] == 1 / 2


def test_share_of_judged_is_over_the_list_where_it_is_shorter_than_k():
    # a and c are judged, b and d not.
    labels = make_labels([("q", "a", 0.0), ("q", "c", 1.0), ("q", "z", 1.0)])
    for relevant in ("pool", "qrels"):
        got = values(
            listing({"q": "abcd"}), labels, ["q"], "Judged@1 Judged@3 Judged@9 Judged", relevant
        )
        assert list(got.values()) == [1.0, 2 / 3, 2 / 4, 2 / 4]


def test_share_of_judged_does_not_count_ranks_beyond_a_list():
    # Beside a longer list: 1 of 2, 0 of 5 and nothing of nothing.
    run, labels = listing({"q1": "ab", "q2": "abcde"}), make_labels([("q1", "a", 1.0)])
    got = values(run, labels, ["q1", "q2", "q3"], "Judged", "qrels")
    assert list(got.values()) == [1 / 2, 0.0, 0.0]


@RELEVANT
def test_whole_numbers_written_as_floats_count_from_one(relevant):
    # Labels 2.0, 1.0, 0.0: two of three are relevant, whatever their grade; gains are the labels.
    labels = make_labels([("q", "a", 2.0), ("q", "b", 1.0), ("q", "c", 0.0)])
    got = values(listing({"q": "abc"}), labels, ["q"], "P@3 Success R@1 DCG", relevant)
    expected = {"P@3": 2 / 3, "Success": 1.0, "R@1": 1 / 2, "DCG": 2 + 1 / math.log2(3)}
    assert {m: v for (_, m, _), v in got.items()} == pytest.approx(expected, abs=1e-12)


# The order of a list.


@RELEVANT
def test_order_is_that_of_the_given_ranks(relevant):
    labels = make_labels([("q", "a", 1.0), ("q", "b", 0.0)])
    gaps = make_run([("q", "a", 20), ("q", "b", 10)])
    gaps = gaps.with_columns(score=pl.col("rank").cast(pl.Float64))  # says otherwise
    assert values(gaps, labels, ["q"], "RR", relevant)["sys", "RR", "q"] == 1 / 2
    assert values(gaps.reverse(), labels, ["q"], "RR", relevant)["sys", "RR", "q"] == 1 / 2


# Queries without results.


@RELEVANT
def test_queries_without_results_score_zero_and_stay(two_runs, relevant):
    runs, labels = two_runs
    got = values(runs, labels, ["q1", "q2"], BINARY, relevant)
    assert {v for (run, _, query), v in got.items() if (run, query) == ("t", "q2")} == {0.0}
    assert got["t", "P@2", "q1"] == got["s", "P@2", "q2"] == 1 / 2
    assert got == values(runs, labels, ["q1", "q2"], BINARY, relevant, missing="zero")


@RELEVANT
def test_queries_without_results_are_left_out_of_their_run_alone(two_runs, relevant):
    runs, labels = two_runs
    kept = values(runs, labels, ["q1", "q2"], "P@2 RR", relevant, missing="skip")
    everything = values(runs, labels, ["q1", "q2"], "P@2 RR", relevant)
    assert kept == {
        key: value for key, value in everything.items() if (key[0], key[2]) != ("t", "q2")
    }


@RELEVANT
def test_queries_with_results_but_without_labels_score_zero_and_are_not_missing(relevant):
    run, labels = listing({"q1": "a", "q2": "a"}), make_labels([("q1", "a", 1.0)])
    for missing in ("zero", "skip", "error"):
        got = values(run, labels, ["q1", "q2"], BINARY, relevant, missing=missing)
        assert {v for (_, _, query), v in got.items() if query == "q2"} == {0.0}


def test_queries_without_results_are_refused_on_demand(two_runs):
    runs, labels = two_runs
    with refused("runs.unlisted"):
        values(runs, labels, ["q1", "q2"], "P", missing="error")
    assert values(runs, labels, ["q1"], "P", missing="error") == values(runs, labels, ["q1"], "P")
    with refused("runs.unlisted"):
        values(runs, labels, ["x", "q1", "y"], "P", missing="error")


@RELEVANT
def test_rows_of_other_queries_are_left_out(two_runs, relevant):
    runs, labels = two_runs
    queries = ["q1", "nowhere"]
    more_runs = pl.concat([runs, listing({"other": "aa"}, "s"), listing({"other": "ab"}, "t")])
    more_labels = pl.concat([labels, make_labels([("other", "a", 1.0), ("other", "a", 1.0)])])
    got = values(more_runs, more_labels, queries, BINARY, relevant)
    assert got == values(runs, labels, queries, BINARY, relevant)
    assert {query for _, _, query in got} == set(queries)
    assert {v for (_, _, query), v in got.items() if query == "nowhere"} == {0.0}


# What is refused.


@RELEVANT
def test_a_passage_that_a_list_holds_twice_is_refused(relevant):
    labels = make_labels([("q", "a", 1.0), ("p", "a", 1.0)])
    with refused("runs.duplicate"):
        values(listing({"p": "ab", "q": "aba"}), labels, ["p", "q"], "P", relevant)
    # in two queries or two runs it is no duplicate
    runs = pl.concat([listing({"p": "ab", "q": "a"}, "s"), listing({"q": "a"}, "t")])
    assert values(runs, labels, ["p", "q"], "P@1", relevant)["t", "P@1", "q"] == 1.0


@RELEVANT
@pytest.mark.parametrize("second", [0.0, -1.0])
def test_two_labels_of_a_listed_passage_are_refused(relevant, second):
    labels = make_labels([("q", "b", 1.0), ("q", "a", 1.0), ("q", "a", second)])
    with refused("runs.duplicate"):
        values(listing({"q": "ab"}), labels, ["q"], "P", relevant)


def test_two_labels_of_an_unlisted_passage_are_refused_where_they_count():
    labels = make_labels([("q", "a", 1.0), ("q", "z", 1.0), ("q", "z", 0.0)])
    run = listing({"q": "a"})
    with refused("runs.duplicate"):
        values(run, labels, ["q"], "R", "qrels")
    for relevant in ("list", "pool"):
        assert values(run, labels, ["q"], "R", relevant)["sys", "R", "q"] == 1.0


@RELEVANT
@pytest.mark.parametrize("label", [math.nan, math.inf, -math.inf])
def test_labels_that_are_not_finite_numbers_are_refused(relevant, label):
    labels = make_labels([("q", "a", 1.0), ("q", "b", label)])
    with refused("annotator.infinite"):
        values(listing({"q": "ab"}), labels, ["q"], "P", relevant)


def test_share_of_judged_is_refused_where_only_the_own_list_is_judged(two_runs):
    with refused("measure.trivial"):
        values(*two_runs, ["q1"], "P Judged@3", "list")


@RELEVANT
@pytest.mark.parametrize("name", ["AP", "AP@5", "RR", "RR@5", "Rprec"])
def test_real_valued_labels_need_a_threshold(name, relevant):
    run, labels = listing({"q": "ba"}), make_labels([("q", "a", 0.5), ("q", "b", 0.4)])
    with refused("measure.real") as refusal:
        values(run, labels, ["q"], f"P@1 {name}", relevant)
    allowed = str(refusal.value).split("as in ")[1].split(", or use")[0]
    # only a is relevant, at rank 2; of the first R = 1 none is
    expected = 0.0 if name == "Rprec" else 1 / 2
    assert values(run, labels, ["q"], allowed, relevant)["sys", allowed, "q"] == expected


@pytest.mark.parametrize(
    "row",
    [("z", "b", 0.5), ("q", "b", -0.5)],
    ids=["of another query", "below 0"],
)
def test_labels_that_do_not_count_do_not_make_the_others_real_valued(row):
    run = make_run([("q", "a", 1), ("q", "c", 2)])
    labels = make_labels([("q", "a", 3.0), ("q", "c", 1.0), row])
    # 3 and 1 as grades: both are relevant; as real values their mean would be 2
    assert values(run, labels, ["q"], "P@2 AP")["sys", "P@2", "q"] == 1


def test_labels_that_no_sum_can_hold_are_refused():
    run = make_run([("q", "a", 1)])
    assert values(run, make_labels([("q", "a", 2000.0)]), ["q"], "nDCG")["sys", "nDCG", "q"] == 1
    with refused("annotator.infinite"):
        values(run, make_labels([("q", "a", 2000.0)]), ["q"], BURGES)
    with refused("annotator.infinite"):
        values(run, make_labels([("q", "a", 5.0)]), ["q"], "ERR@5 P@1")
    with refused("annotator.infinite"):
        values(run, make_labels([("q", "a", 1e300)]), ["q"], "nDCG")


def test_missing_labels_and_queries_given_twice_are_refused():
    run = make_run([("q", "a", 1)])
    with refused("annotator.infinite"):
        values(run, make_labels([("q", "a", None)]), ["q"], "P@1")
    with refused("queries.twice"):
        values(run, make_labels([("q", "a", 1.0)]), ["q", "q"], "P@1")


def test_small_labels_keep_their_digits_under_exponential_gain():
    run = make_run([("q", "a", 1), ("q", "b", 2)])
    labels = make_labels([("q", "a", 1e-17), ("q", "b", 0.0)])
    assert values(run, labels, ["q"], BURGES)["sys", BURGES, "q"] == 1
