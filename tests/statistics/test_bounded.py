"""Tails and bounds of means from a bounded range, against exact binomial figures and against draws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from engine.statistics import bounded
from engine.statistics.bounded import (
    WeightedRows,
    around,
    binomial_interval,
    holm,
    interval,
    lower_bound,
    lower_tail,
    weighed,
)
from tests.expected import as_expected


def rows(values, amounts):
    kept = [amount > 0 for amount in amounts]
    values, amounts = (np.array(column, dtype=float)[kept] for column in (values, amounts))
    return WeightedRows(values, np.ones(len(values)), amounts)


@given(st.integers(0, 400), st.integers(0, 400), st.integers(0, 2000))
def test_differences_of_one_have_the_p_value_of_the_exact_sign_test(wins, losses, ties):
    found = lower_tail(rows([1, 0, -1], [wins, ties, losses + 1]), 0.0)
    exact = scipy.stats.binom.sf(wins - 1, wins + losses, 0.5) if wins else 1.0
    assert found == pytest.approx(exact, rel=1e-7)


@given(st.integers(1, 5000), st.data(), st.sampled_from([0.025, 0.0005]))
def test_bounds_of_proportions_are_those_of_clopper_and_pearson(n, data, tail):
    right = data.draw(st.integers(0, n))
    low = lower_bound(rows([0, 1], [n - right + 1, right]), tail)
    exact = scipy.stats.beta.ppf(tail, right, n - right + 1) if right else 0.0
    assert low == pytest.approx(exact, abs=1e-9)


def test_roots_are_those_of_scipy_to_the_last_bit():
    rng = np.random.default_rng(0)
    for case in range(300):
        a, b = rng.normal(size=2)
        function = (
            lambda x: x**3 + a * x + b,  # noqa: B023
            lambda x: np.exp(x) - 2 - a * a,  # noqa: B023
            lambda x: np.sign(x - a),  # noqa: B023
        )[case % 3]
        close = {"xtol": 1e-13, "rtol": 1e-12} if case % 2 else {"xtol": 1e-5, "rtol": 1e-3}
        assert bounded._root(function, -9, 9, **close) == scipy.optimize.brentq(
            function, -9, 9, **close
        )


def test_tails_and_bounds_are_those_of_drawn_weights():
    rng = np.random.default_rng(2)
    values, sizes = rng.normal(0, 0.3, 12).round(2), rng.integers(1, 5, 12).astype(float)
    sample = weighed(np.append(values * sizes, -4.0), np.append(sizes, 4.0))
    weights = rng.exponential(size=(200_000, 13))
    means = weights @ np.append(values * sizes, -4.0) / (weights @ np.append(sizes, 4.0))
    for tail in (0.025, 0.2, 0.7):
        at = np.quantile(means, tail)
        assert lower_tail(sample, at) == pytest.approx(tail, abs=5 * np.sqrt(tail / 200_000))
        assert lower_tail(sample, lower_bound(sample, tail)) == pytest.approx(tail, abs=1e-9)


@pytest.mark.parametrize("spread", [0.2, 1e-4])
@pytest.mark.parametrize("largest", [1, 8])
def test_many_values_are_put_together_without_moving_the_bounds(spread, largest):
    rng = np.random.default_rng(3)
    values = np.clip(rng.standard_t(2, 3000) * spread, -1, 1)
    sizes = np.append(rng.integers(1, largest + 1, 3000), largest).astype(np.float64)
    sums = np.append(values, -1.0) * sizes
    together = weighed(sums, sizes)
    assert len(together.sums) <= 256 + 32 * largest * (largest > 1)
    assert together.sums @ together.amounts == pytest.approx(sums.sum(), abs=1e-9)
    assert together.sizes @ together.amounts == pytest.approx(sizes.sum(), abs=1e-9)
    apart = WeightedRows(sums, sizes, np.ones(len(sums)))
    for tail in (0.025, 0.0005):
        low, exact = lower_bound(together, tail), lower_bound(apart, tail)
        assert low == pytest.approx(exact, abs=5e-3 * (sums.sum() / sizes.sum() - exact))


def test_values_that_are_all_alike_have_no_tails():
    same = rows([0.25], [7])
    assert (lower_tail(same, 0.2), lower_tail(same, 0.25), lower_tail(same, 0.3)) == (0, 1, 1)
    assert lower_bound(same, 0.025) == 0.25


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
    low, high, note = interval(replicates, 0.9)
    assert low == high == 0.5
    as_expected(note)
    replicates[:60] = math.nan
    low, high, note = interval(replicates, 0.9)
    assert math.isnan(low)
    assert math.isnan(high)
    as_expected(note)


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
