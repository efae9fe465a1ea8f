"""Labels from existing relevance judgments (qrels)."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

import polars as pl

from engine import tables
from engine.labels.annotator import Annotator, InputTable, Labelled, Material
from engine.labels.traces import complete
from engine.messages.notes import Note, count_note
from engine.sources.runs.qrels import qrels_of, read_qrels
from engine.tables import BY_TEXT, CARRIED, DOC_ID, LABEL, QUERY_ID, TEXT

NAME = "qrels"
_LEAST_WORDS = 5
_WHAT_IS_CARRIED = (
    "judgment[|s] of a text [was|were] carried to a passage that covers all or a part of it"
)


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
    help="Judgments: TREC text, BEIR's, Parquet or JSON, of ids or of texts; for the annotator qrels.",
    of_records=qrels_of,
)


def covered(judged: Sequence[str], matcher: SequenceMatcher[str]) -> float:
    """The share of a judged text's characters that stand in a passage, as its longest run of words.

    A run of fewer than five words, unless it is all of the text, counts as 0: it may be chance.

    Args:
        judged: the words of the text.
        matcher: of the passage's words, as the second of its sequences.
    """
    matcher.set_seq1(judged)
    place, _, size = matcher.find_longest_match()
    if size < min(_LEAST_WORDS, len(judged)):
        return 0.0
    return len(" ".join(judged[place : place + size])) / max(1, len(" ".join(judged)))


def label_by_text(
    judgments: pl.DataFrame, pairs: pl.DataFrame, corpus: pl.DataFrame
) -> pl.DataFrame:
    """Judgments of passages from those of texts, with ``carried``: whether the text is another than the passage's.

    A passage has the largest of the labels of its query's texts, each times the share that is ``covered``; 0 where it
    covers none.

    Args:
        judgments: ``query_id``, the text in ``doc_id``, ``label``.
        pairs: ``query_id`` and ``doc_id`` of every listed passage.
    """
    passages = {doc_id: text.split() for doc_id, text in corpus.select(DOC_ID, TEXT).iter_rows()}
    judged: dict[str, list[tuple[list[str], float]]] = {}
    for query_id, text, label in judgments.select(QUERY_ID, DOC_ID, LABEL).iter_rows():
        if label >= 0:
            judged.setdefault(query_id, []).append((text.split(), label))
    rows = []
    for query_id, doc_id in pairs.filter(pl.col(QUERY_ID).is_in([*judged])).iter_rows():
        passage = passages.get(doc_id, [])  # without texts where inputs are looked at early
        matcher = SequenceMatcher(None, (), passage, autojunk=False)
        label, words = max((one * covered(text, matcher), text) for text, one in judged[query_id])
        rows.append((query_id, doc_id, label, label > 0 and words != passage))
    return pl.DataFrame(rows, {**tables.QRELS, CARRIED: pl.Boolean()}, orient="row")


def _label(material: Material) -> Labelled:
    judgments = material.tables[INPUT.name]
    by_text = BY_TEXT in judgments.columns
    found = label_by_text(judgments, material.pairs, material.corpus) if by_text else judgments
    labels, carried = label_qrels(found), [found[CARRIED]] if by_text else []
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
        count_note("carried_judgments", int(carried[0].sum()), _WHAT_IS_CARRIED)
        if carried
        else _beyond_lists(material),
    )
    traces = complete(labels).with_columns(carried)
    return Labelled(labels, traces, notes=notes, unjudged=unjudged)


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
