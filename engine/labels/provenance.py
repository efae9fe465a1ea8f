"""Provenance labels: a passage is relevant if its article is among the query's gold articles (KILT)."""

from __future__ import annotations

from collections.abc import Iterator

import polars as pl

from engine.labels.annotator import Annotator, Labelled, Material, labels_of
from engine.labels.traces import complete
from engine.messages.notes import Note, count_note
from engine.tables import ARTICLE_ID, DOC_ID, LABEL, PROVENANCE, QUERY_ID

NAME = "provenance"


def label_provenance(
    pairs: pl.DataFrame, queries: pl.DataFrame, corpus: pl.DataFrame
) -> pl.DataFrame:
    """Labels table, 1.0 or 0.0, for each (``query_id``, ``doc_id``) of ``pairs``.

    All passages of a gold article are relevant, as in the eRAG paper. A query without provenance
    has no relevant passage.
    """
    is_gold = gold_articles(pairs, queries, corpus).is_not_null().cast(pl.Float64)
    return labels_of(NAME, pairs.with_columns(is_gold.alias(LABEL)), pl.col(LABEL))


def gold_articles(pairs: pl.DataFrame, queries: pl.DataFrame, corpus: pl.DataFrame) -> pl.Series:
    """The gold article that each passage is of; null for none."""
    rows = pairs.join(
        corpus.select(DOC_ID, ARTICLE_ID), on=DOC_ID, how="left", maintain_order="left"
    ).join(queries.select(QUERY_ID, PROVENANCE), on=QUERY_ID, how="left", maintain_order="left")
    is_gold = pl.col(PROVENANCE).list.contains(pl.col(ARTICLE_ID)).fill_null(False)
    return rows.select(pl.when(is_gold).then(ARTICLE_ID).alias(ARTICLE_ID))[ARTICLE_ID]


def _label(material: Material) -> Labelled:
    queries, corpus = material.queries, material.passages
    labels = label_provenance(material.pairs, queries, corpus)
    none_listed = labels.height > 0 and labels[LABEL].sum() == 0
    note = count_note(
        "no_gold_article_listed",
        corpus.height if none_listed else 0,
        "listed [passage|passages], and none from a gold article: check that queries and corpus use the "
        "same article ids",
        passages=corpus.height,
    )
    traces = complete(labels.with_columns(gold_articles(labels, queries, corpus)))
    return Labelled(labels, traces, notes=(note,))


def _query_notes(queries: pl.DataFrame) -> Iterator[Note]:
    yield count_note(
        "queries_without_provenance",
        int((queries[PROVENANCE].list.len() == 0).sum()),
        "[query has|queries have] no provenance",
    )


ANNOTATOR = Annotator(
    name=NAME,
    meaning="1 if the passage comes from a gold article",
    label=_label,
    needs_provenance=True,
    query_notes=_query_notes,
)
