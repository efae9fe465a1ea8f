"""The statistics of an evaluation, as tables: correlations, comparisons, agreement over runs."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from operator import eq

import polars as pl

from engine import tables
from engine.statistics.cells import Clusters, label_cells, read_cells
from engine.statistics.choice import Choice, choose
from engine.statistics.comparison import Comparable, compare_cells, correlate_cells
from engine.statistics.correlation import DECIMALS, Bootstrap
from engine.statistics.margins import margins
from engine.statistics.runs import compare_runs, comparer, unit
from engine.statistics.sampled_lists import from_labels
from engine.tables import ANNOTATOR, BEST, MEASURE, RUN, TAU, K


@dataclass(frozen=True)
class Statistics:
    """The tables ``correlations``, ``comparisons``, ``systems`` and ``run_pairs``, and the choice that follows.

    An evaluation adds ``unseen`` and ``by_place`` (``statistics.single_labels``).

    Attributes:
        choice: which run to choose, and how certain that is; None where there is only one.
    """

    correlations: pl.DataFrame
    comparisons: pl.DataFrame
    systems: pl.DataFrame
    run_pairs: pl.DataFrame
    choice: Choice | None
    unseen: pl.DataFrame = field(default_factory=lambda: tables.empty(tables.UNSEEN))
    by_place: pl.DataFrame = field(default_factory=lambda: tables.empty(tables.BY_PLACE))


def analyse(
    query_scores: pl.DataFrame,
    downstream: pl.DataFrame,
    bootstrap: Bootstrap,
    *,
    undefined: pl.DataFrame | None = None,
    comparable: Comparable = eq,
    largest: Callable[[str, str], float] = unit,
    clusters: Clusters = None,
) -> Statistics:
    """Every statistic of an evaluation.

    - correlations: tau-b and rho of every (run, annotator, measure) with the run's end-to-end score, and
      what their margins allow (AUC, the farthest tau).
    - comparisons: differences of two annotators' correlations within a run and measure, and of two
      runs' within an annotator and measure, with interval and p-value (Holm, by family).
    - systems: with several runs, whether a measure orders them as the end-to-end score does (soft pairwise
      accuracy).
    - run_pairs: of every two runs, the differences of their means by measure and by end-to-end score,
      with intervals and p-values for all pairs together; by measure alone where ``downstream`` is empty.

    Queries are matched by ``query_id``; those that one side lacks are left out (``n`` tells). ``k`` is
    the number of passages that the end-to-end reader was given.

    Args:
        downstream: the end-to-end scores; empty where no list was read whole.
        undefined: cells without a meaning (``tables.UNDEFINED``); they are listed in ``correlations``
            with their reason, n = 0 and no figures.
        comparable: which measures of two annotators are compared within a run; by default only
            equal ones.
        largest: the largest difference of two runs on a query, by annotator and measure. End-to-end
            scores lie in [0, 1].
    """
    cells = list(read_cells(query_scores, downstream, clusters))
    fixed = bootstrap.of_fixed_n
    results = correlate_cells(cells, fixed)
    rows = [
        {RUN: cell.run, ANNOTATOR: cell.annotator, MEASURE: cell.measure, K: cell.k}
        | asdict(result.correlation)
        | asdict(margins(cell.x, cell.y, result.correlation.tau))
        for cell, result in zip(cells, results, strict=True)
    ]
    correlations = _with_best(pl.DataFrame(rows, schema=tables.CORRELATIONS))
    compared = list(label_cells(query_scores, clusters)) if downstream.is_empty() else cells
    compare = comparer(bootstrap, largest, clusters)
    whole = compare(downstream, None, None)
    if bootstrap.lists and whole is not None:
        whole = from_labels(whole, downstream, query_scores, bootstrap)
    systems, run_pairs = compare_runs(compared, whole, compare, fixed)
    return Statistics(
        pl.concat([correlations, _empty_cells(undefined, downstream)]),
        compare_cells(cells, results, fixed, comparable=comparable),
        systems,
        run_pairs,
        choose(query_scores, whole, downstream, run_pairs, compare, bootstrap),
    )


def _empty_cells(undefined: pl.DataFrame | None, downstream: pl.DataFrame) -> pl.DataFrame:
    if undefined is None:
        return tables.empty(tables.CORRELATIONS)
    empty: dict[str, object] = {
        name: math.nan for name, kind in tables.CORRELATIONS.items() if kind == pl.Float64()
    }
    empty |= {tables.N: 0, BEST: False, tables.METHOD: ""}
    cells = downstream.select(RUN, K).unique(maintain_order=True).join(undefined, how="cross")
    return pl.DataFrame([empty | cell for cell in cells.to_dicts()], schema=tables.CORRELATIONS)


def _with_best(correlations: pl.DataFrame) -> pl.DataFrame:
    """Mark the measure of each run and annotator with the highest tau, the first of equal ones: after the fact, so that no headline rests on it."""
    tau = pl.col(TAU).round(DECIMALS).fill_nan(None)
    highest = (tau == tau.max().over(RUN, ANNOTATOR)).fill_null(False)
    return correlations.with_columns(
        (highest & (highest.cum_sum().over(RUN, ANNOTATOR) == 1)).alias(BEST)
    )
