"""eRAG's labels (Salemi & Zamani, SIGIR 2024, equation 1): G_q[d] = E_M(M(q, {d}), y)."""

from __future__ import annotations

import polars as pl

from engine import tables
from engine.tables import ANNOTATOR, DOC_ID, DOC_IDS, LABEL, QUERY_ID, VALUE

NAME = "erag"


def label(scored_reads: pl.DataFrame) -> pl.DataFrame:
    """Labels table from reads of one passage each: a passage's label is its read's downstream value.

    Args:
        scored_reads: ``query_id``, ``doc_ids`` (lists of one), ``value`` in [0, 1].
    """
    return scored_reads.select(
        QUERY_ID,
        pl.col(DOC_IDS).list.first().alias(DOC_ID),
        pl.lit(NAME).alias(ANNOTATOR),
        pl.col(VALUE).alias(LABEL),
    ).select(list(tables.LABELS))
