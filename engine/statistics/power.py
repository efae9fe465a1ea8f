"""How many queries a difference of means would need to be found by the method in use."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri, stdtrit

from engine.statistics.correlation import DECIMALS
from engine.statistics.leads import Ints

Floats = npt.NDArray[np.float64]

# The probability with which a difference of the assumed size should be found (Cohen 1988).
POWER = 0.8
# Beyond this many, a number says no more than that there are too few.
MOST_QUERIES = 1_000_000


class _Moments(NamedTuple):
    """Means of the first four powers of the differences."""

    first: float
    second: float
    third: float
    fourth: float


def queries_needed(
    differences: Floats,
    largest: float,
    *,
    confidence: float,
    comparisons: int = 1,
    clusters: Ints | None = None,
) -> int | None:
    """The least number of queries that would show a difference like this one with ``POWER``.

    Other queries are taken to differ as these do, in mean and spread. A lead is significant if both intervals
    of ``leads.paired_intervals`` leave 0 out. With S, Q and T the sums of the differences, of their squares and of
    their cubes, and D the largest difference, these are nearly

    - ``S - D + (z² - 1) (T - D³) / (3 (Q + D²)) > z sqrt(Q + D²)``: weighted by exponential variables,
      the differences and -D have the mean S - D, the variance Q + D² and the third cumulant 2 (T - D³), and
      the quantile is Cornish & Fisher's (1938);
    - ``S > t sqrt((Q + 2 D²) / (1 + t² / (n + 2)))``.

    Both sides are taken as normal, with the variance of their difference by the delta method: where all
    differing queries favour one run, S and Q rise together, and treating Q as known would overstate n.

    Args:
        differences: (n,) query by query.
        largest: as in ``leads.paired_intervals``.
        confidence: of the intervals, in (0, 1).
        comparisons: that they are adjusted for, 1 or more.
        clusters: (n,) of each query, from 0 without gaps: then the mean differences of as many clusters, as
            large as these on average, are counted; the number is that of their queries.

    Returns:
        ``MOST_QUERIES`` where that many do not suffice. None where nothing is known: the mean of the
        differences is 0, or there is one query.
    """
    total = round(float(differences.sum()), DECIMALS)
    if total == 0 or len(differences) < 2:
        return None
    size = 1.0
    if clusters is not None:
        size = len(clusters) / (int(clusters.max()) + 1)
        differences = np.bincount(clusters, differences) / size
    # In units of the largest difference: powers of large numbers overflow.
    turned = math.copysign(1, total) * differences / largest
    moments = _Moments(*(float((turned**power).mean()) for power in (1, 2, 3, 4)))
    level = 1 - (1 - confidence) / (2 * comparisons)

    def is_enough(n: int) -> bool:
        t = float(stdtrit(n - 1, level))
        t /= math.sqrt(1 + t**2 / (n + 2))
        z = float(ndtri(level))
        less = 1 - (z**2 - 1) / 3 * (n * moments.third - 1) / (n * moments.second + 1)
        return all(
            _margin(moments, n, factor, added, less) >= float(ndtri(POWER))
            for factor, added, less in ((z, 1, less), (t, 2, 0.0))
        )

    enough = 2
    while not is_enough(enough):
        enough *= 2
        if enough * size >= MOST_QUERIES:
            return MOST_QUERIES
    too_few = enough // 2
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if is_enough(middle) else (middle, enough)
    return math.ceil(enough * size)


def _margin(moments: _Moments, n: int, factor: float, added: float, less: float) -> float:
    """Mean of ``S - less - factor sqrt(Q + added)`` of n differences, in standard deviations."""
    first, second, third, fourth = moments
    root = math.sqrt(n * second + added)
    slope = factor / (2 * root)
    variance = n * (
        second - first**2 - 2 * slope * (third - first * second) + slope**2 * (fourth - second**2)
    )
    middle = n * first - less - factor * root
    if variance <= 0:
        return math.copysign(math.inf, middle)
    return middle / math.sqrt(variance)
