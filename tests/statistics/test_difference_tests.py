"""Permutation tests of differences: against derivatives of the definitions, all orders, and simulation."""

import math
import tracemalloc
from itertools import permutations

import numpy as np
import pytest
import scipy.stats

from benchmarks._simulated import Pair as Drawn
from engine.statistics import resampling
from engine.statistics.difference_tests import (
    difference_test,
    enough_for_jackknife,
    influences,
    permutation_test,
    permutations_for,
    prepare,
    quotients,
    studentized,
    untestable,
)
from engine.statistics.methods import standard_error
from tests.expected import as_expected

# Values of measure and outcome: two, few or all different, on either side.
VALUES = [(5, 2), (2, 5), (2, 2), (9, 4), (4, 9), (50, 50)]


def made(values, n, seed=0):
    """A measure with so many values, and an outcome; neither constant."""
    rng = np.random.default_rng([seed, n, *values])
    sides = [rng.integers(0, count, n).astype(float) for count in values]
    for side in sides:
        side[:2] = 0, 1
    return sides


def pair_of(x, y):
    return prepare(x), prepare(y)


def weighted(x, y, weights):
    """tau-b and rho by definition, of queries with any weights."""
    x_signs, y_signs = (np.sign(side[:, None] - side) for side in (x, y))

    def form(signs):
        return weights @ (signs @ weights)

    tau = form(x_signs * y_signs) / np.sqrt(form(x_signs**2) * form(y_signs**2))
    a, b = (signs @ weights for signs in (x_signs, y_signs))
    rho = (weights * a) @ b / np.sqrt(((weights * a) @ a) * ((weights * b) @ b))
    return np.array([tau, rho])


def influences_by_definition(x, y):
    """Derivatives with respect to each weight, by a complex step."""
    step = 1e-30
    weights = np.ones((len(x), len(x)), dtype=complex) + 1j * step * np.eye(len(x))
    return np.array([weighted(x, y, row).imag / step for row in weights]).T


@pytest.mark.parametrize("values", VALUES)
def test_values_and_influences_under_permutation_are_those_of_the_definitions(values):
    x, y = made(values, 30)
    orders = np.stack([np.arange(30), np.random.default_rng(1).permutation(30)])
    found, influence = influences(pair_of(x, y), orders)
    for place, order in enumerate(orders):
        tau, rho = scipy.stats.kendalltau(x, y[order])[0], scipy.stats.spearmanr(x, y[order])[0]
        assert found[:, place] == pytest.approx([tau, rho], abs=1e-12)
        assert influence[:, place] == pytest.approx(
            influences_by_definition(x, y[order]), abs=1e-12
        )


def quotients_by_definition(x_a, y_a, x_b, y_b):
    difference = weighted(x_a, y_a, np.ones(len(x_a))) - weighted(x_b, y_b, np.ones(len(x_a)))
    influence = influences_by_definition(x_a, y_a) - influences_by_definition(x_b, y_b)
    error = np.sqrt((influence**2).sum(axis=1))
    return np.where(np.abs(difference) < 1e-12, 0, difference / np.maximum(error, 1e-15))


@pytest.mark.parametrize("runs", ["one outcome", "own outcomes"])
def test_p_values_are_those_of_all_orders(runs):
    rng = np.random.default_rng(5)
    x_a, x_b = rng.integers(0, 4, (2, 5)).astype(float)
    y_a = np.array([0.0, 0.2, 0.2, 0.7, 1.0])
    y_b = y_a if runs == "one outcome" else np.array([0.0, 1.0, 0.0, 1.0, 0.5])
    observed = np.abs(quotients_by_definition(x_a, y_a, x_b, y_b))
    by_order = [
        quotients_by_definition(x_a, y_a[list(order)], x_b, y_b[list(order)])
        for order in permutations(range(5))
    ]
    exact = (np.abs(by_order) >= observed * (1 - 1e-9)).mean(axis=0)
    draws = 20_000
    found = permutation_test(
        pair_of(x_a, y_a), pair_of(x_b, y_b), permutations=draws, confidence=0.95, seed=0
    )
    for test, p in zip(found, exact, strict=True):
        # Few outcomes: the floor of Student's t may lie above.
        assert test.p >= p - 4 * math.sqrt(p * (1 - p) / draws)
    orders = np.array(list(permutations(range(5))))
    own = quotients(*studentized(pair_of(x_a, y_a), pair_of(x_b, y_b), orders))
    assert own == pytest.approx(np.array(by_order).T, rel=1e-6, abs=1e-9)
    assert (np.abs(own) >= observed[:, None] * (1 - 1e-6)).mean(axis=1) == pytest.approx(exact)


