"""Labels from judgments that somebody made beforehand (qrels)."""

from __future__ import annotations

import polars as pl

from engine import tables
from engine.tables import ANNOTATOR, QUERY_ID

NAME = "qrels"


def label(qrels: pl.DataFrame, queries: pl.DataFrame) -> pl.DataFrame:
    """Labels table of the judgments (``query_id``, ``doc_id``, ``label``) of these queries.

    Unlike other annotators' labels these are sparse (a passage that nobody judged has none), reach
    beyond the lists, and may be grades above 1, or below 0 where a passage was left unjudged.
    """
    return (
        qrels.join(queries.select(QUERY_ID), on=QUERY_ID, how="semi", maintain_order="left")
        .with_columns(pl.lit(NAME).alias(ANNOTATOR))
        .select(list(tables.LABELS))
    )
