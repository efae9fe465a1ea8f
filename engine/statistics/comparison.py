"""Paired comparison of correlations: of two annotators, or of two runs."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import sha256
from itertools import combinations, product
from operator import eq
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from engine import tables
from engine.statistics import correlation, difference_tests
from engine.statistics.arrays import Floats, Ints, Scores
from engine.statistics.bounded import around, holm
from engine.statistics.correlation import DECIMALS, Bootstrap, Correlation, describe, method_of
from engine.statistics.difference_tests import DifferenceTest, prepare
from engine.statistics.methods import inverted_difference, side
from engine.statistics.resampling import Draws, replicate
from engine.tables import ANNOTATOR, MEASURE, METHOD, NOTE, QUERY_ID, RHO, RUN, TAU, VALUE, K

# Clusters of queries, by query id; None if queries are independent.
Clusters = Mapping[str, int] | None
_PLACE, _END_TO_END = "_place", "_end_to_end"


@dataclass(frozen=True)
class Cell:
    """A ranking measure and the end-to-end score of the same queries, in the order of their ids.

    ``k`` is None and ``y`` NaN without end-to-end reads. ``clusters`` (n,) numbers the clusters of
    the queries from 0 without gaps; None if queries are independent.
    """

    run: str
    annotator: str
    measure: str
    k: int | None
    query_ids: tuple[str, ...]
    x: Floats
    y: Floats
    clusters: Ints | None = None


def read_cells(
    query_scores: pl.DataFrame, downstream: pl.DataFrame, clusters: Clusters = None
) -> Iterator[Cell]:
    """Every (run, annotator, measure, k) that has an end-to-end score, queries matched by id, in the order of first rows.

    Without any end-to-end scores, every (run, annotator, measure).
    """
    shared: dict[tuple[str, ...], tuple[str, ...]] = {}

    def cell(names: tuple[str, str, str], k: int | None, frame: pl.DataFrame) -> Cell:
        frame = frame.sort(QUERY_ID)
        x, y = (frame[name].round(DECIMALS).to_numpy() for name in (VALUE, _END_TO_END))
        query_ids = tuple(frame[QUERY_ID])
        query_ids = shared.setdefault(query_ids, query_ids)  # one copy for cells on the same ones
        return Cell(*names, k, query_ids, x, y, numbered(query_ids, clusters))

    # A cell at a time: a join of all would hold several copies of the scores.
    whole = {
        run: scores.select(QUERY_ID, K, pl.col(VALUE).alias(_END_TO_END))
        for (run,), scores in downstream.group_by([RUN])
    }
    places = query_scores.select(RUN, ANNOTATOR, MEASURE).with_row_index(_PLACE)
    values = query_scores.select(QUERY_ID, VALUE)
    grouped = places.group_by([RUN, ANNOTATOR, MEASURE], maintain_order=True).agg(_PLACE)
    for run, annotator, measure, rows in zip(*grouped.get_columns(), strict=True):
        names, scores = (run, annotator, measure), values[rows]
        if downstream.is_empty():
            yield cell(names, None, scores.with_columns(pl.lit(math.nan).alias(_END_TO_END)))
        elif run in whole:
            joined = scores.join(whole[run], on=QUERY_ID, maintain_order="left")
            for (k,), frame in joined.group_by([K], maintain_order=True):
                yield cell(names, int(str(k)), frame)


def clusters_of(clusters: pl.DataFrame, by: str | None) -> Clusters:
    """Clusters of queries (``tables.CLUSTERS``), by id; None if ``by`` declares queries independent."""
    return dict(clusters.select(QUERY_ID, tables.CLUSTER).iter_rows()) or None if by else None


def numbered(query_ids: Iterable[str], clusters: Clusters) -> Ints | None:
    """Cluster numbers of queries, from 0 without gaps."""
    if clusters is None:
        return None
    codes = np.array([clusters[query_id] for query_id in query_ids], dtype=np.intp)
    return np.unique(codes, return_inverse=True)[1].reshape(-1)


def on_shared_queries(cells: Sequence[Cell]) -> list[Cell]:
    """The cells on the queries common to all; empty without such a query."""
    shared = sorted(set.intersection(*(set(cell.query_ids) for cell in cells)))
    return [only(cell, shared) for cell in cells] if shared else []


def only(cell: Cell, query_ids: Sequence[str]) -> Cell:
    """The cell on some of its queries, in their order."""
    keep = pl.Series(cell.query_ids).is_in(query_ids).to_numpy()
    codes = cell.clusters
    if codes is not None:
        codes = np.unique(codes[keep], return_inverse=True)[1].reshape(-1)
    return replace(cell, query_ids=tuple(query_ids), x=cell.x[keep], y=cell.y[keep], clusters=codes)


# A source of a difference's interval and p-value, beside "permutation" and "inverted".
STUDENTIZED = "studentized"
# Tests of a difference of tau and of rho, the source of their intervals, and the reason for missing ones.
TestResults = tuple[Sequence[DifferenceTest], str, str]
_NO_TESTS = (DifferenceTest(math.nan),) * 2
# Whether two measures, by name, may be compared.
Comparable = Callable[[str, str], bool]


def reachable_p(tests: int, bootstrap: Bootstrap) -> tuple[float, int]:
    """The least p-value that permutations can show in so many tests, after Holm's correction for all; and the number of
    permutations with which a p-value could reach the level of the intervals.
    """
    least = min(1.0, tests / (bootstrap.resamples + 1))
    return least, math.ceil(tests / (1 - bootstrap.confidence))


class CorrelatedCell(NamedTuple):
    """A cell's correlation, and tau and rho without each query or cluster, (2, n), if intervals are computed."""

    correlation: Correlation
    without: Floats | None


