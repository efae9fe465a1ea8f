"""Differences of means of runs, paired by query: intervals and p-values that hold for all pairs of runs together.

The interval of a pair is that of a mean of values from a bounded range (``bounded``; Gaffke 2005), which also holds if
two runs are nearly alike and differ much on a few queries. The p-value of differences of -1, 0 and 1 is that of the
exact sign test. For a single pair with queries in clusters it is that of Bonett & Price (2012, "Adjusted Wald
confidence interval for a difference of binomial proportions based on paired data", after Agresti & Min 2005), which
adds a cluster for each of the two runs, as far apart as the range allows: there it holds as well and is narrower.

Levels are divided by the number of pairs (Bonferroni): intervals hold together, also for pairs chosen by the data.

A test of non-inferiority decides whether a candidate is worse than a baseline by more than a margin. The difference d
is the candidate's mean less the baseline's, on the same queries. There are two one-sided hypotheses, at the same level:
d is -margin or less, and d is -margin or more. If the first is rejected the candidate is not worse by more than the
margin; if the second is, it is worse by more; else the data do not decide (Piaggio et al. 2012, "Reporting of
noninferiority and equivalence randomized trials", figure 1). A loss within the margin is allowed, even a significant
one: an allowed candidate fails as rarely as the level says. Bounds are the ends of a single pair's interval
(``paired_intervals``) at twice the level.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import scipy as sp

from engine.statistics.arrays import Floats, Ints, Signs
from engine.statistics.bounded import WeightedRows, by_cluster, lower_bound, lower_tail, weighed
from engine.statistics.correlation import DECIMALS, Bootstrap
from engine.statistics.resampling import Draws, for_each_block_of_signs, weighted_sums
from engine.statistics.until import decided, queries_needed

# Tolerance for differences that exceed their range by rounding.
_ROUNDING = 1e-9
# Smaller p-values underflow.
_LEAST_P = float(np.finfo(np.float64).tiny)


class Differences(NamedTuple):
    """Means of the paired differences of p pairs of runs, as arrays of shape (p,).

    Intervals hold together, within the range and around the mean. ``p`` is two-sided, of the hypothesis that a mean is
    0, adjusted for all pairs: 1 less the confidence at which the interval just reaches 0. In (0, 1].
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
        largest: the largest possible difference of two runs on a query, above 0, whatever the largest in the data; a
            larger one is a ValueError.
        confidence: probability that all intervals hold, in (0, 1).
        comparisons: number of intervals that hold together, 1 or more.
        clusters: (n,) the cluster of every query, from 0; None if queries are independent. Clusters then replace
            queries, and added ones are as large as the largest.
    """
    tail = (1 - confidence) / (2 * comparisons)
    # In units of the largest difference: squares of large numbers overflow.
    scaled = paired / largest
    if clusters is not None and comparisons == 1:
        middle, error, freedom = np.array(list(_one_for_each(scaled, clusters))).T
        reach = sp.special.stdtrit(freedom, 1 - tail) * error
        bounds = np.array([middle - reach, middle + reach])
        tails = sp.special.stdtr(freedom, -np.abs(middle) / error)
        p = np.clip(2 * tails, _LEAST_P, 1.0)
    else:
        sides = list(_sides(scaled, clusters))
        bounds = np.array(
            [(lower_bound(more, tail), -lower_bound(less, tail)) for more, less in sides]
        ).T
        p = np.array([_p_value(side, 0.0, comparisons) for side in sides])
    value = paired.mean(axis=1)
    low, high = bounds * largest
    low, high = np.clip(low, -largest, value), np.clip(high, value, largest)
    return Differences(value, low, high, p)


def p_values(paired: Floats, largest: float, means: Floats, *, comparisons: int) -> Floats:
    """(p,) 1 less the confidence at which every pair's interval just reaches a mean (p,); queries are independent."""
    sides = zip(_sides(paired / largest, None), (means / largest).tolist(), strict=True)
    return np.array([_p_value(side, mean, comparisons) for side, mean in sides])


