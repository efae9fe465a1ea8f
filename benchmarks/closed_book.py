"""What a reader knows without passages, and how well rankings agree with its score beyond that.

    python -m benchmarks.closed_book --results DIR --queries FILE --reader READER [--augmentation fid]
                                     [--measure RR,P] [--resamples 2000] [--json FILE]

``--results`` is the output of ``erag evaluate`` with this reader, in full. Every question is read once more without
any passage. A question that the reader answers from memory can make labels and the end-to-end score agree
although no ranking had a part in it: all single reads and the whole list are right then. So beside each tau
stands the partial tau (Kendall, Biometrika 1942) with the closed-book score held fixed,

    (t_xy - t_xz t_yz) / sqrt((1 - t_xz^2) (1 - t_yz^2)),

of the tau-b of measure (x), end-to-end score (y) and closed-book score (z). The interval of tau is the
engine's own; that of the partial tau has percentiles over resampled questions, each of which draws all three.
There is none where data are too thin for that (``enough_to_resample``). How often these hold the true value has
not been simulated.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import polars as pl

from benchmarks._harness import Line, make_parser, write_report
from benchmarks._single import correlate
from engine.reading.execute import output_columns
from engine.reading.plan import INPUTS, wanted_reads
from engine.reading.protocol import Augmentation
from engine.reading.readers import load, specify
from engine.scoring.metrics import score_outputs
from engine.sources.queries.read import read_queries
from engine.statistics.cells import Cell, read_cells
from engine.statistics.correlation import Bootstrap
from engine.statistics.difference_tests import enough_to_resample
from engine.statistics.intervals import interval
from engine.statistics.resampling import replicate
from engine.tables import CORPUS, DOC_IDS, FAILURE, QUERY_ID, VALUE

Floats = npt.NDArray[np.float64]


class Partial(NamedTuple):
    """A partial tau with its interval; NaN where undefined, or where no interval holds."""

    value: float
    low: float
    high: float


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--results", type=Path, required=True, help="output of erag evaluate")
    parser.add_argument("--queries", type=Path, required=True, help="its questions")
    parser.add_argument("--reader", required=True, help="its reader")
    parser.add_argument("--augmentation", choices=get_args(Augmentation), default="in-prompt")
    parser.add_argument("--metric", default="em")
    parser.add_argument("--measure", default="RR,nDCG,P", help="kinds of measures that are shown")
    parser.add_argument("--resamples", type=int, default=2000)
    arguments = parser.parse_args()
    queries = read_queries(arguments.queries)
    known = closed_book(queries, arguments.reader, arguments.augmentation, arguments.metric)
    share = sum(known.values()) / len(known)
    print(f"{arguments.metric} without passages: {share:.3f} of {len(known)} questions\n")
    if len(set(known.values())) < 2:
        print("every question scores the same without passages: there is nothing to take out\n")
    kinds = arguments.measure.split(",")
    cells = [
        cell
        for cell in read_cells(
            pl.read_parquet(arguments.results / "query_scores.parquet"),
            pl.read_parquet(arguments.results / "downstream.parquet"),
        )
        if cell.measure.split("@")[0] in kinds
    ]
    if not cells:
        sys.exit(
            f"{arguments.results} has no measure of {arguments.measure} with an end-to-end score"
        )
    if missing := {query_id for cell in cells for query_id in cell.query_ids} - known.keys():
        sys.exit(f"{arguments.queries} lacks {len(missing)} queries of the results: {min(missing)}")
    bootstrap = Bootstrap(resamples=arguments.resamples)
    print("| run | annotator | measure | tau [95%] | partial tau [95%] |\n|---|---|---|---|---|")
    found = []
    for cell in cells:
        whole = correlate(cell.x, cell.y, bootstrap)
        rest = take_out(cell, known, bootstrap)
        texts = _text(whole.tau, whole.tau_low, whole.tau_high), _text(*rest)
        row = cell.run, cell.annotator, cell.measure, *texts
        print(f"| {' | '.join(row)} |", flush=True)
        about = {"run": cell.run, "annotator": cell.annotator, "measure": cell.measure}
        found.append({**about, "tau": whole.tau, "partial": rest._asdict()})
    page = [Line("exact match without passages", f"{share:.3f}")]
    write_report(arguments, ("polars", "scipy"), {"closed_book": share, "cells": found}, page)


def closed_book(
    queries: pl.DataFrame, reader: str, augmentation: Augmentation, metric: str
) -> Mapping[str, float]:
    """The score of each question read without passages, by its id."""
    spec, prompt = specify(reader, augmentation=augmentation, task="short-answer")
    none = queries.select(QUERY_ID, pl.lit([], dtype=pl.List(pl.String)).alias(DOC_IDS))
    corpus = pl.DataFrame(schema=CORPUS)
    wanted = wanted_reads(none, queries, corpus, prompt=prompt, fingerprint="")
    outputs = load(spec).read(wanted[INPUTS].to_list())
    reads = wanted.select(QUERY_ID).hstack(output_columns(outputs))
    failed = reads[FAILURE].drop_nulls()
    if not failed.is_empty():
        sys.exit(f"a question could not be read: {failed[0]}")
    scored = score_outputs(reads, queries, metric)
    return dict(scored.select(QUERY_ID, VALUE).rows())


def take_out(cell: Cell, known: Mapping[str, float], bootstrap: Bootstrap) -> Partial:
    """The partial tau of a cell, with what is known without passages held fixed."""
    z = np.array([known[query_id] for query_id in cell.query_ids])
    columns, pairs = (cell.x, cell.y, z), [(0, 1), (0, 2), (1, 2)]
    enough = enough_to_resample([(columns[i], columns[j]) for i, j in pairs])
    made = replicate(
        np.stack(columns),
        pairs,
        resamples=bootstrap.resamples if enough else 0,
        seed=bootstrap.seed,
        threads=bootstrap.threads,
    )
    value = float(partial(*made.tau))
    if not enough or np.isnan(value):
        return Partial(value, float("nan"), float("nan"))
    low, high, _ = interval(
        value, partial(*made.taus), None, method="percentile", confidence=bootstrap.confidence
    )
    return Partial(value, low, high)


def partial(xy: Floats, xz: Floats, yz: Floats) -> Floats:
    """Correlations of x and y with z held fixed; NaN where z, or x or y beside z, does not vary."""
    with np.errstate(divide="ignore", invalid="ignore"):
        rest = (xy - xz * yz) / np.sqrt((1 - np.square(xz)) * (1 - np.square(yz)))
    return np.where(np.isfinite(rest), rest, np.nan)


def _text(value: float, low: float, high: float) -> str:
    if not np.isfinite(value):
        return "undefined"
    if not np.isfinite(low):
        return f"{value:.2f}, no interval"
    return f"{value:.2f} [{low:.2f}, {high:.2f}]"


if __name__ == "__main__":
    main()
