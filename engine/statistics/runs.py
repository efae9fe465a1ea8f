"""Comparison of runs: of their means, every two, and of the orders that measures put them in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain, combinations
from typing import Any

import numpy as np
import polars as pl

from engine import tables
from engine.statistics.cells import Cell, on_shared_queries
from engine.statistics.correlation import Bootstrap
from engine.statistics.differences import MeanDifferences, mean_differences
from engine.statistics.intervals import holm
from engine.statistics.systems import soft_pairwise_accuracy, system_agreement
from engine.tables import (
    AGREEMENT,
    ANNOTATOR,
    DIFFERENCE,
    END_TO_END,
    MEASURE,
    NOTE,
    RUN,
    RUN_B,
    RUNS_COMPARED,
    SOFT_ACCURACY,
    TAU,
    K,
    N,
    difference_of,
    high_of,
    low_of,
    p_holm_of,
    p_of,
)

Row = dict[str, Any]


def compare_runs(cells: Sequence[Cell], bootstrap: Bootstrap) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The tables ``systems`` and ``run_pairs``; empty where there is only one run.

    P-values of the end-to-end score are corrected (Holm) for the pairs of runs: that is one question,
    however many measures are reported beside it. Those of measures are corrected over all rows
    together. Where nothing was read end to end, the first measure decides: its pairs are corrected
    among themselves, and those of all other measures together.

    Args:
        cells: all with end-to-end scores, or all without (``cells.label_cells``).
    """
    systems: list[Row] = []
    measures: list[list[Row]] = []
    end_to_end: dict[bytes, MeanDifferences] = {}  # mostly the same for every measure
    for group in _by_measure(cells):
        x, y = np.stack([cell.x for cell in group]), np.stack([cell.y for cell in group])
        key = {ANNOTATOR: group[0].annotator, MEASURE: group[0].measure, K: group[0].k}
        size = {N: x.shape[1]}
        rows: list[Row] = [
            key | {RUN: a.run, RUN_B: b.run} | size for a, b in combinations(group, 2)
        ]
        of_measure = mean_differences(x, bootstrap)
        _add(rows, DIFFERENCE, DIFFERENCE, of_measure)
        nothing = np.full(len(rows), np.nan)
        whole, agreement = MeanDifferences(*[nothing] * 5), nothing
        if group[0].k is not None:
            if y.tobytes() not in end_to_end:
                end_to_end[y.tobytes()] = mean_differences(y, bootstrap)
            whole = end_to_end[y.tobytes()]
            orders = system_agreement(x, y, bootstrap)
            agreement = orders.agreement
            tau = {TAU: orders.tau, low_of(TAU): orders.tau_low, high_of(TAU): orders.tau_high}
            soft = {SOFT_ACCURACY: soft_pairwise_accuracy(of_measure.p_above, whole.p_above)}
            counts = {RUNS_COMPARED: len(group)} | size
            systems.append(key | counts | tau | soft | {NOTE: orders.note})
        _add(rows, difference_of(END_TO_END), END_TO_END, whole)
        for row, share in zip(rows, agreement.tolist(), strict=True):
            row[AGREEMENT] = share
        _correct(rows, END_TO_END)
        measures.append(rows)
    decisive = 1 if measures and measures[0][0][K] is None else 0
    for family in (measures[:decisive], measures[decisive:]):
        _correct(list(chain(*family)), DIFFERENCE)
    return (
        pl.DataFrame(systems, schema=tables.SYSTEMS),
        pl.DataFrame(list(chain(*measures)), schema=tables.RUN_PAIRS),
    )


def _by_measure(cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    """The cells of a measure, on the queries that all its runs share; of two runs or more."""
    groups: dict[tuple[str, str, int | None], list[Cell]] = defaultdict(list)
    for cell in cells:
        groups[cell.annotator, cell.measure, cell.k].append(cell)
    for group in groups.values():
        if len(group) > 1 and (shared := on_shared_queries(group)):
            yield shared


def _add(rows: Sequence[Row], value: str, name: str, differences: MeanDifferences) -> None:
    """Add the differences of every two runs as columns: their values, and others called by ``name``."""
    columns = {
        value: differences.value,
        low_of(name): differences.low,
        high_of(name): differences.high,
        p_of(name): differences.p,
    }
    for column, values in columns.items():
        for row, number in zip(rows, values.tolist(), strict=True):
            row[column] = number


def _correct(rows: Sequence[Row], name: str) -> None:
    corrected = holm([row[p_of(name)] for row in rows])
    for row, p in zip(rows, corrected, strict=True):
        row[p_holm_of(name)] = p
