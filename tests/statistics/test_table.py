"""Statistics of made evaluations as tables, and the choice of a run, whose reasons are known."""

from __future__ import annotations

import math
from dataclasses import asdict, astuple

import numpy as np
import polars as pl
import pytest
import scipy.stats

from benchmarks._single import correlate
from engine import tables
from engine.statistics import methods
from engine.statistics.bounded import holm
from engine.statistics.correlation import Bootstrap
from engine.statistics.difference_tests import permutation_test, prepare
from engine.statistics.leads import paired_intervals
from engine.statistics.table import analyse
from engine.statistics.until import queries_needed
from tests.expected import as_expected
from tests.statistics.made_scores import ALIKE, WHOLE, first, read_whole, scored
from tests.tables import framed

BOOTSTRAP = Bootstrap(resamples=300, seed=4)


def scores(rows):
    """Rows (run, annotator, measure, query, value)."""
    return framed(rows, tables.QUERY_SCORES)


def end_to_end(rows):
    """Rows (run, query, k, output, value)."""
    return framed(rows, tables.DOWNSTREAM)


def random_tables(n=40, runs=("s", "t"), annotators=("a", "b"), seed=0):
    rng = np.random.default_rng(seed)
    queries = [f"q{i:03}" for i in range(n)]
    rows, outcomes = [], []
    for run in runs:
        y = rng.integers(0, 2, n).astype(float)
        outcomes += [(run, q, 3, "", v) for q, v in zip(queries, y, strict=True)]
        for place, annotator in enumerate(annotators):
            x = np.round((y / (1 + place) + rng.random(n)) / 2, 2)
            rows += [(run, annotator, "P@3", q, v) for q, v in zip(queries, x, strict=True)]
    return scores(rows), end_to_end(outcomes)


def test_the_table_joins_by_query_id_and_not_by_order():
    one = scores([("s", "a", "P@1", q, v) for q, v in (("1", 0.0), ("2", 0.5), ("3", 1.0))])
    other = end_to_end([("s", q, 5, "", v) for q, v in (("3", 1.0), ("1", 0.0), ("2", 0.4))])
    (row,) = analyse(one, other, Bootstrap(resamples=0)).correlations.to_dicts()
    assert (row["tau"], row["k"], row["n"]) == (pytest.approx(1), 5, 3)
    nothing = analyse(one, tables.empty(tables.DOWNSTREAM), BOOTSTRAP)
    for table in (nothing.correlations, nothing.comparisons, nothing.systems, nothing.run_pairs):
        assert table.is_empty()


def test_sums_in_another_order_do_not_rank():
    values = [(0.1 + 0.2) + 0.3, 0.1 + (0.2 + 0.3), 0.9]
    assert values[0] != values[1]
    one = scores([("s", "a", "P@3", str(i), v) for i, v in enumerate(values)])
    other = end_to_end([("s", str(i), 3, "", v) for i, v in enumerate([0.5, 0.2, 1.0])])
    (row,) = analyse(one, other, Bootstrap(resamples=0)).correlations.to_dicts()
    assert row["tau"] == pytest.approx(scipy.stats.kendalltau([1, 1, 2], [0.5, 0.2, 1]).statistic)


def test_a_cell_is_the_same_alone_and_in_a_table():
    query_scores, downstream = random_tables()
    bootstrap = Bootstrap(resamples=200, seed=4)
    table = analyse(query_scores, downstream, bootstrap).correlations
    for row in table.iter_rows(named=True):
        mine = pl.col("run") == row["run"]
        x = query_scores.filter(mine, pl.col("annotator") == row["annotator"])["value"].to_numpy()
        y = downstream.filter(mine)["value"].to_numpy()
        alone = correlate(x, y, bootstrap)
        assert {name: row[name] for name in asdict(alone)} == asdict(alone)


def test_comparisons_leave_out_each_query_of_both_correlations():
    query_scores, downstream = random_tables(n=150, runs=("s",))
    (row,) = analyse(query_scores, downstream, BOOTSTRAP).comparisons.to_dicts()
    a, b = (query_scores.filter(annotator=x)["value"].to_numpy() for x in "ab")
    y = downstream["value"].to_numpy()

    def difference(kept):
        return np.subtract(*(scipy.stats.kendalltau(x[kept], y[kept]).statistic for x in (a, b)))

    assert (row["annotator"], row["annotator_b"], row["run"], row["run_b"]) == ("a", "b", "s", "s")
    whole = difference(np.ones(150, dtype=bool))
    assert row["tau_difference"] == pytest.approx(whole, abs=1e-12)
    without = np.array([difference(np.arange(150) != left) for left in range(150)])
    # The jackknife's standard error, on Fisher's scale of half the difference; most values differ.
    error = math.sqrt(149 / 150 * ((without - without.mean()) ** 2).sum()) / 2
    middle = math.atanh(whole / 2)
    reach = scipy.stats.t.ppf(0.975, 149) * error / (1 - (whole / 2) ** 2)
    bounds = [2 * math.tanh(middle + sign * reach) for sign in (-1, 1)]
    assert (row["tau_low"], row["tau_high"]) == pytest.approx(bounds, rel=0.02)
    assert (row["tau_p"] <= 0.05) == (not row["tau_low"] <= 0 <= row["tau_high"])
    assert row["tau_p_holm"] == row["tau_p"]  # the only comparison
    assert (row["method"], row["note"]) == ("studentized", "")


