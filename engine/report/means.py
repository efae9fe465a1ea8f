"""The mean of scores over queries, with its interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

import polars as pl

from engine.statistics import bounded
from engine.statistics.arrays import Ints
from engine.statistics.comparison import Clusters
from engine.statistics.correlation import Bootstrap
from engine.statistics.runs import in_order
from engine.statistics.until import decided
from engine.tables import QUERY_ID, VALUE


@dataclass(frozen=True)
class Interval:
    """A mean and the bounds of its interval, NaN where there is none; of ``n`` queries."""

    value: float
    low: float
    high: float
    n: int


def mean_interval(values: pl.Series, confidence: float, clusters: Ints | None = None) -> Interval:
    """The mean of scores over queries with its interval.

    That of Clopper & Pearson for scores of 0 and 1, Gaffke's for others in [0, 1] (``bounded``). NaN bounds
    where some score lies elsewhere.
    """
    mean, n = float(values.mean()), len(values)  # type: ignore[arg-type]
    if float(values.min()) < 0 or float(values.max()) > 1:  # type: ignore[arg-type]
        return Interval(mean, math.nan, math.nan, n)
    low, high = bounded.mean_interval(values.to_numpy(), confidence, clusters)
    return Interval(mean, low, high, n)


def mean_until(scores: pl.DataFrame, bootstrap: Bootstrap, clusters: Clusters) -> Interval:
    """The same with the confidence sequence of queries (``query_id``) in the order of reading (``in_order``)."""
    numbers, most = in_order(scores[QUERY_ID], bootstrap.seed, clusters)
    values, numbers = scores[VALUE].to_numpy()[numbers.arg_sort()], numbers.sort()
    if values.min() < 0 or values.max() > 1:
        return Interval(float(values.mean()), math.nan, math.nan, len(values))
    level, codes = bootstrap.confidence, numbers.to_numpy()
    (found,) = decided([values], confidence=level, clusters=codes, most=most)
    return Interval(found.value, max(found.low, 0.0), found.high, found.n)
