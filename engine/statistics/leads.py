"""Intervals and p-values of differences of means that hold for all pairs of runs together.

The interval of a pair is the wider one, at either side, of two:

- that of a mean of values from a bounded range (``bounded``; Gaffke 2005), which holds where two runs are
  nearly alike and differ much on a few queries. The p-value of differences of -1, 0 and 1 is that of the exact
  sign test;
- that of Bonett & Price (2012, "Adjusted Wald confidence interval for a difference of binomial proportions
  based on paired data", after Agresti & Min 2005), in which one query is added for each of the two runs, as
  far apart as the range allows. It is the wider one with few discordant queries and many pairs of runs.

Levels are divided by the number of pairs (Bonferroni), so that the intervals hold together, and therefore
also for pairs that are chosen by what the data show.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
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
        clusters: (n,) the cluster of each query, from 0; None where queries are independent. Then clusters
            are weighted in place of queries, and the added one is as large as the largest.

    Raises:
        ValueError: a difference is larger than ``largest``.
    """
    level = (1 - confidence) / comparisons
    # In units of the largest difference: squares of large numbers overflow.
    samples = list(_samples(paired / largest, clusters))
    value = paired.mean(axis=1)
    low, high = np.array([_bounds(sample, level) for sample in samples]).T * largest
    p = np.array([_p_value(sample, 0.0, comparisons) for sample in samples])
    low, high = np.clip(low, -largest, value), np.clip(high, value, largest)
    return Differences(value, low, high, p)


def p_values(paired: Floats, largest: float, means: Floats, *, comparisons: int) -> Floats:
    """Of each pair (p,), 1 less the confidence at which its interval just reaches a mean (p,)."""
    samples = zip(_samples(paired / largest, None), (means / largest).tolist(), strict=True)
    return np.array([_p_value(sample, mean, comparisons) for sample, mean in samples])


@dataclass(frozen=True)
class _Sample:
    """The differences of two runs, by query or by cluster.

    Attributes:
        sums, sizes: (r,) of the differences of each row, and how many these are.
        sides: the rows from either run's side, with one more that favours the other as far as can be.
    """

    sums: Floats
    sizes: Floats
    sides: tuple[Weighed, Weighed]


def _samples(paired: Floats, clusters: Ints | None) -> Iterator[_Sample]:
    """Of differences of 1 at most."""
    if np.abs(paired).max(initial=0) > 1 + _ROUNDING:
        raise ValueError("a difference exceeds the largest that is possible")
    sizes = np.ones(paired.shape[1])
    if clusters is not None:
        sizes = np.bincount(clusters).astype(np.float64)
    size = float(sizes.max())
    for differences in paired:
        sums = differences
        if clusters is not None:
            sums = np.bincount(clusters, differences)
        more, less = (
            weighed(np.append(sign * sums, -size), np.append(sizes, size)) for sign in (1, -1)
        )
        yield _Sample(sums, sizes, (more, less))


def _bounds(sample: _Sample, level: float) -> tuple[float, float]:
    mean, error, freedom = _with_one_for_each(sample)
    half = float(sp.special.stdtrit(freedom, 1 - level / 2)) * error
    low, high = mean - half, mean + half
    # A bound is sought only where it is the wider one.
    more, less = sample.sides
    if lower_tail(more, low) > level / 2:
        low = lower_bound(more, level / 2)
    if lower_tail(less, -high) > level / 2:
        high = -lower_bound(less, level / 2)
    return low, high


def _p_value(sample: _Sample, value: float, comparisons: int) -> float:
    """Of the hypothesis that the mean is ``value``, adjusted for the number of comparisons."""
    mean, error, freedom = _with_one_for_each(sample)
    p = 2 * comparisons * float(sp.special.stdtr(freedom, -abs(mean - value) / error))
    if p < 1:  # else the tails, which take longer, cannot change it
        more, less = sample.sides
        p = max(p, 2 * comparisons * min(lower_tail(more, value), lower_tail(less, -value)))
    return min(max(p, _LEAST_P), 1.0)


def _with_one_for_each(sample: _Sample) -> tuple[float, float, int]:
    """Bonett & Price's mean and standard error, and Student's degrees of freedom; of clusters by residuals."""
    size = float(sample.sizes.max())
    sums, sizes = np.append(sample.sums, [size, -size]), np.append(sample.sizes, [size, size])
    total = float(sizes.sum())
    mean = float(sums.sum()) / total
    error = math.sqrt(float(((sums - mean * sizes) ** 2).sum())) / total
    return mean, error, len(sample.sums) - 1
