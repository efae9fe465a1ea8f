"""Which method makes the interval of a correlation: that depends on how thin the data are.

The limits are from simulations (``benchmarks.intervals``): under each method 95% intervals hold
the true value in 93% of the samples or more, also where few answers are right or nearly all lists
succeed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from engine.statistics.arrays import Floats, Mask
from engine.statistics.inversion import MOST_CELLS

Method = Literal["percentile", "studentized", "inverted"]

LEAST_QUERIES = 11
# With fewer queries that have another value than the most frequent one, a test is inverted.
FEW_RARER = 10
# Where the table is too large for that, each side needs so many where both are mostly one value, and fewer
# elsewhere: ten would choose samples by chance. Tau grows with the share of right answers, so that intervals of
# samples which happen to have ten where six are expected hold too seldom.
LEAST_OF_MANY = 3
# From here on resampling holds: a side's rarer queries occur often enough in every resample.
ENOUGH_TO_RESAMPLE = 50
# Where both sides are mostly one value: queries that would be rarer on both if the sides were
# independent, and that are seen in the emptiest corner. Fewer, and a corner is empty too often.
_EXPECTED_IN_CORNER = 15
_SEEN_IN_CORNER = 5
# Queries expected to be rarer on both sides below which nothing but tables will do.
_LEAST_IN_CORNER = 5


@dataclass(frozen=True)
class Side:
    """One score of n queries.

    Attributes:
        mode: its most frequent value, the smallest of equally frequent ones.
        values: how many values it has.
        rarer: shape (n,), whether a query has another value than ``mode``.
    """

    mode: float
    values: int
    rarer: Mask

    @property
    def amount(self) -> int:
        """Queries with a rarer value."""
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
    for what, one in (("measure", x), ("end-to-end score", y)):
        if one.amount < least:
            return None, (
                f"no interval: the {what} is {one.mode:g} for {n - one.amount} of {n} queries, "
                f"and anything else for fewer than {least}"
            )
    if thin and expected < _LEAST_IN_CORNER:
        return None, (
            "no interval: measure and end-to-end score are mostly one value, and their other "
            "values hardly meet"
        )
    if min(x.amount, y.amount) < ENOUGH_TO_RESAMPLE:
        return "studentized", ""
    return "percentile", ""


def _corner_is_thin(x: Side, y: Side, expected: float) -> bool:
    if 2 * max(x.amount, y.amount) > len(x.rarer):
        return False
    corners = np.bincount(2 * x.rarer + y.rarer, minlength=4)
    return expected < _EXPECTED_IN_CORNER or int(corners.min()) < _SEEN_IN_CORNER
