"""The rule of the gate on a table, its bounds against exact tests, and what it needs."""

import math

import numpy as np
import pytest
import scipy.stats

from engine.statistics.non_inferiority import LEVEL, non_inferiority


def differences(better, worse, n):
    return np.array([1.0] * better + [-1.0] * worse + [0.0] * (n - better - worse))


@pytest.mark.parametrize(
    ("better", "worse", "n", "margin", "decision"),
    [
        (0, 0, 149, 0.02, "not worse"),  # 0.98^149 = 0.0493: a loss of 0.02 would have shown
        (0, 0, 148, 0.02, "undecided"),  # 0.98^148 = 0.0503
        (20, 2, 100, 0.02, "not worse"),  # better, significantly
        (30, 45, 4000, 0.02, "not worse"),  # d = -0.004: a loss within the margin
        (0, 40, 4000, 0.02, "not worse"),  # the same, d = -0.01: a loss, but a significant one
        (2, 8, 100, 0.02, "undecided"),  # d = -0.06: significantly below 0 only
        (0, 30, 100, 0.02, "worse"),
        (0, 30, 100, 0.25, "undecided"),
        (0, 0, 2, 0.02, "undecided"),
        (0, 1, 1, 0.02, "undecided"),  # of one query nothing is known
    ],
)
def test_the_rule(better, worse, n, margin, decision):
    found = non_inferiority(differences(better, worse, n), margin)
    assert found.decision == decision
    assert found.difference == pytest.approx((better - worse) / n)
    assert found.low <= found.difference <= found.high
    assert (found.low > -margin) == (decision == "not worse")
    assert (found.high < -margin) == (decision == "worse")
    assert found.n == n


def test_of_losses_alone_the_lower_bound_is_clopper_and_pearsons():
    # One-sided, of the share of queries that are lost: the exact test of 7 of 200.
    found = non_inferiority(differences(0, 7, 200), 0.5)
    assert -found.low == pytest.approx(scipy.stats.beta.ppf(1 - LEVEL, 8, 193), abs=1e-6)


def test_several_pairs_are_worse_at_a_third_of_the_level_and_not_worse_at_the_whole():
    data = differences(4, 16, 100)
    alone, of_three = non_inferiority(data, 0.02), non_inferiority(data, 0.02, family=3)
    assert of_three.low == alone.low
    assert alone.high < -0.02 < of_three.high
    assert (alone.decision, of_three.decision) == ("worse", "undecided")


def test_queries_of_a_cluster_count_as_one():
    data = np.repeat(differences(0, 0, 10), 20)
    clusters = np.repeat(np.arange(10), 20)
    assert non_inferiority(data, 0.02).decision == "not worse"
    assert non_inferiority(data, 0.02, clusters=clusters).decision == "undecided"
    # All in one: as one query.
    whole = non_inferiority(data, 0.02, clusters=np.zeros(200, dtype=np.intp))
    assert (whole.low, whole.high) == (-1, 1)


@pytest.mark.parametrize("margin", [0.01, 0.02, 0.05])
def test_ties_need_as_many_queries_as_would_have_shown_the_loss(margin):
    least = math.ceil(math.log(LEVEL) / math.log(1 - margin))
    needed = non_inferiority(np.zeros(10), margin).queries_needed
    assert least <= needed <= 1.05 * least


@pytest.mark.parametrize(
    ("better", "worse", "margin", "decision"),
    [(3, 3, 0.05, "not worse"), (2, 10, 0.03, "worse"), (8, 5, 0.02, "not worse")],
)
def test_as_many_queries_as_are_needed_decide_in_four_of_five_samples(
    better, worse, margin, decision
):
    # As few that the data do not decide, in the same shares.
    shares = differences(better, worse, 100)
    n = non_inferiority(shares, margin).queries_needed
    rng = np.random.default_rng(n)
    decided = [non_inferiority(rng.choice(shares, n), margin).decision for _ in range(120)]
    assert decided.count(decision) / 120 >= 0.8  # the true difference may be nearer to the margin


def test_a_difference_that_is_the_margin_needs_more_than_any_near_it():
    at, near = (non_inferiority(differences(0, losses, 100), 0.02) for losses in (2, 3))
    assert at.queries_needed > near.queries_needed > 100
