"""Comparison of runs: of their means, every two, and of the orders that measures put them in."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from engine import tables
from engine.statistics.cells import Cell, on_shared_queries
from engine.statistics.correlation import Bootstrap
from engine.statistics.differences import chances_above, mean_differences
from engine.statistics.leads import Differences, Ints
from engine.statistics.systems import soft_pairwise_accuracy, system_agreement
from engine.tables import (
    AGREEMENT,
    ANNOTATOR,
    DIFFERENCE,
    END_TO_END,
    MEASURE,
    NOTE,
    PAIRS,
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
    p_of,
)

Floats = npt.NDArray[np.float64]
Row = dict[str, Any]


class Compared(NamedTuple):
    """Scores of runs compared pairwise: their differences, and one-sided p-values (``chances_above``)."""

    differences: Differences
    above: Floats


def unit(annotator: str, measure: str) -> float:
    """The largest difference of scores that lie in [0, 1]."""
    return 1.0


def compare_runs(
    cells: Sequence[Cell], bootstrap: Bootstrap, largest: Callable[[str, str], float] = unit
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The tables ``systems`` and ``run_pairs``; empty where there is only one run.

    Intervals and p-values are adjusted for all pairs of runs, of each score by itself: which run is better
    is one question, however many measures are reported beside it.

    Args:
        cells: all with end-to-end scores, or all without (``cells.label_cells``).
        largest: the largest difference of two runs on a query, by annotator and measure.
    """
    systems: list[Row] = []
    measures: list[Row] = []
    known: dict[tuple[bytes, float], Compared] = {}  # scores are often those of another measure

    def compared(scores: Floats, most: float, clusters: Ints | None) -> Compared:
        key = scores.tobytes() + (b"" if clusters is None else clusters.tobytes()), most
        if key not in known:
            known[key] = Compared(
                mean_differences(scores, most, bootstrap, clusters),
                chances_above(scores, bootstrap, clusters),
            )
        return known[key]

    for group in _by_measure(cells):
        x, y = np.stack([cell.x for cell in group]), np.stack([cell.y for cell in group])
        clusters = group[0].clusters
        key = {ANNOTATOR: group[0].annotator, MEASURE: group[0].measure, K: group[0].k}
        size = {N: x.shape[1], PAIRS: math.comb(len(group), 2)}
        rows: list[Row] = [
            key | {RUN: a.run, RUN_B: b.run} | size for a, b in combinations(group, 2)
        ]
        measured = compared(x, largest(group[0].annotator, group[0].measure), clusters)
        _add(rows, DIFFERENCE, DIFFERENCE, measured.differences)
        agreement = np.full(len(rows), np.nan)
        whole = Differences(*[agreement] * 4)
        if group[0].k is not None:
            outcome = compared(y, 1.0, clusters)
            whole = outcome.differences
            orders = system_agreement(x, y, bootstrap, clusters)
            agreement = orders.agreement
            tau = {TAU: orders.tau, low_of(TAU): orders.tau_low, high_of(TAU): orders.tau_high}
            soft = {SOFT_ACCURACY: soft_pairwise_accuracy(measured.above, outcome.above)}
            counts = {RUNS_COMPARED: len(group), N: x.shape[1]}
            systems.append(key | counts | tau | soft | {NOTE: orders.note})
        _add(rows, difference_of(END_TO_END), END_TO_END, whole)
        for row, share in zip(rows, agreement.tolist(), strict=True):
            row[AGREEMENT] = share
        measures += rows
    return (
        pl.DataFrame(systems, schema=tables.SYSTEMS),
        pl.DataFrame(measures, schema=tables.RUN_PAIRS),
    )


def _by_measure(cells: Sequence[Cell]) -> Iterator[list[Cell]]:
    """The cells of a measure, on the queries that all its runs share; of two runs or more."""
    groups: dict[tuple[str, str, int | None], list[Cell]] = defaultdict(list)
    for cell in cells:
        groups[cell.annotator, cell.measure, cell.k].append(cell)
    for group in groups.values():
        if len(group) > 1 and (shared := on_shared_queries(group)):
            yield shared


def _add(rows: Sequence[Row], value: str, name: str, differences: Differences) -> None:
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
