"""Differences of means between runs, one-sided p-values of the randomization test, and soft pairwise accuracy."""

import math
from itertools import combinations, product

import numpy as np
import pytest

from engine.statistics.correlation import Bootstrap
from engine.statistics.differences import chances_above, mean_differences, soft_pairwise_accuracy
from engine.statistics.resampling import for_each_block_of_signs


def scores_of(n, runs=3, seed=0):
    rng = np.random.default_rng(seed)
    shared = rng.random(n)
    return np.stack([(shared + rng.normal(0.1 * i, 0.5, n)).round(2) for i in range(runs)])


def test_values_are_differences_of_means_and_runs_that_are_the_same_do_not_differ():
    scores = scores_of(60)
    found = mean_differences(scores, 4.0, Bootstrap())
    for place, (a, b) in enumerate([(0, 1), (0, 2), (1, 2)]):
        assert found.value[place] == pytest.approx(scores[a].mean() - scores[b].mean(), abs=1e-12)
    same = mean_differences(np.tile(scores[0], (2, 1)), 4.0, Bootstrap())
    assert (same.value[0], same.p[0], same.low[0]) == (0, 1, -same.high[0])


def test_intervals_are_nan_without_resamples_or_with_one_query_or_cluster():
    none = mean_differences(scores_of(20), 4.0, Bootstrap(0))
    one = mean_differences(scores_of(1), 4.0, Bootstrap(100))
    together = mean_differences(scores_of(5), 4.0, Bootstrap(100), np.zeros(5, dtype=int))
    for found in (none, one, together):
        assert np.isfinite(found.value).all()
        for nothing in (found.low, found.high, found.p):
            assert np.isnan(nothing).all()
    assert np.isnan(chances_above(scores_of(20), Bootstrap(0))).all()
    assert np.isnan(chances_above(scores_of(1), Bootstrap(100))).all()


def test_the_same_bits_for_any_number_of_threads():
    scores = scores_of(500)
    one, many = (chances_above(scores, Bootstrap(300, threads=t)) for t in (1, 5))
    assert repr(one) == repr(many)


def test_signs_are_as_often_plus_as_minus_and_not_those_of_the_resamples():
    drawn = np.zeros((4000, 3))

    def keep(first, signs):
        drawn[first : first + len(signs)] = signs

    for_each_block_of_signs(3, keep, resamples=4000, seed=1)
    assert {tuple(row) for row in drawn} == set(product((-1, 1), repeat=3))
    assert np.abs(np.cov(drawn.T) - np.eye(3)).max() < 0.06  # standard error 0.016
    assert np.abs(drawn.mean(axis=0)).max() < 0.06


@pytest.mark.parametrize("seed", range(3))
def test_one_sided_p_values_are_those_of_all_signs_with_equal_ones_counting_half(seed):
    scores, resamples = scores_of(10, runs=2, seed=seed).round(1), 20_000
    paired = scores[0] - scores[1]
    sums = np.array([np.dot(signs, paired) for signs in product((-1, 1), repeat=10)]).round(9)
    observed = paired.sum().round(9)
    exact = ((sums > observed) + 0.5 * (sums == observed)).mean()
    found = chances_above(scores, Bootstrap(resamples))[0]
    assert found == pytest.approx(exact, abs=4 * 0.5 / math.sqrt(resamples))
    turned = chances_above(scores[::-1], Bootstrap(resamples))[0]
    assert found + turned == pytest.approx(1, abs=1e-12)
    # each query five times is one coin still
    five, clusters = np.repeat(scores, 5, axis=1), np.repeat(np.arange(10), 5)
    assert chances_above(five, Bootstrap(resamples), clusters)[0] == found


def exact_p_above(a, b):
    """The share of all signs that put the difference above the observed one, equal ones counting half."""
    d = np.round(a - b, 9)
    sums = np.array([np.dot(signs, d) for signs in product((-1, 1), repeat=len(d))]).round(9)
    return ((sums > d.sum().round(9)) + 0.5 * (sums == d.sum().round(9))).mean()


def test_it_is_the_mean_distance_of_one_sided_p_values_of_all_signs():
    rng = np.random.default_rng(5)
    x = rng.random((4, 10)).round(1) + np.array([0, 0.1, 0.2, 0.2])[:, None]
    y = (rng.random((4, 10)) < np.array([0.2, 0.4, 0.6, 0.9])[:, None]).astype(float)
    pairs = [
        (exact_p_above(*x[[i, j]]), exact_p_above(*y[[i, j]])) for i, j in combinations(range(4), 2)
    ]
    expected = np.mean([1 - abs(outcome - measure) for measure, outcome in pairs])
    bootstrap = Bootstrap(resamples=20_000)
    found = soft_pairwise_accuracy(chances_above(x, bootstrap), chances_above(y, bootstrap))
    assert found == pytest.approx(expected, abs=0.01)


def test_it_does_not_depend_on_the_order_of_the_runs():
    rng = np.random.default_rng(6)
    x, y = rng.random((3, 30)), (rng.random((3, 30)) < 0.4).astype(float)
    bootstrap = Bootstrap(resamples=500)
    one, turned = (
        soft_pairwise_accuracy(
            chances_above(x[order], bootstrap),
            chances_above(y[order], bootstrap),
        )
        for order in ([0, 1, 2], [2, 0, 1])
    )
    assert one == pytest.approx(turned, abs=1e-12)


def test_a_score_agrees_with_itself_and_not_with_its_opposite():
    scores = np.array([[1.0] * 40, [0.0] * 40])
    p = chances_above(scores, Bootstrap(resamples=1000))
    assert soft_pairwise_accuracy(p, p) == 1
    opposite = chances_above(scores[::-1], Bootstrap(resamples=1000))
    assert opposite == pytest.approx(1 - p, abs=1e-12)
    assert soft_pairwise_accuracy(p, opposite) == pytest.approx(0, abs=0.002)


def test_runs_that_neither_tells_apart_agree():
    same = np.tile(np.array([[1.0, 0, 1, 0]]), (2, 1))
    assert chances_above(same, Bootstrap(resamples=200))[0] == 0.5
