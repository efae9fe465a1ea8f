"""Intervals by inverting a test: the parts against SciPy, the whole against tests it did not make."""

import numpy as np
import pytest
import scipy.optimize
import scipy.stats

from engine.statistics import inversion
from engine.statistics.inversion import inverted, inverted_difference, table_of


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
    for tau, rho in (inversion._values(table[None], ((),))[:, 0], inversion._of_shares(table / 60)):
        assert tau == pytest.approx(scipy.stats.kendalltau(x, y).statistic, abs=1e-12)
        assert rho == pytest.approx(scipy.stats.spearmanr(x, y).statistic, abs=1e-12)


def test_a_constant_side_has_no_value():
    assert np.isnan(inversion._values(np.array([[[3.0, 4.0], [0.0, 0.0]]]), ((),))).all()


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
        tau = inversion._tau_and_influence(shares)[0] * (1 - step) + wanted * step
        start = inversion._most_likely(shares, start, tau)
    found = inversion._of_shares(start)[0]
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
            "fun": lambda values: inversion._of_shares(
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
    assert not 0.02 < p < 0.1, "an example that is too close to tell"
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
    inversion._inverted.cache_clear()
    assert np.ptp(bounds(table)[0]) == width


@pytest.mark.parametrize("table", [[[20, 0], [0, 5]], [[10, 0], [0, 1]], [[0, 5], [20, 0]]])
def test_perfect_agreement_of_few_queries_is_uncertain(table):
    low, high = bounds(table)[0]
    assert (high == 1 and low < 0.95) or (low == -1 and high > -0.95)


@pytest.mark.parametrize("outcomes", [1, 2])
def test_a_difference_and_its_slope_are_those_of_the_definitions(outcomes):
    rng = np.random.default_rng(outcomes)
    x_a, x_b, *y = rng.integers(0, 3, (2 + outcomes, 50)).astype(float)
    parts = inversion._SAME_OUTCOME if outcomes == 1 else inversion._OWN_OUTCOMES
    table = table_of(x_a, x_b, *y)
    for row, peer in enumerate((scipy.stats.kendalltau, scipy.stats.spearmanr)):
        difference = peer(x_a, y[0]).statistic - peer(x_b, y[-1]).statistic
        assert inversion._values(table[None], parts)[row, 0] == pytest.approx(difference, abs=1e-12)
    shares = (table + 0.1) / (table + 0.1).sum()
    at, slope = inversion._slope(shares, parts)
    for cell in list(np.ndindex(*table.shape))[::7]:
        moved = (1 - 1e-6) * shares
        moved[cell] += 1e-6
        change = (inversion._slope(moved, parts)[0] - at) / 1e-6
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
