"""Intervals of leads: by hand, their agreement with p-values, and how often they hold where that is hardest."""

from __future__ import annotations

import math
from itertools import combinations, product

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.statistics.correlation import Bootstrap
from engine.statistics.leads import (
    LEVEL,
    chances_above,
    mean_differences,
    non_inferiority,
    p_values,
    paired_intervals,
    soft_pairwise_accuracy,
)
from engine.statistics.resampling import Draws, for_each_block_of_signs


def differing(wins, losses, n):
    return np.array([[1.0] * wins + [-1.0] * losses + [0.0] * (n - wins - losses)])


def test_differences_of_one_have_the_p_value_of_the_sign_test_for_two_runs():
    for wins, losses in ((5, 0), (6, 0), (8, 1), (20, 9), (33, 33)):
        found = paired_intervals(differing(wins, losses, 100), 1.0, confidence=0.95, comparisons=1)
        exact = scipy.stats.binomtest(wins, wins + losses).pvalue
        assert found.p[0] == pytest.approx(exact, rel=1e-6)
        assert (found.low[0] > 0) == (exact < 0.05)


def test_one_pair_of_clustered_runs_has_bonett_and_prices_interval():
    # Clusters of one query are queries: 7 of 400, and one more for either run.
    paired, clusters = differing(7, 0, 400), np.arange(400)
    found = paired_intervals(paired, 1.0, confidence=0.95, comparisons=1, clusters=clusters)
    error = math.sqrt(9 - 49 / 402) / 402
    assert found.p[0] == pytest.approx(2 * scipy.stats.t.sf(7 / 402 / error, 399))
    assert found.low[0] == pytest.approx(7 / 402 - scipy.stats.t.ppf(0.975, 399) * error)
    # Of several pairs, and of independent queries, Gaffke's is taken.
    alone = paired_intervals(paired, 1.0, confidence=0.95, comparisons=3)
    several = paired_intervals(paired, 1.0, confidence=0.95, comparisons=3, clusters=clusters)
    assert np.allclose(alone, several)


@settings(max_examples=40)
@given(
    st.lists(st.sampled_from([-1, -0.5, -0.1, 0, 0.1, 0.3, 1]), min_size=2, max_size=25),
    st.sampled_from([1.0, 1.5, 4.0]),
    st.sampled_from([1, 3, 45]),
    st.sampled_from([0.8, 0.95]),
    st.integers(0, 5),
)
def test_an_interval_lies_in_its_range_holds_its_mean_and_leaves_0_out_where_p_is_small(
    values, largest, comparisons, confidence, per_cluster
):
    paired = np.array([values])
    clusters = np.arange(len(values)) // per_cluster if per_cluster else None
    if clusters is not None and clusters.max() == 0:
        clusters = None
    options = {"confidence": confidence, "comparisons": comparisons, "clusters": clusters}
    (found,) = zip(*paired_intervals(paired, largest, **options), strict=True)
    value, low, high, p = found
    assert -largest <= low <= value <= high <= largest
    assert 0 < p <= 1
    if abs(p - (1 - confidence)) > 1e-9:
        assert (low > 0 or high < 0) == (p < 1 - confidence)
    turned = paired_intervals(-paired, largest, **options)
    assert (-turned.high[0], -turned.low[0]) == pytest.approx((low, high), abs=1e-9)
    if clusters is None and high < largest:
        at_bound = p_values(paired, largest, np.array([high]), comparisons=comparisons)
        assert at_bound[0] == pytest.approx(1 - confidence, abs=1e-6)


def test_queries_that_are_repeated_as_clusters_count_once():
    paired = differing(14, 3, 60)
    settings = {"confidence": 0.95, "comparisons": 3}
    once = paired_intervals(paired, 1.0, **settings)
    five = paired_intervals(
        np.repeat(paired, 5, axis=1), 1.0, clusters=np.repeat(np.arange(60), 5), **settings
    )
    assert np.allclose(once[:4], five[:4])
    assert paired_intervals(np.repeat(paired, 5, axis=1), 1.0, **settings).p[0] < five.p[0]


