"""What the margins allow: against SciPy, and against every assignment of scores to queries."""

import math
from itertools import permutations

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.statistics.margins import margins


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
