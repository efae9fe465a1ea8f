"""Means from sampled lists: by hand, against known intervals, and by simulation."""

import math

import numpy as np
import pytest
import scipy.stats

from engine.statistics import sampled_lists
from engine.statistics.sampled_lists import LEAST_LISTS, estimate

NOTHING = np.zeros((400, 1))


def test_with_f_fixed_it_is_the_difference_estimator(monkeypatch):
    """The mean of f over all queries, and that of y - f over those whose lists were read."""
    rng = np.random.default_rng(7)
    y, features = made(rng, 400, 0.3)
    f = 0.1 + features @ [0.4, 0.2, 0.3]
    monkeypatch.setattr(sampled_lists, "_fitted", lambda columns, known, of_all: f)
    known = sampled(rng, y, 90)
    read = ~np.isnan(known)
    found = estimate(known, features)
    assert found.value == pytest.approx(f.mean() + (y - f)[read].mean(), abs=1e-12)
    assert abs(found.value - y[read].mean()) > 0.001


def sampled(rng, y, n):
    """The same scores, all but ``n`` of them unknown."""
    known = np.full(len(y), np.nan)
    read = rng.choice(len(y), n, replace=False)
    known[read] = y[read]
    return known


def made(rng, queries, share):
    """A score and three measures that know much of it."""
    quality = rng.normal(size=queries)
    limit = scipy.stats.norm.ppf(1 - share)
    y = (0.85 * quality + math.sqrt(1 - 0.85**2) * rng.normal(size=queries) > limit) * 1.0
    labels = (0.9 * quality[:, None] + rng.normal(0, 0.4, (queries, 5)) > limit) * 1.0
    return y, np.stack([labels[:, 0], labels.max(axis=1), labels.mean(axis=1)], axis=1)


def test_without_features_it_is_the_mean_with_jeffreys_interval():
    """Not to the last digit: a fit without a tenth of the queries foretells the mean of the others."""
    y = np.full(400, np.nan)
    y[:100] = np.random.default_rng(1).permutation([1.0] * 20 + [0.0] * 80)
    found = estimate(y, NOTHING)
    assert (found.value, found.n, found.of) == (pytest.approx(0.2, abs=1e-12), 100, 400)
    low, high = found.interval(0.05, here=False)
    jeffreys = scipy.stats.beta(20.5, 80.5).ppf([0.025, 0.975])
    assert [low, high] == pytest.approx(jeffreys, abs=0.01)
    here = found.interval(0.05, here=True)
    # the finite correction: three quarters of the variance are left
    assert (here[1] - here[0]) / (high - low) == pytest.approx(math.sqrt(0.75), abs=0.01)


def test_scores_that_labels_foretell_need_few_lists():
    rng = np.random.default_rng(2)
    y, features = made(rng, 1000, 0.3)
    known = sampled(rng, y, 200)
    with_labels, without = estimate(known, features), estimate(known, NOTHING[:1].repeat(1000, 0))
    widths = [np.diff(found.interval(0.05, here=True))[0] for found in (with_labels, without)]
    assert with_labels.rho > 0.6
    assert widths[0] / widths[1] == pytest.approx(math.sqrt(1 - with_labels.rho**2), rel=0.1)
    assert abs(with_labels.value - y.mean()) < abs(widths[0])


def test_all_lists_read_leave_nothing_open_for_these_queries():
    y, features = made(np.random.default_rng(4), 60, 0.5)
    found = estimate(y, features)
    assert found.interval(0.05, here=True) == pytest.approx((y.mean(), y.mean()), abs=0.02)
    assert np.diff(found.interval(0.05))[0] > 0.1


def test_few_lists_have_a_mean_and_no_interval():
    rng = np.random.default_rng(5)
    y, features = made(rng, 100, 0.5)
    few = estimate(sampled(rng, y, LEAST_LISTS - 1), features)
    assert math.isfinite(few.value)
    assert np.isnan([*few.interval(0.05), *few.interval(0.05, here=True), few.p_value(1)]).all()
    assert np.isfinite(estimate(sampled(rng, y, LEAST_LISTS), features).interval(0.05)).all()
    one = estimate(np.array([1.0, np.nan]), np.zeros((2, 1)))
    assert (one.value, one.n) == (1.0, 1)


def test_the_p_value_is_where_the_interval_reaches_0():
    rng = np.random.default_rng(6)
    y, features = made(rng, 300, 0.3)
    other, of_other = made(rng, 300, 0.15)
    found = estimate(sampled(rng, y - other, 150), features - of_other, low=-1.0)
    p = found.p_value(1)
    assert 0 < p < 0.05
    assert found.interval(p)[0] == pytest.approx(0, abs=1e-4)
    assert found.p_value(3) == pytest.approx(3 * p)
    assert estimate(np.zeros(30), np.zeros((30, 1)), low=-1.0).p_value(1) == 1.0


@pytest.mark.parametrize("share", [0.03, 0.3])
def test_intervals_hold_the_mean_of_other_queries_and_of_these(share):
    """Of 60 samples of 30 lists of 75: 0.95 has a standard error of 3 points."""
    rng = np.random.default_rng(7)
    held = np.zeros(2)
    for _ in range(60):
        y, features = made(rng, 75, share)
        found = estimate(sampled(rng, y, 30), features)
        for place, mean in enumerate((share, y.mean())):
            low, high = found.interval(0.05, here=place == 1)
            held[place] += low - 1e-9 <= mean <= high + 1e-9
    assert (held / 60 >= 0.88).all()
