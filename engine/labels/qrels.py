"""Labels from existing relevance judgments (qrels)."""

from __future__ import annotations

import polars as pl

from engine import tables
from engine.labels.annotator import Annotator, InputTable, Labelled, Material
from engine.labels.traces import complete
from engine.messages.notes import Note, count_note
from engine.sources.runs.qrels import qrels_of, read_qrels
from engine.tables import DOC_ID, LABEL, QUERY_ID

NAME = "qrels"


def label_qrels(qrels: pl.DataFrame) -> pl.DataFrame:
    """Labels table of judgments (``query_id``, ``doc_id``, ``label``).

    Unlike other annotators' labels these are sparse (a passage that nobody judged has none), reach
    beyond the lists, and may be grades above 1, or below 0 where a passage was left unjudged.
    """
    return qrels.with_columns(pl.lit(NAME).alias(tables.ANNOTATOR)).select(list(tables.LABELS))


INPUT = InputTable(
    name="qrels",
    read=read_qrels,
    columns=(QUERY_ID, DOC_ID, LABEL),
    help="Judgments: TREC text, BEIR's, Parquet or JSON; for the annotator qrels.",
    of_records=qrels_of,
)


def _label(material: Material) -> Labelled:
    judgments = material.tables[INPUT.name]
    labels = label_qrels(judgments)
    # A label below 0 says that the passage was not judged.
    judged = set(judgments.filter(pl.col(LABEL) >= 0)[QUERY_ID])
    unjudged = tuple(query for query in material.queries[QUERY_ID] if query not in judged)
    notes = (
        count_note(
            "queries_without_judgments",
            len(unjudged),
            "[query has|queries have] no judgments in the qrels and [is|are] left out of their scores",
        ),
        # trec_eval leaves out queries that the qrels lack, as is done here, but not these.
        count_note(
            "queries_judged_below_0",
            len(set(judgments[QUERY_ID]).intersection(unjudged)),
            "of the queries without judgments [has|have] labels below 0 only: trec_eval and "
            "ir_measures count [it|them] as 0",
        ),
        _beyond_lists(material),
    )
    return Labelled(labels, complete(labels), notes=notes, unjudged=unjudged)


def _beyond_lists(material: Material) -> Note:
    beyond = material.tables[INPUT.name].join(material.runs, on=[QUERY_ID, DOC_ID], how="anti")
    return count_note(
        "judgments_beyond_lists",
        beyond.height,
        "[judgment is of a passage|judgments are of passages] that no run lists, and [does|do] not "
        f"count where `relevant` is {material.relevant}; `annotators` {NAME} alone counts them",
        printed=material.relevant != "qrels",
    )


ANNOTATOR = Annotator(
    name=NAME,
    meaning="your relevance judgment",
    label=_label,
    needs_input=INPUT,
    judges_everything=True,
)
