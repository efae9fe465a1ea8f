"""The mean of scores over queries, with its interval."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass

import polars as pl

from engine.statistics import bounded
from engine.statistics.arrays import Ints
from engine.statistics.cells import Clusters
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
    """The mean of ``value``, with the confidence sequence of queries (``query_id``) in the order of reading.

    The clusters of all queries are numbered in this order; None for that of the seed alone, in results of earlier versions.
    """
    clusters = clusters or in_order(scores[QUERY_ID], bootstrap.seed)
    place = scores[QUERY_ID].replace_strict(clusters, return_dtype=pl.Int64)
    values = scores.sort(place, maintain_order=True)[VALUE].to_numpy()
    (found,) = decided(
        [values],
        confidence=bootstrap.confidence,
        largest=max(1.0, float(values.max())),
        clusters=place.sort().to_numpy(),
        most=max(Counter(clusters.values()).values()),
    )
    return Interval(found.value, max(found.low, min(0.0, float(values.min()))), found.high, found.n)
