"""Which of two runs leads, decided as soon as enough questions are read, with statements valid at any time of stopping;
and how many queries a significant difference of means would need.

Questions come in an order that does not depend on their scores. After each question, a bet is placed against the
hypothesis that the mean of the paired differences is at most ``m``, with a share ``c`` of the capital: a difference
``d`` in [-1, 1] multiplies the capital by ``1 - c + c (1 + d) / (1 + m)``. If the hypothesis is true, no bet gains on
average, so that the capital, which is 1 at first, ever exceeds ``1 / a`` with probability ``a`` at most (Ville 1939),
at any number of looks and under any stopping rule. The interval excludes a mean once the capital bet against it has
exceeded this limit, on either side (Waudby-Smith & Ramdas 2024, "Estimating means of bounded random variables by
betting", JRSS-B 86; their capital diversified over several bets).

Most differences of two runs are 0. At ``m = 0`` such a question changes no capital: only questions that differ count.
The share with the greatest gain depends on how uneven these differences are, which is unknown. So the capital is
divided among bets of fixed shares (``_BETS``), mostly among bets that decide within some hundred or thousand
questions. The total depends on the questions seen, but not on their order.

Questions of a cluster are not independent, but clusters are, so each cluster gets a single bet, on all its questions
together. Over questions the mean is m or less if the sum of d - m over a cluster's questions is 0 or less on average.
This sum is at least -s (1 + m) in a cluster of s questions, and so at least -S (1 + m) for the size S of the largest
cluster, which is fixed before the first read. So a cluster multiplies the capital by
``1 + c (s / S) (d - m) / (1 + m)``, where d is its mean: at ``m = 0`` a bet on the mean times s / S. If each cluster
has one question, this is the bet above.
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

# Desired probability of finding a difference of the assumed size (Cohen 1988).
POWER = 0.8
# Desired probability that the true difference is larger than the planned one.
_SURE = 0.9
# A number beyond this only means that there are too few queries.
MOST_QUERIES = 1_000_000
# Powers of the differences that bounds depend on, and the step of their numerical slopes, per query.
_POWERS = 4
_STEP = 1e-5


def queries_needed(
    differences: Floats,
    largest: float,
    *,
    confidence: float,
    comparisons: int = 1,
    clusters: Ints | None = None,
    excluded: float = 0.0,
    as_here: bool = False,
) -> int | None:
    """The least number of queries that would show a difference as small as these make likely with ``POWER``.

    Other queries are assumed to differ ``as_small_as_likely``; with ``as_here`` as these do, in mean and spread. A lead
    is significant if its interval (``leads.paired_intervals``) excludes 0 (``excluded``), which nearly means that
    ``_beyond_gaffke``, or for a single pair with clusters ``_beyond_bonett_price``, is above 0. Its distribution is
    assumed normal, with the variance by the delta method: if all differing queries favour one run, sums of powers rise
    together, and fixing all but the first would misstate n.

    Args:
        differences: (n,) query by query.
        largest, comparisons: as in ``leads.paired_intervals``.
        clusters: (n,) the cluster of every query, from 0 without gaps: then the count is of mean differences of
            clusters, as large as these on average, and the result the number of their queries.
        excluded: the mean that the interval should exclude, in the range of the differences.

    Returns:
        ``MOST_QUERIES`` if that many do not suffice. None without information: all differences are ``excluded`` (with
        ``as_here`` their mean is), or there is a single query.
    """
    differences = differences - excluded
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
    # Distance of the range's middle below the mean from which differences are measured.
    shift = math.copysign(1, total) * excluded / largest
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
    """Differences moved so that their mean is as near to 0 as the true mean may be: it is nearer with 10%.

    The true mean is assumed normal around the sample's, with its standard error. A few queries often show several times
    the true difference, and the required number of queries falls with its square.
    """
    n = len(differences)
    error = float(differences.std()) / math.sqrt(n - 1) if n > 1 else 0.0
    if round(error, DECIMALS) == 0:
        return differences
    mean = round(float(differences.mean()), DECIMALS) + 0.0
    # The square of a normal variable is noncentral chi-square; far from 0 the other tail is negligible.
    away = min(abs(mean) / error, 10.0)
    nearer = error * (away - math.sqrt(float(sp.special.chndtrix(1 - _SURE, 1, away**2))))
    return np.asarray(differences - math.copysign(1, mean) * nearer)


def least_enough(is_enough: Callable[[int], bool], least: int, most: float) -> int:
    """The least sufficient number from ``least`` on, or ``most`` if none below suffices; larger ones must suffice."""
    too_few, enough = least - 1, least
    while enough < most and not is_enough(enough):
        too_few, enough = enough, math.ceil(min(2 * enough, most))
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        too_few, enough = (too_few, middle) if is_enough(middle) else (middle, enough)
    return enough


def _beyond_gaffke(sums: Floats, z: float, shift: float) -> Floats:
    """How far Gaffke's lower bound is above 0, with ``z`` the normal quantile.

    With exponential weights, the differences and the lower end of their range have cumulants of order r of (r - 1)!
    times the sum of their powers r. The quantile is Cornish & Fisher's (1938), with skewness and kurtosis.

    ``sums`` (4, ...) are of the powers 1 to 4 of the differences, in units of the largest; the range's middle is
    ``shift`` below 0: its lower end is -1 - shift.
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
    """The same for Bonett & Price, with both ends added; ``t`` is ``t / sqrt(1 + t² / (n + 2))`` of Student's t."""
    return np.asarray(sums[0] - 2 * shift - t * np.sqrt(sums[1] + 2 + 2 * shift**2))


