"""Intervals of differences of means that hold for all pairs of runs at once, with few queries too."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from scipy.special import stdtrit

Floats = npt.NDArray[np.float64]

# Queries added to those seen, one that favours each run by ``scale``: what the intervals of matched
# proportions need to hold with few discordant pairs (Bonett & Price 2012, after Agresti & Min 2005).
ADDED = 2


def paired_intervals(
    paired: Floats, scale: float, *, confidence: float, comparisons: int
) -> tuple[Floats, Floats]:
    """Lower and upper bounds of the means of paired differences.

    ``m -+ t s / sqrt(n + 2)``: m and s are mean and standard deviation (dividing by n + 2) of the n
    differences and of two more, ``scale`` and ``-scale``. For differences of -1, 0 and 1 this is the
    interval of Bonett & Price (2012, "Adjusted Wald confidence interval for a difference of binomial
    proportions based on paired data"); other differences are added to in the same way, since a score that
    differs on few queries leaves as little to estimate a deviation from as a binary one. t is
    Student's quantile with n - 1 degrees of freedom at 1 - (1 - confidence) / (2 ``comparisons``).
    With all pairs of runs as comparisons (Bonferroni), the intervals hold together, and therefore also for
    pairs that are chosen by what the data show.

    Args:
        paired: (p, n) differences of p pairs on n queries, n >= 2.
        scale: how far two runs may differ on a query (``largest_difference``), 0 or more.
        confidence: that all intervals hold, in (0, 1).
        comparisons: number of intervals that hold together, 1 or more.

    Returns:
        (p,) bounds. Both are 0 where ``scale`` is 0: no score tells any two queries or runs apart.
    """
    n = paired.shape[1]
    mean = paired.sum(axis=1) / (n + ADDED)
    squares = ((paired**2).sum(axis=1) + ADDED * scale**2) / (n + ADDED)
    deviation = np.sqrt(np.maximum(squares - mean**2, 0))
    half = critical_t(n, confidence, comparisons) * deviation / np.sqrt(n + ADDED)
    return mean - half, mean + half


def critical_t(n: int, confidence: float, comparisons: int) -> float:
    """Student's quantile for a two-sided interval from n queries, corrected for several (Bonferroni)."""
    return float(stdtrit(n - 1, 1 - (1 - confidence) / (2 * comparisons)))


def largest_difference(scores: Floats) -> float:
    """The largest difference between two runs on one query; between any two scores where no runs differ.

    One number for all pairs: two runs that are nearly the same show too little of how far they may differ.

    Args:
        scores: (s, n) of the runs that are compared.
    """
    return float(np.ptp(scores, axis=0).max() or np.ptp(scores))
