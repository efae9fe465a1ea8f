"""The statistics of an evaluation, as tables: correlations, comparisons, agreement over runs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import combinations

import numpy as np
import polars as pl

from engine import tables
from engine.statistics.cells import Cell, only, read_cells
from engine.statistics.comparison import compare_cells, correlate_cells
from engine.statistics.correlation import Bootstrap
from engine.statistics.systems import system_agreement
from engine.tables import ANNOTATOR, MEASURE, RUN, RUN_B, K


@dataclass(frozen=True)
class Statistics:
    """The tables ``correlations``, ``comparisons``, ``systems`` and ``run_pairs``."""

    correlations: pl.DataFrame
    comparisons: pl.DataFrame
    systems: pl.DataFrame
    run_pairs: pl.DataFrame


def analyse(
    query_scores: pl.DataFrame,
    downstream: pl.DataFrame,
    bootstrap: Bootstrap,
    undefined: pl.DataFrame | None = None,
) -> Statistics:
    """Every statistic of an evaluation.

    - correlations: tau-b and rho of every (run, annotator, measure) with the run's end-to-end score.
    - comparisons: differences of two annotators' correlations within a run and measure, and of two
      runs' within an annotator and measure, with interval and p-value (Holm over the whole table).
    - systems, run_pairs: with several runs, whether a measure orders them as the end-to-end score does.

    Queries are matched by ``query_id``; those that one side lacks are left out (``n`` tells). ``k`` is
    the number of passages that the end-to-end reader was given.

    Args:
        undefined: cells without a meaning (``tables.UNDEFINED``); they stand in ``correlations`` with their
            reason, n = 0 and no figures.
    """
    cells = list(read_cells(query_scores, downstream))
    results = correlate_cells(cells, bootstrap)
    correlations = [
        {RUN: cell.run, ANNOTATOR: cell.annotator, MEASURE: cell.measure, K: cell.k}
        | asdict(result.correlation)
        for cell, result in zip(cells, results, strict=True)
    ]
    systems, run_pairs = _systems(cells, bootstrap)
    return Statistics(
        pl.concat(
            [
                pl.DataFrame(correlations, schema=tables.CORRELATIONS),
                _empty_cells(undefined, downstream),
            ]
        ),
        compare_cells(cells, results, bootstrap),
        pl.DataFrame(systems, schema=tables.SYSTEMS),
        pl.DataFrame(run_pairs, schema=tables.RUN_PAIRS),
    )


def _empty_cells(undefined: pl.DataFrame | None, downstream: pl.DataFrame) -> pl.DataFrame:
    if undefined is None:
        return tables.empty(tables.CORRELATIONS)
    figures = [
        pl.lit(float("nan")).alias(name)
        for name in tables.CORRELATIONS
        if name.startswith(("tau", "rho"))
    ]
    return (
        downstream.select(RUN, K)
        .unique(maintain_order=True)
        .join(undefined, how="cross")
        .with_columns(pl.lit(0, pl.Int64).alias(tables.N), *figures)
        .select(list(tables.CORRELATIONS))
    )


def _systems(
    cells: Sequence[Cell], bootstrap: Bootstrap
) -> tuple[list[dict[str, object]], list[dict[str, object]]]:
    """Rows of ``systems`` and ``run_pairs``; none where there is but one run."""
    by_measure: dict[tuple[str, str, int], list[Cell]] = defaultdict(list)
    for cell in cells:
        by_measure[cell.annotator, cell.measure, cell.k].append(cell)
    systems: list[dict[str, object]] = []
    run_pairs: list[dict[str, object]] = []
    for (annotator, measure, k), group in by_measure.items():
        if len(group) < 2:
            continue
        shared = sorted(set.intersection(*(set(cell.query_ids) for cell in group)))
        if not shared:
            continue
        group = [only(cell, shared) for cell in group]
        found = system_agreement(
            np.stack([cell.x for cell in group]), np.stack([cell.y for cell in group]), bootstrap
        )
        key = {ANNOTATOR: annotator, MEASURE: measure, K: k}
        size = {tables.N: len(shared)}
        systems.append(
            key
            | {"runs": len(group), "tau": found.tau, "note": found.note}
            | {"tau_low": found.tau_low, "tau_high": found.tau_high}
            | size
        )
        for place, (a, b) in enumerate(combinations(group, 2)):
            run_pairs.append(
                key
                | size
                | {
                    RUN: a.run,
                    RUN_B: b.run,
                    "difference": float(found.differences[place]),
                    "end_to_end_difference": float(found.end_to_end_differences[place]),
                    "agreement": float(found.agreement[place]),
                }
            )
    return systems, run_pairs
