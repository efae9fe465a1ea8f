"""Cells: one ranking measure of one run and annotator, beside the run's end-to-end score."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from engine.statistics.arrays import Floats, Ints
from engine.statistics.correlation import DECIMALS, Bootstrap
from engine.statistics.resampling import Replicates, replicate
from engine.tables import ANNOTATOR, CLUSTER, MEASURE, QUERY_ID, RUN, VALUE, K

# The cluster of each query, by its id; None where queries are independent.
Clusters = Mapping[str, int] | None
_PLACE = "_place"


@dataclass(frozen=True)
class Cell:
    """A ranking measure and the end-to-end score of the same queries, in the order of their ids.

    Where nothing was read end to end (``label_cells``) ``k`` is None and ``y`` NaN. ``clusters`` (n,) numbers the
    clusters of the queries from 0 without gaps; None where queries are independent.
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
    """Every (run, annotator, measure, k) that has an end-to-end score; queries matched by id."""
    shared: dict[tuple[str, ...], tuple[str, ...]] = {}
    # A cell at a time: joined all together, the scores would be held several times.
    of_run = {
        run: scores.select(QUERY_ID, K, pl.col(VALUE).alias("_end_to_end"))
        for (run,), scores in downstream.group_by([RUN])
    }
    for (run, annotator, measure), scores in _by_cell(query_scores):
        if run not in of_run:
            continue
        joined = scores.join(of_run[run], on=QUERY_ID, how="inner", maintain_order="left")
        for (k,), frame in joined.group_by([K], maintain_order=True):
            frame = frame.sort(QUERY_ID)
            yield Cell(
                run,
                annotator,
                measure,
                int(str(k)),
                _once(shared, frame),
                frame[VALUE].round(DECIMALS).to_numpy(),
                frame["_end_to_end"].round(DECIMALS).to_numpy(),
                numbered(frame[QUERY_ID], clusters),
            )


def _by_cell(query_scores: pl.DataFrame) -> Iterator[tuple[tuple[str, str, str], pl.DataFrame]]:
    """Every (run, annotator, measure) in the order of its first row, with ids and values of queries."""
    places = query_scores.select(RUN, ANNOTATOR, MEASURE).with_row_index(_PLACE)
    values = query_scores.select(QUERY_ID, VALUE)
    grouped = places.group_by([RUN, ANNOTATOR, MEASURE], maintain_order=True).agg(_PLACE)
    for run, annotator, measure, rows in zip(*grouped.get_columns(), strict=True):
        yield (run, annotator, measure), values[rows]


def label_cells(query_scores: pl.DataFrame, clusters: Clusters = None) -> Iterator[Cell]:
    """Every (run, annotator, measure), where nothing was read end to end."""
    shared: dict[tuple[str, ...], tuple[str, ...]] = {}
    for (run, annotator, measure), frame in _by_cell(query_scores):
        frame = frame.sort(QUERY_ID)
        x = frame[VALUE].round(DECIMALS).to_numpy()
        query_ids = _once(shared, frame)
        nothing = np.full_like(x, np.nan)
        codes = numbered(query_ids, clusters)
        yield Cell(run, annotator, measure, None, query_ids, x, nothing, codes)


def clusters_of(clusters: pl.DataFrame, by: str | None) -> Clusters:
    """The cluster of each query (``tables.CLUSTERS``), by id; None where ``by`` says to take queries as independent."""
    return dict(clusters.select(QUERY_ID, CLUSTER).iter_rows()) or None if by else None


def numbered(query_ids: Iterable[str], clusters: Clusters) -> Ints | None:
    """The cluster of each query, numbered from 0 without gaps."""
    if clusters is None:
        return None
    codes = np.array([clusters[query_id] for query_id in query_ids], dtype=np.intp)
    return np.unique(codes, return_inverse=True)[1].reshape(-1)


def _once(known: dict[tuple[str, ...], tuple[str, ...]], frame: pl.DataFrame) -> tuple[str, ...]:
    """The query ids of a cell; those of cells on the same queries are held once."""
    query_ids = tuple(frame[QUERY_ID])
    return known.setdefault(query_ids, query_ids)


def replicate_cells(
    cells: Sequence[Cell], bootstrap: Bootstrap, *, resampled: bool = True
) -> Replicates:
    """Replicates of cells on the same queries; resamples where ``resampled``. Equal columns are held once."""
    columns = {column.tobytes(): column for cell in cells for column in (cell.x, cell.y)}
    places = {content: place for place, content in enumerate(columns)}
    pairs = [(places[cell.x.tobytes()], places[cell.y.tobytes()]) for cell in cells]
    return replicate(
        np.stack(list(columns.values())),
        pairs,
        resamples=bootstrap.resamples if resampled else 0,
        seed=bootstrap.seed,
        leave_out=bootstrap.resamples > 0,
        threads=bootstrap.threads,
        clusters=cells[0].clusters,
    )


def on_shared_queries(cells: Sequence[Cell]) -> list[Cell]:
    """The cells on the queries that all of them have; empty where there is no such query."""
    shared = sorted(set.intersection(*(set(cell.query_ids) for cell in cells)))
    return [only(cell, shared) for cell in cells] if shared else []


def only(cell: Cell, query_ids: Sequence[str]) -> Cell:
    """The cell on some of its queries, given in their order."""
    wanted = set(query_ids)
    keep = np.array([query_id in wanted for query_id in cell.query_ids], dtype=bool)
    codes = cell.clusters
    if codes is not None:
        codes = np.unique(codes[keep], return_inverse=True)[1].reshape(-1)
    return replace(cell, query_ids=tuple(query_ids), x=cell.x[keep], y=cell.y[keep], clusters=codes)
