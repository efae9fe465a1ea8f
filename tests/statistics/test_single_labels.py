"""What single labels cannot see: against every function of the labels, and on lists whose answer is known."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import tables
from engine.statistics import single_labels
from engine.statistics.bounded import mean_interval
from engine.statistics.correlation import Bootstrap
from engine.statistics.single_labels import (
    LEAST_LISTS,
    RIGHT_CLOSED,
    RIGHT_UNSEEN,
    WRONG_DESPITE,
    by_place,
    ceiling,
    estimate,
    half_width,
    next_lists,
    unseen,
)
from tests.expected import as_expected
from tests.tables import framed

BOOTSTRAP = Bootstrap(resamples=200)


def frames(rows, run="bm25"):
    """``LABEL_LISTS`` and ``DOWNSTREAM`` of labels and the score of each list."""
    ids = [f"q{place:03}" for place in range(len(rows))]
    lists = [(run, name, labels) for name, (labels, _) in zip(ids, rows, strict=True)]
    scores = [(run, name, 3, "", y) for name, (_, y) in zip(ids, rows, strict=True)]
    return (
        framed(lists, tables.LABEL_LISTS),
        framed(scores, tables.DOWNSTREAM),
    )


def figures(rows, bootstrap=BOOTSTRAP, clusters=None, known=None):
    found = unseen(*frames(rows), bootstrap, clusters, known)
    return {row["figure"]: row for row in found.to_dicts()}


def tau_b(x, y):
    """By its definition, over all pairs."""
    x_apart, y_apart = (np.sign(side[:, None] - side[None, :]) for side in (x, y))
    below = math.sqrt((x_apart**2).sum() * (y_apart**2).sum())
    return (x_apart * y_apart).sum() / below if below else 0.0


def ceiling_of(group, y):
    return ceiling(np.bincount(group), np.bincount(group, y))


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 1)), min_size=3, max_size=12).filter(
        lambda pairs: len({y for _, y in pairs}) > 1 and len({group for group, _ in pairs}) > 1
    )
)
@settings(max_examples=30, deadline=None)
def test_no_function_of_the_labels_has_a_higher_tau_than_the_ceiling_and_one_has_it(pairs):
    group, y = np.array(pairs).T
    _, group = np.unique(group, return_inverse=True)
    functions = product(range(group.max() + 1), repeat=int(group.max()) + 1)
    best = max(tau_b(np.array(values)[group], y) for values in functions)
    assert ceiling_of(group, y.astype(float)) == pytest.approx(best, abs=1e-12)


@pytest.mark.parametrize("seed", range(2))
def test_the_ceiling_of_many_groups_is_that_of_all_levels_of_neighbours(seed):
    rng = np.random.default_rng(seed)
    group = rng.integers(0, 10, 90)
    y = (rng.random(90) < rng.random(10)[group]).astype(float)
    means = np.array([y[group == one].mean() for one in range(10)])
    order = np.argsort(means, kind="stable")
    best = 0.0
    for cuts in product((0, 1), repeat=9):
        level = np.empty(10)
        level[order] = np.cumsum((0, *cuts))
        if any(cuts):
            best = max(best, tau_b(level[group], y))
    assert ceiling_of(group, y) == pytest.approx(best, abs=1e-12)


def test_labels_that_decide_have_a_ceiling_of_one_and_labels_that_say_nothing_learn_nothing():
    y = np.array([0.0, 1] * 30)
    assert ceiling_of(y.astype(int), y) == 1
    # A group for each query: on these queries anything can be said.
    alone = np.arange(60)
    assert ceiling_of(alone, y) == 1
    drawn = np.random.default_rng(1).integers(0, 30, 400)
    noise = np.random.default_rng(2).integers(0, 2, 400).astype(float)
    assert ceiling_of(drawn, noise) > 0.15


def test_the_ceiling_lies_above_the_truth():
    # Four groups that are right in 0.1, 0.3, 0.6 and 0.9 of all cases: tau of that order, were there no chance.
    chances = np.array([0.1, 0.3, 0.6, 0.9])
    concordant = sum(chances[b] - chances[a] for a in range(4) for b in range(a + 1, 4)) / 16
    right = chances.mean()
    truth = concordant / math.sqrt((1 - 4 / 16) / 2 * right * (1 - right))
    high = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        group = rng.integers(0, 4, 80)
        y = (rng.random(80) < chances[group]).astype(float)
        high.append(ceiling_of(group, y))
    assert np.mean(high) > truth


def test_the_counts_are_those_of_a_plain_loop():
    rng = np.random.default_rng(5)
    rows = [
        (list((rng.random(rng.integers(0, 4)) < 0.4).astype(float)), float(rng.random() < 0.5))
        for _ in range(50)
    ]
    known = rng.random(50) < 0.3
    outcomes = [(f"q{place:03}", answered, 1, 0) for place, answered in enumerate(known)]
    found = figures(rows, known=framed(outcomes, tables.HARM_OUTCOMES))
    for name, counts in (
        (RIGHT_CLOSED, known),
        (RIGHT_UNSEEN, [y == 1 and sum(labels) == 0 for labels, y in rows]),
        (WRONG_DESPITE, [y == 0 and sum(labels) > 0 for labels, y in rows]),
    ):
        row = found[name]
        assert (row["run"], row["k"], row["n"]) == ("bm25", 3, 50)
        assert row["value"] == sum(counts) / 50
        exact = scipy.stats.binomtest(sum(counts), 50).proportion_ci(0.95)
        assert (row["low"], row["high"]) == pytest.approx((exact.low, exact.high), abs=1e-9)
    assert RIGHT_CLOSED not in figures(rows)


def test_clusters_widen_the_counts():
    rows = [([0.0], 1.0), ([0.0], 0.0)] * 10
    clusters = {f"q{place:03}": place // 4 for place in range(20)}
    (row,) = (figures(rows, clusters=clusters)[name] for name in [RIGHT_UNSEEN])
    codes = np.arange(20) // 4
    expected = mean_interval(np.array([1.0, 0.0] * 10), 0.95, codes)
    assert (row["low"], row["high"]) == expected


@pytest.mark.parametrize(
    "rows",
    [
        [([0.0], 1.0), ([1.0], 1.0)],
        [([0.2], 0.7), ([1.0], 1.0)],
        [([1.0, None], 0.0), ([1.0], 1.0)],
        [([1.0], 1.0), ([1.0], 0.0)],
    ],
)
def test_a_ceiling_that_is_not_defined_says_why(rows):
    row = figures(rows)["tau_ceiling"]
    assert math.isnan(row["value"])
    as_expected(row["note"])


def test_a_list_counts_where_the_labels_that_were_made_decide():
    # Read up to the first useful passage: what follows is not known, and not needed. The last list is left out.
    found = figures([([0.0, 1.0, None], 0.0), ([0.0, 0.0], 1.0), ([0.0, None], 1.0)])
    assert [(row["n"], row["value"]) for row in list(found.values())[:2]] == [(2, 0.5), (2, 0.5)]


def test_without_resamples_shares_have_no_interval_and_without_scores_there_are_no_rows():
    row = figures([([0.0], 1.0), ([0.0], 0.0)], Bootstrap(resamples=0))[RIGHT_UNSEEN]
    assert row["value"] == 0.5
    assert math.isnan(row["low"])
    lists, scores = frames([([0.0], 1.0)])
    assert unseen(lists, scores.clear(), BOOTSTRAP, None).is_empty()


def test_each_place_is_correlated_over_the_lists_that_reach_it():
    rng = np.random.default_rng(3)
    labels = (rng.random((60, 3)) < 0.4).astype(float)
    y = np.where(rng.random(60) < 0.9, labels[:, 2], 0.0)
    rows = [(list(one[: 2 if place < 6 else 3]), score) for place, (one, score) in enumerate(zip(labels, y, strict=True))]  # fmt: skip
    found = by_place(*frames(rows), BOOTSTRAP, None).to_dicts()
    assert [(row["place"], row["n"]) for row in found] == [(1, 60), (2, 60), (3, 54)]
    for row in found:
        of_place = slice(60 - row["n"], None)
        x = labels[of_place, row["place"] - 1]
        assert row["rho"] == pytest.approx(scipy.stats.spearmanr(x, y[of_place]).statistic)
        assert row["label"] == pytest.approx(x.mean())
        assert row["rho_low"] < row["rho"] < row["rho_high"]
    assert found[2]["rho_low"] > max(found[0]["rho"], found[1]["rho"])


def test_a_place_that_is_not_defined_says_why():
    rows = [([1.0, 0.0, 0.0], 1.0), ([0.0, 0.0, 1.0], 0.0), ([1.0, 0.0], 0.0), ([], 0.0)]
    found = by_place(*frames(rows), Bootstrap(resamples=0), None).to_dicts()
    assert [row["n"] for row in found] == [3, 3, 2]
    as_expected([row["note"] for row in found])
    assert [math.isnan(row["rho"]) for row in found] == [False, True, False]


def test_places_are_not_compared_without_scores_or_where_labels_were_not_made():
    lists, scores = frames([([1.0, None], 1.0), ([0.0, 1.0], 0.0)])
    assert by_place(lists, scores, BOOTSTRAP, None).is_empty()
    assert by_place(lists, scores.clear(), BOOTSTRAP, None).is_empty()


NOTHING = np.zeros((400, 1))


def test_with_f_fixed_it_is_the_difference_estimator(monkeypatch):
    """The mean of f over all queries, and that of y - f over those whose lists were read."""
    rng = np.random.default_rng(7)
    y, features = made(rng, 400, 0.3)
    f = 0.1 + features @ [0.4, 0.2, 0.3]
    monkeypatch.setattr(single_labels, "_fitted", lambda columns, known, every: f)
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
    predicted = single_labels._fitted(feature[:, None], y, np.array([[0.0], [2.0]]))
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