def _in_deviations(beyond: Callable[[Floats], Floats], moments: Floats, n: int) -> float:
    """The mean distance of a bound above 0, in standard deviations; ``moments`` are means of powers from 0 on."""
    powers = np.arange(1, _POWERS + 1)
    sums = n * moments[powers]
    steps = _STEP * n * np.identity(_POWERS)
    # Numerical slopes: analytic ones would take more lines than the rest.
    slopes = (beyond(sums[:, None] + steps) - beyond(sums[:, None] - steps)) / (2 * _STEP * n)
    spread = moments[powers[:, None] + powers] - np.outer(moments[powers], moments[powers])
    variance = n * float(slopes @ spread @ slopes)
    middle = float(beyond(sums))
    return middle / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, middle)


# Shares of the capital per bet, and each bet's part of the capital. Chosen by simulation: runs that differ on 5% to 30%
# of 1,362 questions, with final leads of 2.5 to 6 standard errors.
_BETS = 0.8 / 2.0 ** np.arange(10)
_PARTS = np.array([0.15, 0.25, 0.25, 0.2, *0.08 / 2.0 ** np.arange(6)])
_LOG_PARTS = np.log(_PARTS / _PARTS.sum())
# Halvings for a bound's precision of 1e-7 of the range.
_HALVINGS = 24
# Tolerance for differences that exceed their range by rounding.
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Decision:
    """Decision about the lead of a run over another, from the first questions.

    Attributes:
        low, high: the confidence sequence of the mean at ``n``: it holds with the confidence for all pairs and all
            numbers of questions together. Within the range of differences, and widened to ``value``, which may leave
            the bounds of earlier questions; if these have crossed, each is the other's.
        p: 1 less the confidence at which the sequence just reaches 0; valid at any time, adjusted for all pairs.
        needed: the number of questions, these included, that would decide with a probability of about ``POWER`` if
            others differ as these do; ``MOST_QUERIES`` if that many do not suffice. None if decided, or without
            information (no question, or a mean of 0).
    """

    n: int  # questions that both runs have
    value: float  # mean difference on them; NaN without any
    low: float
    high: float
    p: float
    decided_at: int | None  # the first n with 0 outside; None while undecided, and once 0 is inside
    needed: int | None

    @property
    def leads(self) -> int:
        """1 if the first run leads, -1 if the second does, 0 while undecided."""
        return 0 if self.decided_at is None else 1 if self.low > 0 else -1


