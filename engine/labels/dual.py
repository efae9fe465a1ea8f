"""Dual labels: is the passage of a gold document, and does it hold an answer word for word?

The document label is that of ``provenance``, the word label that of ``containment``, or, for languages
that write more than a word between two spaces, of ``containment-substring``. A retriever may find
the right document and miss the passage with the answer, or find the answer's words in a document
that has nothing to do with the question; one label alone cannot tell these apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

import polars as pl

from engine import tables
from engine.labels import containment, provenance
from engine.labels.annotator import (
    Annotator,
    Conclusion,
    Display,
    EvaluationSettings,
    FurtherTable,
    Labelled,
    Material,
    labels_of,
)
from engine.labels.traces import complete
from engine.messages.checked import Checked
from engine.statistics.cells import Clusters
from engine.statistics.dual import PROBABILITIES, dual_events, dual_table
from engine.tables import (
    ANSWER,
    ARTICLE_ID,
    DOCUMENT_LABEL,
    LABEL,
    QUERY_ID,
    RUN,
    VALUE,
    WORD_LABEL,
    K,
)

NAME = "dual"

# How an answer is looked for: as tokens in a row, or as a string, which finds "서울" in "서울은" too.
DualWords = Literal["tokens", "substring"]
CONTAINMENT: dict[DualWords, str] = {"tokens": containment.NAME, "substring": containment.SUBSTRING}


@dataclass(frozen=True, kw_only=True)
class Options(Checked):
    """Options of the annotator ``dual``.

    Attributes:
        dual_words: How the annotator dual looks for answers in passages: as tokens in a row, or as a
            substring, which Korean needs because particles follow words without a space.
    """

    dual_words: DualWords = "tokens"


def _rests_on(settings: EvaluationSettings) -> tuple[str, ...]:
    return provenance.NAME, CONTAINMENT[settings.options(Options).dual_words]


def _label(material: Material) -> Labelled:
    settings = material.settings
    document, word = (material.rests_on[name] for name in _rests_on(settings))
    both = document.labels.with_columns(
        (pl.col(LABEL) > 0).alias(DOCUMENT_LABEL), (word.labels[LABEL] > 0).alias(WORD_LABEL)
    ).select(list(tables.DUAL_LABELS))
    label = (pl.col(DOCUMENT_LABEL) & pl.col(WORD_LABEL)).cast(pl.Float64)
    labels = labels_of(NAME, both, label)
    events = dual_events(
        material.runs,
        both,
        material.queries[QUERY_ID].to_list(),
        sorted({1, settings.ranking.k}),
        names=material.run_names,
    )
    # The gold article and the answer, whether or not both are there.
    traces = labels.with_columns(document.traces[ARTICLE_ID], word.traces[ANSWER])
    return Labelled(labels, complete(traces), {_PROBABILITIES.name: events, _BOTH.name: both})


def _conclude(
    events: pl.DataFrame, settings: EvaluationSettings, clusters: Clusters
) -> pl.DataFrame:
    skipped = settings.ranking.missing == "skip"
    return dual_table(events, settings.bootstrap, skip_missing=skipped, clusters=clusters)


def display(probabilities: pl.DataFrame, level: str) -> Display:
    """The probabilities as they are printed, by run and cutoff; ``level`` stands behind a figure with an interval, as `` [95%]``."""
    columns = probabilities.select(RUN, K).unique(maintain_order=True).rows()
    several = probabilities[RUN].n_unique() > 1
    cells = {(row[RUN], row[K], row["probability"]): row for row in probabilities.to_dicts()}
    return Display(
        f"Gold documents (Doc), answers held (Word){level.replace('[', '[exact ')}",
        ["probability"],
        [f"{run} @{k}" if several else f"@{k}" for run, k in columns],
        [
            ([name], [_shown_value(cells[run, k, name]) for run, k in columns])
            for name in PROBABILITIES
        ],
    )


def _shown_value(row: dict[str, Any]) -> str:
    if math.isnan(row[VALUE]):
        return "undefined"
    bounds = "" if math.isnan(row["low"]) else f" [{row['low']:.2f}, {row['high']:.2f}]"
    return f"{row[VALUE]:.2f}{bounds}"


_PROBABILITIES = FurtherTable(
    name="dual",
    schema=tables.DUAL,
    in_summary=True,
    conclusion=Conclusion(tables.DUAL_EVENTS, _conclude),
    display=display,
)
_BOTH = FurtherTable(name="dual_labels", schema=tables.DUAL_LABELS)

ANNOTATOR = Annotator(
    name=NAME,
    meaning="1 if the passage comes from a gold article and contains an answer",
    label=_label,
    options=Options,
    rests_on=_rests_on,
    further_tables=(_PROBABILITIES, _BOTH),
)
