"""Intervals and p-values of differences of means that hold for all pairs of runs together.

The interval of a pair is that of a mean of values from a bounded range (``bounded``; Gaffke 2005), which holds where
two runs are nearly alike and differ much on a few queries. The p-value of differences of -1, 0 and 1 is that of the exact
sign test. Of one pair whose queries come in clusters it is that of Bonett & Price (2012, "Adjusted Wald confidence
interval for a difference of binomial proportions based on paired data", after Agresti & Min 2005), in which one
cluster is added for each of the two runs, as far apart as the range allows: there it holds as well and is narrower.

Levels are divided by the number of pairs (Bonferroni), so that the intervals hold together, and therefore
also for pairs that are chosen by what the data show.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import scipy as sp

from engine.statistics.arrays import Floats, Ints
from engine.statistics.bounded import Weighed, lower_bound, lower_tail, weighed

# How far differences may exceed their range by rounding.
_ROUNDING = 1e-9
# Smaller p-values are no numbers.
_LEAST_P = float(np.finfo(np.float64).tiny)


class Differences(NamedTuple):
    """Means of the paired differences of p pairs of runs, each array of shape (p,).

    Attributes:
        value: the means.
        low, high: their intervals, which hold together; within the range, and around the mean.
        p: two-sided, of the hypothesis that a mean is 0, adjusted for all pairs: 1 less the confidence at
            which the interval just reaches 0. In (0, 1].
    """

    value: Floats
    low: Floats
    high: Floats
    p: Floats


def paired_intervals(
    paired: Floats,
    largest: float,
    *,
    confidence: float,
    comparisons: int,
    clusters: Ints | None = None,
) -> Differences:
    """Intervals and p-values of the means of paired differences.

    Args:
        paired: (p, n) differences of p pairs on n queries, n >= 2.
        largest: the largest difference that two runs can have on a query: the length of the range of the
            score, above 0. Not the largest in the data, which says little where runs are nearly alike.
        confidence: that all intervals hold, in (0, 1).
        comparisons: number of intervals that hold together, 1 or more.
        clusters: (n,) the cluster of each query, from 0; None where queries are independent. Clusters then stand in
            the place of queries, and added ones are as large as the largest.

    Raises:
        ValueError: a difference is larger than ``largest``.
    """
    tail = (1 - confidence) / (2 * comparisons)
    # In units of the largest difference: squares of large numbers overflow.
    scaled = paired / largest
    if clusters is not None and comparisons == 1:
        middle, error, freedom = np.array(list(_one_for_each(scaled, clusters))).T
        reach = sp.special.stdtrit(freedom, 1 - tail) * error
        bounds = np.array([middle - reach, middle + reach])
        tails = sp.special.stdtr(freedom, -np.abs(middle) / error)
        p = np.array([_adjusted(float(one), 1) for one in tails])
    else:
        sides = list(_sides(scaled, clusters))
        bounds = np.array(
            [(lower_bound(more, tail), -lower_bound(less, tail)) for more, less in sides]
        ).T
        p = np.array([_p_value(one, 0.0, comparisons) for one in sides])
    value = paired.mean(axis=1)
    low, high = bounds * largest
    low, high = np.clip(low, -largest, value), np.clip(high, value, largest)
    return Differences(value, low, high, p)


def p_values(paired: Floats, largest: float, means: Floats, *, comparisons: int) -> Floats:
    """Of each pair (p,) of independent queries, 1 less the confidence at which its interval just reaches a mean (p,)."""
    sides = zip(_sides(paired / largest, None), (means / largest).tolist(), strict=True)
    return np.array([_p_value(one, mean, comparisons) for one, mean in sides])


def _one_for_each(paired: Floats, clusters: Ints) -> Iterator[tuple[float, float, int]]:
    """Bonett & Price's mean and standard error of each pair, by residuals of clusters, and Student's degrees of freedom."""
    size_of = np.bincount(clusters).astype(np.float64)
    size = float(size_of.max())
    sizes = np.append(size_of, [size, size])
    total = float(sizes.sum())
    for differences in _checked(paired):
        sums = np.append(np.bincount(clusters, differences), [size, -size])
        mean = float(sums.sum()) / total
        yield mean, math.sqrt(float(((sums - mean * sizes) ** 2).sum())) / total, len(size_of) - 1


def _sides(paired: Floats, clusters: Ints | None) -> Iterator[tuple[Weighed, Weighed]]:
    """The differences of each pair from either run's side, with one more that favours the other as far as can be."""
    sizes = np.ones(paired.shape[1])
    if clusters is not None:
        sizes = np.bincount(clusters).astype(np.float64)
    size = float(sizes.max())
    for differences in _checked(paired):
        sums = differences if clusters is None else np.bincount(clusters, differences)
        more, less = (
            weighed(np.append(sign * sums, -size), np.append(sizes, size)) for sign in (1, -1)
        )
        yield more, less


def _checked(paired: Floats) -> Floats:
    """Differences of 1 at most."""
    if np.abs(paired).max(initial=0) > 1 + _ROUNDING:
        raise ValueError("a difference exceeds the largest that is possible")
    return paired


def _p_value(sides: tuple[Weighed, Weighed], value: float, comparisons: int) -> float:
    """Of the hypothesis that the mean is ``value``, adjusted for the number of comparisons."""
    more, less = sides
    return _adjusted(min(lower_tail(more, value), lower_tail(less, -value)), comparisons)


def _adjusted(tail: float, comparisons: int) -> float:
    return min(max(2 * comparisons * tail, _LEAST_P), 1.0)
