"""How much of what users ask an evaluation looks at, and how much chance alone would leave out.

A cluster is uncovered where it holds no evaluation query, and so are the user queries in it. With few
evaluation queries some clusters are uncovered however the queries were chosen, so every figure stands
beside what is expected if the evaluation queries were a random sample, without replacement, of all
queries, given the clusters: their number in a cluster is then hypergeometric.

Where the borders of clusters run is partly an accident, so there are several clusterings of the same
queries, and figures are means over them. Given the clusterings, all holds for the mean as for one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import betaincinv

from engine.statistics.intervals import holm

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

DRAWS = 4_999


@dataclass(frozen=True)
class Figures:
    """What an evaluation covers.

    Attributes:
        user_queries, evaluation_queries: how many there are.
        share: of the user queries, those in clusters without an evaluation query, in [0, 1]; the mean
            over the clusterings.
        low, high: its interval, given the clusterings.
        confidence: of the interval.
        shares: (clusterings,) the share in each.
        expected_share: of a random sample of as many evaluation queries, exact.
        p: probability that a random sample leaves out as much, or more.
        draws, seed: random samples behind ``p``.
        clusters, uncovered_clusters, uncovered_queries: of the first clustering, how many clusters there
            are, how many without an evaluation query, and the user queries in these.
        expected_clusters: uncovered clusters of a random sample in the first clustering, exact.
        unasked_clusters, unasked_queries: of the first clustering, clusters without a user query, and the
            evaluation queries in them.
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
    """Clusters unless told otherwise: the square root of the number of distinct user queries.

    So a cluster holds as many of them as there are clusters, on average: both grow with the log. At least
    2, and never more than ``texts``, all distinct queries.
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

    The interval is that of a proportion (``binomial_interval``) with the mean number of uncovered queries
    for the successes: a query's mean over clusterings varies less than a yes or no, so it errs on the
    wide side.

    Args:
        clusters: (clusterings, queries) the cluster of each query, counted from 0; none is empty.
        evaluation: (queries,) whether it is an evaluation query; some are, and some are not.
        seed: of the random samples behind ``p``.
        draws: how many.
        confidence: of the interval, in (0, 1).
    """
    sample, asked = int(evaluation.sum()), int((~evaluation).sum())
    missed = uncovered(clusters, evaluation).sum(axis=1)
    low, high = binomial_interval(missed.mean(), asked, confidence)
    expected = [expected_uncovered(np.bincount(one), sample) for one in clusters]
    users = np.bincount(clusters[0][~evaluation], minlength=clusters[0].max() + 1)
    evaluations = np.bincount(clusters[0][evaluation], minlength=len(users))
    return Figures(
        user_queries=asked,
        evaluation_queries=sample,
        share=float(missed.mean()) / asked,
        low=low,
        high=high,
        confidence=confidence,
        shares=tuple(float(one) / asked for one in missed),
        expected_share=sum(queries for _, queries in expected) / len(expected) / asked,
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
    """(clusterings, queries): whether a query's cluster holds no evaluation query.

    Args:
        clusters, evaluation: as in ``figures``.
    """
    held = [np.bincount(one[evaluation], minlength=one.max() + 1) for one in clusters]
    return np.stack([(n == 0)[one] for n, one in zip(held, clusters, strict=True)])


def expected_uncovered(sizes: Ints, sample: int) -> tuple[float, float]:
    """Clusters that a random sample leaves without a sampled query, and the queries in them, expected.

    A cluster of n among N queries has none of a sample of m with probability C(N-n, m) / C(N, m), and
    all its queries are then uncovered.

    Args:
        sizes: (clusters,) queries of either kind.
        sample: m, 0 to N.
    """
    nothing = _hypergeometric(sizes, sample).pmf(0)
    return float(nothing.sum()), float((sizes * nothing).sum())


def chance_of_as_many(
    clusters: Ints, sample: int, queries: int, *, draws: int = DRAWS, seed: int
) -> float:
    """Probability that a random sample leaves ``queries`` queries uncovered or more, over all clusterings.

    A Monte Carlo test: (1 + samples with as many) / (1 + draws), so never 0 (Davison & Hinkley 1997,
    section 4.2). Its standard error is 0.003 at p = 0.05 and 4,999 draws.

    Args:
        clusters: as in ``figures``.
        sample: sampled queries, 0 to all.
        queries: the sum over the clusterings.
    """
    rng = np.random.default_rng(seed)
    # One table for all clusterings: each has numbers of its own for its clusters.
    first = np.cumsum([0, *(one.max() + 1 for one in clusters)])
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
        users, evaluations: (clusters,) how many queries of each kind a cluster holds.

    Returns:
        (clusters,) each: the hypergeometric lower tail, and the same corrected with Holm's method over
        all clusters.
    """
    sizes = users + evaluations
    tails = _hypergeometric(sizes, int(evaluations.sum())).cdf(evaluations)
    p = np.minimum(np.asarray(tails, dtype=np.float64), 1.0)
    return p, np.array(holm([float(value) for value in p]))


def binomial_interval(successes: float, n: int, confidence: float) -> tuple[float, float]:
    """Exact interval of a proportion (Clopper & Pearson 1934): covers no less than it says.

    Args:
        successes: 0 to n; need not be whole.
        n: 1 or more.
        confidence: in (0, 1).
    """
    tail = (1 - confidence) / 2
    low = betaincinv(successes, n - successes + 1, tail) if successes else 0.0
    high = betaincinv(successes + 1, n - successes, 1 - tail) if successes < n else 1.0
    return float(low), float(high)


def _hypergeometric(sizes: Ints, sample: int) -> Any:
    """The number of sampled queries in each cluster, as a frozen distribution of SciPy."""
    from scipy.stats import hypergeom  # a second to import, which other commands need not wait for

    return hypergeom(int(sizes.sum()), sizes, sample)
