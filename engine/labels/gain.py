"""What a passage adds to the reader's answer: eRAG's label less the score of the answer without any passage.

The label is E_M(M(q, {d}), y) - E_M(M(q, {}), y), in [-1, 1]: 0 where the reader knew the answer anyway, below 0 where
the passage spoils it. The harm rate is the share of passages that turn a right answer wrong: of the passages of
queries that the reader answers right without any, those from which it answers wrong. An answer is right whose score is
1/2 or more.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from engine import tables
from engine.labels import erag
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
from engine.labels.scored import CLOSED, GAINED, with_closed
from engine.labels.traces import trace_erag
from engine.labels.utility import HELPS
from engine.scoring.metrics import score_outputs
from engine.statistics.bounded import mean_interval
from engine.statistics.cells import Clusters, numbered
from engine.tables import (
    DOC_ID,
    DOC_IDS,
    HARMED,
    HIGH,
    KNOWN,
    LABEL,
    LOW,
    PASSAGES,
    QUERY_ID,
    VALUE,
    N,
)

NAME = "gain"


def _label(material: Material) -> Labelled:
    queries, metric = material.queries, material.settings.reader.metric
    scored = score_outputs(material.reads, queries, metric)
    both = with_closed(scored).with_columns(pl.col(DOC_IDS).list.first().alias(DOC_ID))
    labels = labels_of(NAME, both, GAINED.fill_null(0.0))
    traces = trace_erag(erag.label_erag(both), both, queries, metric)
    gains = traces.with_columns(pl.lit(NAME).alias(tables.ANNOTATOR), labels[LABEL])
    known = pl.col(CLOSED) >= HELPS
    outcomes = both.group_by(QUERY_ID, maintain_order=True).agg(
        known.first().alias(KNOWN),
        pl.len().cast(pl.Int64).alias(PASSAGES),
        (known & (pl.col(VALUE) < HELPS)).sum().cast(pl.Int64).alias(HARMED),
    )
    return Labelled(labels, gains, {_HARM.name: outcomes})


def _conclude(
    outcomes: pl.DataFrame, settings: EvaluationSettings, clusters: Clusters
) -> pl.DataFrame:
    known = outcomes.filter(KNOWN).sort(QUERY_ID)
    sizes, harmed = known[PASSAGES].to_numpy(), known[HARMED].to_numpy()
    rate = low = high = float("nan")
    if known.height:
        rate = float(harmed.sum() / sizes.sum())
        if settings.bootstrap.resamples:
            # Passages of a query are not independent: each query is a cluster, or in one.
            of_query = numbered(known[QUERY_ID], clusters)
            places = np.arange(known.height) if of_query is None else of_query
            spoilt = np.concatenate([np.arange(n) < h for n, h in zip(sizes, harmed, strict=True)])
            low, high = mean_interval(
                spoilt.astype(np.float64), settings.bootstrap.confidence, np.repeat(places, sizes)
            )
    row = (outcomes.height, known.height, int(sizes.sum()), int(harmed.sum()), rate, low, high)
    return pl.DataFrame([row], schema=tables.HARM, orient="row")


def display(harm: pl.DataFrame, level: str) -> Display:
    """The harm rate as it is printed; ``level`` as in ``dual.display``."""
    (row,) = harm.to_dicts()
    rate = "undefined" if not row[KNOWN] else f"{row[VALUE]:.3f}"
    bounds = f" [{row[LOW]:.3f}, {row[HIGH]:.3f}]" if row[LOW] == row[LOW] else ""
    return Display(
        "Harm: passages that turn an answer wrong that is right without any",
        ["queries answered right without a passage"],
        ["their passages", "that turn it wrong", f"harm rate{level}"],
        [([f"{row[KNOWN]} of {row[N]}"], [str(row[PASSAGES]), str(row[HARMED]), rate + bounds])],
    )


_HARM = FurtherTable(
    name="harm",
    schema=tables.HARM,
    in_summary=True,
    conclusion=Conclusion(tables.HARM_OUTCOMES, _conclude),
    display=display,
)

ANNOTATOR = Annotator(
    name=NAME,
    meaning="eRAG's label, less the score of the reader's answer without any passage",
    label=_label,
    uses_options_of=(erag.NAME,),
    role=erag.ANNOTATOR.role,
    asks=lambda settings: replace(erag.asks(settings), closed=True),
    scale=erag.ANNOTATOR.scale,
    needs_answers=True,
    further_tables=(_HARM,),
)
