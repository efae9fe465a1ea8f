"""The queries of an evaluation by number: their buckets, and what their ids are found by."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from engine.sources.io.places import Places
from engine.sources.queries.buckets import buckets_of
from engine.tables import QUERY, QUERY_ID


@dataclass(frozen=True, eq=False)
class QueryKeys:
    """The queries of an evaluation, by number.

    Attributes:
        table: the queries table, of all queries of the file.
        evaluated: how many are evaluated: the first ones.
        buckets: the bucket of each.
        numbers: the number of each id.
        order: of each, its place among all of them in the order of their ids.
    """

    table: pl.DataFrame
    evaluated: int
    buckets: npt.NDArray[np.int64]
    numbers: Places
    order: npt.NDArray[np.uint32]


def query_keys(queries: pl.DataFrame, limit: int | None) -> QueryKeys:
    """The queries of an evaluation that is limited to the first ones, if it is."""
    return QueryKeys(
        table=queries,
        evaluated=queries.height if limit is None else min(limit, queries.height),
        buckets=buckets_of(queries[QUERY]),
        numbers=Places(queries[QUERY_ID]),
        order=queries[QUERY_ID].rank("ordinal").to_numpy().astype(np.uint32),
    )
