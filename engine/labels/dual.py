"""Dual labels: is the passage of a gold document, and does it hold an answer word for word?

The document label is that of ``provenance``, the word label that of ``containment``. A retriever may find
the right document and miss the passage with the answer, or find the answer's words in a document
that has nothing to do with the question; one label alone cannot tell these apart.
"""

from __future__ import annotations

import polars as pl

from engine import tables
from engine.labels import containment, provenance
from engine.tables import ANNOTATOR, DOCUMENT_LABEL, LABEL, WORD_LABEL

NAME = "dual"


def label_both(pairs: pl.DataFrame, queries: pl.DataFrame, corpus: pl.DataFrame) -> pl.DataFrame:
    """Dual labels table, two booleans for each (``query_id``, ``doc_id``) of ``pairs``.

    A query without provenance has no passage of a gold document.
    """
    document = provenance.label(pairs, queries, corpus)
    word = containment.label(pairs, queries, corpus)
    return document.with_columns(
        (pl.col(LABEL) > 0).alias(DOCUMENT_LABEL), (word[LABEL] > 0).alias(WORD_LABEL)
    ).select(list(tables.DUAL_LABELS))


def label(both: pl.DataFrame) -> pl.DataFrame:
    """Labels table of the annotator ``dual``: 1.0 where both of a passage's labels hold, else 0.0."""
    return both.with_columns(
        pl.lit(NAME).alias(ANNOTATOR),
        (pl.col(DOCUMENT_LABEL) & pl.col(WORD_LABEL)).cast(pl.Float64).alias(LABEL),
    ).select(list(tables.LABELS))
