"""Runs whose keys are texts of queries, or whose documents are texts of passages, as in the eRAG package."""

from __future__ import annotations

import polars as pl

from engine.sources.io.locations import Location
from engine.sources.passages.read import scan_corpus
from engine.tables import DOC_ID, QUERY, QUERY_ID, RANK, RUN, TEXT


def keyed_by_id(runs: pl.DataFrame, queries: pl.DataFrame) -> pl.DataFrame:
    """The runs, with query ids instead of query texts in those that have no known id."""
    frames: list[pl.DataFrame] = []
    ids = queries.select(pl.col(QUERY).alias(QUERY_ID), pl.col(QUERY_ID).alias("_id"))
    for run in runs.partition_by(RUN, maintain_order=True):
        if run.join(queries, on=QUERY_ID, how="semi").is_empty():
            renamed = run.join(ids, on=QUERY_ID, how="left", maintain_order="left")
            run = renamed.with_columns(pl.coalesce("_id", QUERY_ID).alias(QUERY_ID)).drop("_id")
        frames.append(run.sort(QUERY_ID, RANK))
    return pl.concat(frames)


def named_by_id(
    runs: pl.DataFrame, passages: pl.DataFrame, corpus: Location, skip_bad: int
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The runs, with document ids instead of texts of passages, and the passages of both."""
    # Texts hold spaces and ids of TREC runs cannot, so the corpus is read again only for texts.
    texts = runs.join(passages, on=DOC_ID, how="anti").filter(pl.col(DOC_ID).str.contains(r"\s"))
    if texts.is_empty():
        return runs, passages
    wanted = texts[DOC_ID].unique().implode()
    batches = scan_corpus(corpus, skip_bad=skip_bad)
    named = pl.concat(batch.filter(pl.col(TEXT).is_in(wanted)) for batch in batches)
    named = named.unique(TEXT, keep="first", maintain_order=True)
    ids = named.select(pl.col(TEXT).alias(DOC_ID), pl.col(DOC_ID).alias("_id"))
    renamed = runs.join(ids, on=DOC_ID, how="left", maintain_order="left")
    runs = renamed.with_columns(pl.coalesce("_id", DOC_ID).alias(DOC_ID)).drop("_id")
    return runs, pl.concat([passages, named]).unique(DOC_ID, maintain_order=True)
