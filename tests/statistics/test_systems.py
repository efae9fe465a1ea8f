"""Soft pairwise accuracy, against all signs and by its properties."""

from itertools import combinations, product

import numpy as np
import pytest

from engine.statistics.correlation import Bootstrap
from engine.statistics.differences import chances_above
from engine.statistics.systems import soft_pairwise_accuracy


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
