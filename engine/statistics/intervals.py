"""Intervals of replicates and of proportions, p-values from replicates, and their correction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import scipy as sp

from engine.statistics.arrays import Floats

IntervalMethod = Literal["percentile", "bca"]

# With fewer defined resamples than this share, an interval would describe something else.
_LEAST_DEFINED = 0.5


def around(estimate: float, low: float, high: float) -> tuple[float, float]:
    """The bounds, widened to an estimate that lies beyond one; NaN where they are."""
    return min(low, estimate), max(high, estimate)


def interval(
    estimate: float,
    replicates: Floats,
    without: Floats | None,
    *,
    method: IntervalMethod,
    confidence: float,
) -> tuple[float, float, str]:
    """The interval's bounds, and a note on what weakens it (empty if nothing does).

    ``percentile``: quantiles of the replicates (Efron 1979). ``bca``: quantiles at levels corrected
    for bias and acceleration (Efron 1987; equations 14.9, 14.10 and 14.15 of Efron & Tibshirani 1993),
    replicates equal to the estimate counting half, as in ``scipy.stats.bootstrap``.

    Args:
        replicates: (resamples,), NaN where a resample does not define the statistic: left out, and noted.
        without: (n,) the statistic without each query; needed for ``bca``.

    Returns:
        NaN bounds, with the reason, where fewer than half of the replicates are defined, or under
        ``bca`` where leaving out some query leaves the statistic undefined.
    """
    nan = float("nan")
    defined = replicates[np.isfinite(replicates)]
    share = len(defined) / len(replicates)
    if share < _LEAST_DEFINED:
        return nan, nan, f"no interval: one side is constant in {1 - share:.0%} of the resamples"
    note = ""
    if share < 1:
        note = f"one side is constant in {(1 - share) * 100:.2g}% of the resamples, left out"
    levels = np.array([(1 - confidence) / 2, (1 + confidence) / 2])
    if method == "bca":
        if without is None:
            raise ValueError("a BCa interval needs the leave-one-out values")
        if not np.isfinite(without).all():
            return nan, nan, "no BCa interval: without one of the queries a side is constant"
        levels = _corrected(levels, estimate, defined, without)
    low, high = np.quantile(defined, levels)
    return float(low), float(high), note


def _corrected(levels: Floats, estimate: float, replicates: Floats, without: Floats) -> Floats:
    below = ((replicates < estimate).mean() + (replicates <= estimate).mean()) / 2
    # All on one side: as far as this number of replicates can show, not infinitely far.
    edge = 0.5 / len(replicates)
    bias = sp.special.ndtri(np.clip(below, edge, 1 - edge))
    distance = without.mean() - without
    squares = (distance**2).sum()
    # From leave-one-out values that are all equal, no acceleration can be estimated.
    acceleration = (distance**3).sum() / (6 * squares**1.5) if squares > 1e-24 else 0.0
    shifted = bias + sp.special.ndtri(levels)
    return np.asarray(sp.special.ndtr(bias + shifted / (1 - acceleration * shifted)))


def p_value(replicates: Floats) -> float:
    """Two-sided p-value of the hypothesis that a statistic is 0, from its bootstrap distribution.

    Twice the smaller tail, (1 + replicates on the far side of 0) / (1 + replicates), at most 1:
    the level at which a percentile interval would just reach 0 (Davison & Hinkley 1997, sections 4.2
    and 5.4), whichever interval is reported. It is therefore never 0. NaN where fewer than half of the
    replicates are defined.
    """
    defined = replicates[np.isfinite(replicates)]
    if len(defined) < _LEAST_DEFINED * len(replicates):
        return float("nan")
    tail = min((defined <= 0).sum(), (defined >= 0).sum())
    return float(min(1.0, 2 * (1 + tail) / (1 + len(defined))))


def binomial_interval(successes: float, n: float, confidence: float) -> tuple[float, float]:
    """Exact interval of a proportion (Clopper & Pearson 1934), of at least that coverage.

    >>> [round(bound, 3) for bound in binomial_interval(7, 20, 0.95)]
    [0.154, 0.592]

    Args:
        successes: 0 to n.
        n: 1 or more. Neither need be a whole number.
        confidence: in (0, 1).
    """
    tail = (1 - confidence) / 2
    low = sp.special.betaincinv(successes, n - successes + 1, tail) if successes else 0.0
    high = sp.special.betaincinv(successes + 1, n - successes, 1 - tail) if successes < n else 1.0
    return float(low), float(high)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's step-down correction (Holm 1979): p-values that keep the familywise error rate.

    The i-th smallest of m is multiplied by m - i + 1, kept from falling below a smaller one's, and cut
    at 1. NaN stays NaN and does not count as a comparison.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    values = np.asarray(p_values, dtype=np.float64)
    corrected = np.full(len(values), np.nan)
    tested = np.flatnonzero(~np.isnan(values))
    order = tested[np.argsort(values[tested], kind="stable")]
    steps = values[order] * np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(np.maximum.accumulate(steps), 1.0) if len(order) else steps
    return [float(value) for value in corrected]
