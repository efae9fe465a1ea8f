"""Which run is chosen, and how sure that is."""

import math

import numpy as np
import polars as pl
import pytest

from engine import tables
from engine.statistics.correlation import Bootstrap
from engine.statistics.power import queries_needed
from engine.statistics.table import analyse
from tests.statistics.made_scores import ALIKE, WHOLE, first, read_whole, scored

BOOTSTRAP = Bootstrap(resamples=1000, seed=4)


def choose(rows, whole=None, bootstrap=BOOTSTRAP):
    downstream = read_whole(whole) if whole else tables.empty(tables.DOWNSTREAM)
    return analyse(scored(rows), downstream, bootstrap).choice


def test_the_best_run_is_chosen_with_its_leads():
    found = choose([("a", "P@3", ALIKE)], WHOLE)
    assert found.best == "t"
    assert (found.annotator, found.measure, found.n) == (None, None, 60)
    assert found.means == pytest.approx({"t": 50 / 60, "u": 47 / 60, "s": 25 / 60})
    assert list(found.means) == ["t", "u", "s"]
    over_u, over_s = found.leads
    assert (over_u.run, over_u.over, over_s.over) == ("t", "u", "s")
    assert over_s.significant
    assert over_s.queries_needed is None
    assert over_s.low > 0
    assert over_s.difference == pytest.approx(25 / 60)
    # t is ahead of u on 3 queries, and 3 coins fall alike with 1/4; three pairs
    assert not over_u.significant
    assert over_u.p == pytest.approx(3 / 4)
    assert (found.pairs, found.undecided) == (3, ("u",))
    differing = np.array(first(3), dtype=float)
    for number, here in ((over_u.queries_needed, False), (over_u.queries_as_here, True)):
        assert number == queries_needed(
            differing, 1.0, confidence=0.95, comparisons=3, as_here=here
        )


def test_a_lead_and_the_table_of_pairs_have_one_interval_and_one_p_value():
    rows = [("a", "P@3", ALIKE), ("b", "DCG@3", WHOLE)]
    found = analyse(
        scored(rows),
        read_whole(WHOLE),
        BOOTSTRAP,
        largest=lambda who, what: 2.0,
    )
    pairs = {
        (row["annotator"], row["run"], row["run_b"]): row for row in found.run_pairs.to_dicts()
    }
    _, lead = found.choice.leads
    row = pairs["a", "s", "t"]
    assert (lead.run, lead.over) == ("t", "s")
    assert (lead.difference, -lead.high, -lead.low, lead.p) == (
        -row["end_to_end_difference"], row["end_to_end_low"], row["end_to_end_high"], row["end_to_end_p"]
    )  # fmt: skip
    opinion = found.choice.opinions[1].lead
    row = pairs["b", "t", "u"]
    assert (opinion.difference, opinion.low, opinion.high, opinion.p) == (
        row["difference"], row["difference_low"], row["difference_high"], row["difference_p"]
    )  # fmt: skip
    assert {row["adjusted_for_pairs"] for row in pairs.values()} == {3} == {found.choice.pairs}


def test_a_lead_is_significant_where_its_interval_is_above_0_and_p_is_small():
    # wins of 60 queries, none lost
    for wins in range(4, 9):
        (lead,) = choose([("a", "P@3", ALIKE)], {"s": first(20), "t": first(20 + wins)}).leads
        assert lead.significant == (lead.low > 0) == (lead.p < 0.05)
        assert lead.low <= lead.difference <= lead.high


def test_a_single_run_leaves_nothing_to_choose():
    assert choose([("a", "P@3", {"s": first(20)})], {"s": first(25)}) is None
    assert choose([("a", "P@3", {"s": first(20)})]) is None


def test_without_lists_read_whole_the_first_measure_decides():
    rows = [("a", "P@3", WHOLE), ("a", "RR@3", ALIKE), ("b", "P@3", ALIKE)]
    found = choose(rows)
    assert (found.annotator, found.measure, found.best) == ("a", "P@3", "t")
    assert [(o.annotator, o.measure) for o in found.opinions] == [("b", "P@3")]
    with_whole = choose(rows, WHOLE)
    assert found.leads == with_whole.leads  # the same numbers, and no other comparisons counted


def test_runs_that_are_equal_stay_in_their_order_and_are_undecided():
    found = choose([("a", "P@3", WHOLE)], ALIKE)
    assert list(found.means) == ["s", "t", "u"]
    assert found.undecided == ("t", "u")
    assert [(lead.difference, lead.p, lead.queries_needed) for lead in found.leads] == [
        (0, 1, None)
    ] * 2
    assert all(lead.alike for lead in found.leads)


def test_equal_means_of_other_queries_are_no_likeness_and_need_a_number():
    swapped = {"s": first(20), "t": [0] * 10 + first(20, 50)}
    for until in (None, "verdict"):
        plan = Bootstrap(resamples=1000, until=until)
        (lead,) = choose([("a", "P@3", ALIKE)], swapped, plan).leads
        assert (lead.difference, lead.alike, lead.queries_as_here) == (0, False, None)
        assert lead.queries_needed > 60


