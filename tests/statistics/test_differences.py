"""Differences of means between runs: against SciPy from the same replicates, and by hand."""

import math
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from engine.statistics.correlation import Bootstrap
from engine.statistics.differences import mean_differences
from engine.statistics.resampling import for_each_block, for_each_block_of_signs


def scores_of(n, runs=3, seed=0):
    rng = np.random.default_rng(seed)
    shared = rng.random(n)
    return np.stack([(shared + rng.normal(0.1 * i, 0.5, n)).round(2) for i in range(runs)])


def mean_difference(a, b, axis=-1):
    return a.mean(axis=axis) - b.mean(axis=axis)


@pytest.mark.parametrize(("method", "peer"), [("percentile", "percentile"), ("bca", "BCa")])
def test_bounds_equal_scipys_from_the_same_replicates(method, peer):
    scores, n, resamples = scores_of(60), 60, 500
    found = mean_differences(scores, Bootstrap(resamples, method, seed=3))
    drawn = np.zeros((resamples, n), dtype=int)

    def keep(first, weights):
        drawn[first : first + len(weights)] = weights

    for_each_block(np.arange(n), n, keep, resamples=resamples, seed=3)
    for place, (a, b) in enumerate([(0, 1), (0, 2), (1, 2)]):
        replicates = [
            mean_difference(np.repeat(scores[a], row), np.repeat(scores[b], row)) for row in drawn
        ]
        interval = scipy.stats.bootstrap(
            (scores[a], scores[b]), mean_difference, paired=True, method=peer, n_resamples=0,
            bootstrap_result=SimpleNamespace(bootstrap_distribution=np.array(replicates)),
        ).confidence_interval  # fmt: skip
        assert found.value[place] == pytest.approx(mean_difference(scores[a], scores[b]), abs=1e-12)
        assert found.low[place] == pytest.approx(interval.low, abs=1e-11)
        assert found.high[place] == pytest.approx(interval.high, abs=1e-11)


@pytest.mark.parametrize("seed", range(4))
def test_p_values_are_those_of_all_signs(seed):
    # 10 queries: SciPy goes through all 2^10 signs
    scores, resamples = scores_of(10, runs=2, seed=seed), 20_000
    exact = scipy.stats.permutation_test(
        tuple(scores), mean_difference, permutation_type="samples", n_resamples=np.inf
    ).pvalue
    found = mean_differences(scores, Bootstrap(resamples)).p[0]
    assert found == pytest.approx(exact, abs=4 * math.sqrt(exact * (1 - exact) / resamples))


@pytest.mark.parametrize("seed", range(4))
def test_p_values_are_about_those_of_the_t_test_on_many_queries(seed):
    scores = scores_of(300, runs=2, seed=seed)
    found = mean_differences(scores, Bootstrap(10_000)).p[0]
    assert found == pytest.approx(scipy.stats.ttest_rel(*scores).pvalue, abs=0.02)


def test_a_few_queries_that_distinguish_the_runs_are_not_significant():
    # 5 of 64 queries differ, all in favour of one run: five coins fall alike with 2 / 2^5
    scores = np.zeros((2, 64))
    scores[0, :5] = 1
    found = mean_differences(scores, Bootstrap(10_000))
    assert found.p[0] == pytest.approx(2 / 2**5, abs=0.01)
    # three queries, each the same difference: an interval without width, and p of 2 / 2^3
    found = mean_differences(np.array([[1.0, 1, 1], [0, 0, 0]]), Bootstrap(10_000))
    assert (found.low[0], found.high[0]) == (1, 1)
    assert found.p[0] == pytest.approx(1 / 4, abs=0.02)


@pytest.mark.parametrize("method", ["percentile", "bca"])
def test_runs_that_are_the_same_do_not_differ(method):
    found = mean_differences(np.tile(scores_of(20)[0], (2, 1)), Bootstrap(200, method))
    assert (found.value[0], found.low[0], found.high[0], found.p[0]) == (0, 0, 0, 1)


def test_intervals_are_nan_without_resamples_or_with_one_query():
    none = mean_differences(scores_of(20), Bootstrap(0))
    assert np.isfinite(none.value).all()
    one = mean_differences(scores_of(1), Bootstrap(100))
    assert np.isfinite(one.value).all()
    for found in (none, one):
        for nothing in (found.low, found.high, found.p, found.p_above):
            assert np.isnan(nothing).all()


@pytest.mark.parametrize("method", ["percentile", "bca"])
def test_the_same_bits_for_any_number_of_threads(method):
    scores = scores_of(500)
    one, many = (mean_differences(scores, Bootstrap(300, method, threads=t)) for t in (1, 5))
    assert repr(one) == repr(many)


def test_another_order_of_runs_turns_the_signs():
    scores = scores_of(50, runs=2)
    one, turned = (mean_differences(s, Bootstrap(500)) for s in (scores, scores[::-1]))
    assert turned.value == -one.value
    assert (turned.low[0], turned.high[0]) == pytest.approx((-one.high[0], -one.low[0]), abs=1e-12)
    assert turned.p == one.p


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
    found = mean_differences(scores, Bootstrap(resamples)).p_above[0]
    assert found == pytest.approx(exact, abs=4 * 0.5 / math.sqrt(resamples))
    turned = mean_differences(scores[::-1], Bootstrap(resamples)).p_above[0]
    assert found + turned == pytest.approx(1, abs=1e-12)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=2, max_size=30))
def test_intervals_and_p_values_lie_in_their_ranges(pairs):
    scores = np.array(pairs, dtype=float).T
    found = mean_differences(scores, Bootstrap(100, threads=1))
    assert -1 <= found.low[0] <= found.high[0] <= 1
    assert 0 < found.p[0] <= 1
