"""Utility labels of UDCG (Trappolini et al., arXiv 2510.21440): what a passage helps, less what it distracts.

A passage that helps is worth +1, any other -1/3, each times the probability that the reader answers
from it at all, one minus that of declining (the distracting effect of Amiraz et al., arXiv
2505.06914). So a passage without the answer costs the more, the more surely the reader takes an answer
from it. The weights, and the mean over a list that ``engine.ranking.udcg`` takes, are those of the authors'
code (github.com/GiovanniTRA/UDCG).
"""

from __future__ import annotations

from typing import Literal, get_args

import polars as pl

from engine import tables
from engine.tables import ANNOTATOR, CONFIDENCE, DOC_ID, DOC_IDS, LABEL, QUERY_ID, VALUE

NAME = "utility"

# Whose labels say what helps: the paper's are human, and stand for "the passage holds the answer".
Helpful = Literal["erag", "containment", "containment-substring", "provenance"]
HELPFUL: tuple[Helpful, ...] = get_args(Helpful)

DISTRACTING = -1 / 3
# Graded labels of at least so much count as helping.
HELPS = 0.5


def weigh(reads: pl.DataFrame) -> pl.Series:
    """How surely the reader answers, from reads that may decline: 1 - P(declines), in [0, 1].

    Args:
        reads: ``confidence`` is P(declines); null for a read that failed, which counts as declined.
    """
    return reads.select((1.0 - pl.col(CONFIDENCE).fill_null(1.0)).alias(VALUE))[VALUE]


def label(reads: pl.DataFrame, helpful: pl.DataFrame) -> pl.DataFrame:
    """Labels table from reads of one passage each that may decline; labels are in [-1/3, 1].

    Args:
        reads: ``query_id``, ``doc_ids`` (lists of one), ``confidence``.
        helpful: a labels table of the same pairs; what is labelled ``HELPS`` or more helps.
    """
    helps = helpful.select(QUERY_ID, DOC_ID, (pl.col(LABEL) >= HELPS).alias("_helps"))
    return (
        reads.select(QUERY_ID, pl.col(DOC_IDS).list.first().alias(DOC_ID), weigh(reads))
        .join(helps, on=[QUERY_ID, DOC_ID], how="left", maintain_order="left")
        .select(
            QUERY_ID,
            DOC_ID,
            pl.lit(NAME).alias(ANNOTATOR),
            (pl.when("_helps").then(1.0).otherwise(DISTRACTING) * pl.col(VALUE)).alias(LABEL),
        )
        .select(list(tables.LABELS))
    )
