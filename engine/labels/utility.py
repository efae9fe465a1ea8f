"""Utility labels of UDCG (Trappolini et al., arXiv 2510.21440): how much a passage helps, minus how much it distracts.

A passage that helps is worth +1, any other -1/3, each times the probability that the reader answers
from it at all, one minus that of declining (the distracting effect of Amiraz et al., arXiv
2505.06914). So a passage without the answer costs the more, the more surely the reader takes an answer
from it. The weights, and the mean over a list that ``engine.ranking.udcg`` takes, are those of the authors'
code (github.com/GiovanniTRA/UDCG).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import polars as pl

from engine.labels import erag
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
from engine.labels.traces import trace_utility
from engine.messages.checked import Checked
from engine.messages.notes import Note
from engine.reading.prompting.prompts import ABSTAIN, read_template, styles
from engine.tables import CONFIDENCE, DOC_ID, DOC_IDS, LABEL, MEASURE, QUERY_ID, RUN, VALUE

NAME = "utility"

# Whose labels say what helps: the paper's are human, and stand for "the passage holds the answer".
Helpful = Literal["erag", "containment", "containment-substring", "provenance"]

DISTRACTING = -1 / 3
# Graded labels of at least this much count as helping.
HELPS = 0.5
# Scores that differ by less over all queries show nothing that a reader does on purpose.
_SPREAD = 1e-3
_ROLE = Role("abstain", "the reader that may decline", "abstain", is_readers=True)


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    """Options of the annotator ``utility``.

    Attributes:
        helpful: For utility: whose labels say which passages help.
        abstain_prompt: For utility: the prompt that lets the reader decline: 'completion', 'chat', 't5',
            'completion-ko' or 'chat-ko' in Korean, or a file; by default one in the style of the reader's prompt.

    Raises:
        InputError: an unknown way to tell what helps, or a prompt template that cannot be used.
    """

    helpful: Helpful = "erag"
    abstain_prompt: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.abstain_prompt is not None:
            read_template(self.abstain_prompt, ABSTAIN)


def weigh(reads: pl.DataFrame) -> pl.Series:
    """How surely the reader answers: 1 - P(declines), which is ``confidence``, in [0, 1]; a read that failed counts as declined."""
    return reads.select((1.0 - pl.col(CONFIDENCE).fill_null(1.0)).alias(VALUE))[VALUE]


def label_utility(reads: pl.DataFrame, helpful: pl.DataFrame) -> pl.DataFrame:
    """Labels table, in [-1/3, 1], from reads of one passage each that may decline; what ``helpful`` labels ``HELPS`` or more helps."""
    helps = helpful.select(QUERY_ID, DOC_ID, (pl.col(LABEL) >= HELPS).alias("_helps"))
    passage = pl.col(DOC_IDS).list.first().alias(DOC_ID)
    weighed = reads.select(QUERY_ID, passage, weigh(reads)).join(
        helps, on=[QUERY_ID, DOC_ID], how="left", maintain_order="left"
    )
    sign = pl.when("_helps").then(1.0).otherwise(DISTRACTING)
    return labels_of(NAME, weighed, sign * pl.col(VALUE))


def _asks(settings: EvaluationSettings) -> Ask:
    options, reader = settings.options(Options), settings.reader
    style = reader.prompt if reader.prompt in styles(ABSTAIN) else None
    return replace(
        erag.asks(settings),
        role=_ROLE,
        task=ABSTAIN,
        prompt=options.abstain_prompt or style,
        augmentation="in-prompt",
        value=lambda reads, queries: weigh(reads),
        description={"helpful": options.helpful},
    )


def _label(material: Material) -> Labelled:
    (helpful,) = material.rests_on.values()
    labels = label_utility(material.reads, helpful.labels)
    return Labelled(labels, trace_utility(labels, material.reads, helpful.traces))


def _score_notes(settings: EvaluationSettings, scores: pl.DataFrame) -> Iterator[Note]:
    listed = scores.filter(pl.col(VALUE) > 0)
    if settings.ranking.missing == "zero" and listed.height < scores.height:
        yield Note(
            "utilities_of_empty_lists",
            1,
            "UDCG is 0 where a run lists nothing, and 0.42 or more for any list, so empty lists "
            "dominate its comparison of runs; `missing` skip leaves them out",
        )
    for (run, measure), scores_of_run in listed.group_by([RUN, MEASURE], maintain_order=True):
        spread = float(scores_of_run[VALUE].max() - scores_of_run[VALUE].min())  # type: ignore[operator, arg-type]
        if scores_of_run.height > 1 and spread < _SPREAD:
            yield Note(
                "utilities_all_alike",
                1,
                f"{measure} of {run} differs by {spread:.1g} over all queries: this reader hardly ever "
                "declines, and correlations are of differences too small to mean anything",
                (str(run),),
            )
    if settings.reader.task != "short-answer" and settings.options(Options).abstain_prompt is None:
        yield Note(
            "abstain_prompt_of_another_task",
            1,
            "the prompt that lets the reader decline asks a question, and the task is "
            f"{settings.reader.task}: `abstain_prompt` FILE asks as the task does",
        )


ANNOTATOR = Annotator(
    name=NAME,
    meaning="above 0 if the passage helps the reader, below 0 if it distracts",
    label=_label,
    options=Options,
    uses_options_of=(erag.NAME,),
    rests_on=lambda settings: (settings.options(Options).helpful,),
    rests_by="helpful",
    role=_ROLE,
    asks=_asks,
    scale=lambda settings: Scale(utilities=True),
    score_notes=_score_notes,
)
