"""Which method makes an interval, from counts alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from engine.statistics import methods
from engine.statistics.methods import (
    inverted,
    inverted_difference,
    method_for,
    side,
    studentized,
    table_of,
)
from tests.expected import as_expected


def scores(amounts):
    """So many queries with each value 0, 1, ... / (number - 1)."""
    return np.repeat(np.arange(len(amounts), dtype=float), amounts)


def chosen(x, y, seed=0):
    rng = np.random.default_rng(seed)
    return method_for(side(rng.permutation(x)), side(rng.permutation(y)))


SPREAD = np.arange(400.0)


@pytest.mark.parametrize(
    ("x", "y", "method"),
    [
        (scores([4, 60]), scores([45, 19]), "inverted"),  # two binary sides, however thin
        (scores([1, 299]), scores([200, 100]), "inverted"),
        (scores([500, 500]), scores([500, 500]), "inverted"),
        (scores([8, 4, 88]), scores([90, 10]), "inverted"),  # 1.2 queries expected in the corner
        (scores([8, 4, 288]), scores([200, 100]), "inverted"),
        (SPREAD[:64], scores([45, 19]), "studentized"),
        (SPREAD[:64], scores([54, 10]), "studentized"),
        (
            SPREAD[:64],
            scores([55, 9]),
            "inverted",
        ),  # however few are right, and of however many queries
        (SPREAD[:20], scores([14, 6]), "inverted"),
        (SPREAD[:300], scores([299, 1]), "inverted"),
        (scores([5, 4, 55]), scores([45, 19]), "inverted"),
        (SPREAD[:30], SPREAD[:30], "studentized"),
        (SPREAD[:100], scores([51, 49]), "studentized"),
        (SPREAD[:100], scores([50, 50]), "percentile"),
        (SPREAD, SPREAD, "percentile"),
        (scores([100, 30, 270]), scores([200, 200]), "percentile"),
    ],
)
def test_the_method_follows_from_the_counts(x, y, method):
    assert chosen(x, y) == (method, "")
    assert chosen(y, x) == (method, "")


def test_too_few_queries_have_none():
    as_expected(chosen(SPREAD[:10], SPREAD[:10]))
    assert chosen(scores([5, 5]), scores([5, 5]))[0] is None


def test_an_empty_corner_of_two_sides_that_are_mostly_one_value_is_thin():
    """Independent sides would leave 25 queries there; the sample has none."""
    x, y = np.zeros((2, 400))
    x[:100] = np.arange(100) % 3 + 1
    y[100:200] = 1
    assert method_for(side(x), side(y)) == ("inverted", "")
    assert chosen(x, y) == ("percentile", "")


def test_what_is_too_large_to_draw_is_studentized_or_refused():
    def mostly_one(amount, n):
        return np.concatenate([np.zeros(n - amount), np.arange(1, amount + 1)])

    assert chosen(mostly_one(100, 900), mostly_one(100, 900)) == ("percentile", "")
    as_expected(chosen(mostly_one(80, 9000), mostly_one(80, 9000)))
    assert chosen(np.arange(3000.0), mostly_one(3, 3000)) == ("studentized", "")
    as_expected(chosen(np.arange(3000.0), mostly_one(2, 3000)))
    as_expected(chosen(mostly_one(700, 3000), mostly_one(9, 3000)))


def without_each(x, y):
    others = [np.arange(len(x)) != i for i in range(len(x))]
    return np.array([scipy.stats.kendalltau(x[rows], y[rows]).statistic for rows in others])


def sample(n=60, right=12, seed=0, shift=0.8):
    rng = np.random.default_rng(seed)
    y = np.arange(n) < right
    return rng.normal(size=n) + shift * y, y.astype(float)


def known_bounds(x, y, confidence=0.95):
    tau = scipy.stats.kendalltau(x, y).statistic
    return studentized(tau, without_each(x, y), y == 1, confidence=confidence)[:2]


@pytest.mark.parametrize("seed", range(4))
def test_p_is_that_of_brunner_and_munzel_and_the_level_at_which_the_interval_reaches_0(seed):
    """Their test is studentized over two groups as well, with the same degrees of freedom.

    Fisher's scale and the jackknife move the level a little.
    """
    x, y = sample(seed=seed, shift=0.6)
    p = scipy.stats.brunnermunzel(x[y == 1], x[y == 0]).pvalue
    tau, without = scipy.stats.kendalltau(x, y).statistic, without_each(x, y)

    _, _, found = studentized(tau, without, y == 1, confidence=0.95)
    assert found == pytest.approx(p, rel=0.5, abs=0.01)
    low, high, _ = studentized(tau, without, y == 1, confidence=1 - found)
    assert min(abs(low), abs(high)) == pytest.approx(0, abs=1e-9)


def test_bounds_mirror_and_nest():
    x, y = sample()
    low, high = known_bounds(x, y)
    assert known_bounds(-x, y) == pytest.approx((-high, -low))
    inner = known_bounds(x, y, 0.5)
    assert -1 < low < inner[0] < inner[1] < high < 1


def test_the_fewer_are_right_the_wider():
    # The same spread of influences from fewer queries leaves fewer degrees of freedom.
    few, many = (known_bounds(*sample(n=200, right=right, shift=0)) for right in (10, 100))
    normal = scipy.stats.norm.ppf(0.975)
    x, y = sample(n=200, right=10, shift=0)
    error = 199 / math.sqrt(200 * 199) * without_each(x, y).std()
    assert np.ptp(np.arctanh(few)) / 2 > 1.05 * normal * error
    assert np.ptp(few) > 0
    assert np.ptp(many) > 0


def test_perfect_agreement_has_no_standard_error():
    assert np.isnan(studentized(1.0, np.ones(20), np.arange(20) < 5, confidence=0.95)).all()


def written_out(table):
    """Scores whose table this is."""
    rows, columns = np.nonzero(np.array(table))
    times = np.array(table)[rows, columns]
    return np.repeat(rows, times).astype(float), np.repeat(columns, times).astype(float)


def bounds(table, **options):
    settings = {"confidence": 0.95, "draws": 2000, "seed": 0} | options
    return np.array(inverted(*written_out(table), **settings))


@pytest.mark.parametrize("seed", range(3))
def test_values_equal_scipys(seed):
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 4, (2, 60)).astype(float)
    table = table_of(x, y)
    for tau, rho in (
        methods._values(table[None], ((),))[:, 0],
        methods._shares_tau_and_rho(table / 60),
    ):
        assert tau == pytest.approx(scipy.stats.kendalltau(x, y).statistic, abs=1e-12)
        assert rho == pytest.approx(scipy.stats.spearmanr(x, y).statistic, abs=1e-12)


def test_a_constant_side_has_no_value():
    assert np.isnan(methods._values(np.array([[[3.0, 4.0], [0.0, 0.0]]]), ((),))).all()


@pytest.mark.parametrize(
    ("table", "wanted"),
    [
        ([[4, 0], [41, 19]], 0.0),
        ([[4, 0], [41, 19]], 0.27),
        ([[2, 0], [3, 1], [37, 21]], -0.1),
        ([[29, 0], [0, 1]], 0.1),
    ],
)
def test_no_other_distribution_with_this_tau_is_likelier(table, wanted):
    counts = np.array(table, dtype=float)
    n = counts.sum()
    spread = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / n**2
    shares = (counts + 0.1 * spread) / (n + 0.1)
    start = shares
    for step in np.linspace(0, 1, 12)[1:]:
        tau = methods._tau_and_influence(shares)[0] * (1 - step) + wanted * step
        start = methods._most_likely(shares, start, tau)
    found = methods._shares_tau_and_rho(start)[0]
    assert found == pytest.approx(wanted, abs=1e-3)
    assert start.sum() == pytest.approx(1)

    def logs(logarithms):
        weights = np.exp(logarithms)
        return np.log(weights / weights.sum())

    peer = scipy.optimize.minimize(
        lambda values: -(shares.ravel() * logs(values)).sum(),
        np.log(np.full(shares.size, 1 / shares.size) * 0.5 + 0.5 * shares.ravel()),
        constraints=[{
            "type": "eq",
            "fun": lambda values: methods._shares_tau_and_rho(
                np.exp(logs(values)).reshape(shares.shape)
            )[0] - found,
        }],
        method="SLSQP",
        options={"maxiter": 500, "ftol": 1e-12},
    )  # fmt: skip
    assert -(shares * np.log(start)).sum() <= peer.fun + 2e-3


@pytest.mark.parametrize(
    "table", [[[4, 0], [41, 19]], [[1, 0], [200, 99]], [[10, 2], [40, 12]], [[6, 6], [100, 188]]]
)
def test_zero_is_left_out_where_an_exact_test_rejects_independence(table):
    (low, high), _ = bounds(table)
    p = scipy.stats.boschloo_exact(table).pvalue
    assert not 0.02 < p < 0.1, "too close to tell"
    assert (low <= 0 <= high) == (p > 0.05)


def test_four_misses_of_64_show_nothing():
    """What was printed as 0.17 [0.08, 0.26] from resamples, all of which have misses on wrong answers."""
    (low, high), rho = bounds([[4, 0], [41, 19]])
    assert -0.2 < low < 0 < 0.2 < high < 0.35
    # On two binary sides rho is tau.
    assert rho == pytest.approx([low, high])


def test_sides_and_orders_may_be_exchanged():
    table = np.array([[3, 1], [9, 4], [30, 17]])
    low, high = bounds(table)[0]
    assert bounds(table.T)[0] == pytest.approx([low, high], abs=0.02)
    assert bounds(table[::-1])[0] == pytest.approx([-high, -low], abs=0.02)


def test_more_confidence_and_fewer_queries_are_wider():
    table = np.array([[5, 1], [40, 20]])
    width = np.ptp(bounds(table)[0])
    assert width < np.ptp(bounds(table, confidence=0.99)[0])
    assert width > np.ptp(bounds(10 * table)[0])
    assert (bounds(table, seed=1) != bounds(table)).any()
    methods._inverted.cache_clear()
    assert np.ptp(bounds(table)[0]) == width


@pytest.mark.parametrize("table", [[[20, 0], [0, 5]], [[10, 0], [0, 1]], [[0, 5], [20, 0]]])
def test_perfect_agreement_of_few_queries_is_uncertain(table):
    low, high = bounds(table)[0]
    assert (high == 1 and low < 0.95) or (low == -1 and high > -0.95)


@pytest.mark.parametrize("outcomes", [1, 2])
def test_a_difference_and_its_slope_are_those_of_the_definitions(outcomes):
    rng = np.random.default_rng(outcomes)
    x_a, x_b, *y = rng.integers(0, 3, (2 + outcomes, 50)).astype(float)
    parts = methods._SAME_OUTCOME if outcomes == 1 else methods._OWN_OUTCOMES
    table = table_of(x_a, x_b, *y)
    for row, peer in enumerate((scipy.stats.kendalltau, scipy.stats.spearmanr)):
        difference = peer(x_a, y[0]).statistic - peer(x_b, y[-1]).statistic
        assert methods._values(table[None], parts)[row, 0] == pytest.approx(difference, abs=1e-12)
    shares = (table + 0.1) / (table + 0.1).sum()
    at, slope = methods._slope(shares, parts)
    for cell in list(np.ndindex(*table.shape))[::7]:
        moved = (1 - 1e-6) * shares
        moved[cell] += 1e-6
        change = (methods._slope(moved, parts)[0] - at) / 1e-6
        assert slope[cell] == pytest.approx(change, abs=1e-4)


def test_intervals_of_differences_mirror_and_hold_the_difference():
    rng = np.random.default_rng(1)
    y = (np.arange(60) < 9).astype(float)
    x_a, x_b = (rng.random((2, 60)) < [[0.25], [0.1]]).astype(float)
    settings = {"confidence": 0.95, "draws": 2000, "seed": 0}
    (low, high), _ = inverted_difference((x_a, y), (x_b, y), **settings)
    difference = scipy.stats.kendalltau(x_a, y).statistic - scipy.stats.kendalltau(x_b, y).statistic
    assert low < difference < high
    assert 0.3 < high - low < 1.5
    mirrored, _ = inverted_difference((x_b, y), (x_a, y), **settings)
    assert mirrored == pytest.approx((-high, -low), abs=0.03)
    many = np.arange(60.0)
    assert inverted_difference((many, y), (many[::-1], y), **settings) is None


def test_few_values_that_occur_once_are_wider():
    """F1 that is mostly 0: its rarer values say little about where others would lie."""
    x = np.tile([0.0, 1.0], 50)
    alike, unlike = np.zeros((2, 100))
    alike[:8], unlike[:8] = 1, np.arange(1, 9)
    settings = {"confidence": 0.95, "draws": 2000, "seed": 0}
    assert np.ptp(inverted(x, unlike, **settings)[0]) > 1.05 * np.ptp(
        inverted(x, alike, **settings)[0]
    )
