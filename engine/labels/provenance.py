"""Provenance labels: a passage is relevant if its article is among the query's gold articles (KILT)."""

from __future__ import annotations

import polars as pl

from engine import tables
from engine.tables import ANNOTATOR, ARTICLE_ID, DOC_ID, LABEL, PROVENANCE, QUERY_ID

NAME = "provenance"


def label(pairs: pl.DataFrame, queries: pl.DataFrame, corpus: pl.DataFrame) -> pl.DataFrame:
    """Labels table, 1.0 or 0.0, for each (``query_id``, ``doc_id``) of ``pairs``.

    All passages of a gold article are relevant, as in the eRAG paper. A query without provenance
    has no relevant passage.
    """
    return (
        pairs.join(corpus.select(DOC_ID, ARTICLE_ID), on=DOC_ID, how="left", maintain_order="left")
        .join(queries.select(QUERY_ID, PROVENANCE), on=QUERY_ID, how="left", maintain_order="left")
        .with_columns(
            pl.lit(NAME).alias(ANNOTATOR),
            pl.col(PROVENANCE)
            .list.contains(pl.col(ARTICLE_ID))
            .fill_null(False)
            .cast(pl.Float64)
            .alias(LABEL),
        )
        .select(list(tables.LABELS))
    )
