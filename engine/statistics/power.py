"""How many queries a difference of means would need to be found by the method in use."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import scipy as sp

from engine.statistics.arrays import Floats, Ints
from engine.statistics.correlation import DECIMALS

# The probability with which a difference of the assumed size should be found (Cohen 1988).
POWER = 0.8
# How surely the true difference is larger than the one that is planned for.
_SURE = 0.9
# Beyond this many, a number says no more than that there are too few.
MOST_QUERIES = 1_000_000
# Powers of the differences that bounds depend on, and the step in which their slopes are taken, by query.
_POWERS = 4
_STEP = 1e-5


def queries_needed(
    differences: Floats,
    largest: float,
    *,
    confidence: float,
    comparisons: int = 1,
    clusters: Ints | None = None,
    of_mean: float = 0.0,
    as_here: bool = False,
) -> int | None:
    """The least number of queries that would show a difference as small as these make likely with ``POWER``.

    Other queries are taken to differ ``as_small_as_likely``; with ``as_here`` as these do, in mean and spread. A lead
    is significant if its interval (``leads.paired_intervals``) leaves 0 (``of_mean``) out, which nearly means that
    ``_beyond_gaffke``, or of one pair with clusters ``_beyond_bonett_price``, is above 0. This is taken as normal, with
    the variance by the delta method: where all differing queries favour one run, sums of powers rise together, and
    treating all but the first as known would misstate n.

    Args:
        differences: (n,) query by query.
        largest: as in ``leads.paired_intervals``.
        comparisons: that they are adjusted for, 1 or more.
        clusters: (n,) of each query, from 0 without gaps: then the mean differences of as many clusters, as
            large as these on average, are counted; the number is that of their queries.
        of_mean: the mean that is to be shown not to be the true one, in the range of the differences.

    Returns:
        ``MOST_QUERIES`` where that many do not suffice. None where nothing is known: all differences are
        ``of_mean`` (with ``as_here`` their mean is), or there is one query.
    """
    differences = differences - of_mean
    total = round(float(differences.sum()), DECIMALS)
    if len(differences) < 2 or not (total if as_here else differences.any()):
        return None
    size = 1.0
    if clusters is not None:
        size = len(clusters) / (int(clusters.max()) + 1)
        differences = np.bincount(clusters, differences) / size
    # In units of the largest difference: powers of large numbers overflow.
    turned = math.copysign(1, total) * differences / largest
    turned = turned if as_here else as_small_as_likely(turned)
    # How far the middle of the range is below the mean from which differences are taken.
    shift = math.copysign(1, total) * of_mean / largest
    moments = np.array([float((turned**power).mean()) for power in range(2 * _POWERS + 1)])
    level = 1 - (1 - confidence) / (2 * comparisons)

    def is_enough(n: int) -> bool:
        z, t = float(sp.special.ndtri(level)), float(sp.special.stdtrit(n - 1, level))
        t /= math.sqrt(1 + t**2 / (n + 2))
        beyond = partial(_beyond_gaffke, z=z, shift=shift)
        if clusters is not None and comparisons == 1:
            beyond = partial(_beyond_bonett_price, t=t, shift=shift)
        return _in_deviations(beyond, moments, n) >= float(sp.special.ndtri(POWER))

    return math.ceil(least_enough(is_enough, 2, MOST_QUERIES / size) * size)


def as_small_as_likely(differences: Floats) -> Floats:
    """Differences moved so that their mean is as near to 0 as the true one well may be: it is nearer with 10%.

    The true mean is taken as normal around theirs, with their standard error. A few queries often find several times
    the true difference, and the number of queries that shows it falls with its square.
    """
    n = len(differences)
    error = float(differences.std()) / math.sqrt(n - 1) if n > 1 else 0.0
    if round(error, DECIMALS) == 0:
        return differences
    mean = round(float(differences.mean()), DECIMALS) + 0.0
    # The square of a normal variable is noncentral chi-square; far from 0 the tail beyond it does not count.
    away = min(abs(mean) / error, 10.0)
    nearer = error * (away - math.sqrt(float(sp.special.chndtrix(1 - _SURE, 1, away**2))))
    return np.asarray(differences - math.copysign(1, mean) * nearer)


def least_enough(is_enough: Callable[[int], bool], least: int, most: float) -> int:
    """The least number from ``least`` on that is enough, or ``most`` where none below is; more are enough then, too."""
    too_few, enough = least - 1, least
    while enough < most and not is_enough(enough):
        too_few, enough = enough, math.ceil(min(2 * enough, most))
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if is_enough(middle) else (middle, enough)
    return enough


def _beyond_gaffke(sums: Floats, z: float, shift: float) -> Floats:
    """How far Gaffke's lower bound is above 0.

    Weighted by exponential variables, the differences and the lower end of their range have cumulants of order r of
    (r - 1)! times the sum of their powers r. The quantile is Cornish & Fisher's (1938), with skewness and kurtosis.

    Args:
        sums: (4, ...) of the powers 1 to 4 of the differences, in units of the largest.
        z: the normal quantile.
        shift: the middle of the range is as far below 0, so that its lower end is -1 - shift.
    """
    added = (-1 - shift) ** np.arange(1, _POWERS + 1)
    first, second, third, fourth = sums + added.reshape(_POWERS, *[1] * (sums.ndim - 1))
    skewness, kurtosis = 2 * third / second**1.5, 6 * fourth / second**2
    quantile = (
        z
        - (z**2 - 1) / 6 * skewness
        + (z**3 - 3 * z) / 24 * kurtosis
        - (2 * z**3 - 5 * z) / 36 * skewness**2
    )
    return np.asarray(first - quantile * np.sqrt(second))


def _beyond_bonett_price(sums: Floats, t: float, shift: float) -> Floats:
    """The same of Bonett & Price's, with both ends added; ``t`` is ``t / sqrt(1 + t² / (n + 2))`` of Student's t."""
    return np.asarray(sums[0] - 2 * shift - t * np.sqrt(sums[1] + 2 + 2 * shift**2))


def _in_deviations(beyond: Callable[[Floats], Floats], moments: Floats, n: int) -> float:
    """The mean of what a bound of n differences is beyond 0, in standard deviations; ``moments`` are the means of powers from 0 on."""
    powers = np.arange(1, _POWERS + 1)
    sums = n * moments[powers]
    steps = _STEP * n * np.identity(_POWERS)
    # Slopes by sums; derived by hand they would take more lines than the rest.
    slopes = (beyond(sums[:, None] + steps) - beyond(sums[:, None] - steps)) / (2 * _STEP * n)
    spread = moments[powers[:, None] + powers] - np.outer(moments[powers], moments[powers])
    variance = n * float(slopes @ spread @ slopes)
    middle = float(beyond(sums))
    return middle / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, middle)