def test_few_queries_are_compared_by_permuting_the_outcomes():
    query_scores, downstream = random_tables()
    bootstrap = Bootstrap(resamples=300, seed=4)
    found = analyse(query_scores, downstream, bootstrap).comparisons
    assert set(found["method"]) == {"permutation"}
    sides = {
        (run, annotator): tuple(prepare(side["value"].to_numpy()) for side in (scores, y))
        for (run, annotator), scores in query_scores.group_by("run", "annotator")
        for y in [downstream.filter(run=run)]
    }
    for row in found.iter_rows(named=True):
        tests = permutation_test(
            sides[row["run"], row["annotator"]], sides[row["run_b"], row["annotator_b"]],
            permutations=300, confidence=0.95, seed=4,
        )  # fmt: skip
        for name, test in zip(("tau", "rho"), tests, strict=True):
            assert tuple(row[f"{name}_{x}"] for x in ("p", "low", "high")) == astuple(test)
            assert test.low < row[f"{name}_difference"] < test.high
            assert (test.p <= 0.05) == (not test.low <= 0 <= test.high)


def nearly_constant():
    """Two measures that miss three and two of 40 queries."""
    query_scores, downstream = random_tables(runs=("s",))
    few = {"a": ("q001", "q002", "q003"), "b": ("q004", "q005")}
    flat = pl.concat(
        query_scores.filter(annotator=name).with_columns(
            value=(~pl.col("query_id").is_in(misses)).cast(pl.Float64)
        )
        for name, misses in few.items()
    )
    return flat, downstream


def test_two_nearly_constant_measures_have_an_inverted_interval():
    (row,) = analyse(*nearly_constant(), BOOTSTRAP).comparisons.to_dicts()
    assert (row["method"], row["note"]) == ("inverted", "")
    assert 0.05 < row["tau_p"] <= 1
    assert row["tau_low"] <= 0 <= row["tau_high"]
    assert row["tau_low"] < row["tau_difference"] < row["tau_high"]
    assert row["tau_high"] - row["tau_low"] > 0.2


def test_tables_too_large_to_draw_leave_a_p_value_and_the_reason(monkeypatch):
    monkeypatch.setattr(methods, "MOST_CELLS", 7)
    (row,) = analyse(*nearly_constant(), BOOTSTRAP).comparisons.to_dicts()
    assert row["method"] == "permutation"
    assert 0 < row["tau_p"] <= 1
    assert math.isnan(row["tau_low"])
    assert math.isnan(row["rho_high"])
    as_expected(row["note"])


def test_too_few_right_answers_have_no_p_value_and_the_reason():
    query_scores, downstream = random_tables(runs=("s",))
    rare = downstream.with_columns(value=(pl.col("query_id") < "q002").cast(pl.Float64))
    (row,) = analyse(query_scores, rare, BOOTSTRAP).comparisons.to_dicts()
    assert math.isfinite(row["tau_difference"])
    for name in ("low", "high", "p", "p_holm"):
        assert math.isnan(row[f"tau_{name}"])
        assert math.isnan(row[f"rho_{name}"])
    assert row["method"] == ""
    as_expected(row["note"])


def test_comparisons_are_those_that_differ_in_one_thing():
    query_scores, downstream = random_tables()
    found = analyse(query_scores, downstream, BOOTSTRAP).comparisons
    pairs = set(found.select("run", "annotator", "run_b", "annotator_b").iter_rows())
    assert pairs == {
        ("s", "a", "s", "b"), ("t", "a", "t", "b"), ("s", "a", "t", "a"), ("s", "b", "t", "b"),
    }  # fmt: skip
    assert found.height == 4
    # annotators and runs are corrected apart
    for family in (pl.col("run") == pl.col("run_b"), pl.col("run") != pl.col("run_b")):
        for name in ("tau", "rho"):
            own = found.filter(family)
            assert own[f"{name}_p_holm"].to_list() == holm(own[f"{name}_p"].to_list())


