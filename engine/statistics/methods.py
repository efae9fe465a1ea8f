"""Methods for the interval of a correlation, and the choice among them, which depends on how thin the data are.

The limits are from simulations (``benchmarks.intervals``): under each method 95% intervals hold the true value in 93%
of the samples or more, also if few answers are right or nearly all lists succeed.

If one side is nearly constant, few queries can show any association, and samples often have no such query: resampling
cannot draw queries that the sample lacks, so its intervals are far too narrow. Here a value of tau belongs to the
interval if the sample is plausible under it. The assumed distribution under a value is the most likely distribution
over the table of the two sides' values that has this tau: the profile of the multinomial likelihood, which gives weight
to empty cells as well and lets the margins move. Samples drawn from that distribution show how surprising the sample is
(an approximate test whose nuisance parameters are estimated under the hypothesis: Lloyd 2008; DiCiccio & Romano 1990,
section 4). The difference of two correlations on the same queries is treated in the same way, over the table of both
measures and the outcome, or the outcomes, together.
"""

from __future__ import annotations

import math
from functools import lru_cache, reduce
from operator import sub
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy as sp

from engine.statistics.arrays import Floats, Mask, Scores

# Bounds of tau and of rho: (low, high).
Bounds = tuple[tuple[float, float], tuple[float, float]]
# The axes to sum out of a table for each correlation: one, or two for a difference.
Parts = tuple[tuple[int, ...], ...]
_ONE: Parts = ((),)
# Tables of two measures and their outcome, and of two measures with an outcome each.
_SAME_OUTCOME: Parts = ((1,), (0,))
_OWN_OUTCOMES: Parts = ((1, 3), (0, 2))

# Cells beyond which drawing tables takes too long.
MOST_CELLS = 5_000
# Least number of tables per step: large tables get fewer than requested.
_LEAST_DRAWS = 400
_MOST_DRAWN_CELLS = 250_000
# Queries' worth of weight spread over the table as under independence, so that no cell is impossible.
_SPREAD = 0.1
# Beyond this a table is nearly all on its diagonal, and the bound is 1.
_EDGE = 0.985
# Factor on normal quantiles if intervals would otherwise hold in only 90% to 93% of some samples: for differences, and
# if more than half of the sparsest side's rarer queries have unique values (such as F1 that is mostly 0), which say
# little about others.
_WIDER = 1.1
# Least and greatest step along tau, in standard errors.
_STEPS = (0.25, 1.0)
_MOST_STEPS = 100
# Cells of drawn tables in memory at a time.
_HELD = 2**17
# Decimals at which drawn statistics equal the observed one.
_DECIMALS = 10


class _Sample(NamedTuple):
    """A table of n queries: its cells' shares, all positive, and (2,) the statistic ``parts`` for tau and rho."""

    shares: Floats
    parts: Parts
    observed: Floats
    n: int


def inverted(
    x: Floats, y: Floats, *, confidence: float, draws: int, seed: int, size: int | None = None
) -> Bounds:
    """The intervals of tau-b and rho of two scores of the same n queries.

    Both come from one path through the tables, on which tau moves away from the sample's in steps of up to a standard
    error; the crossing of the one-sided mid-p-value with (1 - confidence) / 2 is interpolated on the scale of normal
    quantiles. Tables that leave a side constant are not counted. A bound that is not reached is -1 or 1.

    Args:
        x, y: shape (n,), neither constant. Work grows with the product of the numbers of distinct values.
        draws: tables drawn at each step, fewer (400 or more) for large tables. 1,000 leave an error of about a tenth of
            a standard error in a bound.
        size: the number of queries in a drawn table; None for n.
    """
    table = table_of(x, y)
    return _inverted(table.tobytes(), table.shape, _ONE, confidence, draws, seed, size)


def inverted_difference(
    first: Scores, second: Scores, *, confidence: float, draws: int, seed: int
) -> Bounds | None:
    """The same for the difference of two correlations over the same n queries; bounds in [-2, 2].

    ``first`` and ``second`` are measure and outcome per correlation, shape (n,), none constant; a shared outcome is one
    dimension of the table. None if the table has more cells than ``MOST_CELLS``.
    """
    sides, parts = [first[0], second[0], first[1]], _SAME_OUTCOME
    if not np.array_equal(first[1], second[1]):
        sides, parts = [*sides, second[1]], _OWN_OUTCOMES
    if math.prod(len(np.unique(side)) for side in sides) > MOST_CELLS:
        return None
    table = table_of(*sides)
    return _inverted(table.tobytes(), table.shape, parts, confidence, draws, seed)