def _one_for_each(paired: Floats, clusters: Ints) -> Iterator[tuple[float, float, int]]:
    """Bonett & Price's means and standard errors of pairs, by residuals of clusters, and degrees of freedom."""
    for differences in _checked(paired):
        sums, sizes = by_cluster(differences, clusters)
        freedom, size = len(sizes) - 1, sizes.max()
        sums, sizes = np.append(sums, [size, -size]), np.append(sizes, [size, size])
        total = float(sizes.sum())
        mean = float(sums.sum()) / total
        yield mean, math.sqrt(float(((sums - mean * sizes) ** 2).sum())) / total, freedom


def _sides(paired: Floats, clusters: Ints | None) -> Iterator[tuple[WeightedRows, WeightedRows]]:
    """The differences of pairs from either run's side, with one more that favours the other as far as possible."""
    for differences in _checked(paired):
        sums, sizes = by_cluster(differences, clusters)
        size = sizes.max()
        counts = np.append(sizes, size)
        more, less = (weighed(np.append(sign * sums, -size), counts) for sign in (1, -1))
        yield more, less


def _checked(paired: Floats) -> Floats:
    if np.abs(paired).max(initial=0) > 1 + _ROUNDING:
        raise ValueError("a difference exceeds the largest that is possible")
    return paired


def _p_value(sides: tuple[WeightedRows, WeightedRows], value: float, comparisons: int) -> float:
    more, less = sides
    tail = min(lower_tail(more, value), lower_tail(less, -value))
    return min(max(2 * comparisons * tail, _LEAST_P), 1.0)


def mean_differences(
    scores: Floats,
    largest: float,
    bootstrap: Bootstrap,
    clusters: Ints | None = None,
    most: int = 1,
) -> Differences:
    """Compare the means of every two runs, query by query.

    Args:
        scores: shape (s, n), s >= 2; the same queries in every row, in reading order if the plan is to read ``until`` a
            verdict: intervals are then those of ``until.decided``, on the queries that neither run lacks (NaN).
        largest, clusters, most: as in ``paired_intervals`` and ``until.decided``.

    Returns:
        For the p = s (s - 1) / 2 pairs of runs in the order of ``numpy.triu_indices``: first run's mean less the
        second's, with interval and p-value adjusted for p pairs (``leads``); NaN without resamples, with a single query
        or cluster, or if ``largest`` is infinite.
    """
    paired = _paired(scores)
    units = scores.shape[1] if clusters is None else len(np.unique(clusters))
    if math.isinf(largest) or not bootstrap.resamples or (units < 2 and not bootstrap.until):
        means = np.asarray(np.nanmean(paired, axis=1), dtype=np.float64)
        nothing = np.full(len(paired), math.nan)
        return Differences(np.round(means, DECIMALS), nothing, nothing, nothing)
    level = bootstrap.confidence
    if bootstrap.until:
        leads = decided(paired, confidence=level, largest=largest, clusters=clusters, most=most)
        columns = [[lead.value, lead.low, lead.high, lead.p] for lead in leads]
        return Differences(*(np.round(np.array(columns).T, DECIMALS) + 0.0))
    *figures, p = paired_intervals(
        paired, largest, confidence=level, comparisons=len(paired), clusters=clusters
    )
    # Adding 0.0 turns -0.0 into 0.0, which is printed without its sign.
    value, low, high = np.round(figures, DECIMALS) + 0.0
    return Differences(value, low, high, p)