def test_measures_that_are_called_comparable_are_compared_within_a_run_only():
    query_scores, downstream = random_tables()
    renamed = query_scores.with_columns(
        pl.when(pl.col("annotator") == "b")
        .then(pl.lit("Q@3"))
        .otherwise("measure")
        .alias("measure")
    )
    by_default = analyse(renamed, downstream, BOOTSTRAP).comparisons
    assert by_default.filter(pl.col("run") == pl.col("run_b")).is_empty()
    found = analyse(renamed, downstream, BOOTSTRAP, comparable=lambda one, other: True).comparisons
    rows = set(found.select("run", "run_b", "measure", "measure_b").iter_rows())
    assert rows == {
        ("s", "s", "P@3", "Q@3"), ("t", "t", "P@3", "Q@3"),
        ("s", "t", "P@3", "P@3"), ("s", "t", "Q@3", "Q@3"),
    }  # fmt: skip


def test_comparisons_of_the_first_annotator_are_corrected_apart_from_the_others():
    query_scores, downstream = random_tables(annotators=("a", "b", "c"))
    found = analyse(query_scores, downstream, BOOTSTRAP).comparisons
    same_run = found.filter(pl.col("run") == pl.col("run_b"))
    for family, size in ((pl.col("annotator") == "a", 4), (pl.col("annotator") != "a", 2)):
        own = same_run.filter(family)
        assert own.height == size
        assert own["tau_p_holm"].to_list() == holm(own["tau_p"].to_list())


@pytest.mark.parametrize("n", [40, 150])
def test_an_annotator_does_not_differ_from_itself(n):
    query_scores, downstream = random_tables(n, runs=("s",), annotators=("a",))
    twin = query_scores.with_columns(annotator=pl.lit("twin"))
    found = analyse(pl.concat([query_scores, twin]), downstream, Bootstrap(resamples=100))
    (row,) = found.comparisons.to_dicts()
    assert (row["tau_difference"], row["tau_low"], row["tau_high"]) == (0, 0, 0)
    assert (row["tau_p"], row["rho_p"]) == (1, 1)


def test_comparisons_with_a_constant_side_are_undefined_with_a_note():
    query_scores, downstream = random_tables(runs=("s",))
    flat = query_scores.with_columns(
        pl.when(pl.col("annotator") == "b").then(0.0).otherwise("value").alias("value")
    )
    (row,) = analyse(flat, downstream, BOOTSTRAP).comparisons.to_dicts()
    assert math.isnan(row["tau_difference"])
    assert math.isnan(row["tau_p"])
    as_expected(row["note"])


def test_cells_on_other_queries_are_compared_on_the_queries_they_share():
    query_scores, downstream = random_tables(runs=("s",))
    kept = query_scores.filter((pl.col("annotator") == "a") | (pl.col("query_id") >= "q010"))
    found = analyse(kept, downstream, BOOTSTRAP)
    assert found.correlations["n"].to_list() == [40, 30]
    (row,) = found.comparisons.to_dicts()
    shared = query_scores.filter(pl.col("query_id") >= "q010")
    (same,) = analyse(shared, downstream, BOOTSTRAP).comparisons.to_dicts()
    assert row == same
    assert row["n"] == 30


def test_cells_say_what_their_margins_allow():
    query_scores, downstream = random_tables()
    downstream = downstream.with_columns(value=pl.col("value").gt(0.5).cast(pl.Float64))
    undefined = framed([("a", "RR@1", "why")], tables.UNDEFINED)
    found = analyse(query_scores, downstream, BOOTSTRAP, undefined=undefined).correlations
    assert dict(found.schema) == tables.CORRELATIONS
    for row in found.filter(pl.col("n") > 0).to_dicts():
        cell = (pl.col("run") == row["run"]) & (pl.col("query_id") != "")
        y = downstream.filter(cell).sort("query_id")["value"].to_numpy()
        of_annotator = query_scores.filter(cell, annotator=row["annotator"])
        x = of_annotator.sort("query_id")["value"].to_numpy()
        assert row["auc"] == pytest.approx((1 + scipy.stats.somersd(y, x).statistic) / 2)
        best = scipy.stats.kendalltau(np.sort(x), np.sort(y)).statistic
        assert row["tau_max"] == pytest.approx(best, abs=1e-12)
        limit = row["tau_max"] if row["tau"] >= 0 else -row["tau_min"]
        assert row["tau_reached"] == pytest.approx(row["tau"] / limit)
    empty = found.filter(n=0)
    assert empty.height == 2
    figures = [name for name, kind in tables.CORRELATIONS.items() if kind == pl.Float64()]
    assert empty.select(pl.col(figures).is_nan().all()).row(0) == (True,) * len(figures)


