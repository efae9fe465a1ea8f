"""Permutation tests and intervals for the difference of two correlations if few queries decide.

A share of bootstrap resamples beyond 0 is a valid p-value only if every combination of values has enough queries: with
three right answers in 64, which resamples repeat, it rejects a true hypothesis several times too often. Here the
difference is divided by its standard error, and permuted outcomes give the chance distribution of the quotient:

- The standard error is the infinitesimal jackknife's: the root of the sum of the squared influences of the queries on
  the difference (Efron 1982, The Jackknife, the Bootstrap and Other Resampling Plans, chapter 6).
- Under a permutation the queries keep their two measure scores, and the outcomes are shuffled. The test is exact at any
  number of queries if the outcomes are independent of both measures. If both correlations are equal and not 0, the
  quotient has the same limiting distribution, since it is divided by the standard error (Janssen 1997; Chung & Romano
  2013; for correlations DiCiccio & Romano 2017).
- With fewer than 15 right (or wrong) answers, a wider spread of measure scores among these few would still look like a
  difference: then the p-value is the larger of the permutation's and that of Student's t, as in the test of Brunner &
  Munzel (2000; ``methods.standard_error``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy as sp

from engine.statistics.arrays import Floats, Ints, Scores
from engine.statistics.methods import side, standard_error
from engine.statistics.resampling import Draws, for_each_block_of_orders

# Differences and standard errors below these are rounding errors of 0. Both are of the order of 1 / n.
_NO_DIFFERENCE = 1e-12
_NO_ERROR = 1e-9
# Quotients that differ by less than this share are equal: the order of their sums differs.
_ROUNDING = 1e-9
# benchmarks/intervals.py justifies the rules below. With fewer queries expected in the rarest combination of values,
# the jackknife rejects too often.
_LEAST_EXPECTED = 50
# With fewer expected there, in both measures, no symmetric interval holds.
_LEAST_FOR_INTERVAL = 5
# With fewer queries of the rarer outcome, a permutation cannot detect that they are spread more widely than the others,
# so Student's t sets a floor; with fewer than the least number, neither can.
_FEW_OF_AN_OUTCOME = 15
LEAST_OF_AN_OUTCOME = 3
# Share of the others' variance added to the variance of few queries. Otherwise right answers that one measure spreads
# twice as widely as the other pass for a difference in 6% to 10% of samples.
_AS_THE_OTHERS = 0.15
# Work of a permutation, in steps of about 10 ns: for n queries 8 n, plus, with more than two values on both sides, n
# times the lesser number of values. Within the first limit (4 s on one thread) permutations are as many as resamples;
# beyond the second not even the least number ends in 40 s.
_STEPS = 8
_WORK = 4e8
_LEAST_PERMUTATIONS = 999
_MOST_WORK = 4e6


class Side(NamedTuple):
    """One score of n queries, prepared for permutations."""

    codes: Ints  # (n,) rank of every query's value among the v distinct values
    order: Ints  # (n,) queries by value
    ends: Ints  # (v,) the last place of each value in ``order``
    ranks: Floats  # (n,) queries below less queries above
    free: float  # pairs of queries that are not tied
    spread: float  # sum of the squares of ``ranks``
    free_slope: Floats  # (n,) relative change of ``free`` with a query's weight
    spread_slope: Floats

    @property
    def values(self) -> int:
        return len(self.ends)


def prepare(score: Floats) -> Side:
    """Prepare a score, shape (n,), not constant."""
    codes = np.unique(score, return_inverse=True)[1].reshape(-1)
    counts = np.bincount(codes)
    n, upto = len(codes), np.cumsum(counts)
    by_value = (2 * upto - counts - n).astype(np.float64)
    free = (n**2 - float((counts.astype(np.float64) ** 2).sum())) / 2
    amounts = counts * by_value
    spread = float(amounts @ by_value)
    # More weight on a query l moves the rank of every other by the sign of its distance from l.
    moved = amounts.sum() - 2 * np.cumsum(amounts) + amounts
    return Side(
        codes=codes,
        order=np.argsort(codes, kind="stable"),
        ends=upto - 1,
        ranks=by_value[codes],
        free=free,
        spread=spread,
        free_slope=((n - counts) / free)[codes],
        spread_slope=((by_value**2 + 2 * moved) / spread)[codes],
    )


# A measure and an outcome of the same n queries.
Pair = tuple[Side, Side]


def influences(pair: Pair, orders: Ints) -> tuple[Floats, Floats]:
    """tau-b and rho (2, B) under permuted outcomes, and the influence of every query on them (2, B, n).

    The influence of a query is the derivative with respect to its weight, at weights of 1; influences sum to 0. In order
    b of ``orders`` (B, n), query i gets the outcome of query ``orders[b, i]``.
    """
    x, y = pair
    n = orders.shape[1]
    net = _net_concordance(x, y, orders)
    score = net.sum(axis=1, keepdims=True) / 2  # it counts every two queries twice
    if min(x.values, y.values) == 2:
        # The greater of two values ranks at the number of queries with the smaller, and the reverse.
        shared, shared_net = n * score, n * net + score
    else:
        permuted = y.ranks[orders]
        product = x.ranks * permuted
        shared = product.sum(axis=1, keepdims=True)
        back = np.argsort(orders, axis=1)
        across = np.take_along_axis(_against(y, x.ranks[back]), orders, axis=1)
        shared_net = product - _against(x, permuted) - across
    values, influence = np.empty((2, len(orders))), np.empty((2, *orders.shape))
    tau = score, net, math.sqrt(x.free * y.free), x.free_slope, y.free_slope
    rho = shared, shared_net, math.sqrt(x.spread * y.spread), x.spread_slope, y.spread_slope
    for place, (whole, own, root, x_slope, y_slope) in enumerate((tau, rho)):
        value = whole / root
        values[place] = value[:, 0]
        change = np.take(y_slope, orders)
        change += x_slope
        change *= value / 2
        np.divide(own, root, out=influence[place])
        influence[place] -= change
    return values, influence


def _net_concordance(x: Side, y: Side, orders: Ints) -> Floats:
    """(B, n) per query: its concordant queries less its discordant ones, outcomes permuted."""
    if x.values < y.values:
        return np.take_along_axis(_net_by_value(y, x, np.argsort(orders, axis=1)), orders, axis=1)
    return _net_by_value(x, y, orders)


def _net_by_value(fixed: Side, dealt: Side, orders: Ints) -> Floats:
    """The same, one value at a time of the permuted side, which has fewer."""
    codes = dealt.codes[orders]
    if dealt.values == 2:
        greater = codes.astype(np.float64)
        net: Floats = greater * fixed.ranks
        net -= _against(fixed, greater)
        return net
    net, below = np.zeros((2, *orders.shape))
    for value in range(dealt.values):
        equal = (codes == value).astype(np.float64)
        own = _against(fixed, equal)
        # Against smaller values, less against greater ones.
        net += equal * (2 * below + own - fixed.ranks)
        below += own
    return net


def _against(side: Side, amounts: Floats) -> Floats:
    """(B, n) per query: amounts of queries with a smaller value less amounts with a greater one."""
    upto = np.cumsum(np.take(amounts, side.order, axis=1), axis=1)
    total = upto[:, -1:]
    if side.values < len(side.codes):
        upto = np.take(upto, side.ends, axis=1)
    result = upto - total
    result[:, 1:] += upto[:, :-1]
    return np.take(result, side.codes, axis=1)


def studentized(first: Pair, second: Pair, orders: Ints) -> tuple[Floats, Floats]:
    """Differences of tau and rho under permuted outcomes, and their standard errors: each (2, B)."""
    values, influence = influences(first, orders)
    other_values, other_influence = influences(second, orders)
    influence -= other_influence
    return values - other_values, np.sqrt(np.einsum("sbn,sbn->sb", influence, influence))


def quotients(differences: Floats, errors: Floats) -> Floats:
    """Differences by their standard errors; infinite for a difference without any error."""
    there = np.abs(differences) > _NO_DIFFERENCE
    certain = errors < _NO_ERROR
    with np.errstate(divide="ignore", invalid="ignore"):
        finite = differences / np.where(certain, 1.0, errors)
    return np.where(there, np.where(certain, np.copysign(np.inf, differences), finite), 0.0)


@dataclass(frozen=True)
class DifferenceTest:
    """Result of the permutation test of a difference of two correlations.

    ``p`` is two-sided, of the hypothesis that both are equal; in (0, 1]. 0 is outside the interval just if p is at most
    1 - confidence. Bounds are NaN if the standard error is 0 on the sample, or on more than a share of 1 - confidence
    of the permutations.
    """

    p: float
    low: float = math.nan
    high: float = math.nan


def difference_test(
    difference: float,
    error: float,
    permuted: Floats,
    *,
    confidence: float,
    floor: tuple[float, float] | None = None,
) -> DifferenceTest:
    """The test of a single difference, from its quotient and those under permutation.

    p = (1 + r) / (1 + B), where r of B permuted quotients are at least as far from 0 as the observed one. The interval
    is the difference plus or minus the quantile of their absolute values times the standard error, cut at -2 and 2.

    Args:
        difference, error: on the sample; the standard error is 0 or more.
        permuted: (B,) quotients.
        floor: another standard error and the degrees of freedom of its t-distribution, whose p-value and interval apply
            if larger; None for only the permutations.
    """
    observed = abs(float(quotients(np.array(difference), np.array(error))))
    distances = np.sort(np.abs(permuted))
    resamples = len(distances)
    as_far = resamples - int(np.searchsorted(distances, observed * (1 - _ROUNDING)))
    p = (1 + as_far) / (1 + resamples)
    least = 0.0
    if floor is not None:
        distance = abs(float(quotients(np.array(difference), np.array(floor[0]))))
        p = max(p, 2 * float(sp.special.stdtr(floor[1], -distance)))
        least = floor[0] * float(sp.special.stdtrit(floor[1], (1 + confidence) / 2))
    # The greatest number of permuted quotients that may be as extreme as a quotient outside of the interval.
    allowed = math.floor((1 - confidence) * (1 + resamples) + _ROUNDING) - 1
    if allowed < 0:
        return DifferenceTest(p)
    level = float(distances[resamples - 1 - allowed])
    if not math.isfinite(level) or (error < _NO_ERROR and abs(difference) > _NO_DIFFERENCE):
        return DifferenceTest(p)
    margin = max(level * error, least)
    return DifferenceTest(p, max(-2.0, difference - margin), min(2.0, difference + margin))


def enough_for_jackknife(pairs: Sequence[Scores]) -> bool:
    """Whether studentized intervals and p-values hold for the difference of the pairs' correlations.

    They do with 50 or more queries in the rarest combination of values, if the sides were independent: the queries
    without the measure's most frequent value, times the queries without the outcome's, by all queries. ``pairs`` holds
    measure and outcome per correlation, all of shape (n,).
    """
    return all(side(x).amount * side(y).amount >= _LEAST_EXPECTED * len(x) for x, y in pairs)


def untestable(pairs: Sequence[Scores]) -> str:
    """Why permutations cannot compare the correlations of these pairs; empty if they can."""
    fewest = min(side(y).amount for _, y in pairs)
    if fewest < LEAST_OF_AN_OUTCOME:
        return (
            f"no p-value and no interval: {fewest} of {len(pairs[0][1])} end-to-end scores differ from the most "
            f"frequent one, and a test needs {LEAST_OF_AN_OUTCOME}"
        )
    if _work(pairs) > _MOST_WORK:
        return (
            "no p-value and no interval: nearly all queries have the same score on one side, and the scores on "
            "the others have too many values for a permutation test"
        )
    return ""


def without_interval(pairs: Sequence[Scores], tests: Sequence[DifferenceTest]) -> str:
    """Why the permutations give no valid interval; empty if they do.

    If both measures are nearly constant, the difference rests on a handful of queries that differ from the rest on both
    sides. Often the sample has no such query, and then its standard error is far too small.
    """
    if any(math.isnan(test.low) for test in tests):
        return "no interval: the standard error of the difference is 0"
    nearly_constant = all(
        2 * side(x).amount < len(x)
        and side(x).amount * side(y).amount < _LEAST_FOR_INTERVAL * len(x)
        for x, y in pairs
    )
    why = (
        "no interval: most queries have the same score by either measure, and fewer than "
        f"{_LEAST_FOR_INTERVAL} of the others are expected among the rarer end-to-end scores"
    )
    return why if nearly_constant else ""


def permutations_for(pairs: Sequence[Scores], resamples: int) -> int:
    """Number of permutations: as many as resamples, or as a limit of work allows, 999 or more."""
    return min(resamples, max(_LEAST_PERMUTATIONS, int(_WORK / _work(pairs))))


def _work(pairs: Sequence[Scores]) -> float:
    fewer = ((len(x), min(side(x).values, side(y).values)) for x, y in pairs)
    return float(sum(n * (_STEPS + (values if values > 2 else 0)) for n, values in fewer))


def permutation_test(
    first: Pair,
    second: Pair,
    *,
    permutations: int,
    confidence: float,
    seed: int,
    threads: int | None = None,
) -> tuple[DifferenceTest, DifferenceTest]:
    """Test that two correlations over the same n queries are equal, by tau-b and by rho.

    The outcomes of ``first`` and of ``second`` (shared, or of two runs) are permuted together, in one or more orders.
    """
    n = len(first[0].codes)
    permuted = np.empty((2, permutations))

    def deal(start: int, orders: Ints) -> None:
        permuted[:, start : start + len(orders)] = quotients(*studentized(first, second, orders))

    for_each_block_of_orders(n, deal, Draws(permutations, seed, threads))
    (values, influence), (others, other_influence) = (
        influences(pair, np.arange(n)[None, :]) for pair in (first, second)
    )
    differences, influence = (values - others)[:, 0], (influence - other_influence)[:, 0]
    rarer = min((side(y.ranks).rarer for _, y in (first, second)), key=np.count_nonzero)
    few = np.count_nonzero(rarer) < _FEW_OF_AN_OUTCOME
    tau, rho = (
        difference_test(
            float(difference),
            math.sqrt(own @ own),
            drawn,
            confidence=confidence,
            floor=standard_error(own, rarer, as_the_others=_AS_THE_OTHERS) if few else None,
        )
        for difference, own, drawn in zip(differences, influence, permuted, strict=True)
    )
    return tau, rho