def table_of(*sides: Floats) -> npt.NDArray[np.int64]:
    """Number of queries per combination of values: a dimension a side, its values ascending."""
    values, codes = zip(*(np.unique(side, return_inverse=True) for side in sides), strict=True)
    shape = tuple(map(len, values))
    cells = np.ravel_multi_index(tuple(code.reshape(-1) for code in codes), shape)
    return np.bincount(cells, minlength=math.prod(shape)).reshape(shape)


# Measures that agree on every query (P@1, RR@1, ...) have the same table.
@lru_cache(maxsize=1024)
def _inverted(
    counts: bytes,
    shape: tuple[int, ...],
    parts: Parts,
    confidence: float,
    draws: int,
    seed: int,
    size: int | None = None,
) -> Bounds:
    table = np.frombuffer(counts, dtype=np.int64).reshape(shape)
    n, seen = size or int(table.sum()), table / table.sum()
    draws = min(draws, max(_LEAST_DRAWS, _MOST_DRAWN_CELLS // table.size))
    axes = range(table.ndim)
    margins = [seen.sum(axis=tuple(other for other in axes if other != axis)) for axis in axes]
    shares = (n * seen + _SPREAD * reduce(np.multiply.outer, margins)) / (n + _SPREAD)
    sample = _Sample(shares, parts, np.round(_values(table[None], parts)[:, 0], _DECIMALS), n)
    level = float(sp.special.ndtri((1 - confidence) / 2))
    margin = max(margins, key=np.max)
    if len(parts) > 1 or len(margin) > max(2.0, 1 + n * (1 - margin.max()) / 2):
        level *= _WIDER
    lows, highs = (
        _bounds(sample, level, side, draws, np.random.default_rng([seed, number]))
        for number, side in enumerate((-1, 1))
    )
    return (lows[0], highs[0]), (lows[1], highs[1])


def _bounds(
    sample: _Sample, level: float, side: int, draws: int, rng: np.random.Generator
) -> list[float]:
    """The lower (side -1) or upper (1) bounds of tau and rho."""
    shares, parts, _, n = sample
    most = len(parts)
    bounds = [float(side * most)] * 2
    crossed = [False, False]
    table = shares
    before: tuple[Floats, Floats] | None = None
    for _ in range(_MOST_STEPS):
        true = reduce(np.subtract, [_shares_tau_and_rho(table.sum(axis=axes)) for axes in parts])
        quantiles = _tails(table, sample, side, draws, rng)
        for which in range(2):
            if crossed[which] or quantiles[which] >= level:
                continue
            crossed[which] = True
            bounds[which] = float(true[which])
            if before is not None:
                weight = (before[1][which] - level) / (before[1][which] - quantiles[which])
                bounds[which] = float(before[0][which] * (1 - weight) + true[which] * weight)
        tau, influence = _slope(table, parts)
        if all(crossed) or side * tau > _EDGE * most:
            break
        before = true, quantiles
        # If all pairs agree, no query has an influence.
        error = max(float(np.sqrt((table * influence**2).sum() / n)), 1 / n)
        step = np.clip(0.6 * (quantiles.max() - level), *_STEPS) * error
        target = float(np.clip(tau + side * step, -0.99 * most, 0.99 * most))
        table = _most_likely(shares, table, target, parts)
    return bounds


def _tails(
    table: Floats, sample: _Sample, side: int, draws: int, rng: np.random.Generator
) -> Floats:
    """Normal quantiles of the mid-p-values that tau and rho are as far on the other side: (2,)."""
    beyond, counted = np.zeros(2), np.zeros(2)
    block = max(1, _HELD // table.size)
    for start in range(0, draws, block):
        size = (min(block, draws - start), *table.shape)
        drawn = rng.multinomial(sample.n, table.ravel(), size=size[0]).reshape(size)
        statistics = np.round(_values(drawn, sample.parts), _DECIMALS)
        defined = np.isfinite(statistics)
        apart = side * (statistics - sample.observed[:, None])
        beyond += (defined & (apart < 0)).sum(axis=1) + (apart == 0).sum(axis=1) / 2
        counted += defined.sum(axis=1)
    # A table nearly all of whose samples leave a side constant is no evidence against the sample.
    shares = np.where(counted > 0, beyond / np.maximum(counted, 1), 0.5)
    return np.asarray(sp.special.ndtri(np.clip(shares, 0.25 / draws, 1 - 0.25 / draws)))


def _most_likely(shares: Floats, table: Floats, target: float, parts: Parts = _ONE) -> Floats:
    """The most likely distribution with a target tau, from one with a tau nearby.

    Maximizes sum(shares log p) subject to tau(p) = target, by solving the problem with tau linearized (an empirical
    likelihood: Owen 1988) and using as much of every step as brings tau nearer, until convergence.
    """
    weight = 0.7
    tau, influence = _slope(table, parts)
    for _ in range(40):
        if abs(tau - target) < 1e-4 or influence.max() < 1e-9:
            break
        # Within the reach of cell weights on tau: beyond, no multiplier keeps them positive.
        low, high = max(-0.1, 0.9 * influence.min()), min(0.1, 0.9 * influence.max())
        gap = influence - min(max(target - tau, low), high)
        nearest = shares / (1 + _multiplier(shares, gap) * gap)
        tried = (1 - weight) * table + weight * nearest / nearest.sum()
        reached, influence_there = _slope(tried, parts)
        if abs(reached - target) < abs(tau - target):
            table, tau, influence = tried, reached, influence_there
            weight = min(0.9, 1.5 * weight)
        else:
            weight /= 3
    return table


def _multiplier(shares: Floats, gap: Floats) -> float:
    """The m with sum(shares gap / (1 + m gap)) = 0 for which all 1 + m gap > 0."""
    low, high = (float(edge) * (1 - 1e-9) for edge in (-1 / gap.max(), -1 / gap.min()))
    at, products = 0.0, shares * gap
    for _ in range(60):
        below = 1 + at * gap
        value = float((products / below).sum())
        if abs(value) < 1e-10:
            break
        low, high = (at, high) if value > 0 else (low, at)
        newton = at + value / float((shares * (gap / below) ** 2).sum())
        at = newton if low < newton < high else (low + high) / 2
    return at


def _values(tables: npt.NDArray[Any], parts: Parts) -> Floats:
    """tau and rho of tables (B, ...), or the first's less the second's: shape (2, B)."""
    # Tables last: the following operations then run over rows as long as the number of tables.
    turned = np.ascontiguousarray(np.moveaxis(tables, 0, -1), dtype=np.float64)
    if parts == _ONE:
        return _tau_and_rho(turned)
    return reduce(np.subtract, [_tau_and_rho(turned.sum(axis=axes)) for axes in parts])


def _slope(table: Floats, parts: Parts) -> tuple[float, Floats]:
    """tau of a table of shares, or the difference; and its derivative by every cell's share."""
    if parts == _ONE:
        return _tau_and_influence(table)
    taus, influences = zip(
        *(_tau_and_influence(table.sum(axis=axes)) for axes in parts), strict=True
    )
    expanded = map(np.expand_dims, influences, parts)
    return reduce(sub, taus), reduce(np.subtract, expanded)


def _net(table: Floats) -> Floats:
    """For each cell, the weight of its concordant cells less that of its discordant ones."""
    upto = table.cumsum(axis=1)
    by_row = 2 * upto - table - upto[:, -1:]
    above = by_row.cumsum(axis=0)
    return np.asarray(2 * above - by_row - above[-1:])


def _tau_and_rho(tables: Floats) -> Floats:
    """tau-b and rho of tables of n queries (I, J, B): shape (2, B); NaN if a side is constant."""
    by_x, by_y = tables.sum(axis=1), tables.sum(axis=0)
    n = float(by_x[:, 0].sum())
    free = [n**2 - (margin**2).sum(axis=0) for margin in (by_x, by_y)]
    # The sum of the squares of ranks: a third of n^3 less the cubes of the margin, without their cancellation.
    spread = [(m * (n - m) * (n + m)).sum(axis=0) / 3 for m in (by_x, by_y)]
    if 2 in tables.shape[:2]:  # both follow from the ranks on the other side (``pairs``)
        greater, margin = (tables[1], by_y) if len(tables) == 2 else (tables[:, 1], by_x)
        score = (greater * _ranks(margin, n)).sum(axis=0)
        shared = n * score
    else:
        score = _score(tables)
        shared = ((tables * _ranks(by_y, n)).sum(axis=1) * _ranks(by_x, n)).sum(axis=0)
    defined = (free[0] > 0) & (free[1] > 0)
    below = [np.sqrt(np.where(defined, a * b, 1)) for a, b in (free, spread)]
    return np.where(defined, np.stack([2 * score / below[0], shared / below[1]]), np.nan)


def _ranks(margin: Floats, n: float) -> Floats:
    """Twice the mid-rank per value (I, B) less the mean rank: the weight below less that above."""
    ranks, below = np.empty_like(margin), np.array(-n)
    for rank, amount in zip(ranks, margin, strict=True):
        np.add(below, amount, out=rank)
        below = rank + amount
    return ranks


def _shares_tau_and_rho(table: Floats) -> Floats:
    """tau-b and rho of a single table of shares, neither side constant: shape (2,)."""
    n = table.sum()
    margins = [table.sum(axis=axis) for axis in (1, 0)]
    ranks = [2 * np.cumsum(margin) - margin - n for margin in margins]
    free = [n**2 - (margin**2).sum() for margin in margins]
    spread = [(margin * rank**2).sum() for margin, rank in zip(margins, ranks, strict=True)]
    score, shared = (table * _net(table)).sum(), np.einsum("ij,i,j->", table, *ranks)
    return np.array([score, shared]) / np.sqrt([free[0] * free[1], spread[0] * spread[1]])


def _score(tables: Floats) -> Floats:
    """The weight of concordant pairs in every table (I, J, B) less that of discordant ones."""
    score = np.zeros(tables.shape[-1])
    above = np.zeros(tables.shape[1:])
    for row in tables:
        # Per column, the weight to its left in the rows above, less that to its right.
        net = -above.sum(axis=0)
        for weight, seen in zip(row, above, strict=True):
            net += seen
            score += weight * net
            net += seen
        above += row
    return score


def _tau_and_influence(table: Floats) -> tuple[float, Floats]:
    """tau-b of a table of shares, and its derivative by every cell's share (sum 0)."""
    net = _net(table)
    score = float((table * net).sum())
    by_x, by_y = table.sum(axis=1), table.sum(axis=0)
    tied_x, tied_y = float((by_x**2).sum()), float((by_y**2).sum())
    scale = float(np.sqrt((1 - tied_x) * (1 - tied_y)))
    tau = score / scale
    margins = ((by_x - tied_x) / (1 - tied_x))[:, None] + ((by_y - tied_y) / (1 - tied_y))[None, :]
    return tau, 2 * (net - score) / scale + tau * margins


Method = Literal["percentile", "studentized", "inverted"]

LEAST_QUERIES = 11
# With fewer queries that have another value than the most frequent one, a test is inverted.
FEW_RARER = 10
# If the table is too large for that, each side needs this many such queries, or ``FEW_RARER`` if both sides are mostly
# one value: a limit of ten elsewhere would select samples by chance. Tau grows with the share of right answers, so that
# samples with ten such queries by chance, instead of an expected six, have intervals that hold too seldom.
LEAST_OF_MANY = 3
# Resampling holds from here on: a side's rarer queries occur often enough in every resample.
ENOUGH_TO_RESAMPLE = 50
# For sides that are both mostly one value: least queries in the emptiest corner, by expectation under independence and
# in the sample. With fewer, a corner is empty too often.
_EXPECTED_IN_CORNER = 15
_SEEN_IN_CORNER = 5
# With fewer queries expected to be rarer on both sides, only tables work.
_LEAST_IN_CORNER = 5


class Side(NamedTuple):
    """One score of n queries."""

    mode: float  # its most frequent value, the smallest in a tie
    values: int  # number of distinct ones
    rarer: Mask  # (n,) whether a query has another value than ``mode``

    @property
    def amount(self) -> int:
        """The number of queries with a rarer value."""
        return int(self.rarer.sum())


def side(scores: Floats) -> Side:
    values, counts = np.unique(scores, return_counts=True)
    mode = values[counts.argmax()]
    return Side(float(mode), len(values), scores != mode)


def method_for(x: Side, y: Side) -> tuple[Method | None, str]:
    """The method for a measure (x) and an end-to-end score (y); or None, and why there is no interval.

    - ``inverted``: both sides are binary; or a side has fewer than 10 queries with a rarer value, or both
      are mostly one value and hardly a query is rarer on both, and the table of their values is not too large.
    - ``studentized``: a side has fewer than 50 queries with a rarer value.
    - ``percentile`` (of resamples), elsewhere.
    """
    n = len(x.rarer)
    if n < LEAST_QUERIES:
        return None, f"no interval: {n} queries are too few"
    if x.values == y.values == 2:
        return "inverted", ""
    expected = x.amount * y.amount / n
    thin = _corner_is_thin(x, y, expected)
    few = min(x.amount, y.amount) < FEW_RARER
    if (thin or few) and x.values * y.values <= MOST_CELLS:
        return "inverted", ""
    least = FEW_RARER if thin else LEAST_OF_MANY
    for what, score in (("measure", x), ("end-to-end score", y)):
        if score.amount < least:
            return None, (
                f"no interval: the {what} is {score.mode:g} for {n - score.amount} of {n} queries, "
                f"and anything else for fewer than {least}"
            )
    if thin and expected < _LEAST_IN_CORNER:
        return None, (
            "no interval: measure and end-to-end score are mostly one value, and their other "
            "values hardly meet"
        )
    few = min(x.amount, y.amount) < ENOUGH_TO_RESAMPLE
    return ("studentized" if few else "percentile"), ""


def _corner_is_thin(x: Side, y: Side, expected: float) -> bool:
    if 2 * max(x.amount, y.amount) > len(x.rarer):
        return False
    corners = np.bincount(2 * x.rarer + y.rarer, minlength=4)
    return expected < _EXPECTED_IN_CORNER or int(corners.min()) < _SEEN_IN_CORNER


# Share of the others' spread added to the spread of the rarer queries, three of which may have almost the same score by
# chance: without it intervals of three to five right answers hold in 90% to 93% of samples.
_AS_THE_OTHERS = 0.1


def studentized(
    estimate: float, without: Floats, rarer: Mask, *, confidence: float
) -> tuple[float, float, float]:
    """The interval and the test, from the leave-one-out values of a correlation.

    The standard error is the jackknife's, summed over three sources: the rarer queries (plus a tenth of a query that is
    spread as the others are), the others, and the number of both kinds. With few rarer queries the error is uncertain:
    quantiles are from Student's t, with Satterthwaite's (1946) degrees of freedom, as in the test of Brunner & Munzel
    (2000), on Fisher's scale artanh(tau), so that bounds lie within -1 and 1. The p-value of the hypothesis of 0 is 1
    less the confidence at which the interval just reaches 0. All are NaN if the estimate is -1 or 1, because the
    variance is then unknown.

    Args:
        without: shape (n,), the correlation without each query; finite.
        rarer: shape (n,), queries without the most frequent value of the sparser side, as in ``standard_error``.
    """
    n = len(without)
    if abs(estimate) > 1 - 1e-9:
        return math.nan, math.nan, math.nan
    influence = (n - 1) / n * (without.mean() - without)
    added = _AS_THE_OTHERS / (np.count_nonzero(rarer) - 1)
    error, freedom = standard_error(influence, rarer, as_the_others=added)
    error /= 1 - estimate**2
    quantile = float(sp.special.stdtrit(freedom, (1 + confidence) / 2))
    middle, reach = math.atanh(estimate), quantile * error
    p = 2 * float(sp.special.stdtr(freedom, -abs(middle) / error)) if error else float(middle == 0)
    return math.tanh(middle - reach), math.tanh(middle + reach), p


def standard_error(influence: Floats, rarer: Mask, *, as_the_others: float) -> tuple[float, float]:
    """The standard error of a statistic by kinds of queries, and its degrees of freedom (Satterthwaite 1946).

    Args:
        influence: shape (n,), derivative of the statistic by every query's weight; sum 0.
        rarer: shape (n,), two or more. If they are half of the queries or more, all count as one kind.
        as_the_others: share of the others' variance added to that of the rarer ones.
    """
    n = len(influence)
    kinds = [influence[rarer], influence[~rarer]]
    # Sums of squares by source, and their degrees of freedom.
    sources = [(float(influence.var(ddof=1)) * n, n - 1)]
    if 2 * len(kinds[0]) < n:
        few, many = (len(kind) for kind in kinds)
        own, others = (float(kind.var(ddof=1)) for kind in kinds)
        # If spread as the others are, influences of the few would be many / few times as large.
        own += as_the_others * others * (many / few) ** 2
        apart = float(kinds[0].mean() - kinds[1].mean())
        sources = [(own * few, few - 1), (others * many, many - 1)]
        sources.append((few * many / n * apart**2, n - 1))
    total = sum(square for square, _ in sources)
    squares = sum(square**2 / degrees for square, degrees in sources)
    return math.sqrt(total), total**2 / squares if squares else float(n - 1)