def test_runs_are_ordered_by_measure_and_by_end_to_end_score():
    # means of the measure: s 0.2, t 0.4, u 0.6; end to end: s 0.4, t 0.2, u 0.6
    of_labels = scored([("a", "P@3", {"s": first(1, 5), "t": first(2, 5), "u": first(3, 5)})])
    whole = read_whole({"s": first(2, 5), "t": first(1, 5), "u": first(3, 5)})
    found = analyse(of_labels, whole, Bootstrap(resamples=500, seed=0))
    (system,) = found.systems.to_dicts()
    assert (system["runs"], system["n"]) == (3, 5)
    # One-sided p-values of the measure and end to end, equal sums counting half: s and t differ on one
    # query, 3/4 and 1/4; s and u on two and one, 7/8 and 3/4; t and u on one and two, 3/4 and 7/8.
    soft = (1 - 1 / 2 + 1 - 1 / 8 + 1 - 1 / 8) / 3
    assert system["soft_pairwise_accuracy"] == pytest.approx(soft, abs=0.04)
    pairs = {(r["run"], r["run_b"]): r for r in found.run_pairs.to_dicts()}
    assert pairs["s", "t"]["difference"] == pytest.approx(-0.2)
    assert pairs["s", "t"]["end_to_end_difference"] == pytest.approx(0.2)


def test_runs_are_compared_by_every_score_with_all_pairs_together():
    query_scores, downstream = random_tables(runs=("s", "t", "u"))
    found = analyse(query_scores, downstream, BOOTSTRAP).run_pairs
    assert dict(found.schema) == tables.RUN_PAIRS
    assert found.height == 2 * 3
    row = found.filter(annotator="b", run="s", run_b="u").row(0, named=True)
    for name, frame in (
        ("difference", query_scores.filter(annotator="b")),
        ("end_to_end", downstream),
    ):
        s, u = (frame.filter(run=run)["value"].to_numpy() for run in ("s", "u"))
        (value,), (low,), (high,), (p,) = paired_intervals(
            (s - u)[None], 1.0, confidence=0.95, comparisons=3
        )
        assert row["difference" if name == "difference" else "end_to_end_difference"] == (
            pytest.approx(value, abs=1e-12)
        )
        found_here = [row[f"{name}_{what}"] for what in ("low", "high", "p")]
        assert found_here == pytest.approx([low, high, p], abs=1e-9)
    assert found["adjusted_for_pairs"].to_list() == [3] * 6


def test_without_end_to_end_scores_runs_are_compared_by_their_measures():
    query_scores, downstream = random_tables(runs=("s", "t", "u"))
    with_scores = analyse(query_scores, downstream, BOOTSTRAP).run_pairs
    found = analyse(query_scores, downstream.clear(), BOOTSTRAP)
    assert found.correlations.is_empty()
    assert found.comparisons.is_empty()
    assert found.systems.is_empty()
    own = ["annotator", "measure", "run", "run_b", "n", "difference", "difference_low"]
    own += ["difference_high", "difference_p"]
    assert found.run_pairs.select(own).equals(with_scores.select(own))
    assert found.run_pairs["k"].null_count() == 6
    for name in ("difference", "low", "high", "p"):
        assert found.run_pairs[f"{tables.END_TO_END}_{name}"].is_nan().all()


def test_one_run_has_no_order():
    query_scores, downstream = random_tables(runs=("s",))
    found = analyse(query_scores, downstream, BOOTSTRAP)
    assert found.systems.is_empty()
    assert found.run_pairs.is_empty()
    assert found.choice is None


def test_the_tables_do_not_depend_on_the_order_of_rows_or_threads():
    query_scores, downstream = random_tables()
    one = analyse(query_scores, downstream, Bootstrap(resamples=100, threads=1))
    shuffled = query_scores.group_by("run", "annotator", maintain_order=True).map_groups(
        lambda f: f.sample(fraction=1, shuffle=True, seed=3)
    )
    other = analyse(
        shuffled, downstream.sample(fraction=1, shuffle=True, seed=4), Bootstrap(resamples=100)
    )
    for name in ("correlations", "comparisons", "systems", "run_pairs"):
        assert getattr(one, name).equals(getattr(other, name), null_equal=True), name
    assert one.choice == other.choice


UNCERTAIN = Bootstrap(resamples=1000, seed=4)


def choose(rows, whole=None, bootstrap=UNCERTAIN):
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
    found = analyse(scored(rows), read_whole(WHOLE), UNCERTAIN, largest=lambda who, what: 2.0)
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
    rows = analyse(scored([("a", "P@3", runs)]), read_whole(runs), UNCERTAIN)
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
    found = analyse(scored([("a", "P@3", ALIKE)]), downstream, UNCERTAIN).choice
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
    found = analyse(rows, read_whole(WHOLE), UNCERTAIN).choice
    assert found.best == "t"
    leads = {o.annotator: (o.lead.run, o.lead.over) for o in found.opinions}
    assert leads == {"a": ("t", "u"), "b": ("t", "s")}


def test_runs_may_have_the_names_of_columns():
    odd = {"query_id": first(20), "value": first(50)}
    assert choose([("a", "P@3", odd)], odd).best == "value"
