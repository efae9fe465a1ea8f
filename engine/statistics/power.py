"""How many queries a difference of means would need to be found by the test in use."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from engine.statistics.correlation import DECIMALS
from engine.statistics.leads import ADDED, critical_t, paired_intervals

Floats = npt.NDArray[np.float64]

# The probability with which a difference of the assumed size should be found (Cohen 1988).
POWER = 0.8
# Remainders below this are those of rounding, when the common unit of differences is sought.
_NO_REMAINDER = 1e-9
_NO_UNIT = 1e-6
# How near to the largest possible difference a mean is taken: all queries differ alike beyond it.
_NEARLY_ALL = 1 - 1e-9
# Steps in which the tilt is bisected: to the last bits of a double.
_HALVINGS = 80


@dataclass(frozen=True)
class QueriesNeeded:
    """The range of the number of queries that would show a difference.

    Attributes:
        low: were the true difference at the end of its interval that is farther from 0.
        high: were it at the nearer end; None where the interval holds 0, so that no number is enough.
    """

    low: int
    high: int | None


class _Moments(NamedTuple):
    """Means of the first four powers of the differences."""

    first: float
    second: float
    third: float
    fourth: float


def queries_needed(
    differences: Floats, scale: float, *, confidence: float, comparisons: int = 1
) -> QueriesNeeded | None:
    """From how many to how many queries it may take to show the difference of two runs.

    The range comes from the interval of this one difference (``paired_intervals`` with a single
    comparison): the simultaneous one would hold 0 for nearly every difference that is not yet shown.

    Args:
        differences: (n,) query by query.
        scale: how far two runs may differ on a query (``leads.largest_difference``).
        confidence: of the interval and of the test, in (0, 1).
        comparisons: that the test is corrected for, 1 or more.

    Returns:
        None where nothing is known: the mean of the differences is 0, or there is one query.
    """
    total = round(float(differences.sum()), DECIMALS)
    if total == 0 or len(differences) < 2:
        return None
    turned = np.sign(total) * differences
    (low,), (high,) = paired_intervals(turned[None], scale, confidence=confidence, comparisons=1)

    def at(mean: float) -> int:
        return queries_for(turned, mean, scale, confidence=confidence, comparisons=comparisons)

    return QueriesNeeded(low=at(float(high)), high=at(float(low)) if low > 0 else None)


def queries_for(
    differences: Floats, mean: float, scale: float, *, confidence: float, comparisons: int
) -> int:
    """The least number of queries on which a lead of this mean is significant with ``POWER``.

    A lead is significant if the randomization test rejects at 1 - ``confidence``, corrected for all
    comparisons (Bonferroni's share, the strictest of Holm's steps), and ``paired_intervals`` leaves 0
    out. With S the sum and Q the sum of squares of n differences these are, nearly,
    ``S - h > z sqrt(Q)`` and ``S > t sqrt((Q + 2 scale^2) / (1 + t^2 / (n + 2)))``. Here h is the unit that all
    differences are multiples of: sums of flipped differences lie 2 h apart, and the p-value
    counts those that equal S (the continuity correction of McNemar's test; Edwards 1948). Both sides are taken
    to be normal, with the variance of their difference by the delta method: where all differing queries
    favour one run, S and Q rise together, and treating Q as known would overstate n.

    Differences are taken to be distributed as the given ones (and the two that ``paired_intervals`` adds),
    tilted exponentially to the mean (Efron 1981, "Nonparametric standard errors and confidence intervals").

    Args:
        differences: (n,) query by query.
        mean: the assumed true difference, above 0.
        scale: how far two runs may differ on a query, above 0.
        confidence: of the test, in (0, 1).
        comparisons: that the test is corrected for, 1 or more.
    """
    moments = _tilted(differences, min(mean, _NEARLY_ALL * scale), scale)
    unit = _common_unit(np.abs(differences))

    def is_enough(n: int) -> bool:
        level = 1 - (1 - confidence) / (2 * comparisons)
        t = critical_t(n, confidence, comparisons)
        t /= math.sqrt(1 + t**2 / (n + ADDED))
        return all(
            _margin(moments, n, factor, added, less) >= float(ndtri(POWER))
            for factor, added, less in (
                (float(ndtri(level)), 0.0, unit),
                (t, ADDED * scale**2, 0.0),
            )
        )

    enough = 2
    while not is_enough(enough):
        enough *= 2
    too_few = enough // 2
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if is_enough(middle) else (middle, enough)
    return enough


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


def _tilted(differences: Floats, mean: float, scale: float) -> _Moments:
    """Moments of the differences and of ``-+ scale``, weighted by exp(a difference) to have the mean."""
    values, counts = np.unique(np.append(differences, [scale, -scale]), return_counts=True)

    def weights(tilt: float) -> Floats:
        # Cut where a weight no longer counts; relative to the largest, so that none overflows.
        exponents = tilt * values / scale
        shares: Floats = counts * np.exp(np.maximum(exponents - exponents.max(), -700))
        return shares / shares.sum()

    def excess(tilt: float) -> float:
        return float(weights(tilt) @ values) - mean

    low, high = -1.0, 1.0
    while excess(high) < 0 or excess(low) > 0:
        low, high = 2 * low, 2 * high
    for _ in range(_HALVINGS):
        tilt = (low + high) / 2
        low, high = (tilt, high) if excess(tilt) < 0 else (low, tilt)
    shares = weights(high)
    return _Moments(*(float(shares @ values**power) for power in (1, 2, 3, 4)))


def _common_unit(sizes: Floats) -> float:
    """The largest number that all sizes are multiples of; nearly 0 where they have none."""
    unit = 0.0
    for size in np.unique(sizes).tolist():
        while size > _NO_REMAINDER:
            unit, size = size, unit % size
        if 0 < unit < _NO_UNIT:
            break  # too little to matter: many values need not be gone through
    return unit