def decided(
    paired: Sequence[Floats] | Floats,
    *,
    confidence: float,
    largest: float = 1.0,
    clusters: Ints | None = None,
    most: int = 1,
) -> tuple[Decision, ...]:
    """Decide between the two runs of all pairs.

    Args:
        paired: for each pair, the first run's scores less the second's, of (n,) questions in reading order; NaN if a
            pair has no score, such as after its decision. More questions of a pair are added at its end.
        confidence: probability that no statement is false, over all pairs and times together, in (0, 1). Each pair gets
            an equal part of the rest (Bonferroni), one half for each side.
        largest: the largest difference that two runs can have on a question, above 0; a ValueError for a larger one.
        clusters: (n,) the cluster of every question, with the questions of a cluster adjacent; None if questions are
            independent.
        most: questions of the largest cluster, whether read or not; a ValueError for a larger one.
    """
    limit = math.log(2 * max(len(paired), 1) / (1 - confidence))
    decisions = []
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
        decisions.append(_decide(scaled, starts, sizes / most, largest, limit, len(paired)))
    return tuple(decisions)


def _decide(
    differences: Floats, starts: Ints, weights: Floats, largest: float, limit: float, pairs: int
) -> Decision:
    """The decision of a pair, in units of the largest difference; ``limit`` bounds the logarithm of the capital.

    ``starts`` and ``weights``: per cluster, the place of its first question, and its size in units of the largest.
    """
    n = len(differences)
    if n == 0:
        return Decision(0, math.nan, -largest, largest, 1.0, None, None)
    value, ends = float(differences.mean()), np.append(starts[1:], n)
    means = np.add.reduceat(differences, starts) / (ends - starts)
    sides = means, -means
    capital = np.maximum(*(_log_capital(side, 0.0, weights) for side in sides))
    highest = float(capital.max())
    above, below = (_bound(side, weights, limit) for side in sides)
    low, high = min(above, -below, value), max(above, -below, value)
    decided_at = needed = None
    if highest >= limit and not low <= 0 <= high:
        decided_at = int(ends[np.argmax(capital >= limit)])
    else:
        highest = min(highest, limit)
        if value != 0:
            clusters = _needed(math.copysign(1, value) * means, weights, limit)
            needed = min(-(-clusters * n // len(starts)), MOST_QUERIES)
    p = min(1.0, 2 * pairs * math.exp(-max(highest, 0.0)))
    return Decision(n, value * largest, low * largest, high * largest, p, decided_at, needed)


def _log_capital(differences: Floats, mean: float, weights: Floats | float = 1.0) -> Floats:
    """(c,) the logarithm of the capital after each cluster, bet against a mean of ``mean`` or less, above -1."""
    gains = np.log1p(np.outer(weights * (differences - mean) / (1 + mean), _BETS))
    return _log_sum(np.cumsum(gains, axis=0) + _LOG_PARTS)


def _log_sum(logarithms: Floats) -> Floats:
    """SciPy's ``logsumexp`` along the last axis, which would dominate the running time."""
    most = logarithms.max(axis=-1, keepdims=True)
    return np.asarray(most[..., 0] + np.log(np.exp(logarithms - most).sum(axis=-1)))


def _bound(differences: Floats, weights: Floats, limit: float) -> float:
    """The highest mean that was bet against successfully at some time; -1 if none was."""
    low, step = -1.0, 1.0
    for _ in range(_HALVINGS):
        if _log_capital(differences, low + step, weights).max() >= limit:
            low += step
        step /= 2
    return low


def _needed(differences: Floats, weights: Floats, limit: float) -> int:
    """Clusters until a lead like this one is decided; differences turned so that their mean is above 0.

    The logarithm of a bet's capital is assumed normal, with mean and variance as on these clusters.
    """
    gains = np.log1p(np.outer(weights * differences, _BETS))
    mean, spread = gains.mean(axis=0), gains.std(axis=0)

    def is_enough(n: int) -> bool:
        least = n * mean - float(sp.special.ndtri(POWER)) * math.sqrt(n) * spread
        return float(_log_sum(least + _LOG_PARTS)) >= limit

    return least_enough(is_enough, len(differences) + 1, MOST_QUERIES)