def correlate_cells(
    cells: Sequence[Cell], bootstrap: Bootstrap, *, intervals: bool = True
) -> list[CorrelatedCell]:
    """Correlate every cell; with ``intervals``, cells on the same queries are resampled together."""
    together: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for position, cell in enumerate(cells):
        together[cell.query_ids].append(position)
    results: dict[int, CorrelatedCell] = {}
    for positions in together.values():
        group = [cells[position] for position in positions]
        # Equal columns share memory.
        columns = {_digest(column): column for cell in group for column in (cell.x, cell.y)}
        places = {content: place for place, content in enumerate(columns)}
        methods = (method_of(side(cell.x), side(cell.y), cell.clusters)[0] for cell in group)
        drawn = intervals and "percentile" in methods
        replicates = replicate(
            np.stack(list(columns.values())),
            [(places[_digest(cell.x)], places[_digest(cell.y)]) for cell in group],
            Draws(bootstrap.resamples if drawn else 0, bootstrap.seed, bootstrap.threads),
            leave_out=bootstrap.resamples > 0,
            clusters=group[0].clusters,
        )
        for pair, (position, cell) in enumerate(zip(positions, group, strict=True)):
            tau, rho = float(replicates.tau[pair]), float(replicates.rho[pair])
            figures = Correlation(n=len(cell.x), tau=tau, rho=rho)
            if intervals:
                figures = describe(cell.x, cell.y, replicates, pair, bootstrap, cell.clusters)
            without = None if replicates.without is None else replicates.without[pair]
            results[position] = CorrelatedCell(figures, without)
    return [results[position] for position in range(len(cells))]


def _digest(column: Floats) -> bytes:
    return sha256(column.tobytes()).digest()


def compare_cells(
    cells: Sequence[Cell],
    results: Sequence[CorrelatedCell],
    bootstrap: Bootstrap,
    *,
    comparable: Comparable = eq,
) -> pl.DataFrame:
    """The comparisons table: every two cells that differ only in the annotator or only in the run.

    Intervals and p-values are studentized if these hold, else from permutations of the outcomes, or the interval from
    inverting a test; ``method`` names the source, and ``note`` the reason for none (``difference_tests``).
    ``tau_p_holm`` and ``rho_p_holm`` are corrected within three families, separately by statistic: the first annotator
    against every rival, the purpose of comparisons; the rivals among themselves; and the runs.

    Args:
        cells: the cells to compare, the first annotator's first.
        comparable: which measures of two annotators are compared within a run, equal ones too; between runs, only these.
    """
    pairs_compared = [
        (a, b)
        for a, b in combinations(range(len(cells)), 2)
        if _are_compared(cells[a], cells[b], comparable)
    ]
    comparisons: dict[tuple[int, int], dict[str, Any]] = {}
    groups: dict[tuple[str, ...], list[tuple[int, int]]] = defaultdict(list)
    shared = cache(_shared)  # few distinct sets of queries, in many cells
    for a, b in pairs_compared:
        groups[shared(cells[a].query_ids, cells[b].query_ids)].append((a, b))
    for queries, pairs in groups.items():
        involved = {place: cells[place] for pair in pairs for place in pair}
        correlated = {place: results[place] for place in involved}
        if any(cell.query_ids != queries for cell in involved.values()):
            involved = {place: only(cell, queries) for place, cell in involved.items()}
            again = correlate_cells(list(involved.values()), bootstrap, intervals=False)
            correlated = dict(zip(involved, again, strict=True))
        for a, b in pairs:
            both = involved[a], involved[b], correlated[a], correlated[b]
            comparisons[a, b] = _compare(*both, bootstrap)
    rows = [comparisons[pair] for pair in pairs_compared]
    families: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:  # the others of a family answer the same question
        rivals = "of the first" if row[ANNOTATOR] == cells[0].annotator else "among themselves"
        families["runs" if row[RUN] != row[tables.RUN_B] else rivals].append(row)
    for name, family in product((TAU, RHO), families.values()):
        corrected = holm([row[tables.p_of(name)] for row in family])
        for row, p in zip(family, corrected, strict=True):
            row[tables.p_holm_of(name)] = p
    return pl.DataFrame(rows, schema=tables.COMPARISONS)


