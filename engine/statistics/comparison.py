"""Paired comparison of correlations: of two annotators, or of two runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from engine import tables
from engine.statistics.cells import Cell, only, replicate_cells
from engine.statistics.correlation import Bootstrap, Correlation, describe, undefined
from engine.statistics.intervals import holm, interval, p_value
from engine.statistics.resampling import Replicates
from engine.tables import ANNOTATOR, ANNOTATOR_B, MEASURE, RUN, RUN_B, K, N

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Correlated:
    """A cell's correlation, and where its replicates are: a row of those of cells on the same queries."""

    correlation: Correlation
    replicates: Replicates
    pair: int

    def resampled(self, name: str) -> Floats:
        """Replicates of ``tau`` or ``rho``."""
        every: Floats = self.replicates.taus if name == "tau" else self.replicates.rhos
        return every[self.pair]

    def without(self, name: str) -> Floats | None:
        """``tau`` or ``rho`` without each query, if computed."""
        every = self.replicates.without
        return None if every is None else every[self.pair, ("tau", "rho").index(name)]


def compare_cells(
    cells: Sequence[Cell], results: Sequence[Correlated], bootstrap: Bootstrap
) -> pl.DataFrame:
    """The comparisons table: every two cells that differ in the annotator or in the run alone.

    Differences are resampled on the same queries. ``tau_p_holm`` and ``rho_p_holm`` are corrected for
    all rows of the table, each statistic for itself.
    """
    rows: list[dict[str, Any]] = []
    for a, b in combinations(range(len(cells)), 2):
        one, other = cells[a], cells[b]
        if one.measure != other.measure or one.k != other.k:
            continue
        if (one.run == other.run) == (one.annotator == other.annotator):
            continue  # the same cell twice, or two differences at once
        rows.append(
            {
                RUN: one.run,
                ANNOTATOR: one.annotator,
                RUN_B: other.run,
                ANNOTATOR_B: other.annotator,
                MEASURE: one.measure,
                K: one.k,
            }
            | _compare(one, other, results[a], results[b], bootstrap)
        )
    for name in ("tau", "rho"):
        for row, corrected in zip(rows, holm([row[f"{name}_p"] for row in rows]), strict=True):
            row[f"{name}_p_holm"] = corrected
    return pl.DataFrame(rows, schema=tables.COMPARISONS)


def _compare(
    one: Cell, other: Cell, first: Correlated, second: Correlated, bootstrap: Bootstrap
) -> dict[str, Any]:
    if one.query_ids != other.query_ids:
        shared = sorted(set(one.query_ids) & set(other.query_ids))
        one, other = only(one, shared), only(other, shared)
        replicates = replicate_cells([one, other], bootstrap)
        first, second = (
            Correlated(describe(cell.x, cell.y, replicates, pair, bootstrap), replicates, pair)
            for pair, cell in enumerate((one, other))
        )
    reasons = [
        f"{cell.annotator} on {cell.run} is {reason}"
        for cell in (one, other)
        if (reason := undefined(cell.x, cell.y))
    ]
    row: dict[str, Any] = {N: len(one.x), "note": "; ".join(reasons)}
    for name in ("tau", "rho"):
        estimate = getattr(first.correlation, name) - getattr(second.correlation, name)
        low = high = p = float("nan")
        if not reasons and bootstrap.resamples:
            differences = first.resampled(name) - second.resampled(name)
            without, from_other = first.without(name), second.without(name)
            low, high, row["note"] = interval(
                estimate,
                differences,
                None if without is None or from_other is None else without - from_other,
                method=bootstrap.method,
                confidence=bootstrap.confidence,
            )
            p = p_value(differences)
        row |= {f"{name}_difference": estimate, f"{name}_low": low, f"{name}_high": high}
        row[f"{name}_p"] = p
    return row
