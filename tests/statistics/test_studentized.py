import math

import numpy as np
import pytest
import scipy.stats

from engine.statistics.studentized import studentized


def without_each(x, y):
    others = [np.arange(len(x)) != i for i in range(len(x))]
    return np.array([scipy.stats.kendalltau(x[rows], y[rows]).statistic for rows in others])


def sample(n=60, right=12, seed=0, shift=0.8):
    rng = np.random.default_rng(seed)
    y = np.arange(n) < right
    return rng.normal(size=n) + shift * y, y.astype(float)


def bounds(x, y, confidence=0.95):
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
    low, high = bounds(x, y)
    assert bounds(-x, y) == pytest.approx((-high, -low))
    inner = bounds(x, y, 0.5)
    assert -1 < low < inner[0] < inner[1] < high < 1


def test_the_fewer_are_right_the_wider():
    # The same spread of influences from fewer queries leaves fewer degrees of freedom.
    few, many = (bounds(*sample(n=200, right=right, shift=0)) for right in (10, 100))
    normal = scipy.stats.norm.ppf(0.975)
    x, y = sample(n=200, right=10, shift=0)
    error = 199 / math.sqrt(200 * 199) * without_each(x, y).std()
    assert np.ptp(np.arctanh(few)) / 2 > 1.05 * normal * error
    assert np.ptp(few) > 0
    assert np.ptp(many) > 0


def test_perfect_agreement_has_no_standard_error():
    assert np.isnan(studentized(1.0, np.ones(20), np.arange(20) < 5, confidence=0.95)).all()
