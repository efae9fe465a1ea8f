import math

import numpy as np
import pytest
import scipy.stats

from engine.statistics.intervals import around, binomial_interval, holm, interval


def statistic(x, y):
    return scipy.stats.kendalltau(x, y).statistic


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_bounds_equal_scipys_from_the_same_replicates(seed):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 6, 60).astype(float)
    y = (x + rng.normal(size=60) > 3).astype(float)
    peer = scipy.stats.bootstrap(
        (x, y), statistic, paired=True, vectorized=False, n_resamples=500,
        method="percentile", rng=seed,
    )  # fmt: skip
    low, high, note = interval(peer.bootstrap_distribution, 0.95)
    assert low == pytest.approx(peer.confidence_interval.low, abs=1e-12)
    assert high == pytest.approx(peer.confidence_interval.high, abs=1e-12)
    assert note == ""


def test_undefined_resamples_are_noted_and_too_many_leave_no_interval():
    replicates = np.array([0.5] * 90 + [math.nan] * 10)
    assert interval(replicates, 0.9) == (
        0.5, 0.5, "one side is constant in 10% of the resamples, left out",
    )  # fmt: skip
    replicates[:60] = math.nan
    low, high, note = interval(replicates, 0.9)
    assert math.isnan(low)
    assert math.isnan(high)
    assert note.startswith("no interval: one side is constant in 70%")


def test_a_perfect_correlation_has_a_point_interval():
    assert interval(np.ones(100), 0.95) == (1, 1, "")


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
