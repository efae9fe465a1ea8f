"""Intervals of replicates and of proportions, and the correction of p-values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy as sp

from engine.statistics.arrays import Floats

# With fewer defined resamples than this share, an interval would describe something else.
_LEAST_DEFINED = 0.5


def around(estimate: float, low: float, high: float) -> tuple[float, float]:
    """The bounds, widened to an estimate that lies beyond one; NaN where they are."""
    return min(low, estimate), max(high, estimate)


def interval(replicates: Floats, confidence: float) -> tuple[float, float, str]:
    """The bounds of the percentile interval (Efron 1979), and a note on what weakens it (empty if nothing does).

    Args:
        replicates: (resamples,), NaN where a resample does not define the statistic: left out, and noted.

    Returns:
        NaN bounds, with the reason, where fewer than half of the replicates are defined.
    """
    nan = float("nan")
    defined = replicates[np.isfinite(replicates)]
    share = len(defined) / len(replicates)
    if share < _LEAST_DEFINED:
        return nan, nan, f"no interval: one side is constant in {1 - share:.0%} of the resamples"
    left_out = f"one side is constant in {(1 - share) * 100:.2g}% of the resamples, left out"
    low, high = np.quantile(defined, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high), left_out * (share < 1)


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
