"""Agreement of leaderboards."""

import math

import numpy as np
import pytest

from engine.statistics.runs import agreement
from tests.expected import refused

# The example of R's package ircor, by the authors of tau_AP-b, with the values that its manual prints.
X = [0.67, 0.45, 0.29, 0.12, 0.57, 0.24, 0.94, 0.75, 0.08, 0.54]
Y = [0.48, 0.68, 0.32, 0.09, 0.06, 0.61, 0.87, 0.22, 0.44, 0.84]


def boards(x, y):
    return dict(enumerate(x)), dict(reversed([*enumerate(y)]))  # by run, in any order


@pytest.mark.parametrize(
    ("x", "y", "value"),
    [(X, np.round(Y, 1), 0.3317019), (np.round(X, 1), np.round(Y, 1), 0.339418)],
)
def test_ap_correlation_with_ties_is_that_of_its_authors(x, y, value):
    assert agreement(*boards(x, y))["tau_ap_b"] == pytest.approx(value, abs=5e-7)
    assert agreement(*boards(y, x))["tau_ap_b"] == pytest.approx(value, abs=5e-7)


def test_a_swap_at_the_top_costs_more_than_one_at_the_bottom():
    # Above rank 2 none of one is right, above rank 3 both: a mean of 1/2, both ways.
    top = agreement(*boards([3, 2, 1], [2, 3, 1]))
    # Above rank 2 the one is right, above rank 3 one of two: a mean of 3/4, both ways.
    bottom = agreement(*boards([3, 2, 1], [3, 1, 2]))
    assert (top["tau_ap_b"], bottom["tau_ap_b"]) == pytest.approx((0, 0.5))
    assert top["tau"] == bottom["tau"] == pytest.approx(1 / 3)
    assert top["rho"] == bottom["rho"] == pytest.approx(0.5)


def test_errors_of_rounding_are_ties_and_leaderboards_without_an_order_have_no_agreement():
    exact = agreement(*boards([0.3, 0.3, 0.1], [1, 2, 0]))
    assert agreement(*boards([0.1 + 0.2, 0.3, 0.1], [1, 2, 0])) == exact
    for tied in ([0.1 + 0.2, 0.3, 0.3], [1, 1, 1]):
        assert all(map(math.isnan, agreement(*boards(tied, [1, 2, 3])).values()))
    assert all(map(math.isnan, agreement({}, {}).values()))


def test_leaderboards_of_other_runs_are_refused():
    with refused("leaderboards.runs"):
        agreement({"a": 1, "b": 2}, {"a": 1, "c": 2})
