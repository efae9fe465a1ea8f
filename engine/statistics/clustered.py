"""Correlations where queries come in clusters that share an article, and only clusters are independent.

What is done for queries elsewhere is done for clusters: they are left out one at a time, and resampled. Where few of
them have what the interval rests on, tables of queries are drawn as elsewhere, but of fewer queries: as many
independent ones as say as much as the clusters do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import scipy as sp

from engine.statistics.arrays import Floats, Ints, Mask
from engine.statistics.difference_tests import DifferenceTest
from engine.statistics.inversion import MOST_CELLS
from engine.statistics.methods import (
    ENOUGH_TO_RESAMPLE,
    FEW_RARER,
    LEAST_OF_MANY,
    LEAST_QUERIES,
    Method,
    Side,
    method_for,
    side,
)
from engine.statistics.studentized import studentized

# Values without each cluster that differ by less are equal but for rounding.
_NO_SPREAD = 1e-12


def clusters_with_rarer(one: Side, clusters: Ints) -> Mask:
    """Shape (clusters,), whether some query of a cluster has a rarer value."""
    return np.bincount(clusters, one.rarer) > 0


def method_by_cluster(x: Side, y: Side, clusters: Ints) -> tuple[Method | None, str]:
    """``method_for`` of queries in clusters.

    - ``inverted``: where that would be used without clusters, or fewer than ten clusters have a rarer
      value of some side, and the table is small enough.
    - ``studentized``: fewer than 50 clusters have a rarer value of some side.
    - ``percentile`` (of resampled clusters), elsewhere.

    Args:
        clusters: (n,) of each query, numbered from 0 without gaps.
    """
    count = int(clusters.max()) + 1
    if count < LEAST_QUERIES:
        return None, f"no interval: {count} clusters are too few"
    method, note = method_for(x, y)
    fewest = min(int(clusters_with_rarer(one, clusters).sum()) for one in (x, y))
    if method is None or method == "inverted":
        return method, note
    if fewest < FEW_RARER and x.values * y.values <= MOST_CELLS:
        return "inverted", ""
    if fewest < LEAST_OF_MANY:
        return None, (
            "no interval: measure or end-to-end score has values other than the most frequent one in "
            f"fewer than {LEAST_OF_MANY} of {count} clusters"
        )
    return ("studentized" if fewest < ENOUGH_TO_RESAMPLE else "percentile"), ""


def independent_queries(x: Floats, y: Floats, clusters: Ints, *, confidence: float) -> int:
    """How many independent queries vary the correlation of x and y as much as these do, and are known as well.

    n / (1 + (m - 1) r_x r_y), where m is the mean size of the cluster that a query is in, and r_x and r_y are
    the intraclass correlations of the ranks (from the analysis of variance, 0 or more): the
    design effect (Kish 1965) of the mean of products of two independent scores. Few clusters tell little about
    that effect, so that the number is multiplied by the square of Student's quantile with n - 1 degrees of
    freedom over that with a degree less than there are clusters (Korn & Graubard 1998, "Confidence intervals for
    proportions with small expected number of positive counts estimated from survey data").
    """
    sizes = np.bincount(clusters)
    n = len(clusters)
    beyond = float((sizes.astype(np.float64) ** 2).sum()) / n - 1
    effect = 1 + beyond * intraclass(_ranks(x), clusters) * intraclass(_ranks(y), clusters)
    level = (1 + confidence) / 2
    known = float(sp.special.stdtrit(n - 1, level) / sp.special.stdtrit(len(sizes) - 1, level)) ** 2
    return max(2, round(known * n / effect))


def intraclass(score: Floats, clusters: Ints) -> float:
    """The intraclass correlation by the analysis of variance, in [0, 1]; 1 where nothing varies.

    0 where every cluster is of one query.
    """
    sizes = np.bincount(clusters).astype(np.float64)
    n, count = len(score), len(sizes)
    if count in (1, n):
        return float(count == 1)
    means = np.bincount(clusters, score) / sizes
    between = float((sizes * (means - score.mean()) ** 2).sum()) / (count - 1)
    within = float(((score - means[clusters]) ** 2).sum()) / (n - count)
    size = (n - float((sizes**2).sum()) / n) / (count - 1)
    spread = between + (size - 1) * within
    return max(0.0, (between - within) / spread) if spread > 0 else 1.0


def _ranks(score: Floats) -> Floats:
    _, codes, counts = np.unique(score, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - counts / 2)[codes.reshape(-1)])


def from_jackknife(
    estimate: float,
    without: Floats,
    sides: Sequence[Floats],
    clusters: Ints | None,
    *,
    confidence: float,
    scale: float = 1,
) -> DifferenceTest:
    """The studentized interval of a correlation, or of a difference, and the test that it inverts.

    Args:
        without: (clusters,) the estimate without each, or (n,) without each query where ``clusters`` is None.
        sides: the scores that it is made of, each (n,).
        scale: how far it can go from 0: 1 for a correlation, 2 for a difference.

    Returns:
        NaN where without some query or cluster a side is constant, or the estimate is the same without any;
        a difference of 0 throughout is one of 0.
    """
    if not np.isfinite(without).all() or float(np.ptp(without)) < _NO_SPREAD:
        same = scale == 2 and float(np.abs(without).max()) < _NO_SPREAD
        return DifferenceTest(1.0, 0.0, 0.0) if same else DifferenceTest(math.nan)
    found = map(side, sides)
    masks = (one.rarer if clusters is None else clusters_with_rarer(one, clusters) for one in found)
    sparser = min(masks, key=np.count_nonzero)
    low, high, p = studentized(estimate / scale, without / scale, sparser, confidence=confidence)
    return DifferenceTest(p, scale * low, scale * high)


def incomparable(pairs: Sequence[tuple[Floats, Floats]], clusters: Ints) -> str:
    """Why correlations of queries in clusters cannot be compared; or nothing."""
    fewest = min(
        int(clusters_with_rarer(side(one), clusters).sum()) for pair in pairs for one in pair
    )
    count = int(clusters.max()) + 1
    if count < LEAST_QUERIES:
        return f"no p-value and no interval: {count} clusters are too few"
    if fewest < LEAST_OF_MANY:
        return (
            f"no p-value and no interval: {fewest} of {count} clusters have a score other than the most "
            f"frequent one, and a test needs {LEAST_OF_MANY}"
        )
    return ""
