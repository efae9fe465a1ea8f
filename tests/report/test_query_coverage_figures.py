"""Figures of coverage, against brute force and cases computed by hand."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from engine.report.query_coverage import chance_of_as_many, figures, sampled, uncovered


def counts(*values):
    return np.array(values, dtype=np.int64)


def every_sample(sizes, sample):
    """(samples, clusters): sampled queries in each cluster, for every choice there is."""
    cluster = np.repeat(np.arange(len(sizes)), sizes)
    chosen = combinations(range(len(cluster)), sample)
    return np.array([np.bincount(cluster[list(c)], minlength=len(sizes)) for c in chosen])


small = st.lists(st.integers(1, 4), min_size=1, max_size=4).flatmap(
    lambda sizes: st.tuples(st.just(counts(*sizes)), st.integers(1, sum(sizes)))
)


@given(small, st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_the_chance_of_a_clusters_queries_is_that_over_every_sample(case, random):
    sizes, sample = case
    samples = every_sample(sizes, sample)
    evaluations = samples[random.randrange(len(samples))]
    chance = sampled(sizes, sample)
    assert chance.pmf(0) == pytest.approx((samples == 0).mean(axis=0), abs=1e-12)
    assert chance.cdf(evaluations) == pytest.approx(
        (samples <= evaluations).mean(axis=0), abs=1e-12
    )


def labels(*sizes):
    """One clustering of so many queries in each cluster: (1, queries)."""
    return np.repeat(np.arange(len(sizes)), sizes)[None, :]


def test_the_p_value_is_the_share_of_samples_that_leave_out_as_much():
    sizes, sample = counts(5, 4, 3, 2, 1), 4
    missed = (every_sample(sizes, sample) == 0) @ sizes
    for queries in (0, 3, 6, 9):
        exact = (missed >= queries).mean()
        p = chance_of_as_many(labels(*sizes), sample, queries, draws=9_999, seed=1)
        assert p == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 9_999) + 1e-4)
    assert chance_of_as_many(labels(*sizes), sample, 16, draws=99, seed=1) == 0.01  # never 0


def test_figures_over_several_clusterings_match_those_over_every_sample():
    clusters = np.array([[0, 0, 0, 1, 1, 2, 2, 2], [0, 1, 0, 1, 2, 2, 3, 3], [0] * 7 + [1]])
    chosen = np.array([[i in c for i in range(8)] for c in combinations(range(8), 3)])
    missed = np.array([uncovered(clusters, one).sum() for one in chosen])
    found = figures(clusters, chosen[11], seed=2)
    assert found.expected_share * 3 * 5 == pytest.approx(missed.mean())
    assert found.share * 3 * 5 == pytest.approx(missed[11])
    assert np.mean(found.shares) == pytest.approx(found.share)
    assert found.p == pytest.approx((missed >= missed[11]).mean(), abs=0.02)


def test_p_values_of_random_evaluation_queries_are_uniform_or_larger():
    rng = np.random.default_rng(3)
    clusters = np.stack([rng.permutation(labels(*range(2, 22))[0]) for _ in range(3)])
    p = []
    for _ in range(200):
        evaluation = np.zeros(clusters.shape[1], dtype=bool)
        evaluation[rng.choice(clusters.shape[1], 30, replace=False)] = True
        missed = int(uncovered(clusters, evaluation).sum())
        p.append(chance_of_as_many(clusters, 30, missed, seed=7, draws=199))
    for level in (0.05, 0.2, 0.5):
        # no more than the binomial's 99.9% quantile for 200 tests
        assert (np.array(p) <= level).sum() <= binom.ppf(0.999, 200, level)


def test_figures_computed_by_hand():
    # 3 clusters of 4, 2 and 2 queries; 2 evaluation queries, both in the first; 4 of 6 users elsewhere
    found = figures(labels(4, 2, 2), np.arange(8) < 2, seed=0)
    assert (found.clusters, found.user_queries, found.evaluation_queries) == (3, 6, 2)
    assert (found.uncovered_clusters, found.uncovered_queries) == (2, 4)
    assert found.share == pytest.approx(4 / 6)
    assert found.shares == (found.share,)
    # C(4,2)/C(8,2) = 6/28 and twice C(6,2)/C(8,2) = 15/28
    assert found.expected_clusters == pytest.approx(36 / 28)
    assert found.expected_share == pytest.approx((4 * 6 + 2 * 15 + 2 * 15) / 28 / 6)
    # Of 28 samples, 4 queries or more are left out by both from the first (6), both from one of the
    # small ones (1 each), and one from either small one (4).
    assert found.p == pytest.approx(12 / 28, abs=0.02)
    assert (found.unasked_clusters, found.unasked_queries) == (0, 0)
    unasked = figures(labels(4, 2), np.arange(6) > 2, seed=0)
    assert (unasked.share, unasked.unasked_clusters, unasked.unasked_queries) == (0, 1, 2)
    assert figures(labels(6), np.arange(6) == 0, seed=0).p == 1
