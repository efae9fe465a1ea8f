"""How far tau reaches of what its margins allow, as people read it."""

from __future__ import annotations

import math
from typing import Any

import polars as pl
from rich.table import Table
from rich.text import Text

from engine.evaluation.assess import Evaluation
from engine.report import layout
from engine.tables import (
    ANNOTATOR,
    AUC,
    MEASURE,
    RUN,
    TAU,
    TAU_MAX,
    TAU_MIN,
    TAU_REACHED,
    N,
)
from engine.wording import number

# The line's end sets it apart from what is printed next.
_LIMIT = (
    "limit: the tau of the best order (of the worst one, where tau is negative) that these scores and "
    "outcomes allow, ties included\n"
)


def shown(evaluation: Evaluation) -> Table | None:
    """Each annotator's primary measure: AUC where the metric is binary, tau, its limit, and the share reached.

    None where no tau is defined. ``correlations.parquet`` has all measures.
    """
    cells = evaluation.statistics.correlations
    primary = pl.col(ANNOTATOR).replace_strict(evaluation.primary_measures, default=None)
    shown = cells.filter(pl.col(MEASURE) == primary, pl.col(TAU).is_not_nan())
    if shown.is_empty():
        return None
    binary = shown[AUC].is_not_nan().any()
    partial = cells.filter(pl.col(N) > 0)[N].ne(evaluation.queries).any()
    several = cells[RUN].n_unique() > 1
    result = layout.table(
        "How far tau reaches, by each annotator's primary measure",
        (["run"] if several else []) + ["annotator", "measure"],
        (["AUC"] if binary else [])
        + ["Kendall's tau", "limit", "reached"]
        + (["n"] if partial else []),
    )
    annotators = evaluation.settings.labels.names()
    rows = []
    for row in shown.sort(
        RUN, pl.col(ANNOTATOR).replace_strict({name: i for i, name in enumerate(annotators)})
    ).iter_rows(named=True):
        names = [row[RUN]] * several + [row[ANNOTATOR], row[MEASURE]]
        values = ([_two(row[AUC])] if binary else []) + _reached(row)
        rows.append((names, values + ([str(row[N])] if partial else [])))
    layout.add_rows(result, rows)
    result.caption = Text(_LIMIT, style="table.caption")
    return result


def _reached(row: dict[str, Any]) -> list[str]:
    limit = row[TAU_MAX] if row[TAU] >= 0 else row[TAU_MIN]
    return [_two(row[TAU]), _two(limit), _two(abs(row[TAU_REACHED]))]


def _two(value: float) -> str:
    return "" if math.isnan(value) else number(value, 2)