def test_the_most_that_is_lost_is_the_farthest_bound_between_two_runs_that_are_not_excluded():
    runs = {"s": first(5), "t": first(40), "u": [0] * 4 + first(38, 56), "v": first(36)}
    rows = analyse(scored([("a", "P@3", runs)]), read_whole(runs), BOOTSTRAP)
    assert set(rows.choice.undecided) == {"u", "v"}
    bounds = {
        (row["run"], row["run_b"]): max(abs(row["end_to_end_low"]), abs(row["end_to_end_high"]))
        for row in rows.run_pairs.to_dicts()
        if "s" not in (row["run"], row["run_b"])
    }
    # Whoever chooses u loses most where v is best, or the other way round.
    assert rows.choice.most_lost == pytest.approx(max(bounds.values()))
    assert math.isnan(choose([("a", "P@3", ALIKE)], {"s": first(5), "t": first(50)}).most_lost)
    assert math.isnan(choose([("a", "P@3", ALIKE)], WHOLE, Bootstrap(resamples=0)).most_lost)


def test_three_queries_are_never_significant():
    found = choose([("a", "P@3", {"s": [0] * 3, "t": [1] * 3})], {"s": [0] * 3, "t": [1] * 3})
    (lead,) = found.leads
    assert lead.low < 0 < lead.difference == 1 == lead.high
    assert not lead.significant
    assert lead.queries_needed > 3


def test_without_resamples_nothing_is_significant():
    (_, lead) = choose([("a", "P@3", ALIKE)], WHOLE, Bootstrap(resamples=0)).leads
    assert not lead.significant
    assert math.isnan(lead.p)


def test_queries_are_those_that_all_runs_have():
    downstream = read_whole(WHOLE).filter((pl.col("run") != "s") | (pl.col("query_id") >= "q010"))
    found = analyse(scored([("a", "P@3", ALIKE)]), downstream, BOOTSTRAP).choice
    assert found.n == 50
    assert found.means == pytest.approx({"t": 40 / 50, "u": 37 / 50, "s": 15 / 50})


def test_an_annotator_may_agree_or_contradict():
    agreeing = {"s": first(10), "t": first(40), "u": first(20)}
    contrary = {"s": first(10), "t": first(10), "u": first(40)}
    found = choose([("a", "P@3", agreeing), ("b", "P@3", contrary)], WHOLE)
    a, b = found.opinions
    assert (a.best, a.lead.run, a.lead.over) == ("t", "t", "u")  # over the next one end to end
    assert (b.best, b.lead.run, b.lead.over) == ("u", "u", "t")  # over the chosen one
    assert b.lead.significant
    assert b.lead.difference == pytest.approx(30 / 60)
    assert b.lead.queries_needed is None


def test_an_annotators_opinion_is_that_of_its_first_measure_however_well_others_agree():
    whole = {"s": [1, 1, 0, 0], "t": [1, 0, 0, 1]}
    rows = [
        # tau is undefined on t, 0 and 1 on both, and 1 again
        ("a", "P@1", {"s": [1, 1, 0, 0], "t": [0, 0, 0, 0]}),
        ("a", "P@2", {"s": [1, 0, 1, 0], "t": [1, 1, 0, 0]}),
        ("a", "P@3", whole),
        ("a", "P@4", whole),
    ]
    found = analyse(scored(rows), read_whole(whole), Bootstrap(resamples=0))
    assert found.choice.opinions[0].measure == "P@1"
    best = {(r["run"], r["measure"]) for r in found.correlations.to_dicts() if r["best"]}
    assert best == {("s", "P@1"), ("t", "P@3")}  # the first of equal ones


def test_no_measure_is_best_where_none_is_defined():
    flat = {"s": [0] * 4, "t": [0] * 4}
    found = analyse(
        scored([("a", "P@1", flat), ("a", "P@2", flat)]),
        read_whole({"s": [1, 0, 0, 1], "t": [1, 1, 1, 0]}),
        Bootstrap(resamples=0),
    )
    assert found.correlations["best"].to_list() == [False] * 4


def test_opinions_are_about_the_runs_that_an_annotator_scores():
    rows = scored([("a", "P@3", WHOLE), ("b", "P@3", WHOLE), ("c", "P@3", WHOLE)])
    rows = rows.filter(
        ~((pl.col("annotator") == "b") & (pl.col("run") == "u"))
        & ~((pl.col("annotator") == "c") & (pl.col("run") == "t"))
    )
    found = analyse(rows, read_whole(WHOLE), BOOTSTRAP).choice
    assert found.best == "t"
    leads = {o.annotator: (o.lead.run, o.lead.over) for o in found.opinions}
    assert leads == {"a": ("t", "u"), "b": ("t", "s")}


def test_runs_may_have_the_names_of_columns():
    odd = {"query_id": first(20), "value": first(50)}
    assert choose([("a", "P@3", odd)], odd).best == "value"
