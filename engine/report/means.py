"""The mean of scores over queries, with its interval."""

from __future__ import annotations

import math
from dataclasses import dataclass

import polars as pl

from engine.statistics import bounded
from engine.statistics.cells import Ints


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
