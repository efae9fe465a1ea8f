"""What single labels cannot see: against every function of the labels, and on lists whose answer is known."""

import math
from itertools import product

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from engine import tables
from engine.statistics.bounded import mean_interval
from engine.statistics.correlation import Bootstrap
from engine.statistics.single_labels import by_place, ceiling, unseen
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
    assert ceiling(group, y.astype(float)) == pytest.approx(best, abs=1e-12)


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
    assert ceiling(group, y) == pytest.approx(best, abs=1e-12)


def test_labels_that_decide_have_a_ceiling_of_one_and_labels_that_say_nothing_learn_nothing():
    y = np.array([0.0, 1] * 30)
    assert ceiling(y.astype(int), y) == 1
    # A group for each query: on these queries anything can be said.
    alone = np.arange(60)
    assert ceiling(alone, y) == 1
    drawn = np.random.default_rng(1).integers(0, 30, 400)
    noise = np.random.default_rng(2).integers(0, 2, 400).astype(float)
    assert ceiling(drawn, noise) > 0.15


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
        high.append(ceiling(group, y))
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
        ("right_without_passage", known),
        ("right_without_label", [y == 1 and sum(labels) == 0 for labels, y in rows]),
        ("wrong_despite_label", [y == 0 and sum(labels) > 0 for labels, y in rows]),
    ):
        row = found[name]
        assert (row["run"], row["k"], row["n"]) == ("bm25", 3, 50)
        assert row["value"] == sum(counts) / 50
        exact = scipy.stats.binomtest(sum(counts), 50).proportion_ci(0.95)
        assert (row["low"], row["high"]) == pytest.approx((exact.low, exact.high), abs=1e-9)
    assert "right_without_passage" not in figures(rows)


def test_clusters_widen_the_counts():
    rows = [([0.0], 1.0), ([0.0], 0.0)] * 10
    clusters = {f"q{place:03}": place // 4 for place in range(20)}
    (row,) = (figures(rows, clusters=clusters)[name] for name in ["right_without_label"])
    codes = np.arange(20) // 4
    expected = mean_interval(np.array([1.0, 0.0] * 10), 0.95, codes)
    assert (row["low"], row["high"]) == expected


@pytest.mark.parametrize(
    ("rows", "note"),
    [
        ([([0.0], 1.0), ([1.0], 1.0)], "the end-to-end score is 1 for every query"),
        ([([0.2], 0.7), ([1.0], 1.0)], "scores are not 0 and 1 alone"),
        ([([1.0, None], 0.0), ([1.0], 1.0)], "labels were made only as far as measures need them"),
        ([([1.0], 1.0), ([1.0], 0.0)], "the labels are the same for every query"),
    ],
)
def test_a_ceiling_that_is_not_defined_says_why(rows, note):
    row = figures(rows)["tau_ceiling"]
    assert math.isnan(row["value"])
    assert note in row["note"]


def test_a_list_counts_where_the_labels_that_were_made_decide():
    # Read up to the first useful passage: what follows is not known, and not needed. The last list is left out.
    found = figures([([0.0, 1.0, None], 0.0), ([0.0, 0.0], 1.0), ([0.0, None], 1.0)])
    assert [(row["n"], row["value"]) for row in list(found.values())[:2]] == [(2, 0.5), (2, 0.5)]


def test_without_resamples_shares_have_no_interval_and_without_scores_there_are_no_rows():
    row = figures([([0.0], 1.0), ([0.0], 0.0)], Bootstrap(resamples=0))["right_without_label"]
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
    assert [row["note"] for row in found] == ["", "undefined: the label is 0 for every query", ""]
    assert [math.isnan(row["rho"]) for row in found] == [False, True, False]


def test_places_are_not_compared_without_scores_or_where_labels_were_not_made():
    lists, scores = frames([([1.0, None], 1.0), ([0.0, 1.0], 0.0)])
    assert by_place(lists, scores, BOOTSTRAP, None).is_empty()
    assert by_place(lists, scores.clear(), BOOTSTRAP, None).is_empty()
