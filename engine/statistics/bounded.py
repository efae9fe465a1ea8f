"""Tails of the mean of values from a bounded range, exact for two values and valid if most are alike; intervals of
replicates and of proportions, and Holm's correction.

The values of n queries get random weights that sum to 1, uniform on the simplex (the Bayesian bootstrap, Rubin 1981),
together with one more value, an end of the range (Gaffke 2005, "Three test statistics for a nonparametric one-sided
hypothesis on the mean of a nonnegative variable"; Learned-Miller & Thomas 2019, "A new confidence interval for the mean
of a bounded random variable", arXiv 1905.06208). The added value stands for values that the sample may have missed:
rare and large ones. For values that are 0 or 1 the bounds are those of Clopper & Pearson (1934); for differences of -1,
0 and 1 the hypothesis of a mean of 0 has the p-value of the exact sign test. No known distribution on the range makes
the bounds hold too seldom; ``benchmarks.intervals`` has cells in which others fail. For clusters in place of queries
this assumes that their sizes are alike or unrelated to the values: an unseen cluster may be larger than all.

Uniform weights are independent exponential variables E over their sum, so that the weighted mean is c or less if
``sum(a E) <= 0`` for ``a = values - c``. That probability is an integral over the moment generating function, through
its saddle point along a path on which it neither oscillates nor cancels (Daniels 1954; Lugannani & Rice 1980): a tail
of 1e-12 has as many right digits as a tail of 0.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import NamedTuple

import numpy as np
import scipy as sp

from engine.statistics.arrays import Floats, Ints

# Steps of the integral. They are even at first and grow by this share later: the integrand ends as a bell if many
# values differ from c, and as a power of 1 / u if few do. It has ended at a part of e^-36.
_STEP = 1 / 8
_PACE = 0.1
_STEPS = 3600
_AT_ONCE = 36
_NOTHING_LEFT = 36.0
# Most iterations to a root: SciPy's.
_MOST_ITERATIONS = 100
# Tails are compared as quantiles of the normal distribution, which have ends.
_LEAST_TAIL, _LEAST_UPPER_TAIL = 1e-300, 1e-16
# Most separate values, and their least number per size. Further values are shared out to their two neighbours.
_MOST_VALUES = 256
_LEAST_VALUES = 32


class WeightedRows(NamedTuple):
    """Distinct rows of a sample, one for a query or for a cluster of queries, and how often each occurs."""

    sums: Floats  # (v,) of a row's values
    sizes: Floats  # (v,) number of a row's values
    amounts: Floats  # (v,) number of rows of the kind; above 0, need not be whole


def lower_tail(rows: WeightedRows, c: float) -> float:
    """The probability that the mean under uniform random weights of the rows is c or less."""
    apart, amounts = rows.sums - c * rows.sizes, rows.amounts
    if apart.min() >= 0:
        return float(apart.max() <= 0)
    if apart.max() <= 0:
        return 1.0
    differs = apart != 0
    apart, amounts = apart[differs], amounts[differs]
    # To the left of the pole at 0 the integral is the lower tail, to the right the upper one: the lesser.
    if apart @ amounts > 0:
        return _tail(apart, amounts)
    return 1 - _tail(-apart, amounts)


def _tail(apart: Floats, amounts: Floats) -> float:
    """The probability that ``sum(apart E)``, whose mean is 0 or more, is below 0.

    The integral of ``exp(K(s)) / -s`` for ``K(s) = -sum(amounts log(1 - s apart))``, through its saddle point at s < 0,
    along a parabola whose curvature keeps the integrand from oscillating, to third order. If the integrand grows along
    the parabola, farther out, along the vertical line, on which it never does.
    """
    saddle = _saddle(apart, amounts)
    # Changes of the factors, with 1 / -s last, along the path from there.
    turned = np.append(apart / (1 - saddle * apart), -1 / saddle)
    powers = np.append(amounts, 1.0)
    second, third = (float(powers @ turned**power) for power in (2, 3))
    unit = 1 / math.sqrt(second)
    bend = third / (3 * second) * unit
    total = _along(turned * unit, powers, bend)
    if total is None:
        total = _along(turned * unit, powers, 0.0)
        assert total is not None
    height = math.exp(-float(amounts @ np.log1p(-saddle * apart)))
    return min(1.0, height * total * unit / -saddle / math.pi)


def _root(
    function: Callable[[float], float], low: float, high: float, *, xtol: float, rtol: float
) -> float:
    """Root of a function with different signs at both ends: SciPy's ``brentq``, slow to import (Brent 1973)."""
    before, here, across = low, high, low
    at_before, at_here = function(low), function(high)
    if at_before == 0:
        return low
    at_across, step, last = at_before, here - before, here - before
    for _ in range(_MOST_ITERATIONS):
        if at_before != 0 and at_here != 0 and (at_before < 0) != (at_here < 0):
            across, at_across = before, at_before
            last = step = here - before
        if abs(at_across) < abs(at_here):
            before, here, across = here, across, here
            at_before, at_here, at_across = at_here, at_across, at_here
        near, half = (xtol + rtol * abs(here)) / 2, (across - here) / 2
        if at_here == 0 or abs(half) < near:
            return here
        tried = math.inf
        if abs(last) > near and abs(at_here) < abs(at_before):
            if before == across:
                tried = -at_here * (here - before) / (at_here - at_before)
            else:
                to_before = (at_before - at_here) / (before - here)
                to_across = (at_across - at_here) / (across - here)
                rise = to_across * to_before * (at_across - at_before)
                tried = -at_here * (at_across * to_across - at_before * to_before) / rise
        if 2 * abs(tried) < min(abs(last), 3 * abs(half) - near):
            last, step = step, tried
        else:
            last = step = half
        before, at_before = here, at_here
        here += step if abs(step) > near else math.copysign(near, half)
        at_here = function(here)
    raise ArithmeticError(f"no root found between {low} and {high}")


