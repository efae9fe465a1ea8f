"""Intervals of leads: by hand, and how often they hold together with few queries and many runs."""

import math

import numpy as np
import pytest
import scipy.stats

from engine.statistics.leads import critical_t, largest_difference, paired_intervals


def bounds_of(scores, confidence=0.95):
    first, second = np.triu_indices(len(scores), 1)
    paired = scores[first] - scores[second]
    low, high = paired_intervals(
        paired,
        largest_difference(scores),
        confidence=confidence,
        comparisons=len(first),
    )
    return first, second, low, high


@pytest.mark.parametrize(
    ("wins", "losses", "n"), [(5, 0, 64), (6, 1, 64), (20, 9, 300), (0, 0, 30)]
)
def test_binary_bounds_are_those_of_bonett_and_price(wins, losses, n):
    # (b + 1 - (c + 1)) / (n + 2), and the variance of proportions (b + 1) and (c + 1) of n + 2
    paired = np.array([[1.0] * wins + [-1.0] * losses + [0.0] * (n - wins - losses)])
    p, q = (wins + 1) / (n + 2), (losses + 1) / (n + 2)
    half = scipy.stats.t.ppf(0.975, n - 1) * math.sqrt((p + q - (p - q) ** 2) / (n + 2))
    (low,), (high,) = paired_intervals(paired, 1.0, confidence=0.95, comparisons=1)
    assert (low, high) == pytest.approx((p - q - half, p - q + half), abs=1e-12)


def test_five_coins_that_fall_alike_leave_0_in_and_six_do_not():
    for wins, leaves_out in ((5, False), (6, True)):
        paired = np.array([[1.0] * wins + [0.0] * (64 - wins)])
        (low,), _ = paired_intervals(paired, 1.0, confidence=0.95, comparisons=1)
        assert (low > 0) == leaves_out


def test_the_quantile_is_students_shared_among_the_comparisons():
    assert critical_t(64, 0.95, 1) == pytest.approx(scipy.stats.t.ppf(0.975, 63))
    assert critical_t(64, 0.9, 45) == pytest.approx(scipy.stats.t.ppf(1 - 0.05 / 45, 63))


def test_the_scale_is_the_largest_difference_or_without_any_that_of_scores():
    scores = np.array([[0, 0.5, 1.0], [0.25, 0.5, 0.5]])
    assert largest_difference(scores) == 0.5
    assert largest_difference(scores[[0, 0]]) == 1.0
    assert largest_difference(np.ones((2, 3))) == 0.0


def test_runs_that_never_differed_may_still_differ_and_constant_scores_cannot():
    never = np.tile(np.array([[1.0, 0, 0, 1]]), (2, 1))
    _, _, low, high = bounds_of(never)
    assert low[0] < 0 < high[0]
    _, _, low, high = bounds_of(np.ones((2, 4)))
    assert (low[0], high[0]) == (0, 0)


def equal(rng, runs, n, share=0.05, common=0.0):
    """Runs of the same quality that have a share of their answers in common."""
    own, all_have = rng.random((runs, n)) < share, rng.random(n) < share
    return np.where(rng.random((runs, n)) < common, all_have, own).astype(float), np.zeros(runs)


def unequal(rng, runs, n):
    shares = np.linspace(0.02, 0.3, runs)
    return (rng.random((runs, n)) < shares[:, None]).astype(float), shares


def nested(rng, runs, n):
    """Every run is right where the first is, and now and then elsewhere: all differences of one sign."""
    shares = np.linspace(0, 0.08, runs)
    base = rng.random(n) < 0.3
    return (base | (rng.random((runs, n)) < shares[:, None])).astype(float), 0.7 * shares


@pytest.mark.parametrize(
    ("draw", "runs", "n"),
    [
        (equal, 10, 64),
        (equal, 2, 64),
        (equal, 10, 300),
        (lambda rng, runs, n: equal(rng, runs, n, 0.3, 0.9), 10, 64),
        (unequal, 10, 19),
        (unequal, 10, 64),
        (nested, 6, 64),
        (nested, 6, 300),
    ],
)
def test_all_intervals_hold_together_in_93_percent_of_samples(draw, runs, n):
    samples, held = 400, 0
    for sample in range(samples):
        scores, means = draw(np.random.default_rng([n, runs, sample]), runs, n)
        first, second, low, high = bounds_of(scores)
        true = means[first] - means[second]
        held += bool(((low <= true) & (true <= high)).all())
    # 400 samples: three standard errors of a share of 95% are 3.3 points
    assert held / samples >= 0.93