def test_nothing_depends_on_threads_and_the_first_permutations_not_on_their_number():
    (x_a, y), (x_b, _) = made((9, 2), 50), made((4, 2), 50, seed=1)
    first, second = pair_of(x_a, y), pair_of(x_b, y)

    def found(**options):
        options = {"permutations": 300, "confidence": 0.95, "seed": 2} | options
        return permutation_test(first, second, **options)

    assert found(threads=1) == found(threads=3)
    assert found() != found(seed=3)
    # From the draws of 300 permutations those of 100 follow, a block of 64 at a time.
    tau, _ = found(permutations=100)
    assert tau.p == pytest.approx(found()[0].p, abs=0.2)


@pytest.mark.parametrize("n", [20, 200])
def test_nothing_depends_on_how_many_orders_are_made_at_a_time(n, monkeypatch):
    first, second = (pair_of(*made((5, 3), n, seed)) for seed in (1, 2))
    settings = {"permutations": 150, "confidence": 0.95, "seed": 4}
    whole = permutation_test(first, second, **settings)
    for name in ("_DRAWN", "FEW_CELLS", "_REMEMBERED"):
        monkeypatch.setattr(resampling, name, 1)
    assert permutation_test(first, second, **settings) == whole


def test_permuting_many_queries_takes_no_more_than_a_few_orders():
    n = 30_000
    first, second = (pair_of(*made((9, 2), n, seed)) for seed in (1, 2))
    tracemalloc.start()
    try:
        permutation_test(first, second, permutations=64, confidence=0.95, seed=0, threads=1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    # 64 orders of 8 bytes a query, and what is made of them all at once, would take 150 MB.
    assert peak < 80e6


@pytest.mark.parametrize("floor", [None, (0.12, 4.3)])
def test_zero_is_outside_the_interval_just_where_p_is_small(floor):
    rng = np.random.default_rng(0)
    for draws in (100, 999, 2000):
        permuted = rng.standard_t(5, draws)
        for quotient in rng.normal(0, 2.5, 100):
            test = difference_test(0.1 * quotient, 0.1, permuted, confidence=0.95, floor=floor)
            assert (test.p <= 0.05) == (not test.low <= 0 <= test.high)
            assert 0 < test.p <= 1
            assert (test.low + test.high) / 2 == pytest.approx(0.1 * quotient)


def test_a_test_by_hand():
    permuted = np.array([-3.0, -1.0, 0.5, 2.0, 0.0, 1.0, -0.5, 1.5, -1.5])
    test = difference_test(0.4, 0.2, permuted, confidence=0.8)
    # 2 of 9 are as far as 0.4 / 0.2; of 10 with the sample itself a fifth may lie outside: one of 9
    assert test.p == pytest.approx(3 / 10)
    assert (test.low, test.high) == pytest.approx((0.4 - 2 * 0.2, 0.4 + 2 * 0.2))
    by_t = difference_test(0.4, 0.2, permuted, confidence=0.8, floor=(0.5, 2))
    assert by_t.p == pytest.approx(2 * scipy.stats.t.sf(0.8, 2))
    assert by_t.high == pytest.approx(0.4 + 0.5 * scipy.stats.t.ppf(0.9, 2))
    # Each counts only where it is the larger.
    assert difference_test(0.4, 0.2, permuted, confidence=0.8, floor=(0.01, 2)) == test


def test_a_difference_without_an_error_has_a_p_value_and_no_interval():
    permuted = np.array([np.inf, -np.inf, 0.0, *[1.0] * 36])
    test = difference_test(0.3, 0.0, permuted, confidence=0.95)
    assert test.p == pytest.approx(3 / 40)
    assert math.isnan(test.low)
    assert math.isnan(test.high)
    # and none where the permutations do not bound the quotient
    assert math.isnan(difference_test(0.3, 0.1, permuted, confidence=0.95).low)
    assert difference_test(0.0, 0.0, np.zeros(99), confidence=0.95).p == 1


def test_few_right_answers_are_tested_by_the_larger_of_both():
    # 5 of 40 right, and the second measure spreads them as widely as it can
    y = (np.arange(40) >= 35).astype(float)
    other = np.random.default_rng(3).permutation(40).astype(float)
    other[35:] = -1, 41, -2, 42, 43
    first, second = pair_of(np.arange(40.0), y), pair_of(other, y)
    (taus, of_tau), (others, of_other) = (
        (values[0, 0], influence[0, 0])
        for values, influence in (influences(p, np.arange(40)[None, :]) for p in (first, second))
    )
    error, freedom = standard_error(of_tau - of_other, y == 1, as_the_others=0.15)
    assert 4 < freedom < 6
    tau, _ = permutation_test(first, second, permutations=999, confidence=0.95, seed=0)
    assert tau.p == pytest.approx(2 * scipy.stats.t.sf((taus - others) / error, freedom))
    reach = scipy.stats.t.ppf(0.975, freedom) * error
    assert (tau.low, tau.high) == pytest.approx((taus - others - reach, taus - others + reach))


def test_three_right_answers_can_show_a_difference():
    """Two measures of many values, one of which ranks the right answers first: power at few right answers."""
    rng = np.random.default_rng(0)
    y = (np.arange(60) >= 57).astype(float)
    found = [
        permutation_test(
            pair_of(y + rng.random(60), y), pair_of(rng.random(60), y),
            permutations=399, confidence=0.95, seed=0,
        )[0].p
        for _ in range(40)
    ]  # fmt: skip
    assert np.mean(np.array(found) <= 0.05) > 0.2


@pytest.mark.parametrize(
    ("n", "right", "misses", "enough"),
    [(1000, 500, 100, True), (1000, 500, 99, False), (1000, 499, 100, False), (90, 45, 45, False)],
)
def test_resamples_are_used_where_the_rarest_combination_has_fifty_queries(
    n, right, misses, enough
):
    x, y = (np.arange(n) >= misses).astype(float), (np.arange(n) < right).astype(float)
    assert enough_for_jackknife([(x, y)]) == enough
    assert enough_for_jackknife([(y, y), (x, y)]) == enough


def test_what_cannot_be_tested_is_said():
    x, y = np.arange(40.0), np.zeros(40)
    y[:2] = 1
    as_expected(untestable([(x, y)]))
    y[:3] = 1
    assert untestable([(x, y)]) == untestable([(x, 1 - y)]) == ""
    many = np.arange(3000.0)
    rare = (many < 5).astype(float)
    assert untestable([(many, rare), (rare, rare)]) == ""
    as_expected(untestable([(many, many), (rare, many)]))


def test_as_many_permutations_as_resamples_unless_each_is_long():
    x, y = np.arange(500.0), np.tile([0.0, 1.0], 250)
    assert permutations_for([(x, y), (x, y)], 10_000) == 10_000
    assert permutations_for([(x, x), (x, x)], 10_000) == 999
    assert permutations_for([(x, x), (x, x)], 200) == 200


def test_drawn_pairs_have_the_true_correlations():
    for truth in ("equal", "apart", "spread"):
        pair = Drawn(100_000, 0.1, "P@10", "nDCG", truth)
        x_a, x_b, y = (column[0] for column in pair.draw(np.random.default_rng(0), 1))
        found = [scipy.stats.kendalltau(x, y).statistic for x in (x_a, x_b)]
        assert found == pytest.approx(pair.taus, abs=0.01)
        rhos = [scipy.stats.spearmanr(x, y).statistic for x in (x_a, x_b)]
        assert rhos[0] - rhos[1] == pytest.approx(pair.differences[1], abs=0.01)
