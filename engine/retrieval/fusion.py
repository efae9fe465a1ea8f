"""Reciprocal rank fusion: one run from the lists of several."""

from __future__ import annotations

import polars as pl

from engine import tables
from engine.tables import DOC_ID, QUERY_ID, RANK, RUN, SCORE

RRF_K = 60


def reciprocal_rank(
    runs: pl.DataFrame, *, k: int, name: str = "rrf", constant: int = RRF_K
) -> pl.DataFrame:
    """Fuse runs: ``score(q, d) = sum over runs that list d of 1 / (constant + rank(q, d))``.

    The runs' scores matter only through the ranks. Equal sums are ordered by document id. The
    result does not depend on the order of the runs: terms are added in ascending order.

    Args:
        runs: the run table of several systems; a query may be missing from some of them.
        constant: the k of the literature, 0 or more; 60 (Cormack, Clarke & Büttcher 2009).
    """
    term = (1 / (constant + pl.col(RANK))).alias(SCORE)
    return (
        runs.select(QUERY_ID, DOC_ID, term)
        .sort(QUERY_ID, DOC_ID, SCORE)
        .group_by(QUERY_ID, DOC_ID, maintain_order=True)
        .agg(pl.col(SCORE).sum())
        .sort(QUERY_ID, SCORE, DOC_ID, descending=[False, True, False])
        .with_columns(
            pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over(QUERY_ID).alias(RANK),
            pl.lit(name).alias(RUN),
        )
        .filter(pl.col(RANK) <= k)
        .select(list(tables.RUNS))
    )
