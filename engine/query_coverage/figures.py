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

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.statistics.intervals import binomial_interval, holm

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

DRAWS = 4_999


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


def default_clusters(user_texts: int, texts: int) -> int:
    """The default number of clusters: the square root of the number of distinct user queries.

    A cluster then holds, on average, as many of them as there are clusters: both grow with the log.
    It is at least 2, and never more than ``texts``, the number of all distinct queries.
    """
    return min(texts, max(2, round(math.sqrt(user_texts))))


def figures(
    clusters: Ints,
    evaluation: Flags,
    *,
    seed: int,
    draws: int = DRAWS,
    confidence: float = 0.95,
) -> Figures:
    """The figures of clusterings.

    The interval is that of a proportion (``binomial_interval``), with the mean number of uncovered
    queries as successes. A query's mean over clusterings varies less than a yes or no, so the
    interval is rather too wide than too narrow.

    Args:
        clusters: (clusterings, queries) the cluster of each query, counted from 0; none is empty.
        evaluation: (queries,) whether it is an evaluation query; there are queries of both kinds.
        seed: of the random samples from which ``p`` is computed.
        draws: their number.
        confidence: of the interval, in (0, 1).
    """
    sample, user_queries = int(evaluation.sum()), int((~evaluation).sum())
    missed = uncovered(clusters, evaluation).sum(axis=1)
    low, high = binomial_interval(missed.mean(), user_queries, confidence)
    expected = [expected_uncovered(np.bincount(clustering), sample) for clustering in clusters]
    users = np.bincount(clusters[0][~evaluation], minlength=clusters[0].max() + 1)
    evaluations = np.bincount(clusters[0][evaluation], minlength=len(users))
    return Figures(
        user_queries=user_queries,
        evaluation_queries=sample,
        share=float(missed.mean()) / user_queries,
        low=low,
        high=high,
        confidence=confidence,
        shares=tuple(float(count) / user_queries for count in missed),
        expected_share=sum(queries for _, queries in expected) / len(expected) / user_queries,
        p=chance_of_as_many(clusters, sample, int(missed.sum()), draws=draws, seed=seed),
        draws=draws,
        seed=seed,
        clusters=len(users),
        uncovered_clusters=int((evaluations == 0).sum()),
        uncovered_queries=int(missed[0]),
        expected_clusters=expected[0][0],
        unasked_clusters=int((users == 0).sum()),
        unasked_queries=int(evaluations[users == 0].sum()),
    )


def uncovered(clusters: Ints, evaluation: Flags) -> Flags:
    """(clusterings, queries): whether a query's cluster has no evaluation query.

    Args:
        clusters, evaluation: as in ``figures``.
    """
    rows = []
    for clustering in clusters:
        evaluations = np.bincount(clustering[evaluation], minlength=clustering.max() + 1)
        rows.append((evaluations == 0)[clustering])
    return np.stack(rows)


def expected_uncovered(sizes: Ints, sample: int) -> tuple[float, float]:
    """The expected numbers of clusters without a query of a random sample, and of queries in them.

    A cluster of n among N queries has none of a sample of m with probability C(N-n, m) / C(N, m),
    and all its queries are then uncovered.

    Args:
        sizes: (clusters,) queries of both kinds.
        sample: m, 0 to N.
    """
    none_sampled = _hypergeometric(sizes, sample).pmf(0)
    return float(none_sampled.sum()), float((sizes * none_sampled).sum())


def chance_of_as_many(
    clusters: Ints, sample: int, queries: int, *, draws: int = DRAWS, seed: int
) -> float:
    """Probability that a random sample leaves ``queries`` queries uncovered or more, in total.

    A Monte Carlo test: (1 + samples with as many) / (1 + draws), so never 0 (Davison & Hinkley
    1997, section 4.2). Its standard error is 0.003 at p = 0.05 and 4,999 draws.

    Args:
        clusters: as in ``figures``.
        sample: sampled queries, 0 to all.
        queries: the sum over the clusterings.
        draws: random samples.
        seed: of the random samples.
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


def chance_of_as_few(users: Ints, evaluations: Ints) -> tuple[Floats, Floats]:
    """For each cluster, the probability that a random sample has as few queries in it, or fewer.

    Args:
        users, evaluations: (clusters,) the number of queries of each kind in a cluster.

    Returns:
        (clusters,) each: the hypergeometric lower tail, and the same corrected by Holm's method
        over all clusters.
    """
    sizes = users + evaluations
    tails = _hypergeometric(sizes, int(evaluations.sum())).cdf(evaluations)
    p = np.minimum(np.asarray(tails, dtype=np.float64), 1.0)
    return p, np.array(holm([float(value) for value in p]))


def _hypergeometric(sizes: Ints, sample: int) -> Any:
    """The number of sampled queries in each cluster, as a frozen distribution of SciPy."""
    from scipy.stats import hypergeom  # takes a second to import, which other commands are spared

    return hypergeom(int(sizes.sum()), sizes, sample)
