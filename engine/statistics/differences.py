"""Differences of the means of runs, paired by query: intervals and p-values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.statistics.correlation import DECIMALS, Bootstrap
from engine.statistics.intervals import interval
from engine.statistics.resampling import (
    Counts,
    Signs,
    for_each_block,
    for_each_block_of_signs,
    weighted_sums,
)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class MeanDifferences:
    """Differences between the means of s runs over the same n queries.

    Every array is (p,), for the p = s (s - 1) / 2 pairs of runs in the order of ``numpy.triu_indices``.

    Attributes:
        value: first run's mean less the second's.
        low, high: its bootstrap interval; NaN without resamples, or with a single query.
        p: two-sided, of the hypothesis that the runs do not differ; in (0, 1], NaN as the bounds.
        p_above: one-sided, that the first run is not better than the second: the share of redrawn
            differences above the observed one, equal ones counting half, so that the p-value of
            the opposite hypothesis is 1 - ``p_above``; in (0, 1), NaN as the bounds.
    """

    value: Floats
    low: Floats
    high: Floats
    p: Floats
    p_above: Floats


def mean_differences(scores: Floats, bootstrap: Bootstrap) -> MeanDifferences:
    """Compare the means of every two runs, query by query.

    The interval is from resampled queries, with the draws that everything on n queries shares. The
    p-value is that of the paired randomization test (Fisher 1935; for retrieval Smucker, Allan &
    Carterette 2007): signs of the differences are redrawn, and p = (1 + r) / (1 + B), where r of B means are
    at least as far from 0 as the observed one. A p-value from resamples would be too small
    where few queries distinguish the runs: if 5 of 64 do, all in favour of one run, it would be 0.01,
    although five coins fall alike with a probability of 1/16.

    Args:
        scores: shape (s, n), s >= 2; the same queries in every row.
    """
    runs, n = scores.shape
    first, second = np.triu_indices(runs, 1)
    paired = np.round(scores[first] - scores[second], DECIMALS)
    value = _means(np.ones((1, n), dtype=np.int32), paired)[0]
    low, high, p, p_above = np.full((4, len(first)), np.nan)
    if n < 2 or not bootstrap.resamples:
        return MeanDifferences(value, low, high, p, p_above)
    resampled = np.empty((bootstrap.resamples, len(first)))
    as_far = np.empty((bootstrap.resamples, len(first)), dtype=bool)
    above = np.empty((bootstrap.resamples, len(first)))

    def resample(start: int, weights: Counts) -> None:
        resampled[start : start + len(weights)] = _means(weights, paired)

    def flip(start: int, signs: Signs) -> None:
        redrawn, at = _means(signs, paired), slice(start, start + len(signs))
        as_far[at] = np.abs(redrawn) >= np.abs(value)
        above[at] = (1 + np.sign(redrawn - value)) / 2

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
    # The observed difference is one of the draws, and equal to itself.
    p_above = (0.5 + above.sum(axis=0)) / (1 + bootstrap.resamples)
    return MeanDifferences(value, low, high, p, p_above)


def _means(weights: Counts | Signs, paired: Floats) -> Floats:
    """(B, p) means of the differences (p, n), weighted; rounded, so that equal means compare as equal."""
    return np.round(weighted_sums(weights, paired) / paired.shape[1], DECIMALS)
