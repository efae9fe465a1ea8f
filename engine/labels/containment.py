"""Containment labels: a passage is relevant if it holds an answer (DPR's ``has_answer``)."""

from __future__ import annotations

import unicodedata

import polars as pl
import regex

from engine import tables
from engine.tables import ANNOTATOR, ANSWERS, DOC_ID, LABEL, QUERY_ID, TEXT

NAME = "containment"

# DPR's SimpleTokenizer: runs of letters, digits and marks, or single other visible characters.
_TOKEN = regex.compile(r"[\p{L}\p{N}\p{M}]+|[^\p{Z}\p{C}]")


def tokenize(text: str) -> list[str]:
    """Tokens of DPR's match: NFD, lower case (Karpukhin et al. 2020)."""
    return [token.lower() for token in _TOKEN.findall(unicodedata.normalize("NFD", text))]


def contains_answer(text: str, answers: list[list[str]]) -> bool:
    """Whether the tokens of some answer occur in a row in the tokens of the text.

    "art" does not occur in "party", nor "US" in "U.S.". An answer without tokens occurs nowhere
    (in DPR's own code it occurs everywhere).
    """
    tokens = f" {' '.join(tokenize(text))} "
    return any(f" {' '.join(answer)} " in tokens for answer in answers if answer)


def label(pairs: pl.DataFrame, queries: pl.DataFrame, corpus: pl.DataFrame) -> pl.DataFrame:
    """Labels table, 1.0 or 0.0, for each (``query_id``, ``doc_id``) of ``pairs``.

    The passage's text is searched, its title is not, as DPR does.
    """
    answers = {
        query_id: [tokenize(answer) for answer in listed]
        for query_id, listed in queries.select(QUERY_ID, ANSWERS).iter_rows()
    }
    texts = pairs.join(corpus.select(DOC_ID, TEXT), on=DOC_ID, how="left", maintain_order="left")
    hits = [
        float(contains_answer(text, answers[query_id]))
        for query_id, text in texts.select(QUERY_ID, TEXT).iter_rows()
    ]
    return texts.with_columns(
        pl.lit(NAME).alias(ANNOTATOR), pl.Series(LABEL, hits, dtype=pl.Float64)
    ).select(list(tables.LABELS))
