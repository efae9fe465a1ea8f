"""The probabilities of document and word labels, as people read them."""

from __future__ import annotations

import math
from typing import Any

import polars as pl
from rich.table import Table
from rich.text import Text

from engine.report import layout
from engine.statistics.dual import PROBABILITIES
from engine.tables import RUN, VALUE, K


def shown(dual: pl.DataFrame, level: str) -> Table:
    """A row for every probability, a column for every run and cutoff.

    Args:
        dual: the dual table, not empty.
        level: what to say of the intervals, as in `` [95%]``; empty for none.
    """
    columns = dual.select(RUN, K).unique(maintain_order=True).rows()
    several = dual[RUN].n_unique() > 1
    result = layout.table(
        f"Gold documents (Doc), answers held (Word){level}",
        ["probability"],
        [f"{run} @{k}" if several else f"@{k}" for run, k in columns],
    )
    cells = {(row[RUN], row[K], row["probability"]): row for row in dual.iter_rows(named=True)}
    for name in PROBABILITIES:
        values = [_value(cells[run, k, name]) for run, k in columns]
        result.add_row(Text(name), *map(Text, values))
    return result


def _value(row: dict[str, Any]) -> str:
    if math.isnan(row[VALUE]):
        return "undefined"
    bounds = "" if math.isnan(row["low"]) else f" [{row['low']:.2f}, {row['high']:.2f}]"
    return f"{row[VALUE]:.2f}{bounds}"