def _saddle(apart: Floats, amounts: Floats) -> float:
    """The minimum of ``K(s) - log(-s)``, between its poles at 1 / min(apart) and 0."""
    pole = 1 / float(apart.min())

    def slope(s: float) -> float:
        return float((amounts * apart / (1 - s * apart)).sum()) - 1 / s

    # Any path between the poles has the same integral; a nearby one is as good as the saddle point itself.
    return _root(slope, pole * (1 - 1e-12), pole * 1e-12, xtol=1e-6 * -pole, rtol=1e-3)


@cache  # an interval takes some ten integrals
def _steps(first: int) -> tuple[Floats, Floats, Floats]:
    at = (np.arange(first, first + _AT_ONCE) + 0.5) * (_STEP * _PACE)
    u, step = np.sinh(at) / _PACE, np.cosh(at) * _STEP
    return u, step, np.log(step)


def _along(turned: Floats, powers: Floats, bend: float) -> float | None:
    """The integral of ``prod((1 - z turned)^-powers)`` along ``z = i u + bend u²``; None if it grows."""
    total = 0.0
    for first in range(0, _STEPS, _AT_ONCE):
        u, step, logs = _steps(first)
        # The logarithm of the product; complex logarithms take several times as long.
        ahead, aside = 1 - np.multiply.outer(bend * u**2, turned), np.multiply.outer(-u, turned)
        size = np.log(ahead**2 + aside**2) @ powers / 2
        # Parts beyond the first negligible one do not count, whether or not they grow.
        ended = np.flatnonzero(size - logs > _NOTHING_LEFT)
        counts = slice(ended[0] if len(ended) else None)
        if bend and (size[counts][1:] < size[counts][:-1]).any():
            return None
        angle = (np.arctan2(aside, ahead) @ powers)[counts]
        parts = np.exp(-size[counts]) * (np.cos(angle) - 2 * bend * u[counts] * np.sin(angle))
        total += float(parts @ step[counts])
        if len(ended):
            break
    return total


def lower_bound(rows: WeightedRows, tail: float) -> float:
    """The c at which ``lower_tail`` is ``tail``, in (0, 1)."""
    return _lower_bound(*(column.astype(np.float64).tobytes() for column in rows), tail)


# Tables, page and verdict request intervals of the same scores.
@lru_cache(maxsize=1024)
def _lower_bound(sums: bytes, sizes: bytes, amounts: bytes, tail: float) -> float:
    rows = WeightedRows(*map(np.frombuffer, (sums, sizes, amounts)))
    means, weights = rows.sums / rows.sizes, rows.sizes * rows.amounts
    least, most, quantile = float(means.min()), float(means.max()), float(sp.special.ndtri(tail))
    if most <= least:
        return least
    mean = float(means @ weights / weights.sum())
    squares = float(rows.amounts @ (rows.sums - mean * rows.sizes) ** 2)
    deviation = math.sqrt(squares) / float(weights.sum())

    @cache  # ends of the search are where the root's begins
    def excess(c: float) -> float:
        bounded = min(max(lower_tail(rows, c), _LEAST_TAIL), 1 - _LEAST_UPPER_TAIL)
        return float(sp.special.ndtri(bounded)) - quantile

    # Starts from a normal distribution's bound, and searches outwards to both sides.
    guess, step = mean + quantile * deviation, 0.25 * deviation
    low, high = max(least, guess - step), min(most, guess + step)
    while low > least and excess(low) > 0:
        step *= 2
        low = max(least, low - step)
    while high < most and excess(high) < 0:
        step *= 2
        high = min(most, high + step)
    return _root(excess, low, high, xtol=1e-13, rtol=1e-12)


