"""Runs whose keys are texts of queries, or whose documents are texts of passages, as in the eRAG package."""

from __future__ import annotations

import polars as pl

from engine.sources.runs.texts import ID, with_ids
from engine.tables import DOC_ID, QUERY, QUERY_ID, RANK, RUN, TEXT


def keyed_by_id(runs: pl.DataFrame, queries: pl.DataFrame) -> pl.DataFrame:
    """The runs, with query ids instead of query texts in those that have no known id."""
    known = runs.join(queries, on=QUERY_ID, how="semi")[RUN].unique()
    if len(known) == runs[RUN].n_unique():
        return runs
    return pl.concat(
        run if run[RUN][0] in known else keyed_by_text(run, queries)
        for run in runs.partition_by(RUN, maintain_order=True)
    )


def keyed_by_text(run: pl.DataFrame, queries: pl.DataFrame) -> pl.DataFrame:
    """Lists in order whose keys are texts of queries, with the id of each query that has the text."""
    ids = queries.select(pl.col(QUERY).alias(QUERY_ID), pl.col(QUERY_ID).alias(ID))
    return with_ids(run, ids, QUERY_ID).sort(QUERY_ID, RANK)


def ids_of_texts(passages: pl.DataFrame) -> pl.DataFrame:
    """What ``with_ids`` needs to name documents that are given by the texts of these passages."""
    return passages.select(pl.col(TEXT).alias(DOC_ID), pl.col(DOC_ID).alias(ID))
