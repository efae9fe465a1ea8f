"""Which of two runs leads, decided as soon as the questions read so far suffice: valid at any time of stopping.

How many queries a difference of means would need to be found by the method in use is said here, too.

Questions come in an order that does not depend on their scores. After each of them the hypothesis that the mean of
the paired differences is ``m`` or less is bet against, with the share ``c`` of what is left: the capital is multiplied
by ``1 - c + c (1 + d) / (1 + m)`` for a difference ``d`` in [-1, 1]. If the hypothesis is true, no bet gains on
average, so that the capital, which is 1 at first, ever exceeds ``1 / a`` with probability ``a`` at most (Ville 1939);
however often one looks, and whatever one stops for. A mean is left out of the interval once the capital that is bet
against it has exceeded this, on either side (Waudby-Smith & Ramdas 2024, "Estimating means of bounded random
variables by betting", JRSS-B 86; their capital diversified over several bets).

Most differences of two runs are 0. At ``m = 0`` such a question changes no capital: what counts is the questions that
differ. Which share of the capital gains most depends on how uneven these are, and is not known. So the capital is
divided among bets of fixed shares (``_BETS``), most of it among those that decide within some hundred or thousand
questions. It then depends on the questions seen, not on their order among each other.

Questions of a cluster are not independent; clusters are, and there is one bet for each, on all its questions together.
Over questions the mean is m or less if the sum of d - m over a cluster's questions is 0 or less on average. This sum is at
least -s (1 + m) in a cluster of s questions, and so at least -S (1 + m), where S is the size of the largest cluster, which
is known before anything is read. So the capital is multiplied by ``1 + c (s / S) (d - m) / (1 + m)``, where d is the
cluster's mean: at ``m = 0`` a bet on the mean times s / S. Where no two questions are in a cluster, that is the above.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


# Shares of the capital that are bet, and what part of the capital each has. Chosen by simulation: runs that differ on
# 5% to 30% of 1,362 questions, with leads of 2.5 to 6 standard errors at their end.
_BETS = 0.8 / 2.0 ** np.arange(10)
_PARTS = np.array([0.15, 0.25, 0.25, 0.2, *0.08 / 2.0 ** np.arange(6)])
_LOG_PARTS = np.log(_PARTS / _PARTS.sum())
# Halvings until a bound is known to 1e-7 of the range.
_HALVINGS = 24
# How far differences may exceed their range by rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Decision:
    """What the first questions say about the lead of one run over another.

    Attributes:
        n: questions that both runs have.
        value: mean difference on them; NaN without any.
        low, high: the confidence sequence of the mean at ``n``: of all pairs and all numbers of questions together,
            it holds the mean with the confidence. Within the range of differences, and widened to ``value``, which may
            leave the bounds of earlier questions; where these have crossed, each is the other's.
        p: 1 less the confidence at which the sequence just reaches 0; valid at any time, adjusted for all pairs.
        decided_at: the number of questions at which ``low`` first was above 0, or ``high`` below; None while
            undecided, and where they no longer are.
        needed: the number of questions, these included, that would decide with a probability of about ``POWER`` if
            others differ as these do; ``MOST_QUERIES`` where that many do not suffice. None where decided, and
            where nothing is known (no question, or a mean of 0).
    """

    n: int
    value: float
    low: float
    high: float
    p: float
    decided_at: int | None
    needed: int | None

    @property
    def leads(self) -> int:
        """1 if the first run leads, -1 if the second does, 0 while undecided."""
        return 0 if self.decided_at is None else (1 if self.low > 0 else -1)


def decided(
    paired: Sequence[Floats] | Floats,
    *,
    confidence: float,
    largest: float = 1.0,
    clusters: Ints | None = None,
    most: int = 1,
) -> tuple[Decision, ...]:
    """Decide between the runs of each pair.

    Args:
        paired: for each pair, the first run's scores less the second's, of (n,) questions in the order in which
            they are read; NaN where a pair has no score, as where it was decided and read no further. More questions
            of a pair are added at its end.
        confidence: that no statement is false, of all pairs and at all times together, in (0, 1). Each pair gets an
            equal part of the rest (Bonferroni), half of it for each side.
        largest: the largest difference that two runs can have on a question, above 0.
        clusters: (n,) of each question, those of a cluster one after another; None where questions are independent.
        most: how many questions the largest of all clusters has, be it read or not.

    Raises:
        ValueError: a difference is larger than ``largest``; a cluster has more questions than ``most``.
    """
    limit = math.log(2 * max(len(paired), 1) / (1 - confidence))
    found = []
    for differences in paired:
        known = ~np.isnan(differences)
        scaled = differences[known] / largest
        if not (np.abs(scaled) <= 1 + _ROUNDING).all():
            raise ValueError("a difference exceeds the largest that is possible")
        codes = np.arange(len(scaled)) if clusters is None else clusters[known]
        starts = np.flatnonzero(np.diff(codes, prepend=-1))
        sizes = np.diff(starts, append=len(codes))
        if sizes.max(initial=0) > most:
            raise ValueError("a cluster has more questions than the largest")
        scaled = np.clip(scaled, -1, 1)
        found.append(_decide(scaled, starts, sizes / most, largest, limit, len(paired)))
    return tuple(found)


def _decide(
    differences: Floats, starts: Ints, weights: Floats, largest: float, limit: float, pairs: int
) -> Decision:
    """Of one pair, in units of the largest difference; ``limit`` is of the logarithm of the capital.

    Args:
        starts, weights: of each cluster, the place of its first question, and its size in units of the largest.
    """
    n = len(differences)
    if n == 0:
        return Decision(0, math.nan, -largest, largest, 1.0, None, None)
    value, ends = float(differences.mean()), np.append(starts[1:], n)
    means = np.add.reduceat(differences, starts) / (ends - starts)
    sides = means, -means
    ahead, behind = (_log_capital(side, 0.0, weights) for side in sides)
    highest = max(float(ahead.max()), float(behind.max()))
    above, below = (_bound(side, weights, limit) for side in sides)
    low, high = min(above, -below, value), max(above, -below, value)
    decided_at = None
    if highest >= limit and not low <= 0 <= high:
        decided_at = int(ends[np.argmax(np.maximum(ahead, behind) >= limit)])
    needed = None
    if decided_at is None:
        highest = min(highest, limit)
        if value != 0:
            clusters = _needed(math.copysign(1, value) * means, weights, limit)
            needed = min(-(-clusters * n // len(starts)), MOST_QUERIES)
    return Decision(
        n=n,
        value=value * largest,
        low=low * largest,
        high=high * largest,
        p=min(1.0, 2 * pairs * math.exp(-max(highest, 0.0))),
        decided_at=decided_at,
        needed=needed,
    )


def _log_capital(differences: Floats, mean: float, weights: Floats | float = 1.0) -> Floats:
    """(c,) the logarithm of the capital after each cluster, bet against a mean of ``mean`` or less, above -1."""
    gains = np.log1p(np.outer(weights * (differences - mean) / (1 + mean), _BETS))
    return _log_sum(np.cumsum(gains, axis=0) + _LOG_PARTS)


def _log_sum(logarithms: Floats) -> Floats:
    """The logarithm of the sum along the last axis; SciPy's takes longer than all else here."""
    most = logarithms.max(axis=-1, keepdims=True)
    return np.asarray(most[..., 0] + np.log(np.exp(logarithms - most).sum(axis=-1)))


def _bound(differences: Floats, weights: Floats, limit: float) -> float:
    """The highest mean that was bet against successfully at some time; -1 if none was."""
    low, high = -1.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _log_capital(differences, middle, weights).max() >= limit:
            low = middle
        else:
            high = middle
    return low


def _needed(differences: Floats, weights: Floats, limit: float) -> int:
    """Clusters at which a lead like this one is decided; differences turned so that their mean is above 0.

    The logarithm of a bet's capital is taken as normal, with mean and variance as on these clusters.
    """
    gains = np.log1p(np.outer(weights * differences, _BETS))
    mean, spread = gains.mean(axis=0), gains.std(axis=0)

    def is_enough(n: int) -> bool:
        least = n * mean - float(sp.special.ndtri(POWER)) * math.sqrt(n) * spread
        return float(_log_sum(least + _LOG_PARTS)) >= limit

    return least_enough(is_enough, len(differences) + 1, MOST_QUERIES)
