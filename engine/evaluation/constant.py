"""Notes on what is one value wherever it should differ: labels, scores within lists, lists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import polars as pl

from engine.evaluation.inputs import EvaluationInputs
from engine.labels.annotator import Labelled
from engine.messages.notes import Note
from engine.tables import DOC_ID, LABEL, QUERY_ID, RANK, RUN, SCORE, N

ALIKE_LABELS, ALIKE_SCORES, ALIKE_LISTS = "alike_labels", "alike_scores", "alike_lists"
_SHOWN = 3


def constant_notes(
    inputs: EvaluationInputs, annotators: Iterable[str], labelled: Mapping[str, Labelled]
) -> Iterator[Note]:
    """The notes of some queries; of all of them where each part has the same one (``messages.notes.merge_notes``)."""
    passages = inputs.corpus.height

    def note(code: str, name: str, values: pl.Series, alike: bool, text: str) -> Note:
        known = passages * (values.len() > 0)
        return Note(code, known * alike, text, (name,), passages=known)

    for name in annotators:
        labels = labelled[name].labels[LABEL].drop_nulls()
        said = f"all labels of {name} are {(labels.head(1).to_list() or [0])[0]:g}: they order no passages"
        yield note(ALIKE_LABELS, name, labels, labels.n_unique() == 1, said)
    score = pl.col(SCORE).cast(pl.Float32)
    lists = inputs.runs.group_by(RUN, QUERY_ID, maintain_order=True).agg(
        pl.col(DOC_ID).sort_by(RANK), score.n_unique(), pl.len().alias(N)
    )
    for run in inputs.run_names:
        own = lists.filter(pl.col(RUN) == run)
        scores, texts = own.filter(pl.col(N) > 1)[SCORE], own[DOC_ID]
        said = f"all passages of a list of {run} have one score: it does not order them"
        yield note(ALIKE_SCORES, run, scores, scores.max() == 1, said)
        first = ", ".join((texts.head(1).to_list() or [[]])[0][:_SHOWN])
        said = f"{run} lists the same passages for every query ({first} first)"
        yield note(ALIKE_LISTS, run, texts, texts.list.join("\n").n_unique() == 1, said)


def is_told(
    note: Note, queries: int, passages: int, lengths: Iterable[tuple[str, int, int]]
) -> bool:
    """Whether a note holds, of several queries and passages; and of several lists, where it is of lists."""
    if note.code not in (ALIKE_LABELS, ALIKE_SCORES, ALIKE_LISTS):
        return True
    listed = sum(lists for run, length, lists in lengths if length and run in note.about)
    return note.is_shown and min(queries, passages) > 1 and (note.code != ALIKE_LISTS or listed > 1)
