"""Means from sampled lists: by hand, against known intervals, and by simulation."""

import math

import numpy as np
import pytest
import scipy.stats

from engine.statistics import sampled_lists
from engine.statistics.sampled_lists import LEAST_LISTS, estimate, half_width, next_lists

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


def test_having_no_influence_weighs_the_root_of_the_lists_read():
    """100 lists of a feature with mean 0 and squares of 100: its slope is the least squares' times 100 / (100 + 10)."""
    feature = np.tile([1.0, -1.0], 50)
    y = 0.5 + 0.22 * feature
    predicted = sampled_lists._fitted(feature[:, None], y, np.array([[0.0], [2.0]]))
    assert predicted == pytest.approx([0.5, 0.5 + 2 * 0.2])


def test_without_features_it_is_the_mean_with_jeffreys_interval():
    """Not to the last digit: a fit without a tenth of the queries foretells the mean of the others."""
    y = np.full(400, np.nan)
    y[:100] = np.random.default_rng(1).permutation([1.0] * 20 + [0.0] * 80)
    found = estimate(y, NOTHING)
    assert (found.value, found.n, len(found.f)) == (pytest.approx(0.2, abs=1e-12), 100, 400)
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


def pair(rng, queries, n):
    """The means of a good run and of a poor one, from the same lists."""
    (y, features), (other, of_other) = made(rng, queries, 0.3), made(rng, queries, 0.15)
    drawn = np.isnan(sampled(rng, y, n))
    both = ((y, features), (other, of_other))
    return [estimate(np.where(drawn, np.nan, one), labels) for one, labels in both]


@pytest.mark.parametrize("seed", range(5))
def test_a_lead_is_the_difference_of_two_means(seed):
    rng = np.random.default_rng([8, seed])
    good, poor = pair(rng, int(rng.integers(30, 300)), 25)
    lead = good.less(poor)
    assert lead.value == pytest.approx(good.value - poor.value, abs=1e-12)
    low, high = lead.interval(0.05)
    assert low < lead.value < high
    # the same lists for both: whatever both share cancels
    assert good.less(good).value == 0


def test_the_interval_of_a_lead_is_that_of_paired_residuals():
    """Not to the last digit: a value at the end of the range of scores is added for either bound."""
    good, poor = pair(np.random.default_rng(9), 3000, 1500)
    lead = good.less(poor)
    residuals = good.known - good.foretold - (poor.known - poor.foretold)
    of_f = (good.f - poor.f).std() / math.sqrt(3000)
    half = 1.96 * math.hypot(residuals.std() / math.sqrt(1500), of_f)
    low, high = lead.interval(0.05)
    assert (high - low) / 2 == pytest.approx(half, rel=0.03)


def test_the_p_value_is_where_the_interval_reaches_0():
    good, poor = pair(np.random.default_rng(6), 300, 150)
    found = good.less(poor)
    p = found.p_value(1)
    assert 0 < p < 0.05
    assert found.interval(p)[0] == pytest.approx(0, abs=1e-4)
    assert found.p_value(3) == pytest.approx(3 * p)
    same = estimate(np.zeros(30), np.zeros((30, 1)))
    assert same.less(same).p_value(1) == 1.0


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


@pytest.mark.parametrize("seed", range(4))
def test_a_width_takes_as_many_lists_as_reach_it_and_some_for_doubt(seed):
    rng = np.random.default_rng([10, seed])
    y, features = made(rng, 600, 0.3)
    found = [estimate(sampled(rng, y, 60), features)]
    low, high = found[0].interval(0.05)
    now = half_width(found, 0.05, 60, 600)
    assert now == pytest.approx((high - low) / 2)
    assert next_lists(found, now, 0.05, 600, labelled=True) == (60, True)
    more, labelled = next_lists(found, 0.75 * now, 0.05, 600, labelled=True)
    assert labelled
    assert half_width(found, 0.05, more, 600) < 0.75 * now
    assert half_width(found, 0.05, more - 1, 600, 1.28) > 0.75 * now
    # No number of lists reaches what all of them do not: all are read.
    assert next_lists(found, 0.001, 0.05, 600, labelled=True) == (600, True)
    # Without the labels of all, half of what seems to be needed comes first.
    few, labelled = next_lists(found, 0.6 * now, 0.05, 600, labelled=False)
    assert (labelled, 60 < few < 300) == (False, True)
    assert half_width(found, 0.05, 2 * few + 2, 600) <= 0.6 * now