def weighed(sums: Floats, sizes: Floats) -> WeightedRows:
    """Equal rows (r,), counted together; beyond 256 kinds about that many remain, and 32 per size.

    A row between two remaining rows is shared out between them: the mean stays, and the spread hardly grows.
    """
    by_size = [
        (float(size), *np.unique(sums[sizes == size], return_counts=True))
        for size in np.unique(sizes)
    ]
    kinds = sum(len(values) for _, values, _ in by_size)
    rows = []
    for size, values, counts in by_size:
        amounts = counts.astype(np.float64)
        most = max(_LEAST_VALUES, _MOST_VALUES * len(values) // kinds)
        if kinds > _MOST_VALUES and len(values) > most:
            values, amounts = _shared_out(values, amounts, most // 2)
        rows.append(WeightedRows(values, np.full(len(values), size), amounts))
    return WeightedRows(*map(np.concatenate, zip(*rows, strict=True)))


def _shared_out(values: Floats, counts: Floats, half: int) -> tuple[Floats, Floats]:
    """Twice as many of the values as ``half``, one half by rank and one by size, and their amounts."""
    by_rank = values[np.linspace(0, len(values) - 1, half).round().astype(np.intp)]
    nodes = np.union1d(by_rank, np.linspace(values[0], values[-1], half))
    above = np.clip(np.searchsorted(nodes, values, side="right"), 1, len(nodes) - 1)
    share = (values - nodes[above - 1]) / (nodes[above] - nodes[above - 1])
    amounts = np.bincount(above, counts * share, len(nodes)).astype(np.float64)
    amounts += np.bincount(above - 1, counts * (1 - share), len(nodes))
    return nodes[amounts > 0], amounts[amounts > 0]


def by_cluster(values: Floats, clusters: Ints | None) -> tuple[Floats, Floats]:
    """Sums of the values of every cluster, and its size; of every value alone without clusters."""
    if clusters is None:
        return values, np.ones(len(values))
    sums, sizes = np.bincount(clusters, values), np.bincount(clusters)
    return sums.astype(np.float64), sizes.astype(np.float64)


def mean_interval(
    scores: Floats, confidence: float, clusters: Ints | None = None
) -> tuple[float, float]:
    """The interval of the mean of scores in [0, 1]; for only 0 and 1, that of Clopper & Pearson.

    Args:
        scores: (n,), n >= 1.
        clusters: (n,) the cluster of every query, from 0; then clusters are weighted in place of queries.
    """
    sums, sizes = by_cluster(scores, clusters)
    size, tail = float(sizes.max()), (1 - confidence) / 2
    counts = np.append(sizes, size)
    low = lower_bound(weighed(np.append(sums, 0.0), counts), tail)
    high = -lower_bound(weighed(np.append(-sums, -size), counts), tail)
    mean = float(scores.mean())
    return min(low, mean), max(high, mean)


# With fewer defined resamples than this share, an interval would describe something else.
_LEAST_DEFINED = 0.5


def around(estimate: float, low: float, high: float) -> tuple[float, float]:
    """The bounds, widened to an estimate beyond them; NaN for NaN bounds."""
    return min(low, estimate), max(high, estimate)


def interval(replicates: Floats, confidence: float) -> tuple[float, float, str]:
    """The bounds of the percentile interval (Efron 1979), and a note on any weakness (empty if none).

    Args:
        replicates: (resamples,), NaN if a resample does not define the statistic: left out, and noted. With fewer
            than half defined, bounds are NaN.
    """
    defined = replicates[np.isfinite(replicates)]
    share = len(defined) / len(replicates)
    if share < _LEAST_DEFINED:
        note = f"no interval: one side is constant in {1 - share:.0%} of the resamples"
        return math.nan, math.nan, note
    left_out = f"one side is constant in {(1 - share) * 100:.2g}% of the resamples, left out"
    low, high = np.quantile(defined, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high), left_out * (share < 1)


def binomial_interval(successes: float, n: float, confidence: float) -> tuple[float, float]:
    """Exact interval of a proportion (Clopper & Pearson 1934), of at least that coverage.

    >>> [round(bound, 3) for bound in binomial_interval(7, 20, 0.95)]
    [0.154, 0.592]

    Args:
        successes, n: 0 to n, and 1 or more; neither need be a whole number.
    """
    tail = (1 - confidence) / 2
    low = sp.special.betaincinv(successes, n - successes + 1, tail) if successes else 0.0
    high = sp.special.betaincinv(successes + 1, n - successes, 1 - tail) if successes < n else 1.0
    return float(low), float(high)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction (Holm 1979): p-values that keep the familywise error rate.

    The i-th smallest of m is multiplied by m - i + 1, at least a smaller one's, and cut at 1. NaN stays NaN, uncounted.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    values = np.asarray(p_values, dtype=np.float64)
    corrected = np.full(len(values), np.nan)
    tested = np.flatnonzero(~np.isnan(values))
    order = tested[np.argsort(values[tested], kind="stable")]
    steps = values[order] * np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return corrected.tolist()
