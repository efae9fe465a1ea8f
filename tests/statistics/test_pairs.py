import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.statistics.pairs import leave_one_out, pair_table, pair_weights, tau_and_rho


def expected(x, y):
    """SciPy's tau-b and rho; NaN where it has none, without its warning."""
    if len(x) < 2 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return math.nan, math.nan
    return scipy.stats.kendalltau(x, y).statistic, scipy.stats.spearmanr(x, y).statistic


def samples():
    """Sizes and numbers of values on each side: few, some (a block each), many (blocks)."""
    return st.tuples(
        st.integers(2, 300),
        st.sampled_from([1, 2, 3, 11, 80, 10**6]),
        st.sampled_from([1, 2, 3, 11, 80, 10**6]),
        st.integers(0, 10**6),
    )


def draw(n, x_values, y_values, seed):
    rng = np.random.default_rng(seed)
    x = rng.integers(0, x_values, n) / 7
    y = np.where(rng.random(n) < 0.5, rng.integers(0, y_values, n), np.floor(x * y_values))
    if seed % 3 == 0:
        x[rng.random(n) < 0.6] = 0  # one value that most queries share, as zero is
    return rng, x, y.astype(float)


@settings(max_examples=250, deadline=None)
@given(samples())
def test_tau_and_rho_of_any_multiplicities_equal_scipy(sample):
    n, *_ = sample
    rng, x, y = draw(*sample)
    table = pair_table(x, y)
    rows = [np.arange(n)] + [rng.integers(0, n, n) for _ in range(3)]
    weights = np.stack([np.bincount(row, minlength=n) for row in rows])
    kind = [np.int16, np.int32][n % 2]
    (taus,), (rhos,) = tau_and_rho([table], weights.astype(kind))
    for row, tau, rho in zip(rows, taus, rhos, strict=True):
        assert (tau, rho) == pytest.approx(expected(x[row], y[row]), abs=1e-12, nan_ok=True)


@settings(max_examples=60, deadline=None)
@given(samples())
def test_leaving_one_out_equals_scipy_on_the_others(sample):
    n, *_ = sample
    _, x, y = draw(*sample)
    table = pair_table(x, y)
    counts = pair_weights(table, np.ones((n, 1), dtype=np.int32))[:, 0]
    taus, rhos = leave_one_out(table, counts)
    for left_out in range(0, n, max(1, n // 10)):
        pair = table.pair_of[left_out]
        others = np.arange(n) != left_out
        assert (taus[pair], rhos[pair]) == pytest.approx(
            expected(x[others], y[others]), abs=1e-10, nan_ok=True
        )


def test_identical_for_other_orders_of_the_rows():
    rng, x, y = draw(200, 10**6, 10**6, 1)
    weights = rng.integers(0, 4, (5, 200)).astype(np.int32)
    order = rng.permutation(200)
    one, other = pair_table(x, y), pair_table(x[order], y[order])
    np.testing.assert_array_equal(
        tau_and_rho([one], weights), tau_and_rho([other], weights[:, order])
    )


# Sums reach the square of the total, 2^30 for 16 bits, where two rows have half of it each.
@pytest.mark.parametrize("y_values", [2, 70, 10**6])
@pytest.mark.parametrize("heavy", [1, 2, 3, 100])
def test_16_bits_hold_totals_up_to_their_limit(y_values, heavy):
    x = np.arange(200.0)
    y = np.floor(x * min(y_values, 200) / 200)  # in the order of x
    weights = np.ones((4, 200), dtype=np.int16)
    weights[:, np.linspace(0, 199, heavy).astype(int)] += (2**15 - 201) // heavy
    weights[:, 0] += 2**15 - 1 - weights[0].sum()
    for sign in (1, -1):
        found = tau_and_rho([pair_table(x, sign * y)], weights)
        rows = np.repeat(np.arange(200), weights[0])
        assert found[:, 0, 0] == pytest.approx(expected(x[rows], sign * y[rows]), abs=1e-12)
        wide = tau_and_rho([pair_table(x, sign * y)], weights.astype(np.int32))
        np.testing.assert_array_equal(found, wide)
