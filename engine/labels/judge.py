"""Labels from an LLM that is asked whether a passage is relevant (after Thomas et al., SIGIR 2024)."""

from __future__ import annotations

from typing import Literal

import polars as pl

from engine import tables
from engine.tables import ANNOTATOR, CONFIDENCE, DOC_ID, DOC_IDS, LABEL, QUERY_ID

NAME: Literal["judge"] = "judge"

JudgeLabels = Literal["binary", "graded"]


def label(reads: pl.DataFrame, labels: JudgeLabels) -> pl.DataFrame:
    """Labels table from reads of one passage each, by the probability of the judge's first choice.

    Args:
        reads: ``query_id``, ``doc_ids`` (lists of one), ``confidence`` in [0, 1], or null for a read
            that failed: its label is 0.
        labels: ``binary``: 1.0 where the probability exceeds 1/2, else 0.0; ``graded``: the
            probability itself.
    """
    probability = pl.col(CONFIDENCE).fill_null(0.0)
    value = probability if labels == "graded" else (probability > 0.5).cast(pl.Float64)
    return reads.select(
        QUERY_ID,
        pl.col(DOC_IDS).list.first().alias(DOC_ID),
        pl.lit(NAME).alias(ANNOTATOR),
        value.alias(LABEL),
    ).select(list(tables.LABELS))
