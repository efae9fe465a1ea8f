"""Correlations with their intervals, and what margins allow, by hand and against scipy."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks._single import correlate
from benchmarks._studies import Clusters
from benchmarks.intervals import faults, figures
from engine.statistics.bounded import binomial_interval, mean_interval
from engine.statistics.correlation import (
    Bootstrap,
    from_jackknife,
    independent_queries,
    intraclass,
    margins,
)
from engine.statistics.resampling import Draws, for_each_block, replicate
from tests.expected import as_expected, refused


def sample(n=120):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 5, n).astype(float)
    return x, (x + rng.normal(size=n) > 2).astype(float)


def test_values_and_interval():
    x, y = sample()
    bootstrap = Bootstrap(resamples=4000, seed=1)
    result = correlate(x, y, bootstrap)
    assert result.method == "percentile"
    assert result.tau == pytest.approx(scipy.stats.kendalltau(x, y).statistic, abs=1e-12)
    assert result.rho == pytest.approx(scipy.stats.spearmanr(x, y).statistic, abs=1e-12)
    # SciPy's own bootstrap, other draws: bounds agree to Monte Carlo error
    for name, peer in (("tau", scipy.stats.kendalltau), ("rho", scipy.stats.spearmanr)):
        bounds = scipy.stats.bootstrap(
            (x, y), lambda a, b, f=peer: f(a, b).statistic, paired=True, vectorized=False,
            n_resamples=1000, method="percentile", rng=2,
        ).confidence_interval  # fmt: skip
        assert getattr(result, f"{name}_low") == pytest.approx(bounds.low, abs=0.02)
        assert getattr(result, f"{name}_high") == pytest.approx(bounds.high, abs=0.02)
    assert correlate(x, y, bootstrap) == result
    assert correlate(x, y, replace(bootstrap, seed=2)) != result
    narrow = correlate(x, y, replace(bootstrap, confidence=0.5))
    assert result.tau_low < narrow.tau_low < narrow.tau_high < result.tau_high


@pytest.mark.parametrize(
    ("x", "y"), [([1, 1, 1], [0, 1, 0]), ([0, 1, 2], [0, 0, 0]), ([1], [1]), ([], [])]
)
def test_undefined_correlations_say_why(x, y):
    result = correlate(np.array(x, float), np.array(y, float), Bootstrap())
    assert math.isnan(result.tau)
    assert math.isnan(result.rho)
    as_expected(result.note)


def test_thin_data_are_not_resampled():
    bootstrap = Bootstrap(resamples=1000)
    x, y = sample(60)
    studentized = correlate(x, y, bootstrap)
    assert studentized.method == "studentized"
    assert studentized.tau_low < studentized.tau < studentized.tau_high
    assert studentized.rho_low < studentized.rho < studentized.rho_high
    inverted = correlate((x > 0).astype(float), y, bootstrap)
    assert inverted.method == "inverted"
    assert inverted.tau_low < inverted.tau < inverted.tau_high
    one_right = correlate(x, (np.arange(60) == np.argmax(x)).astype(float), bootstrap)
    assert one_right.method == "inverted"
    assert one_right.tau_low < 0 < one_right.tau < one_right.tau_high
    none = correlate(x[:10], y[:10], bootstrap)
    assert none.method == ""
    as_expected(none.note)
    assert math.isnan(none.tau_low)


def test_perfect_agreement_over_many_values_has_no_interval():
    x = np.arange(40.0)
    result = correlate(x, -x, Bootstrap(resamples=1000))
    assert (result.tau, result.method) == (-1, "")
    as_expected(result.note)


def test_without_resamples_there_is_no_interval():
    x, y = np.array([0.0, 1, 2]), np.array([0.0, 1, 1])
    result = correlate(x, y, Bootstrap(resamples=0))
    assert math.isnan(result.tau_low)
    assert result.tau > 0
    assert result.note == ""


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"resamples": 99}, "settings.resamples"),
        ({"resamples": -1}, "settings.value"),
        ({"confidence": 95}, "settings.value"),
        ({"confidence": float("nan")}, "settings.value"),
        ({"confidence": 0.0}, "settings.value"),
        ({"seed": -1}, "settings.value"),
    ],
)
def test_a_bootstrap_out_of_range_is_refused(options, problem):
    with refused(problem):
        Bootstrap(**options)


def tau_of(x, y):
    return float(scipy.stats.kendalltau(x, y).statistic)


def order_of(values):
    """Signs of all differences."""
    return np.sign(values[:, None] - values[None, :])


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=2, max_size=5).filter(
        lambda pairs: all(len(set(side)) > 1 for side in zip(*pairs, strict=True))
    )
)
@settings(max_examples=30, deadline=None)
def test_the_farthest_taus_are_those_of_all_assignments(pairs):
    x, y = np.array(pairs, dtype=float).T
    below = math.sqrt((order_of(x) ** 2).sum() * (order_of(y) ** 2).sum())
    every = [
        (order_of(x) * order_of(np.array(other))).sum() / below for other in set(permutations(y))
    ]
    found = margins(x, y, tau_of(x, y))
    assert found.tau_max == pytest.approx(max(every), abs=1e-12)
    assert found.tau_min == pytest.approx(min(every), abs=1e-12)
    assert -1 - 1e-12 <= found.tau_reached <= 1 + 1e-12


@pytest.mark.parametrize("seed", range(6))
def test_auc_is_that_of_somers_d(seed):
    rng = np.random.default_rng(seed)
    y = (rng.random(60) < 0.3).astype(float)
    x = (y * 0.3 + rng.random(60)).round(1)
    d = scipy.stats.somersd(y, x).statistic
    assert margins(x, y, tau_of(x, y)).auc == pytest.approx((1 + d) / 2, abs=1e-12)


def test_auc_by_hand():
    # of 2 x 2 pairs: 0.5 above 0, 0.5 tied, 1 above both: 3.5 of 4
    x, y = np.array([0.5, 1, 0, 0.5]), np.array([1.0, 1, 0, 0])
    assert margins(x, y, tau_of(x, y)).auc == 3.5 / 4
    # a measure that is the same for every query orders none
    assert margins(np.ones(4), y, math.nan).auc == 0.5


def test_auc_is_of_right_and_wrong_alone():
    x = np.array([0.0, 1, 2, 3])
    for y in ([0, 0.5, 1, 1], [1, 1, 1, 1], [0, 0, 0, 0], [0, 0.5, 0.5, 0]):
        assert math.isnan(margins(x, np.array(y, dtype=float), math.nan).auc)


def test_two_binary_sides_reach_phi_of_at_most_what_their_shares_allow():
    # 4 of 64 measures are 0 and 20 of 64 outcomes 1: phi is greatest where all four are of wrong
    # outcomes, sqrt(20 x 4 / (44 x 60)) = 0.174; four misses among the right ones, -sqrt(44 x 4 / (20 x 60))
    x = np.array([0.0] * 4 + [1.0] * 60)
    y = np.array([0.0] * 44 + [1.0] * 20)
    found = margins(x, y, tau_of(x, y))
    assert found.tau_max == pytest.approx(math.sqrt(20 * 4 / (44 * 60)))
    assert found.tau_min == pytest.approx(-math.sqrt(44 * 4 / (20 * 60)))
    assert found.tau_reached == pytest.approx(1)
    turned = y[::-1]
    found = margins(x, turned, tau_of(x, turned))
    assert found.tau_reached == pytest.approx(-1)


def test_a_tau_that_is_undefined_reaches_nothing():
    found = margins(np.ones(3), np.array([0.0, 1, 1]), math.nan)
    assert all(map(math.isnan, (found.tau_min, found.tau_max, found.tau_reached)))


CELL = Clusters(30, 4, 0.5, "nDCG", "F1", 0.3, samples=0)
CLUSTERS = np.repeat(np.arange(30), 4)


def clustered_sample(seed=0):
    first, _, y = CELL.draw(np.random.default_rng(seed), 0.5)
    return first, y


def test_whole_clusters_are_left_out_and_resampled():
    x, y = clustered_sample()
    clusters = np.where(CLUSTERS < 29, CLUSTERS, 29 + np.arange(120) % 4)  # the last four are alone
    found = replicate(np.stack([x, y]), [(0, 1)], Draws(40, 3), leave_out=True, clusters=clusters)
    for cluster in range(33):
        kept = clusters != cluster
        tau = scipy.stats.kendalltau(x[kept], y[kept]).statistic
        assert found.without[0, 0, cluster] == pytest.approx(tau, abs=1e-12)
    drawn = []
    for_each_block(
        np.arange(120),
        120,
        lambda first, weights: drawn.extend(weights),
        Draws(40, 3, threads=1),  # in their order
        clusters,
    )
    counts = np.array(drawn)
    for cluster in range(33):
        of_cluster = counts[:, clusters == cluster]
        assert (of_cluster == of_cluster[:, :1]).all()
    assert (counts[:, [0, *range(4, 120, 4), 117, 118, 119]].sum(axis=1) == 33).all()
    tau = scipy.stats.kendalltau(np.repeat(x, counts[0]), np.repeat(y, counts[0])).statistic
    assert found.taus[0, 0] == pytest.approx(tau, abs=1e-12)


def test_clusters_of_one_query_are_queries():
    x, y = clustered_sample()
    alone = np.arange(120)
    assert independent_queries(x, y, alone, confidence=0.95) == 120
    settings = {"draws": Draws(40, 1), "leave_out": True}
    by_query = replicate(np.stack([x, y]), [(0, 1)], **settings)
    by_cluster = replicate(np.stack([x, y]), [(0, 1)], **settings, clusters=alone)
    assert (by_query.without == by_cluster.without).all()


def test_copies_of_a_query_say_no_more_than_the_query():
    x, y = clustered_sample()
    clusters = np.repeat(np.arange(40), 3)
    x, y = np.repeat(x[:40], 3), np.repeat(y[:40], 3)
    assert intraclass(x, clusters) == pytest.approx(1)
    # 40 times the square of t's quantile of 119 degrees of freedom over that of 39: (1.980 / 2.023)²
    assert independent_queries(x, y, clusters, confidence=0.95) == 38
    bootstrap = Bootstrap(resamples=200)
    wide, narrow = correlate(x, y, bootstrap, clusters), correlate(x, y, bootstrap)
    assert wide.method == "studentized"
    assert wide.tau_high - wide.tau_low > 1.5 * (narrow.tau_high - narrow.tau_low)
    right = (y > 0).astype(float)
    assert mean_interval(right, 0.95, clusters) == pytest.approx(
        binomial_interval(right[::3].sum(), 40, 0.95), abs=1e-9
    )


def test_the_test_is_the_level_at_which_its_interval_reaches_0():
    x, y = clustered_sample()
    without = replicate(
        np.stack([x, y]), [(0, 1)], Draws(0, 0), leave_out=True, clusters=CLUSTERS
    ).without[0, 0]
    tau = scipy.stats.kendalltau(x, y).statistic
    test = from_jackknife(tau, without, (x, y), CLUSTERS, confidence=0.95)
    at_p = from_jackknife(tau, without, (x, y), CLUSTERS, confidence=1 - test.p)
    assert at_p.low == pytest.approx(0, abs=1e-9)
    assert (test.p < 0.05) == (test.low > 0)


@pytest.mark.parametrize("count", [10, 12])
def test_what_clusters_cannot_show_has_no_interval(count):
    rng = np.random.default_rng(1)
    clusters = np.repeat(np.arange(count), 100)
    x, y = rng.normal(size=(2, len(clusters)))
    y[clusters > 1] = 0
    found = correlate(x, y, Bootstrap(resamples=100), clusters)
    assert not found.method
    as_expected(found.note)


def test_a_mean_without_any_spread_counts_as_many_queries_as_clusters():
    for value, wins in ((0.0, 0), (1.0, 12)):
        found = mean_interval(np.full(60, value), 0.95, np.repeat(np.arange(12), 5))
        assert found == pytest.approx(binomial_interval(wins, 12, 0.95), abs=1e-9)


def test_intervals_hold_where_independent_queries_would_not():
    cell = Clusters(40, 5, 0.9, "P@10", "right", 0.3, samples=30, draws=100)
    found = figures(cell)
    assert all(found[kind][0] >= 0.85 for kind in ("tau", "difference", "mean", "lead"))
    assert found["alone"][0] < 0.85
    assert not faults(cell, found)
