"""Kendall's tau-b and Spearman's rho of two scores, with intervals over queries, and limits set by their margins.

If queries form clusters that share an article, only the clusters are independent: they are left out one at a time, and
resampled. If too few carry an interval's information, tables have the equivalent number of independent queries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import scipy as sp

from engine.messages.checked import CheckedSettings, Natural, Positive, Range
from engine.messages.errors import InputError
from engine.statistics import methods
from engine.statistics.arrays import Floats, Ints, Mask, Scores
from engine.statistics.bounded import around, interval
from engine.statistics.difference_tests import DifferenceTest
from engine.statistics.methods import Method, Side, inverted, method_for, side, studentized
from engine.statistics.resampling import Replicates

# Leave-one-cluster-out values that differ by less are equal but for rounding.
_NO_SPREAD = 1e-12


def _rarer(score: Side, clusters: Ints | None) -> Mask:
    """(n,) queries, or (clusters,) clusters, with a rarer value."""
    return score.rarer if clusters is None else np.bincount(clusters, score.rarer) > 0


def method_of(x: Side, y: Side, clusters: Ints | None) -> tuple[Method | None, str]:
    """``method_for``, also for queries in clusters (n,), numbered from 0 without gaps.

    - ``inverted``: if the choice without clusters, or if fewer than ten clusters have a rarer
      value of some side, and the table is small enough.
    - ``studentized``: fewer than 50 clusters have a rarer value of some side.
    - ``percentile`` (of resampled clusters), elsewhere.
    """
    method, note = method_for(x, y)
    if clusters is None:
        return method, note
    count = int(clusters.max()) + 1
    if count < methods.LEAST_QUERIES:
        return None, f"no interval: {count} clusters are too few"
    fewest = min(int(_rarer(score, clusters).sum()) for score in (x, y))
    if method is None or method == "inverted":
        return method, note
    if fewest < methods.FEW_RARER and x.values * y.values <= methods.MOST_CELLS:
        return "inverted", ""
    if fewest < methods.LEAST_OF_MANY:
        return None, (
            "no interval: measure or end-to-end score has values other than the most frequent one in "
            f"fewer than {methods.LEAST_OF_MANY} of {count} clusters"
        )
    return ("studentized" if fewest < methods.ENOUGH_TO_RESAMPLE else "percentile"), ""


def independent_queries(x: Floats, y: Floats, clusters: Ints, *, confidence: float) -> int:
    """The number of independent queries whose correlation of x and y would be as variable, and as uncertain, as here.

    n / (1 + (m - 1) r_x r_y), where m is the mean size of a query's cluster, and r_x and r_y are the intraclass
    correlations of the ranks: the design effect (Kish 1965) of the mean of products of two independent scores. Few
    clusters tell little about it: the number is multiplied by the square of Student's quantile with n - 1 degrees of
    freedom over that with a degree less than there are clusters (Korn & Graubard 1998, "Confidence intervals for
    proportions with small expected number of positive counts estimated from survey data").
    """
    sizes = np.bincount(clusters)
    n = len(clusters)
    beyond = float((sizes.astype(np.float64) ** 2).sum()) / n - 1
    effect = 1 + beyond * intraclass(_ranks(x), clusters) * intraclass(_ranks(y), clusters)
    level = (1 + confidence) / 2
    known = float(sp.special.stdtrit(n - 1, level) / sp.special.stdtrit(len(sizes) - 1, level)) ** 2
    return max(2, round(known * n / effect))


def intraclass(score: Floats, clusters: Ints) -> float:
    """The intraclass correlation by analysis of variance, in [0, 1]; 1 if nothing varies, 0 for clusters of size 1."""
    sizes = np.bincount(clusters).astype(np.float64)
    n, count = len(score), len(sizes)
    if count in (1, n):
        return float(count == 1)
    means = np.bincount(clusters, score) / sizes
    between = float((sizes * (means - score.mean()) ** 2).sum()) / (count - 1)
    within = float(((score - means[clusters]) ** 2).sum()) / (n - count)
    size = (n - float((sizes**2).sum()) / n) / (count - 1)
    spread = between + (size - 1) * within
    return max(0.0, (between - within) / spread) if spread > 0 else 1.0


def _ranks(score: Floats) -> Floats:
    _, codes, counts = np.unique(score, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - counts / 2)[codes.reshape(-1)])


def from_jackknife(
    estimate: float,
    without: Floats,
    sides: Sequence[Floats],
    clusters: Ints | None,
    *,
    confidence: float,
    scale: float = 1,
) -> DifferenceTest:
    """The studentized interval of a correlation, or of a difference, and the test that it inverts.

    NaN if a side is constant without some query or cluster, or the estimate is the same without any; for a difference
    of 0 throughout, p is 1 and both bounds are 0.

    Args:
        without: (clusters,) the estimate without each cluster, or (n,) without each query if ``clusters`` is None.
        sides: the scores in the estimate, all of shape (n,).
        scale: largest distance from 0: 1 for a correlation, 2 for a difference.
    """
    if not np.isfinite(without).all() or float(np.ptp(without)) < _NO_SPREAD:
        same = scale == 2 and float(np.abs(without).max()) < _NO_SPREAD
        return DifferenceTest(1.0, 0.0, 0.0) if same else DifferenceTest(math.nan)
    sparser = min((_rarer(side(score), clusters) for score in sides), key=np.count_nonzero)
    low, high, p = studentized(estimate / scale, without / scale, sparser, confidence=confidence)
    return DifferenceTest(p, scale * low, scale * high)


def incomparable(pairs: Sequence[Scores], clusters: Ints) -> str:
    """Why correlations of queries in clusters cannot be compared; empty if they can."""
    fewest = min(int(_rarer(side(score), clusters).sum()) for pair in pairs for score in pair)
    count = int(clusters.max()) + 1
    if count < methods.LEAST_QUERIES:
        return f"no p-value and no interval: {count} clusters are too few"
    if fewest < methods.LEAST_OF_MANY:
        return (
            f"no p-value and no interval: {fewest} of {count} clusters have a score other than the most "
            f"frequent one, and a test needs {methods.LEAST_OF_MANY}"
        )
    return ""


# Decimals for comparing scores: sums of the same labels in another order differ in the last bits, and must not rank.
DECIMALS = 12
# Fewer cannot hold the tails of an interval.
LEAST_RESAMPLES = 100


@dataclass(frozen=True)
class Bootstrap(CheckedSettings):
    """Settings of intervals and p-values; an InputError for a value out of range.

    Attributes:
        resamples: Bootstrap resamples of each interval, 100 or more; 0 for no intervals.
        confidence: Level of the intervals, between 0 and 1.
        seed: Seed of the resamples, and of all other random draws; 0 or more.
        threads: that resample; None for all cores. Changes no figure.
        cluster: Clusters of dependent queries: a column of the queries file, or article for the gold article. By
            default queries are taken as independent.
        until: Read queries in an order drawn by the seed, and stop at the named event: verdict, as soon as every two
            runs differ significantly. Differences of runs then have confidence sequences, other figures no intervals.
        lists: Share of the queries whose whole lists are read, or how many these are, drawn by the seed; end-to-end
            means are estimated for all queries from these and the labels of all.
        width: In place of lists: as many as it takes until the interval of every difference of two runs, or of a single
            run's mean, reaches so far to either side at most; between 0 and 1.
    """

    resamples: Natural = 10_000
    confidence: Annotated[float, Range(0, 1, is_open=True)] = 0.95
    seed: Natural = 0
    threads: Positive | None = None
    cluster: str | None = None
    until: Literal["verdict"] | None = None
    lists: Annotated[float, Range(0, is_open=True)] | None = None
    width: Annotated[float, Range(0, 1, is_open=True)] | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if 0 < self.resamples < LEAST_RESAMPLES:
            remedy = f"use {LEAST_RESAMPLES} or more, or 0 for no intervals"
            raise InputError(f"`resamples` is {self.resamples}", remedy, "settings.resamples")
        if self.until and not self.resamples:
            problem = "`until` with `resamples` 0, which it cannot have"
            raise InputError(problem, "leave one out", "settings.until")
        if self.lists and self.lists >= 1 and self.lists % 1:
            remedy = "use a share below 1, or a whole number of lists"
            raise InputError(f"`lists` is {self.lists:g}", remedy, "settings.lists")
        others = {"until": self.until, "cluster": self.cluster, "resamples": not self.resamples}
        others["width"] = bool(self.lists and self.width)
        if self.samples and (other := next((name for name in others if others[name]), "")):
            name = "lists" if self.lists else "width"
            problem = f"`{name}` with `{other}`, which it cannot have"
            raise InputError(problem, "leave one out", "settings.conflict")

    @property
    def samples(self) -> bool:
        """Whether only some queries may have their whole lists read."""
        return bool(self.lists or self.width)

    @property
    def at_fixed_n(self) -> Bootstrap:
        """These settings for figures with invalid intervals if they determine the number of queries themselves."""
        return replace(self, resamples=0, until=None) if self.until else self


@dataclass(frozen=True)
class Correlation:
    """A correlation with its interval.

    ``tau``, ``rho`` in [-1, 1]; NaN where undefined, with the reason in ``note``. Interval bounds are NaN if not
    requested or not valid (``note``); ``method`` names their method (``methods``), empty without bounds.
    """

    n: int
    tau: float = math.nan
    tau_low: float = math.nan
    tau_high: float = math.nan
    rho: float = math.nan
    rho_low: float = math.nan
    rho_high: float = math.nan
    method: str = ""
    note: str = ""


def describe(
    x: Floats,
    y: Floats,
    result: Replicates,
    pair: int,
    bootstrap: Bootstrap,
    clusters: Ints | None = None,
) -> Correlation:
    """The correlation of a pair of columns, from its replicates over queries, or over clusters."""
    n = len(x)
    if note := undefined(x, y):
        return Correlation(n=n, note=note)
    values = float(result.tau[pair]), float(result.rho[pair])
    plain = Correlation(n=n, tau=values[0], rho=values[1])
    if bootstrap.resamples == 0:
        return plain
    method, note = method_of(side(x), side(y), clusters)
    if method is None:
        return replace(plain, note=note)
    level = bootstrap.confidence
    bounds: Sequence[tuple[float, float]]
    if method == "inverted":
        size, draws = None, bootstrap.resamples
        if clusters is not None:
            size = independent_queries(x, y, clusters, confidence=level)
        bounds = inverted(x, y, confidence=level, draws=draws, seed=bootstrap.seed, size=size)
    elif method == "studentized":
        assert result.without is not None
        tests = (
            from_jackknife(value, without, (x, y), clusters, confidence=level)
            for value, without in zip(values, result.without[pair], strict=True)
        )
        bounds = [(test.low, test.high) for test in tests]
    else:
        # tau and rho are undefined on the same resamples, so one note serves both.
        low, high, note = interval(result.taus[pair], level)
        bounds = (low, high), interval(result.rhos[pair], level)[:2]
    if math.isnan(bounds[0][0]):
        method, note = None, note or f"no interval: the correlation is {values[0]:g}"
    tau, rho = (around(value, *ends) for value, ends in zip(values, bounds, strict=True))
    return Correlation(n, values[0], *tau, values[1], *rho, method or "", note)


def undefined(x: Floats, y: Floats) -> str:
    """Why no correlation of x (the measure) and y (the end-to-end score) is defined; empty if it is."""
    if len(x) < 2:
        return "undefined: fewer than two queries"
    constant = [
        f"the {what} is {values[0]:g} for every query"
        for what, values in (("measure", x), ("end-to-end score", y))
        if (values == values[0]).all()
    ]
    return f"undefined: {' and '.join(constant)}" if constant else ""


@dataclass(frozen=True)
class Margins:
    """A measure beside an end-to-end score, and the limits that their values set.

    Attributes:
        auc: share of the pairs of a right and a wrong query in which the measure is higher for the right one, ties
            counting half: the area under the ROC curve, and (1 + d) / 2 for Somers' d of the measure given the score.
            In [0, 1]; NaN unless the scores are 0 and 1, and both occur.
        tau_min, tau_max: the least and the greatest tau-b of the measure's values with these scores, over all
            assignments to queries. NaN where tau is undefined.
        tau_reached: tau as a share of its limit in the same direction: ``tau_max`` from 0 on, ``tau_min`` below, with
            tau's sign. In [-1, 1]; NaN where tau is undefined.
    """

    auc: float
    tau_min: float
    tau_max: float
    tau_reached: float


def margins(x: Floats, y: Floats, tau: float) -> Margins:
    """The limits set by the values of a measure (x) and of the end-to-end score (y), both of shape (n,) and finite.

    tau-b is greatest if both are sorted the same way, and least if one is reversed: then exchanging the scores of two
    queries never adds to its numerator, and leaves its denominator alone. With ties in other places on both sides the
    maximum is less than 1: few right answers and few misses cannot agree, however good the measure is.
    """
    auc = _auc(x, y)
    if math.isnan(tau):
        return Margins(auc, math.nan, math.nan, math.nan)
    upwards, outcomes = np.sort(x), np.sort(y)
    tau_max, tau_min = _farthest(upwards, outcomes), -_farthest(upwards, outcomes[::-1])
    reached = tau / (tau_max if tau >= 0 else -tau_min)
    # Both are rounded: 1 may come out a bit above.
    return Margins(auc, tau_min, tau_max, min(max(reached, -1.0), 1.0))


def _auc(x: Floats, y: Floats) -> float:
    """The share of pairs of a right and a wrong query that x orders (Mann & Whitney 1947)."""
    right, wrong = y == 1, y == 0
    if not right.any() or not wrong.any() or not (right | wrong).all():
        return math.nan
    values, place = np.unique(x, return_inverse=True)
    rights, wrongs = (np.bincount(place[kind], minlength=len(values)) for kind in (right, wrong))
    lower = np.cumsum(wrongs) - wrongs
    twice_ordered = int((rights * (2 * lower + wrongs)).sum())
    return twice_ordered / (2 * int(right.sum()) * int(wrong.sum()))


def _farthest(x: Floats, y: Floats) -> float:
    """tau-b of two sorted columns, either way round, without its sign: no two pairs disagree."""
    x_new, y_new = (np.append(True, values[1:] != values[:-1]) for values in (x, y))
    pairs = _pairs(np.array([len(x)]))
    x_tied, y_tied, both = (
        _pairs(np.diff(np.append(np.flatnonzero(new), len(x))))
        for new in (x_new, y_new, x_new | y_new)
    )
    return (pairs - x_tied - y_tied + both) / math.sqrt((pairs - x_tied) * (pairs - y_tied))


def _pairs(sizes: Ints) -> int:
    return int((sizes * (sizes - 1) // 2).sum())
