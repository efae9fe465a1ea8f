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
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import polars as pl
from scipy.special import stdtrit

from engine.statistics.arrays import Floats
from engine.statistics.bounded import Weighed, lower_bound, weighed
from engine.statistics.correlation import DECIMALS, Bootstrap
from engine.statistics.leads import Differences
from engine.statistics.runs import RunScores
from engine.tables import ANNOTATOR, MEASURE, QUERY_ID, RUN, VALUE, K, N, high_of, low_of

# With fewer lists, no interval holds that is narrow enough to say something.
LEAST_LISTS = 20
# Parts of which each is left out of a fit, and the weight of having no influence, in queries.
_FOLDS, _SHRUNKEN = 10, 4.0
# Of p-values: the logarithm of the least, and the steps in which they are found.
_LEAST_LOG_P, _HALVINGS = -30.0, 24
# What a column of the second run of a pair ends with; columns of bounds for other queries, and for these.
_OTHER = " of the other"
_BOUNDS = (low_of(VALUE), high_of(VALUE), "low_these_queries", "high_these_queries")


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
        """1 less the confidence at which the interval just reaches 0, for all comparisons; NaN without one."""
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
    columns = features[:, np.ptp(features, axis=0) > 0]
    columns = (columns - columns.mean(axis=0)) / columns.std(axis=0)
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


def means(downstream: pl.DataFrame, query_scores: pl.DataFrame, level: float) -> pl.DataFrame:
    """The mean end-to-end score of each run over all queries: its estimate, both intervals, and rho.

    Args:
        downstream: the scores of the lists read.
        query_scores: of all queries; the first annotator's measures foretell scores.
    """
    rows: list[dict[str, Any]] = []
    for run, table in _tables(downstream, query_scores).items():
        found = estimate(table[VALUE].to_numpy(), _features(table))
        bounds = (*found.interval(level), *found.interval(level, here=True))
        figures = {VALUE: found.value, N: found.n, "of": found.of, "rho": found.rho}
        figures |= dict(zip(_BOUNDS, bounds, strict=True))
        rows.append({RUN: run, K: downstream[K][0]} | figures)
    return pl.DataFrame(rows)


def from_labels(
    whole: RunScores, downstream: pl.DataFrame, query_scores: pl.DataFrame, bootstrap: Bootstrap
) -> RunScores:
    """Scores of some lists with means and differences of all queries; differences are of other queries like these."""
    by_run = _tables(downstream, query_scores)
    pairs = list(combinations(whole.runs, 2))
    level = (1 - bootstrap.confidence) / len(pairs)
    rows = []
    for run, other in pairs:
        both = by_run[run].join(by_run[other], on=QUERY_ID, suffix=_OTHER)
        second = both.select(QUERY_ID, pl.col(rf"^.*{_OTHER}$"))
        second = second.rename(lambda name: name.removesuffix(_OTHER))
        first = both.select(second.columns)
        y = (first[VALUE] - second[VALUE]).to_numpy()
        found = estimate(y, _features(first) - _features(second), low=-1.0)
        rows.append([found.value, *found.interval(level), found.p_value(len(pairs))])
    value, low, high, p = np.array(rows).T
    value, low, high = (np.round(column, DECIMALS) + 0.0 for column in (value, low, high))
    estimates = means(downstream, query_scores, level).select(RUN, VALUE).rows()
    return replace(
        whole,
        means=tuple(dict(estimates)[run] for run in whole.runs),
        differences=Differences(value, low, high, p),
    )


def _tables(downstream: pl.DataFrame, query_scores: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """By run, a row for each query: the score of its list, or null, and the first annotator's measures."""
    first = query_scores.filter(pl.col(ANNOTATOR) == pl.col(ANNOTATOR).first())
    measures = first.pivot(MEASURE, index=[RUN, QUERY_ID], values=VALUE)
    scores = downstream.select(RUN, QUERY_ID, VALUE)
    table = measures.join(scores, on=[RUN, QUERY_ID], how="left").sort(RUN, QUERY_ID)
    return {str(run): rows.drop(RUN) for (run,), rows in table.group_by(RUN, maintain_order=True)}


def _features(table: pl.DataFrame) -> Floats:
    return table.drop(QUERY_ID, VALUE).to_numpy()


def _fitted(columns: Floats, y: Floats, of_all: Floats) -> Floats:
    """Ridge regression of ``y``, for all queries."""
    middle, mean = columns.mean(axis=0), float(y.mean())
    centred = columns - middle
    square = centred.T @ centred + _SHRUNKEN * np.identity(columns.shape[1])
    return np.asarray(mean + (of_all - middle) @ np.linalg.solve(square, centred.T @ (y - mean)))


def _bound(residuals: Floats, ends: tuple[float, float], tail: float) -> float:
    """The lower bound of the mean, with half a value at each end of the range."""
    sums, sizes, amounts = weighed(residuals, np.ones(len(residuals)))
    both = np.ones(2)
    rows = Weighed(np.append(sums, ends), np.append(sizes, both), np.append(amounts, both / 2))
    return lower_bound(rows, tail)
