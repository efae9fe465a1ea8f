"""eRAG's labels (Salemi & Zamani, SIGIR 2024, equation 1): G_q[d] = E_M(M(q, {d}), y)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import polars as pl

from engine.labels.annotator import (
    Annotator,
    Ask,
    EvaluationSettings,
    Labelled,
    Material,
    Role,
    Scale,
    ask_reader,
    labels_of,
)
from engine.labels.traces import trace_erag
from engine.messages.checked import Checked
from engine.scoring.metrics import get_metric, score_outputs
from engine.tables import VALUE

NAME = "erag"
_ANOTHER_READER = Role("erag", "the reader for eRAG", "erag_reader", is_readers=True)


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    """Options of the annotator ``erag``.

    Attributes:
        erag_reader: Another model for single passages, named like a reader, for eRAG's labels and for
            utilities: can a cheaper one stand in for the reader?
    """

    erag_reader: str | None = None


def label_erag(scored_reads: pl.DataFrame) -> pl.DataFrame:
    """Labels table from reads of one passage each: a passage's label is its read's downstream ``value`` in [0, 1]."""
    return labels_of(NAME, scored_reads, pl.col(VALUE))


def asks(settings: EvaluationSettings) -> Ask:
    """What eRAG asks: the reader, or another model in its place, about each passage."""
    ask, other = ask_reader(settings.reader), settings.options(Options).erag_reader
    if other is None:
        return ask
    return replace(ask, role=_ANOTHER_READER, model=other, augmentation=None)


def _label(material: Material) -> Labelled:
    queries, metric = material.queries, material.settings.reader.metric
    # The output of a failed read is empty, which scores 0.
    labels = label_erag(score_outputs(material.reads, queries, metric))
    return Labelled(labels, trace_erag(labels, material.reads, queries, metric))


def _scale(settings: EvaluationSettings) -> Scale:
    if not get_metric(settings.reader.metric).graded:
        return Scale()
    return Scale(graded=f"eRAG's graded labels under {settings.reader.metric_name}")


ANNOTATOR = Annotator(
    name=NAME,
    meaning="the score of the reader's answer from this passage alone",
    label=_label,
    options=Options,
    role=_ANOTHER_READER,
    asks=asks,
    scale=_scale,
    is_the_readers=True,
    needs_answers=True,
)