def _are_compared(first: Cell, second: Cell, comparable: Comparable) -> bool:
    same_run = first.run == second.run
    # Neither the same cell twice nor two differences at once.
    if same_run == (first.annotator == second.annotator) or first.k != second.k:
        return False
    return (comparable if same_run else eq)(first.measure, second.measure)


def _shared(first: tuple[str, ...], second: tuple[str, ...]) -> tuple[str, ...]:
    return first if first == second else tuple(sorted({*first} & {*second}))


def _compare(
    cell_a: Cell, cell_b: Cell, first: CorrelatedCell, second: CorrelatedCell, bootstrap: Bootstrap
) -> dict[str, Any]:
    reasons = [
        f"{cell.annotator} on {cell.run} is {reason}"
        for cell in (cell_a, cell_b)
        if (reason := correlation.undefined(cell.x, cell.y))
    ]
    row: dict[str, Any] = {
        RUN: cell_a.run,
        ANNOTATOR: cell_a.annotator,
        tables.RUN_B: cell_b.run,
        tables.ANNOTATOR_B: cell_b.annotator,
        MEASURE: cell_a.measure,
        tables.MEASURE_B: cell_b.measure,
        K: cell_a.k,
        tables.N: len(cell_a.x),
        METHOD: "",
        NOTE: "; ".join(reasons),
    }
    tests: Sequence[DifferenceTest] = _NO_TESTS
    if not reasons and bootstrap.resamples:
        scores = [(cell.x, cell.y) for cell in (cell_a, cell_b)]
        clusters = cell_a.clusters
        if clusters is not None or difference_tests.enough_for_jackknife(scores):
            results = _studentized(first, second, scores, clusters, bootstrap)
        elif reason := difference_tests.untestable(scores):
            results = _NO_TESTS, "", reason
        else:
            permuted = difference_tests.permutation_test(
                *((prepare(x), prepare(y)) for x, y in scores),
                permutations=difference_tests.permutations_for(scores, bootstrap.resamples),
                confidence=bootstrap.confidence,
                seed=bootstrap.seed,
                threads=bootstrap.threads,
            )
            results = with_intervals(scores, permuted, bootstrap)
        tests, row[METHOD], row[NOTE] = results
    for name, test in zip((TAU, RHO), tests, strict=True):
        row[tables.difference_of(name)] = value = _difference(name, first, second)
        low, high = around(value, test.low, test.high)
        row |= {tables.low_of(name): low, tables.high_of(name): high, tables.p_of(name): test.p}
    return row


def _studentized(
    first: CorrelatedCell,
    second: CorrelatedCell,
    scores: Sequence[Scores],
    clusters: Ints | None,
    bootstrap: Bootstrap,
) -> TestResults:
    """By the jackknife over queries or clusters."""
    if clusters is not None and (reason := correlation.incomparable(scores, clusters)):
        return _NO_TESTS, "", reason
    assert first.without is not None
    assert second.without is not None
    sides, level = [side for pair in scores for side in pair], bootstrap.confidence
    tests = [
        correlation.from_jackknife(
            _difference(name, first, second), without, sides, clusters, confidence=level, scale=2
        )
        for name, without in zip((TAU, RHO), first.without - second.without, strict=True)
    ]
    if any(math.isnan(test.p) for test in tests):
        reason = "no interval: the difference does not vary, or is undefined, without some query or cluster"
        return tests, "", reason
    return tests, STUDENTIZED, ""


def with_intervals(
    scores: list[Scores], permuted: Sequence[DifferenceTest], bootstrap: Bootstrap
) -> TestResults:
    """Tests by permutation, with inverted intervals if their own do not hold.

    An inverted interval holds 0 at least if p is above 1 - confidence.

    Args:
        scores: measure and outcome of both correlations, all of shape (n,).
        permuted: permutation tests of tau and of rho.
    """
    if not (reason := difference_tests.without_interval(scores, permuted)):
        return permuted, "permutation", ""
    level, draws = bootstrap.confidence, bootstrap.resamples
    bounds = inverted_difference(*scores, confidence=level, draws=draws, seed=bootstrap.seed)
    if bounds is None:
        return [DifferenceTest(test.p) for test in permuted], "permutation", reason
    tests = []
    for test, (low, high) in zip(permuted, bounds, strict=True):
        if test.p > 1 - level:
            low, high = min(low, 0.0), max(high, 0.0)
        tests.append(DifferenceTest(test.p, low, high))
    return tests, "inverted", ""


def _difference(name: str, first: CorrelatedCell, second: CorrelatedCell) -> float:
    return float(getattr(first.correlation, name) - getattr(second.correlation, name))