def test_a_difference_beyond_its_range_is_an_error():
    with pytest.raises(ValueError, match="largest"):
        paired_intervals(np.array([[0.5, 1.2]]), 1.0, confidence=0.95, comparisons=1)


def alike(rng, n, rare):
    kind, sign = rng.random(n), rng.choice([-1.0, 1.0], n)
    return np.where(kind < rare, sign, np.where(kind < rare + 0.3, 0.1 * sign, 0.0))


def equal_means(rng, n, rare):
    kind, often = rng.random(n), min(10 * rare, 1 - rare)
    return np.where(kind < rare, 1.0, np.where(kind < rare + often, -rare / often, 0.0))


@pytest.mark.parametrize("draw", [alike, equal_means])
@pytest.mark.parametrize(("n", "rare"), [(30, 0.03), (100, 0.06), (300, 0.02)])
def test_runs_that_are_nearly_alike_are_rarely_called_different(draw, n, rare):
    rng = np.random.default_rng([n, 5])
    drawn = np.array([draw(rng, n, rare) for _ in range(300)])
    called = p_values(drawn, 1.0, np.zeros(300), comparisons=1) < 0.05
    # 5%, and three standard errors of 300 samples
    assert called.mean() <= 0.088


def test_intervals_of_nested_runs_hold_together():
    """Every run is right where the first is, and now and then elsewhere: all differences of one sign."""
    rng, shares, held = np.random.default_rng(6), np.linspace(0, 0.08, 4), 0
    first, second = np.triu_indices(4, 1)
    for _ in range(150):
        scores = ((rng.random(64) < 0.3) | (rng.random((4, 64)) < shares[:, None])).astype(float)
        true = 0.7 * (shares[first] - shares[second])
        held += (p_values(scores[first] - scores[second], 1.0, true, comparisons=6) >= 0.05).all()
    assert held / 150 >= 0.9


def scores_of(n, runs=3, seed=0):
    rng = np.random.default_rng(seed)
    shared = rng.random(n)
    return np.stack([(shared + rng.normal(0.1 * i, 0.5, n)).round(2) for i in range(runs)])


def test_values_are_differences_of_means_and_runs_that_are_the_same_do_not_differ():
    scores = scores_of(60)
    found = mean_differences(scores, 4.0, Bootstrap())
    for place, (a, b) in enumerate([(0, 1), (0, 2), (1, 2)]):
        assert found.value[place] == pytest.approx(scores[a].mean() - scores[b].mean(), abs=1e-12)
    same = mean_differences(np.tile(scores[0], (2, 1)), 4.0, Bootstrap())
    assert (same.value[0], same.p[0], same.low[0]) == (0, 1, -same.high[0])


def test_intervals_are_nan_without_resamples_or_with_one_query_or_cluster():
    none = mean_differences(scores_of(20), 4.0, Bootstrap(0))
    one = mean_differences(scores_of(1), 4.0, Bootstrap(100))
    together = mean_differences(scores_of(5), 4.0, Bootstrap(100), np.zeros(5, dtype=int))
    for found in (none, one, together):
        assert np.isfinite(found.value).all()
        for nothing in (found.low, found.high, found.p):
            assert np.isnan(nothing).all()
    assert np.isnan(chances_above(scores_of(20), Bootstrap(0))).all()
    assert np.isnan(chances_above(scores_of(1), Bootstrap(100))).all()


def test_the_same_bits_for_any_number_of_threads():
    scores = scores_of(500)
    one, many = (chances_above(scores, Bootstrap(300, threads=t)) for t in (1, 5))
    assert repr(one) == repr(many)


