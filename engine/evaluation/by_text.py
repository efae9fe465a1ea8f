"""Runs whose keys are texts of queries, or whose documents are texts of passages, as in the eRAG package."""

from __future__ import annotations

import polars as pl

from engine.sources.io.locations import Location
from engine.sources.passages.read import first_with, scan_corpus
from engine.sources.runs.texts import ID, with_ids
from engine.tables import DOC_ID, QUERY, QUERY_ID, RANK, RUN, TEXT


def keyed_by_id(runs: pl.DataFrame, queries: pl.DataFrame) -> pl.DataFrame:
    """The runs, with query ids instead of query texts in those that have no known id."""
    known = runs.join(queries, on=QUERY_ID, how="semi")[RUN].unique()
    if len(known) == runs[RUN].n_unique():
        return runs
    ids = queries.select(pl.col(QUERY).alias(QUERY_ID), pl.col(QUERY_ID).alias(ID))
    frames: list[pl.DataFrame] = []
    for run in runs.partition_by(RUN, maintain_order=True):
        if run[RUN][0] not in known:
            run = with_ids(run, ids, QUERY_ID).sort(QUERY_ID, RANK)
        frames.append(run)
    return pl.concat(frames)


def named_by_id(
    runs: pl.DataFrame, passages: pl.DataFrame, corpus: Location, skip_bad: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The runs, with document ids instead of texts of passages, and the passages of both."""
    # Texts hold spaces and ids of TREC runs cannot, so the corpus is read again only for texts.
    texts = runs.join(passages, on=DOC_ID, how="anti").filter(pl.col(DOC_ID).str.contains(r"\s"))
    if texts.is_empty():
        return runs, passages
    named = first_with(scan_corpus(corpus, skip_bad=skip_bad), texts[DOC_ID].unique())
    runs = with_ids(runs, ids_of_texts(named), DOC_ID)
    both = pl.concat([passages, named.select(passages.columns)])
    return runs, both.unique(DOC_ID, maintain_order=True)


def ids_of_texts(passages: pl.DataFrame) -> pl.DataFrame:
    """What ``with_ids`` needs to name documents that are given by the texts of these passages."""
    return passages.select(pl.col(TEXT).alias(DOC_ID), pl.col(DOC_ID).alias(ID))
