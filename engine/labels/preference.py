"""Labels from what people preferred: passages shown side by side, and which of them was best."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import polars as pl

from engine import tables
from engine.labels.annotator import (
    Annotator,
    FurtherTable,
    InputTable,
    Labelled,
    Material,
    Scale,
    labels_of,
)
from engine.labels.traces import complete
from engine.messages.checked import Checked
from engine.messages.notes import count_note
from engine.sources.runs.preferences import preferences_of, read_preferences
from engine.tables import (
    BEST,
    DOC_ID,
    LABEL,
    QUERY_ID,
    SHOWN,
    TIMES_CHOSEN,
    TIMES_SHOWN,
)

NAME = "preference"

PreferenceLabels = Literal["share", "bradley-terry"]

INPUT = InputTable(
    name="preferences",
    read=read_preferences,
    columns=tuple(tables.PREFERENCES),
    help="Which of two or three passages people found best, in JSONL; for the annotator preference.",
    of_records=preferences_of,
)


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    """Options of the annotator ``preference``.

    Attributes:
        preference_labels: Times chosen over times shown (share), or Bradley-Terry, for few judgments.
    """

    preference_labels: PreferenceLabels = "share"


# Strength of the prior (L2 on log strengths). Without one a passage that was always chosen, as most
# are that few people saw, would be infinitely strong.
PRIOR = 0.1


def label_preferences(judgments: pl.DataFrame, method: PreferenceLabels) -> pl.DataFrame:
    """Preference labels table: a label in [0, 1] and the judgments behind it, for each passage shown.

    ``share``: times chosen / times shown. ``bradley-terry``: the strengths of Bradley & Terry (1952),
    for choices among several as Luce (1959) extends them, within each query, with "none of them" as
    one more that is always shown; the label is the probability that the passage is chosen where it is
    shown alone, strength / (strength + strength of none). Under it a passage gains more from having
    beaten strong ones, which matters where each is shown a few times only. Fitted by ``choix.opt_top1`` with
    a prior of ``PRIOR``, so that few judgments give labels that stay off 0 and 1.

    Args:
        judgments: the preferences table.
    """
    counts = (
        judgments.explode(SHOWN)
        .group_by(QUERY_ID, pl.col(SHOWN).alias(DOC_ID), maintain_order=True)
        .agg(
            pl.len().cast(pl.Int64).alias(TIMES_SHOWN),
            (pl.col(BEST) == pl.col(SHOWN)).sum().cast(pl.Int64).alias(TIMES_CHOSEN),
        )
    )
    if method == "share":
        labels = pl.col(TIMES_CHOSEN) / pl.col(TIMES_SHOWN)
        return counts.with_columns(labels.alias(LABEL)).select(list(tables.PREFERENCE_LABELS))
    fitted = [
        (query_id, doc_id, label)
        for (query_id,), of_query in judgments.group_by([QUERY_ID], maintain_order=True)
        for doc_id, label in _fit(of_query).items()
    ]
    schema = {name: tables.PREFERENCE_LABELS[name] for name in (QUERY_ID, DOC_ID, LABEL)}
    strengths = pl.DataFrame(fitted, schema=schema, orient="row")
    return counts.join(strengths, on=[QUERY_ID, DOC_ID], how="left", maintain_order="left").select(
        list(tables.PREFERENCE_LABELS)
    )


def label_preference(preference_labels: pl.DataFrame) -> pl.DataFrame:
    """Labels table of preference labels; sparse, as those of qrels are."""
    return labels_of(NAME, preference_labels, pl.col(LABEL))


def _fit(judgments: pl.DataFrame) -> dict[str, float]:
    import choix  # takes a while, and few ask for it
    from scipy.special import expit

    passages = judgments[SHOWN].explode().unique(maintain_order=True).to_list()
    places = {doc_id: place for place, doc_id in enumerate(passages)}
    nobody = len(passages)
    choices = []
    for shown, best in judgments.select(SHOWN, BEST).iter_rows():
        offered = [*(places[doc_id] for doc_id in shown), nobody]
        winner = nobody if best is None else places[best]
        choices.append((winner, tuple(place for place in offered if place != winner)))
    strengths = np.asarray(choix.opt_top1(nobody + 1, choices, alpha=PRIOR, tol=1e-9))
    labels = expit(strengths[:nobody] - strengths[nobody])
    return dict(zip(passages, labels.tolist(), strict=True))


def _label(material: Material) -> Labelled:
    options = material.settings.options(Options)
    counted_labels = label_preferences(material.tables[INPUT.name], options.preference_labels)
    labels = label_preference(counted_labels)
    beyond = labels.join(material.runs, on=[QUERY_ID, DOC_ID], how="anti")
    judged = set(labels[QUERY_ID])
    unjudged = tuple(query for query in material.queries[QUERY_ID] if query not in judged)
    return Labelled(
        labels,
        complete(labels),
        {_COUNTED.name: counted_labels},
        (
            count_note(
                "queries_without_preferences",
                len(unjudged),
                "[query has|queries have] no preferences and [is|are] left out of their scores",
            ),
            count_note(
                "preferences_beyond_lists",
                beyond.height,
                "[passage|passages] of the preferences [is|are] in no list",
            ),
        ),
        unjudged,
    )


_COUNTED = FurtherTable(name="preference_labels", schema=tables.PREFERENCE_LABELS)

ANNOTATOR = Annotator(
    name=NAME,
    meaning="how often people preferred the passage to others",
    label=_label,
    options=Options,
    needs_input=INPUT,
    scale=lambda settings: Scale(graded="the shares and probabilities that preferences give"),
    further_tables=(_COUNTED,),
)