def test_signs_are_as_often_plus_as_minus_and_not_those_of_the_resamples():
    drawn = np.zeros((4000, 3))

    def keep(first, signs):
        drawn[first : first + len(signs)] = signs

    for_each_block_of_signs(3, keep, Draws(4000, 1))
    assert {tuple(row) for row in drawn} == set(product((-1, 1), repeat=3))
    assert np.abs(np.cov(drawn.T) - np.eye(3)).max() < 0.06  # standard error 0.016
    assert np.abs(drawn.mean(axis=0)).max() < 0.06


@pytest.mark.parametrize("seed", range(3))
def test_one_sided_p_values_are_those_of_all_signs_with_equal_ones_counting_half(seed):
    scores, resamples = scores_of(10, runs=2, seed=seed).round(1), 20_000
    paired = scores[0] - scores[1]
    sums = np.array([np.dot(signs, paired) for signs in product((-1, 1), repeat=10)]).round(9)
    observed = paired.sum().round(9)
    exact = ((sums > observed) + 0.5 * (sums == observed)).mean()
    found = chances_above(scores, Bootstrap(resamples))[0]
    assert found == pytest.approx(exact, abs=4 * 0.5 / math.sqrt(resamples))
    turned = chances_above(scores[::-1], Bootstrap(resamples))[0]
    assert found + turned == pytest.approx(1, abs=1e-12)
    # each query five times is one coin still
    five, clusters = np.repeat(scores, 5, axis=1), np.repeat(np.arange(10), 5)
    assert chances_above(five, Bootstrap(resamples), clusters)[0] == found


def exact_p_above(a, b):
    """The share of all signs that put the difference above the observed one, equal ones counting half."""
    d = np.round(a - b, 9)
    sums = np.array([np.dot(signs, d) for signs in product((-1, 1), repeat=len(d))]).round(9)
    return ((sums > d.sum().round(9)) + 0.5 * (sums == d.sum().round(9))).mean()


def test_it_is_the_mean_distance_of_one_sided_p_values_of_all_signs():
    rng = np.random.default_rng(5)
    x = rng.random((4, 10)).round(1) + np.array([0, 0.1, 0.2, 0.2])[:, None]
    y = (rng.random((4, 10)) < np.array([0.2, 0.4, 0.6, 0.9])[:, None]).astype(float)
    pairs = [
        (exact_p_above(*x[[i, j]]), exact_p_above(*y[[i, j]])) for i, j in combinations(range(4), 2)
    ]
    expected = np.mean([1 - abs(outcome - measure) for measure, outcome in pairs])
    bootstrap = Bootstrap(resamples=20_000)
    found = soft_pairwise_accuracy(chances_above(x, bootstrap), chances_above(y, bootstrap))
    assert found == pytest.approx(expected, abs=0.01)


def test_it_does_not_depend_on_the_order_of_the_runs():
    rng = np.random.default_rng(6)
    x, y = rng.random((3, 30)), (rng.random((3, 30)) < 0.4).astype(float)
    bootstrap = Bootstrap(resamples=500)
    one, turned = (
        soft_pairwise_accuracy(
            chances_above(x[order], bootstrap),
            chances_above(y[order], bootstrap),
        )
        for order in ([0, 1, 2], [2, 0, 1])
    )
    assert one == pytest.approx(turned, abs=1e-12)


def test_a_score_agrees_with_itself_and_not_with_its_opposite():
    scores = np.array([[1.0] * 40, [0.0] * 40])
    p = chances_above(scores, Bootstrap(resamples=1000))
    assert soft_pairwise_accuracy(p, p) == 1
    opposite = chances_above(scores[::-1], Bootstrap(resamples=1000))
    assert opposite == pytest.approx(1 - p, abs=1e-12)
    assert soft_pairwise_accuracy(p, opposite) == pytest.approx(0, abs=0.002)


def test_runs_that_neither_tells_apart_agree():
    same = np.tile(np.array([[1.0, 0, 1, 0]]), (2, 1))
    assert chances_above(same, Bootstrap(resamples=200))[0] == 0.5


def differences(better, worse, n):
    return np.array([1.0] * better + [-1.0] * worse + [0.0] * (n - better - worse))


