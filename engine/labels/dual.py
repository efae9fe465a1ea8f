"""Dual labels: is the passage of a gold document, and does it hold an answer word for word?

The document label is that of ``provenance``, the word label that of ``containment``, or, for languages
that write more than a word between two spaces, of ``containment-substring``. A retriever may find
the right document and miss the passage with the answer, or find the answer's words in a document
that has nothing to do with the question; one label alone cannot tell these apart.
"""

from __future__ import annotations

from typing import Literal

import polars as pl

from engine import tables
from engine.labels import containment, provenance
from engine.tables import ANNOTATOR, DOCUMENT_LABEL, LABEL, WORD_LABEL

NAME = "dual"

# How an answer is looked for: as tokens in a row, or as a string, which finds "서울" in "서울은" too.
DualWords = Literal["tokens", "substring"]
CONTAINMENT: dict[DualWords, str] = {
    "tokens": containment.NAME,
    "substring": containment.SUBSTRING,
}


def label_both(
    pairs: pl.DataFrame, queries: pl.DataFrame, corpus: pl.DataFrame, words: DualWords = "tokens"
) -> pl.DataFrame:
    """Dual labels table, two booleans for each (``query_id``, ``doc_id``) of ``pairs``.

    A query without provenance has no passage of a gold document.
    """
    document = provenance.label(pairs, queries, corpus)
    word = containment.label(pairs, queries, corpus, name=CONTAINMENT[words])
    return document.with_columns(
        (pl.col(LABEL) > 0).alias(DOCUMENT_LABEL), (word[LABEL] > 0).alias(WORD_LABEL)
    ).select(list(tables.DUAL_LABELS))


def label(both: pl.DataFrame) -> pl.DataFrame:
    """Labels table of the annotator ``dual``: 1.0 where both of a passage's labels hold, else 0.0."""
    return both.with_columns(
        pl.lit(NAME).alias(ANNOTATOR),
        (pl.col(DOCUMENT_LABEL) & pl.col(WORD_LABEL)).cast(pl.Float64).alias(LABEL),
    ).select(list(tables.LABELS))
