"""Labels from judgments that somebody made beforehand (qrels)."""

from __future__ import annotations

import polars as pl

from engine import tables
from engine.tables import ANNOTATOR

NAME = "qrels"


def label(qrels: pl.DataFrame) -> pl.DataFrame:
    """Labels table of judgments (``query_id``, ``doc_id``, ``label``).

    Unlike other annotators' labels these are sparse (a passage that nobody judged has none), reach
    beyond the lists, and may be grades above 1, or below 0 where a passage was left unjudged.
    """
    return qrels.with_columns(pl.lit(NAME).alias(ANNOTATOR)).select(list(tables.LABELS))
