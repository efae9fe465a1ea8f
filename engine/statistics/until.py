"""Which of two runs leads, decided as soon as the questions read so far suffice: valid at any time of stopping.

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
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy as sp

from engine.statistics.arrays import Floats, Ints
from engine.statistics.power import MOST_QUERIES, POWER, least_enough

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
