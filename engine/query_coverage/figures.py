"""How much of what users ask an evaluation covers, and how much chance alone would leave uncovered.

A cluster without an evaluation query is uncovered, and so are the user queries in it. With few
evaluation queries, some clusters are uncovered however the queries were chosen. So every figure is
compared with its expectation if, given the clusters, the evaluation queries were a random sample of
all queries without replacement: the number of them in a cluster is then hypergeometric.

Cluster boundaries are partly arbitrary, so the same queries are clustered several times, and
figures are means over the clusterings. Given the clusterings, everything said here of one holds for
the mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from engine.statistics.arrays import Ints, Mask
from engine.statistics.intervals import binomial_interval

DRAWS = 4_999
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Figures:
    """How much an evaluation covers; from ``clusters`` on, by the first clustering.

    Attributes:
        user_queries, evaluation_queries: their numbers.
        share: the share of user queries in clusters without an evaluation query, in [0, 1]; the
            mean over the clusterings.
        low, high: the interval of the share, given the clusterings.
        confidence: of the interval.
        shares: (clusterings,) the share in each.
        expected_share: the share expected of a random sample of as many evaluation queries; exact.
        p: the probability that a random sample leaves as many user queries uncovered, or more.
        draws, seed: random samples from which ``p`` is computed.
        clusters: their number.
        uncovered_clusters, uncovered_queries: clusters without an evaluation query, and the user
            queries in them.
        expected_clusters: uncovered clusters expected of a random sample; exact.
        unasked_clusters, unasked_queries: clusters without a user query, and the evaluation queries
            in them.
    """

    user_queries: int
    evaluation_queries: int
    share: float
    low: float
    high: float
    confidence: float
    shares: tuple[float, ...]
    expected_share: float
    p: float
    draws: int
    seed: int
    clusters: int
    uncovered_clusters: int
    uncovered_queries: int
    expected_clusters: float
    unasked_clusters: int
    unasked_queries: int


def figures(clusters: Ints, evaluation: Mask, *, seed: int, draws: int = DRAWS) -> Figures:
    """The figures of clusterings.

    A cluster of n among N queries has none of a random sample of m with probability C(N-n, m) / C(N, m),
    and all its queries are then uncovered. The interval is that of a proportion (``binomial_interval``),
    with the mean number of uncovered queries as successes. A query's mean over clusterings varies less
    than a yes or no, so the interval is rather too wide than too narrow.

    Args:
        clusters: (clusterings, queries) the cluster of each query, counted from 0; none is empty.
        evaluation: (queries,) whether it is an evaluation query; there are queries of both kinds.
    """
    sample, users = int(evaluation.sum()), int((~evaluation).sum())
    missed = uncovered(clusters, evaluation).sum(axis=1)
    low, high = binomial_interval(missed.mean(), users, CONFIDENCE)
    sizes = [np.bincount(clustering) for clustering in clusters]
    without = [sampled(of_one, sample).pmf(0) for of_one in sizes]
    expected = [float(of_one @ none) for of_one, none in zip(sizes, without, strict=True)]
    evaluations = np.bincount(clusters[0][evaluation], minlength=len(sizes[0]))
    unasked = evaluations == sizes[0]
    return Figures(
        user_queries=users,
        evaluation_queries=sample,
        share=float(missed.mean()) / users,
        low=low,
        high=high,
        confidence=CONFIDENCE,
        shares=tuple(float(count) / users for count in missed),
        expected_share=sum(expected) / len(expected) / users,
        p=chance_of_as_many(clusters, sample, int(missed.sum()), draws=draws, seed=seed),
        draws=draws,
        seed=seed,
        clusters=len(evaluations),
        uncovered_clusters=int((evaluations == 0).sum()),
        uncovered_queries=int(missed[0]),
        expected_clusters=float(without[0].sum()),
        unasked_clusters=int(unasked.sum()),
        unasked_queries=int(evaluations[unasked].sum()),
    )


def uncovered(clusters: Ints, evaluation: Mask) -> Mask:
    """(clusterings, queries): whether a query's cluster has no evaluation query; arguments as in ``figures``."""
    return np.stack([~np.isin(one, one[evaluation]) for one in clusters])


def chance_of_as_many(
    clusters: Ints, sample: int, queries: int, *, draws: int = DRAWS, seed: int
) -> float:
    """Probability that a random sample leaves ``queries`` queries uncovered or more, summed over the clusterings.

    A Monte Carlo test: (1 + samples with as many) / (1 + draws), so never 0 (Davison & Hinkley
    1997, section 4.2). Its standard error is 0.003 at p = 0.05 and 4,999 draws.
    """
    rng = np.random.default_rng(seed)
    # One table for all clusterings, in which their clusters have different numbers.
    first = np.cumsum([0, *(clustering.max() + 1 for clustering in clusters)])
    numbered = np.ascontiguousarray((clusters + first[:-1, None]).T)
    numbered = numbered[np.lexsort(numbered.T)]  # the draws must not depend on the order of queries
    sizes = np.bincount(numbered.ravel(), minlength=first[-1])
    as_many = 0
    for _ in range(draws):
        drawn = numbered[rng.choice(len(numbered), sample, replace=False, shuffle=False)]
        held = np.bincount(drawn.ravel(), minlength=first[-1])
        as_many += int(sizes[held == 0].sum()) >= queries
    return (1 + as_many) / (1 + draws)


def sampled(sizes: Ints, sample: int) -> Any:
    """The number of queries of a random sample in each cluster, as a distribution of SciPy."""
    from scipy.stats import hypergeom  # takes a second to import, which other commands are spared

    return hypergeom(sizes.sum(), sizes, sample)
