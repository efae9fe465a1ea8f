"""The order in which queries are read in rounds: drawn by the seed, cluster after cluster, what was read before first.

A verdict at any time is one of a sequence of queries. Those that are added to a file come behind those that an evaluation
has read: the next one goes on with the sequence of the last, and their verdicts hold together. So the read store keeps the
order for each seed. How much was read depends on scores, through the stop; which query is the next one never does.
"""

from __future__ import annotations

import polars as pl

from engine.sources.io.folders import Folder
from engine.statistics.runs import place_of
from engine.tables import CLUSTER, QUERY, QUERY_ID

_KEPT = "reading-order-{}.txt"


def reading_order(
    queries: pl.DataFrame, seed: int, *, by_cluster: bool = False, store: Folder | None = None
) -> pl.DataFrame:
    """All queries with the clusters that they are read in (``tables.CLUSTERS``), numbered in the order of reading.

    Args:
        by_cluster: whether those of a ``cluster`` are read together; else each query is one by itself.
        store: in which the order of earlier evaluations is kept; None for that of the seed alone.
    """
    unit = pl.col(CLUSTER if by_cluster else QUERY_ID)
    first = queries.select(pl.col(QUERY_ID).first().over(unit)).to_series()
    kept = {key: n for n, key in enumerate(_kept(store, seed))} if store else {}
    before = _keys(queries).replace_strict(kept, default=len(kept), return_dtype=pl.Int64)
    placed = queries.with_columns(place_of(first, seed).alias("place"), before.alias("before"))
    number = pl.struct(pl.col("before").min().over(unit), "place").rank("dense").cast(pl.Int64) - 1
    return placed.select(QUERY_ID, number.alias(CLUSTER))


def keep_order(
    queries: pl.DataFrame, order: pl.DataFrame, last: int, store: Folder, seed: int
) -> None:
    """Note in the store that clusters up to the number ``last`` are read, behind all that were before."""
    read = order.filter(pl.col(CLUSTER) <= last).sort(CLUSTER, maintain_order=True)
    kept = dict.fromkeys(before := _kept(store, seed))
    kept |= dict.fromkeys(_keys(read.join(queries, on=QUERY_ID, maintain_order="left")))
    if len(kept) > len(before):
        store.write(_KEPT.format(seed), "\n".join(kept).encode())


def _kept(store: Folder, seed: int) -> list[str]:
    try:
        return store.read(_KEPT.format(seed)).decode().split()
    except (FileNotFoundError, NotADirectoryError):
        return []


def _keys(queries: pl.DataFrame) -> pl.Series:
    """A digest of each query's id and text: other data sets may have the same ids."""
    return place_of(queries[QUERY_ID] + " " + queries[QUERY], 0)