@pytest.mark.parametrize(
    ("better", "worse", "n", "margin", "decision"),
    [
        (0, 0, 149, 0.02, "not worse"),  # 0.98^149 = 0.0493: a loss of 0.02 would have shown
        (0, 0, 148, 0.02, "undecided"),  # 0.98^148 = 0.0503
        (20, 2, 100, 0.02, "not worse"),  # better, significantly
        (30, 45, 4000, 0.02, "not worse"),  # d = -0.004: a loss within the margin
        (0, 40, 4000, 0.02, "not worse"),  # the same, d = -0.01: a loss, but a significant one
        (2, 8, 100, 0.02, "undecided"),  # d = -0.06: significantly below 0 only
        (0, 30, 100, 0.02, "worse"),
        (0, 30, 100, 0.25, "undecided"),
        (0, 0, 2, 0.02, "undecided"),
        (0, 1, 1, 0.02, "undecided"),  # of one query nothing is known
    ],
)
def test_the_rule(better, worse, n, margin, decision):
    found = non_inferiority(differences(better, worse, n), margin)
    assert found.decision == decision
    assert found.difference == pytest.approx((better - worse) / n)
    assert found.low <= found.difference <= found.high
    assert (found.low > -margin) == (decision == "not worse")
    assert (found.high < -margin) == (decision == "worse")
    assert found.n == n


def test_of_losses_alone_the_lower_bound_is_clopper_and_pearsons():
    # One-sided, of the share of queries that are lost: the exact test of 7 of 200.
    found = non_inferiority(differences(0, 7, 200), 0.5)
    assert -found.low == pytest.approx(scipy.stats.beta.ppf(1 - LEVEL, 8, 193), abs=1e-6)


def test_several_pairs_are_worse_at_a_third_of_the_level_and_not_worse_at_the_whole():
    data = differences(4, 16, 100)
    alone, of_three = non_inferiority(data, 0.02), non_inferiority(data, 0.02, family=3)
    assert of_three.low == alone.low
    assert alone.high < -0.02 < of_three.high
    assert (alone.decision, of_three.decision) == ("worse", "undecided")


def test_queries_of_a_cluster_count_as_one():
    data = np.repeat(differences(0, 0, 10), 20)
    clusters = np.repeat(np.arange(10), 20)
    assert non_inferiority(data, 0.02).decision == "not worse"
    assert non_inferiority(data, 0.02, clusters=clusters).decision == "undecided"
    # All in one: as one query.
    whole = non_inferiority(data, 0.02, clusters=np.zeros(200, dtype=np.intp))
    assert (whole.low, whole.high) == (-1, 1)


@pytest.mark.parametrize("margin", [0.01, 0.02, 0.05])
def test_ties_need_as_many_queries_as_would_have_shown_the_loss(margin):
    least = math.ceil(math.log(LEVEL) / math.log(1 - margin))
    needed = non_inferiority(np.zeros(10), margin).queries_needed
    assert least <= needed <= 1.05 * least


@pytest.mark.parametrize(
    ("better", "worse", "margin", "decision"),
    [(3, 3, 0.05, "not worse"), (2, 10, 0.03, "worse"), (8, 5, 0.02, "not worse")],
)
def test_as_many_queries_as_are_needed_decide_in_four_of_five_samples(
    better, worse, margin, decision
):
    # As few that the data do not decide, in the same shares.
    shares = differences(better, worse, 100)
    n = non_inferiority(shares, margin).queries_needed
    rng = np.random.default_rng(n)
    decided = [non_inferiority(rng.choice(shares, n), margin).decision for _ in range(120)]
    assert decided.count(decision) / 120 >= 0.8  # the true difference may be nearer to the margin


def test_a_difference_that_is_the_margin_needs_more_than_any_near_it():
    at, near = (non_inferiority(differences(0, losses, 100), 0.02) for losses in (2, 3))
    assert at.queries_needed > near.queries_needed > 100
