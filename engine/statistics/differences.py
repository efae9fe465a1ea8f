"""Differences of the means of runs, paired by query: intervals and p-values of all pairs together."""

from __future__ import annotations

import math

import numpy as np

from engine.statistics.arrays import Floats, Ints, Signs
from engine.statistics.correlation import DECIMALS, Bootstrap
from engine.statistics.leads import Differences, paired_intervals
from engine.statistics.resampling import for_each_block_of_signs, weighted_sums
from engine.statistics.until import decided


def mean_differences(
    scores: Floats,
    largest: float,
    bootstrap: Bootstrap,
    clusters: Ints | None = None,
    most: int = 1,
) -> Differences:
    """Compare the means of every two runs, query by query.

    Args:
        scores: shape (s, n), s >= 2; the same queries in every row, in the order in which they were read where
            the plan is to read ``until`` a verdict: intervals are then those of ``until.decided``, each of the
            queries that neither run lacks (NaN).
        largest, clusters: as in ``leads.paired_intervals``.
        most: as in ``until.decided``.

    Returns:
        For the p = s (s - 1) / 2 pairs of runs in the order of ``numpy.triu_indices``: first run's mean
        less the second's, with interval and p-value adjusted for p pairs (``leads``); NaN without
        resamples, with a single query or cluster, or where ``largest`` is infinite.
    """
    paired = _paired(scores)
    units = scores.shape[1] if clusters is None else len(np.unique(clusters))
    if math.isinf(largest) or not bootstrap.resamples or (units < 2 and not bootstrap.until):
        means = np.asarray(np.nanmean(paired, axis=1), dtype=np.float64)
        nothing = np.full(len(paired), math.nan)
        return Differences(np.round(means, DECIMALS), nothing, nothing, nothing)
    if bootstrap.until:
        level = bootstrap.confidence
        found_by = decided(paired, confidence=level, largest=largest, clusters=clusters, most=most)
        columns = [[one.value, one.low, one.high, one.p] for one in found_by]
        value, low, high, p = np.round(np.array(columns).T, DECIMALS) + 0.0
        return Differences(value, low, high, p)
    found = paired_intervals(
        paired, largest, confidence=bootstrap.confidence, comparisons=len(paired), clusters=clusters
    )
    # Adding 0.0 turns -0.0 into 0.0, which is printed without its sign.
    value, low, high = (np.round(column, DECIMALS) + 0.0 for column in found[:3])
    return Differences(value, low, high, found.p)


def chances_above(scores: Floats, bootstrap: Bootstrap, clusters: Ints | None = None) -> Floats:
    """One-sided p-values of the paired randomization test (Fisher 1935), for ``soft_pairwise_accuracy``.

    Signs of the differences are redrawn (those of a cluster together). The share of redrawn means above the
    observed one counts equal ones half, so that the p-value of the opposite hypothesis is 1 less this one.

    Args:
        scores: as in ``mean_differences``.

    Returns:
        (p,), that the first run is not better than the second, in (0, 1); NaN as there.
    """
    paired = _paired(scores)
    if clusters is not None:
        paired = np.stack([np.bincount(clusters, differences) for differences in paired])
    units = paired.shape[1]
    if units < 2 or not bootstrap.resamples:
        return np.full(len(paired), math.nan)
    value = np.round(paired.sum(axis=1), DECIMALS)
    above = np.empty((bootstrap.resamples, len(paired)))

    def flip(start: int, signs: Signs) -> None:
        redrawn = np.round(weighted_sums(signs, paired), DECIMALS)
        above[start : start + len(signs)] = (1 + np.sign(redrawn - value)) / 2

    for_each_block_of_signs(
        units, flip, resamples=bootstrap.resamples, seed=bootstrap.seed, threads=bootstrap.threads
    )
    # The observed difference is one of the draws, and equal to itself.
    return np.asarray((0.5 + above.sum(axis=0)) / (1 + bootstrap.resamples))


def soft_pairwise_accuracy(by_measure: Floats, by_outcome: Floats) -> float:
    """Whether a measure is as certain of every pair of runs as the end-to-end score is.

    SPA, the mean over the pairs of ``1 - |p_outcome - p_measure|`` (Thompson, Mathur, Deutsch & Khayrallah,
    WMT 2024, "Improving Statistical Significance in Human Evaluation of Automatic Metrics via Soft
    Pairwise Accuracy"). A pair that both find certain counts 1 where they name the same run and 0 where they do
    not; one that both find undecided counts nearly 1, whichever run is ahead.

    Args:
        by_measure, by_outcome: (p,) one-sided p-values of the pairs of runs in the same order
            (``chances_above``). There equal draws count half, so that SPA
            does not depend on the order of the runs.

    Returns:
        In [0, 1]; NaN where p-values are.
    """
    return float((1 - np.abs(by_outcome - by_measure)).mean())


def _paired(scores: Floats) -> Floats:
    first, second = np.triu_indices(len(scores), 1)
    return np.asarray(np.round(scores[first] - scores[second], DECIMALS))
