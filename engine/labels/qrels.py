"""Labels from existing relevance judgments (qrels)."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher

import polars as pl
import regex

from engine import tables
from engine.labels.annotator import Annotator, AnnotatorResult, Material, complete, labels_of
from engine.labels.dual import holds_tokens
from engine.messages.characters import count_letters, spaced
from engine.messages.notes import count_note
from engine.sources.input_tables import InputTable
from engine.sources.runs.qrels import qrels_of, read_qrels
from engine.tables import ANSWERS, BY_TEXT, CARRIED, DOC_ID, LABEL, QUERY_ID, TEXT

NAME = "qrels"
_LEAST_WORDS = 5
# Sentences end at white space behind ASCII marks, and at once behind marks of other scripts, but for full-width
# decimals. Thai and Lao have no mark: a space between their letters ends a clause.
_SENTENCE_ENDS = regex.compile(
    r"(?V1)(?<=[.!?])\s+|(?<=[\p{STerm}--[.!?．]]|．(?!\d))\s*(?=[^\s\p{STerm}])"
    r"|(?<=[\p{Thai}\p{Lao}])\s+(?=[\p{Thai}\p{Lao}])"
)

INPUT = InputTable(
    name="qrels",
    read=read_qrels,
    columns=(QUERY_ID, DOC_ID, LABEL),
    help="Judgments: TREC text, BEIR's, Parquet or JSON, of ids or of texts; for the annotator qrels. "
    "Beside several corpora ids name theirs, as in old.tsv@words-100.parquet.",
    from_records=qrels_of,
    from_texts=read_qrels,
)


def covered(judged: Sequence[str], matcher: SequenceMatcher[str]) -> float:
    """The share of a judged text's characters in its longest run of words in a passage, the matcher's second sequence.

    A run of fewer than five words, unless it is all of the text, counts as 0: it may be chance. ``characters.spaced``
    splits the words. A text that stands in the passage as a string, within punctuation, too, is covered.
    """
    if judged and _stands_in(" ".join(judged), " ".join(matcher.b)):  # type: ignore[attr-defined]
        return 1.0
    matcher.set_seq1(judged)
    place, _, size = matcher.find_longest_match()
    if size < min(_LEAST_WORDS, len(judged)):
        return 0.0
    # None where most words are letters.
    glue = " " * (2 * count_letters("".join(judged)) < len(judged))
    return len(glue.join(judged[place : place + size])) / max(1, len(glue.join(judged)))


def _stands_in(judged: str, passage: str) -> bool:
    """Whether a text stands in another as a string that cuts no word in two, but for particles behind a Korean one."""
    if judged not in passage:
        return False
    ends = r"(?V1)(?<!\w(?=\w))", r"(?!(?<=[\w--\p{Hangul}])\w)"
    return regex.search(regex.escape(judged).join(ends), passage) is not None


def label_by_text(judgments: pl.DataFrame, material: Material) -> pl.DataFrame:
    """Judgments of passages from judgments of texts, with ``carried``: whether the text differs from the passage's.

    A passage's label is the maximum, over its query's texts, of label times ``covered`` share; 0 if it covers none. For
    a document (``by_text`` is False) each sentence with an answer is such a text; without one, the whole document is.
    """
    texts = material.passages.select(DOC_ID, TEXT)
    passages = {doc_id: spaced(text).split() for doc_id, text in texts.iter_rows()}
    queries = material.queries.select(QUERY_ID, ANSWERS)
    answers = {query_id: [*map(spaced, own)] for query_id, own in queries.iter_rows()}
    judged: dict[str, list[tuple[float, list[str], list[str]]]] = {}
    text = pl.col(DOC_ID).str.normalize("NFC")  # as passages are
    rated = judgments.filter(pl.col(LABEL) >= 0).select(QUERY_ID, text, LABEL, BY_TEXT)
    for query_id, whole, label, is_text in rated.iter_rows():
        sentences = [] if is_text else _SENTENCE_ENDS.split(whole)
        bearing = [each for each in sentences if holds_tokens(spaced(each), answers[query_id])]
        for part in bearing or [whole]:
            words = spaced(part).split()
            judged.setdefault(query_id, []).append((label, words, spaced(whole).split()))
    rows = []
    for query_id, doc_id in material.pairs.filter(pl.col(QUERY_ID).is_in([*judged])).iter_rows():
        passage = passages.get(doc_id, [])  # no texts in early checks of inputs
        matcher = SequenceMatcher(None, (), passage, autojunk=False)
        label, is_own = max(
            (grade * covered(words, matcher), whole == passage)
            for grade, words, whole in judged[query_id]
        )
        rows.append((query_id, doc_id, label, label > 0 and not is_own))
    return pl.DataFrame(rows, {**tables.QRELS, CARRIED: pl.Boolean()}, orient="row")


def _label(material: Material) -> AnnotatorResult:
    judgments = material.tables[INPUT.name]
    by_text = BY_TEXT in judgments.columns
    rows = label_by_text(judgments, material) if by_text else judgments
    # Those by id are sparse, and reach beyond the lists; any may be grades above 1.
    labels = labels_of(NAME, rows, pl.col(LABEL))
    if by_text:
        last = count_note(
            "carried_judgments",
            int(rows[CARRIED].sum()),
            "judgment[|s] of a text [was|were] carried to a passage that covers all or a part of it",
        )
    else:
        last = count_note(
            "judgments_beyond_lists",
            judgments.join(material.runs, on=[QUERY_ID, DOC_ID], how="anti").height,
            "[judgment is of a passage|judgments are of passages] that no run lists, and [does|do] not "
            f"count where `relevant` is {material.relevant}; leave `relevant` out to count [it|them]",
            printed=material.relevant != "qrels",
        )
    # A label below 0 says that the passage was not judged.
    unjudged = material.lacking(judgments.filter(pl.col(LABEL) >= 0))
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
        last,
    )
    traces = complete(labels).with_columns([rows[CARRIED]] if by_text else [])
    return AnnotatorResult(labels, traces, notes=notes, unjudged=unjudged)


ANNOTATOR = Annotator(
    name=NAME,
    meaning="your relevance judgment",
    label=_label,
    needs_input=INPUT,
    judges_everything=True,
)
