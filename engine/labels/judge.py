"""Labels from an LLM that is asked whether a passage is relevant (after Thomas et al., SIGIR 2024)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import polars as pl

from engine.labels.annotator import (
    Annotator,
    Ask,
    EvaluationSettings,
    Labelled,
    Material,
    Role,
    Scale,
    labels_of,
)
from engine.labels.traces import trace_judge
from engine.messages.checked import Checked
from engine.reading.prompting.prompts import JUDGE, read_template
from engine.tables import CONFIDENCE, LABEL

NAME: Literal["judge"] = "judge"

JudgeLabels = Literal["binary", "graded"]
_ROLE = Role("judge", "the judge", "judge")


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    """Options of the annotator ``judge``.

    Attributes:
        judge: The model that judges relevance, named like a reader; by default the reader itself.
        judge_prompt: Its prompt template: 'completion', 'chat', 't5', 'monot5', 'completion-ko' or 'chat-ko'
            in Korean, or a file.
        judge_labels: Relevant or not (binary), or the probability of relevance (graded).

    Raises:
        InputError: a prompt template that cannot be used.
    """

    judge: str | None = None
    judge_prompt: str | None = None
    judge_labels: JudgeLabels = "binary"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.judge_prompt is not None:
            read_template(self.judge_prompt, JUDGE)


def label_judge(reads: pl.DataFrame, labels: JudgeLabels) -> pl.DataFrame:
    """Labels table from reads of one passage each, by the probability of the judge's first choice.

    Args:
        reads: ``query_id``, ``doc_ids`` (lists of one), ``confidence`` in [0, 1], or null for a read
            that failed: its label is 0.
        labels: ``binary``: 1.0 where the probability exceeds 1/2, else 0.0; ``graded``: the
            probability itself.
    """
    probability = pl.col(CONFIDENCE).fill_null(0.0)
    value = probability if labels == "graded" else (probability > 0.5).cast(pl.Float64)
    return labels_of(NAME, reads, value)


def _asks(settings: EvaluationSettings) -> Ask:
    options = settings.options(Options)
    return Ask(
        role=_ROLE,
        model=options.judge or settings.reader.reader,
        task=JUDGE,
        prompt=options.judge_prompt,
        augmentation="in-prompt",
        value=lambda reads, queries: label_judge(reads, options.judge_labels)[LABEL],
        description={"labels": options.judge_labels},
    )


def _label(material: Material) -> Labelled:
    labels = label_judge(material.reads, material.settings.options(Options).judge_labels)
    return Labelled(labels, trace_judge(labels, material.reads))


def _scale(settings: EvaluationSettings) -> Scale:
    if settings.options(Options).judge_labels != "graded":
        return Scale()
    return Scale(graded="the judge's graded labels")


ANNOTATOR = Annotator(
    name=NAME,
    meaning="whether an LLM finds the passage relevant, or its probability",
    label=_label,
    options=Options,
    role=_ROLE,
    asks=_asks,
    scale=_scale,
)
