"""Means over N queries of which only n lists were read: the labels of all say what the others would have scored.

For a difference estimator (Cassel, Särndal & Wretman 1976; prediction-powered inference: Angelopoulos et al. 2023), a
score f is foretold for each of the N queries, and the mean is that of f over all, plus that of y - f over the n that
were read. It is right on average whatever f is; the closer f is to y, the narrower the interval. f is linear in what
the labels say of a list (its ranking measures), shrunken, and fitted without the queries that it is subtracted from.

The interval of the mean of y - f is that of a mean from a bounded range (``bounded``), with half a value added at each
end of the range: of scores that are 0 and 1, and foretold alike, it is Jeffreys'. For other queries like these, the
interval of the mean of f is put together with it (Zou & Donner 2008, "Construction of confidence limits about effect
measures", Statistics in Medicine 27); for these N queries it is as much narrower as the lists that were read are many.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtrit

from engine.statistics.arrays import Floats
from engine.statistics.bounded import Weighed, lower_bound, weighed

# With fewer lists, no interval holds that is narrow enough to say something.
LEAST_LISTS = 20
# Parts of which each is left out of a fit, and the weight of having no influence, in queries.
_FOLDS = 10
_SHRUNKEN = 4.0
# Of p-values: the logarithm of the least, and the steps in which they are found.
_LEAST_LOG_P, _HALVINGS = -30.0, 24


@dataclass(frozen=True)
class Estimate:
    """A mean over all queries, from the lists that were read.

    Attributes:
        value: the estimate.
        rho: correlation of what was foretold with what was read, on the lists read; 0 where either is constant.
        of: how many queries there are.
        known, residuals: (n,) the scores of the lists read, and these less what was foretold.
        ends: the least and the largest that a residual can be.
        of_f: the standard error of the mean of what was foretold, of other queries.
        low, high: the range of scores.
    """

    value: float
    rho: float
    of: int
    known: Floats
    residuals: Floats
    ends: tuple[float, float]
    of_f: float
    low: float
    high: float

    @property
    def n(self) -> int:
        """How many lists were read."""
        return len(self.known)

    def interval(self, level: float, *, here: bool = False) -> tuple[float, float]:
        """The interval of the mean; NaN with fewer than ``LEAST_LISTS`` lists.

        Args:
            level: 1 less the confidence, divided among intervals that hold together.
            here: for the mean of just these queries; else for that of others like these.
        """
        if self.n < LEAST_LISTS:
            return math.nan, math.nan
        mean, unread = float(self.residuals.mean()), 1 - self.n / self.of
        below = mean - _bound(self.residuals, self.ends, level / 2)
        above = -mean - _bound(-self.residuals, (-self.ends[1], -self.ends[0]), level / 2)
        least, most = self.low, self.high
        if here:
            below, above = below * math.sqrt(unread), above * math.sqrt(unread)
            least, most = (
                float(self.known.sum()) / self.of + unread * end for end in (least, most)
            )
        else:
            of_f = -float(stdtrit(self.of - 1, level / 2)) * self.of_f
            below, above = math.hypot(below, of_f), math.hypot(above, of_f)
        # Nothing seen but an end of the range: the mean may be there (Brown, Cai & DasGupta 2001 of Jeffreys').
        low = least if (self.known == self.low).all() else max(least, self.value - below)
        high = most if (self.known == self.high).all() else min(most, self.value + above)
        return low, high

    def p_value(self, comparisons: int) -> float:
        """1 less the confidence at which the interval for other queries just reaches 0; NaN without one.

        Args:
            comparisons: that it is adjusted for, 1 or more.
        """
        if self.n < LEAST_LISTS:
            return math.nan
        least, most = _LEAST_LOG_P, 0.0
        for _ in range(_HALVINGS):
            middle = (least + most) / 2
            low, high = self.interval(math.exp(middle))
            if low <= 0 <= high:
                least = middle
            else:
                most = middle
        return min(1.0, comparisons * math.exp(most))


def estimate(y: Floats, features: Floats, *, low: float = 0.0, high: float = 1.0) -> Estimate:
    """The mean of a score, or of the differences of two.

    Args:
        y: (N,) of each query, NaN where its list was not read: one was or more, drawn at random.
        features: (N, p) what is known of all queries.
        low, high: the range of ``y``.
    """
    read = np.flatnonzero(~np.isnan(y))
    n, of = len(read), len(y)
    known, foretold, f = y[read], np.empty(n), np.zeros(of)
    columns = _standardised(features)
    folds = np.arange(n) % min(_FOLDS, n)
    for fold in range(int(folds.max()) + 1):
        apart = folds == fold
        kept = read[~apart] if n > 1 else read
        predicted = _fitted(columns[kept], y[kept], columns)
        foretold[apart] = predicted[read[apart]]
        f += predicted * float(apart.mean())
    varies = np.ptp(known) > 0 and np.ptp(foretold) > 0
    return Estimate(
        value=float(f.mean() + (known - foretold).mean()),
        rho=float(np.corrcoef(known, foretold)[0, 1]) if varies else 0.0,
        of=of,
        known=known,
        residuals=known - foretold,
        ends=(low - float(f.max()), high - float(f.min())),
        of_f=float(f.std(ddof=1)) / math.sqrt(of) if of > 1 else 0.0,
        low=low,
        high=high,
    )


def _standardised(features: Floats) -> Floats:
    spread = features.std(axis=0)
    kept = spread > 1e-12
    return np.asarray((features[:, kept] - features[:, kept].mean(axis=0)) / spread[kept])


def _fitted(columns: Floats, y: Floats, of_all: Floats) -> Floats:
    """Ridge regression of ``y``, for all queries."""
    middle, mean = columns.mean(axis=0), float(y.mean())
    centred = columns - middle
    square = centred.T @ centred + _SHRUNKEN * np.identity(columns.shape[1])
    return np.asarray(mean + (of_all - middle) @ np.linalg.solve(square, centred.T @ (y - mean)))


def _bound(residuals: Floats, ends: tuple[float, float], tail: float) -> float:
    """The lower bound of the mean, with half a value at each end of the range."""
    sums, sizes, amounts = weighed(residuals, np.ones(len(residuals)))
    return lower_bound(
        Weighed(
            np.append(sums, ends), np.append(sizes, [1.0, 1.0]), np.append(amounts, [0.5, 0.5])
        ),
        tail,
    )