def chances_above(scores: Floats, bootstrap: Bootstrap, clusters: Ints | None = None) -> Floats:
    """One-sided p-values of the paired randomization test (Fisher 1935), for ``soft_pairwise_accuracy``.

    Signs of the differences are redrawn (jointly within a cluster). The share of redrawn means above the observed one
    counts equal ones half, so that the p-value of the opposite hypothesis is 1 less this one.

    Takes ``scores`` as ``mean_differences`` does; returns (p,), that the first run is not better, in (0, 1), NaN as there.
    """
    paired = np.stack([by_cluster(differences, clusters)[0] for differences in _paired(scores)])
    units = paired.shape[1]
    if units < 2 or not bootstrap.resamples:
        return np.full(len(paired), math.nan)
    value = np.round(paired.sum(axis=1), DECIMALS)
    above = np.empty((bootstrap.resamples, len(paired)))

    def flip(start: int, signs: Signs) -> None:
        redrawn = np.round(weighted_sums(signs, paired), DECIMALS)
        above[start : start + len(signs)] = (1 + np.sign(redrawn - value)) / 2

    draws = Draws(bootstrap.resamples, bootstrap.seed, bootstrap.threads)
    for_each_block_of_signs(units, flip, draws)
    # The observed difference is one of the draws, and equal to itself.
    return np.asarray((0.5 + above.sum(axis=0)) / (1 + bootstrap.resamples))


def soft_pairwise_accuracy(by_measure: Floats, by_outcome: Floats) -> float:
    """Whether a measure is as certain of every pair of runs as the end-to-end score is.

    SPA, the mean over the pairs of ``1 - |p_outcome - p_measure|``, from (p,) one-sided p-values (``chances_above``), in
    [0, 1] (Thompson, Mathur, Deutsch & Khayrallah, WMT 2024, "Improving Statistical Significance in Human Evaluation of
    Automatic Metrics via Soft Pairwise Accuracy"). A pair that both find certain counts 1 if they name the same run and
    0 if they do not; one that both find undecided counts nearly 1, whichever run is ahead.
    """
    return float((1 - np.abs(by_outcome - by_measure)).mean())


def _paired(scores: Floats) -> Floats:
    first, second = np.triu_indices(len(scores), 1)
    return np.asarray(np.round(scores[first] - scores[second], DECIMALS))


# Level of both tests.
LEVEL = 0.05
Decision = Literal["not worse", "worse", "undecided"]


@dataclass(frozen=True)
class NonInferiority:
    """Result of a test of non-inferiority for a pair."""

    decision: Decision  # about the candidate: worse is worse by more than the margin
    difference: float  # candidate less baseline
    low: float  # one-sided bounds; -1 and 1 for a single query
    high: float
    n: int
    queries_needed: int | None  # to decide with a power of 80% (``until``); None if these decide


def non_inferiority(
    differences: Floats, margin: float, *, family: int = 1, clusters: Ints | None = None
) -> NonInferiority:
    """Test one pair.

    Args:
        differences: (n,) of scores in [0, 1], candidate less baseline, query by query; n >= 1.
        margin: the allowed loss, in (0, 1).
        family: number of pairs tested together. All must be not worse (an intersection-union test, Berger 1982, at the
            same level), or any one be worse (Bonferroni's level).
        clusters: (n,) the cluster of every query, from 0; None if queries are independent.
    """
    paired = np.round(differences, DECIMALS)
    low, high, level = -1.0, 1.0, 1 - 2 * LEVEL
    if len(paired) > 1 and (clusters is None or clusters.max() > 0):
        single, several = (
            paired_intervals(paired[None], 1.0, confidence=level, comparisons=m, clusters=clusters)
            for m in (1, family)
        )
        low, high = float(single.low[0]), float(several.high[0])
    decision: Decision = (
        "not worse" if low > -margin else "worse" if high < -margin else "undecided"
    )
    difference, needed = float(paired.mean()), None
    if decision == "undecided":
        m = 1 if difference > -margin else family
        needed = queries_needed(
            paired, 1.0, confidence=level, comparisons=m, clusters=clusters, excluded=-margin
        )
    needed = needed and max(needed, len(paired) + 1)
    return NonInferiority(decision, difference + 0.0, low + 0.0, high + 0.0, len(paired), needed)
