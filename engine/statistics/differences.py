"""Differences of the means of runs, paired by query: intervals, p-values, and queries needed."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from engine.statistics.correlation import DECIMALS, Bootstrap
from engine.statistics.intervals import interval
from engine.statistics.resampling import (
    Counts,
    Signs,
    for_each_block,
    for_each_block_of_signs,
)

Floats = npt.NDArray[np.float64]

# The probability with which a difference of the assumed size should be found (Cohen 1988).
POWER = 0.8


@dataclass(frozen=True)
class MeanDifferences:
    """Differences between the means of s runs over the same n queries.

    Every array is (p,), for the p = s (s - 1) / 2 pairs of runs in the order of ``numpy.triu_indices``.

    Attributes:
        value: first run's mean less the second's.
        low, high: its bootstrap interval; NaN without resamples, or with a single query.
        p: two-sided, of the hypothesis that the runs do not differ; in (0, 1], NaN as the bounds.
        deviation: standard deviation of the differences, query by query; NaN with a single query.
    """

    value: Floats
    low: Floats
    high: Floats
    p: Floats
    deviation: Floats


def mean_differences(scores: Floats, bootstrap: Bootstrap) -> MeanDifferences:
    """Compare the means of every two runs, query by query.

    The interval is from resampled queries, with the draws that everything on n queries shares. The
    p-value is that of the paired randomization test (Fisher 1935; for retrieval Smucker, Allan &
    Carterette 2007): signs of the differences are redrawn, and p = (1 + r) / (1 + B), where r of B means are
    at least as far from 0 as the observed one. A p-value from resamples, as correlations have, would be too small
    where few queries distinguish the runs: if 5 of 64 do, all in favour of one run, it would be 0.01,
    although five coins fall alike with a probability of 1/16.

    Args:
        scores: shape (s, n), s >= 2; the same queries in every row.
    """
    runs, n = scores.shape
    first, second = np.triu_indices(runs, 1)
    paired = np.round(scores[first] - scores[second], DECIMALS)
    value = _means(np.ones((1, n), dtype=np.int32), paired)[0]
    low, high, p, deviation = np.full((4, len(first)), np.nan)
    if n < 2:
        return MeanDifferences(value, low, high, p, deviation)
    deviation = paired.std(axis=1, ddof=1)
    if not bootstrap.resamples:
        return MeanDifferences(value, low, high, p, deviation)
    resampled = np.empty((bootstrap.resamples, len(first)))
    as_far = np.empty((bootstrap.resamples, len(first)), dtype=bool)

    def resample(start: int, weights: Counts) -> None:
        resampled[start : start + len(weights)] = _means(weights, paired)

    def flip(start: int, signs: Signs) -> None:
        as_far[start : start + len(signs)] = np.abs(_means(signs, paired)) >= np.abs(value)

    settings = {"resamples": bootstrap.resamples, "seed": bootstrap.seed}
    for_each_block(np.arange(n), n, resample, **settings, threads=bootstrap.threads)
    for_each_block_of_signs(n, flip, **settings, threads=bootstrap.threads)
    without = None
    if bootstrap.interval == "bca":
        without = (paired.sum(axis=1, keepdims=True) - paired) / (n - 1)
    for pair in range(len(first)):
        low[pair], high[pair], _ = interval(
            float(value[pair]),
            resampled[:, pair],
            None if without is None else without[pair],
            method=bootstrap.interval,
            confidence=bootstrap.confidence,
        )
    p = (1 + as_far.sum(axis=0)) / (1 + bootstrap.resamples)
    return MeanDifferences(value, low, high, p, deviation)


def _means(weights: Counts | Signs, paired: Floats) -> Floats:
    """(B, p) means of the differences (p, n), weighted; rounded, so that equal means compare as equal."""
    return np.round(weights.astype(np.float64) @ paired.T / paired.shape[1], DECIMALS)


def queries_needed(
    difference: float, deviation: float, *, confidence: float, comparisons: int = 1
) -> int | None:
    """About how many queries it takes to show a difference of means as large as this one.

    ``n = ((z_a + z_b) deviation / difference)^2 + z_a^2 / 2``, for a two-sided paired test that finds it with
    a probability of ``POWER`` = Phi(z_b); z_a is the normal quantile at 1 - (1 - confidence) / (2 m) with m
    comparisons (Bonferroni's share, the strictest of Holm's steps). Guenther 1981; for retrieval
    Sakai 2016, "Topic set size design".

    Args:
        difference: of the means.
        deviation: of the differences query by query, > 0 or 0.
        confidence: in (0, 1).
        comparisons: that p-values are corrected for.

    Returns:
        None where no number of queries suffices: there is no difference, or its deviation is unknown.
    """
    if difference == 0 or not math.isfinite(difference) or not math.isfinite(deviation):
        return None
    level = float(ndtri(1 - (1 - confidence) / (2 * comparisons)))
    ratio = (level + float(ndtri(POWER))) * deviation / difference
    return math.ceil(ratio**2 + level**2 / 2)
