import math

import numpy as np
import pytest
import scipy.stats

from engine.statistics.intervals import around, binomial_interval, holm, interval, p_value


def statistic(x, y):
    return scipy.stats.kendalltau(x, y).statistic


@pytest.mark.parametrize("method", ["percentile", "bca"])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_bounds_equal_scipys_from_the_same_replicates(method, seed):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 6, 60).astype(float)
    y = (x + rng.normal(size=60) > 3).astype(float)
    peer = scipy.stats.bootstrap(
        (x, y), statistic, paired=True, vectorized=False, n_resamples=500,
        method="BCa" if method == "bca" else "percentile", rng=seed,
    )  # fmt: skip
    others = [np.arange(60) != i for i in range(60)]
    without = np.array([statistic(x[rows], y[rows]) for rows in others])
    low, high, note = interval(
        statistic(x, y), peer.bootstrap_distribution, without, method=method, confidence=0.95
    )
    assert low == pytest.approx(peer.confidence_interval.low, abs=1e-12)
    assert high == pytest.approx(peer.confidence_interval.high, abs=1e-12)
    assert note == ""


def test_undefined_resamples_are_noted_and_too_many_leave_no_interval():
    replicates = np.array([0.5] * 90 + [math.nan] * 10)
    assert interval(0.5, replicates, None, method="percentile", confidence=0.9) == (
        0.5, 0.5, "one side is constant in 10% of the resamples, left out",
    )  # fmt: skip
    replicates[:60] = math.nan
    low, high, note = interval(0.5, replicates, None, method="percentile", confidence=0.9)
    assert math.isnan(low)
    assert math.isnan(high)
    assert note.startswith("no interval: one side is constant in 70%")


def test_bca_says_where_it_is_undefined():
    replicates = np.linspace(0, 1, 100)
    low, _, note = interval(
        0.5, replicates, np.array([0.4, math.nan]), method="bca", confidence=0.95
    )
    assert math.isnan(low)
    assert note == "no BCa interval: without one of the queries a side is constant"
    with pytest.raises(ValueError, match="leave-one-out"):
        interval(0.5, replicates, None, method="bca", confidence=0.95)


def test_a_perfect_correlation_has_a_point_interval():
    ones = np.ones(100)
    for method in ("percentile", "bca"):
        assert interval(1.0, ones, np.ones(20), method=method, confidence=0.95) == (1, 1, "")


def test_bca_without_spread_on_one_side_stays_finite():
    low, high, _ = interval(
        2.0, np.linspace(0, 1, 200), np.linspace(1.9, 2.1, 30), method="bca", confidence=0.95
    )
    assert 0 <= low <= high <= 1


@pytest.mark.parametrize(
    ("replicates", "p"),
    [
        ([1.0] * 99, 2 * 1 / 100),  # never 0: (1 + 0) of (1 + 99), twice
        ([-1.0] * 99, 2 * 1 / 100),
        ([1.0] * 90 + [-1.0] * 9, 2 * 10 / 100),
        ([1.0, -1.0], 1.0),
        ([0.0] * 10, 1.0),  # no difference at all
        ([1.0] * 99 + [math.nan], 2 * 1 / 100),
    ],
)
def test_p_values_by_hand(replicates, p):
    assert p_value(np.array(replicates)) == pytest.approx(p, abs=1e-12)


def test_p_value_of_mostly_undefined_replicates_is_undefined():
    assert math.isnan(p_value(np.array([1.0, math.nan, math.nan])))


def test_p_value_is_where_the_interval_reaches_zero():
    replicates = np.random.default_rng(1).normal(1.5, 1, 9999)
    p = p_value(replicates)
    low, _, _ = interval(1.5, replicates, None, method="percentile", confidence=1 - p)
    assert low == pytest.approx(0, abs=0.01)


def test_holm_by_hand():
    # sorted 0.005, 0.01, 0.03, 0.04: times 4, 3, 2, 1 = 0.02, 0.03, 0.06, 0.04 -> kept at 0.06
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []
    first, second = holm([math.nan, 0.04])
    assert math.isnan(first)
    assert second == 0.04  # one comparison only


@pytest.mark.parametrize(("k", "n"), [(0, 1), (1, 1), (0, 40), (3, 40), (40, 40), (121, 1362)])
def test_the_interval_of_a_proportion_is_scipys(k, n):
    expected = scipy.stats.binomtest(k, n).proportion_ci(0.9, method="exact")
    assert binomial_interval(k, n, 0.9) == pytest.approx((expected.low, expected.high))


def test_bounds_are_widened_to_an_estimate_beyond_them():
    assert around(0.2, 0.1, 0.3) == (0.1, 0.3)
    assert around(0.4, 0.1, 0.3) == (0.1, 0.4)
    assert around(0.0, 0.1, 0.3) == (0.0, 0.3)
    assert np.isnan(around(0.4, np.nan, np.nan)).all()
