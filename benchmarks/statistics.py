"""Bootstrap of tau-b and rho, against a loop of SciPy's functions.

    python -m benchmarks.statistics [--resamples 10000] [--rounds 5] [--json FILE]

Cells: precision of binary labels (51 values) and nDCG (all values distinct) with a binary outcome, and
nDCG with a continuous one. The peer is ``scipy.stats.bootstrap`` with a statistic that calls
``kendalltau`` and ``spearmanr`` once each. It is timed on fewer resamples and scaled: its loop takes
the same time for each. First every replicate of a few resamples is compared with SciPy's values on the
queries written out. Then the whole of a job like the paper's Table 1: 240 cells of 3,000 queries
(4 annotators, 10 measures, 6 runs) with their comparisons and orders of runs; and the leads of every two of 30 runs
with graded scores, in CPU time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import scipy.stats

from benchmarks._harness import Line, in_turn, make_parser, write_report
from benchmarks._single import correlate
from engine import tables
from engine.statistics.correlation import Bootstrap
from engine.statistics.leads import paired_intervals
from engine.statistics.pairs import pair_table, tau_and_rho
from engine.statistics.table import analyse

Floats = npt.NDArray[np.float64]

PRECISION, NDCG, CONTINUOUS = "P@50, binary", "nDCG, binary", "nDCG, continuous"
# Goals of ratios against the loop.
GOALS = {PRECISION: 100, NDCG: 100, CONTINUOUS: 20}


def make_cell(kind: str, n: int) -> tuple[Floats, Floats]:
    """A measure and an outcome of n queries, correlated at about 0.3."""
    rng = np.random.default_rng(n)
    latent = rng.normal(size=n)
    outcome = 0.5 * latent + rng.normal(size=n)
    x = np.clip(np.round(50 * scipy.stats.norm.cdf(latent)), 0, 50) / 50
    return (
        x if kind == PRECISION else scipy.stats.norm.cdf(latent),
        scipy.stats.norm.cdf(outcome) if kind == CONTINUOUS else (outcome > 0.5).astype(float),
    )


def both(x: Floats, y: Floats) -> tuple[float, float]:
    return float(scipy.stats.kendalltau(x, y).statistic), float(scipy.stats.spearmanr(x, y)[0])


def check(x: Floats, y: Floats) -> None:
    """Check against SciPy's values on five resamples before timing."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, len(x), (5, len(x)))
    table = pair_table(x, y)
    weights = np.stack([np.bincount(row, minlength=len(x)) for row in drawn]).astype(np.int16)
    ours = tau_and_rho([table], weights)[:, 0].T
    furthest = np.abs(ours - [both(x[row], y[row]) for row in drawn]).max()
    if furthest > 1e-12:
        raise SystemExit(f"replicates differ from SciPy's by {furthest:.3g}")


def compare(kind: str, n: int, bootstrap: Bootstrap, rounds: int, sample: int) -> dict[str, Any]:
    x, y = make_cell(kind, n)
    check(x, y)
    single = replace(bootstrap, threads=1)
    sides: dict[str, Callable[[], Any]] = {
        "scipy": lambda: scipy.stats.bootstrap(
            (x, y),
            both,
            paired=True,
            vectorized=False,
            n_resamples=sample,
            method="percentile",
            rng=1,
        ),
        "one thread": lambda: correlate(x, y, single),
        "all threads": lambda: correlate(x, y, bootstrap),
    }
    seconds = {name: median(side.seconds) for name, side in in_turn(sides, rounds).items()}
    seconds["scipy"] *= bootstrap.resamples / sample
    return {"n": n, "cell": kind, **seconds}


def make_job(n: int) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Scores of 6 runs, 4 annotators, 10 measures, n queries, with binary outcomes."""
    rng = np.random.default_rng(0)
    queries = pl.Series([f"q{i:06}" for i in range(n)])
    scores, outcomes = [], []
    for run in range(6):
        latent = rng.normal(size=n)
        outcome = (0.5 * latent + rng.normal(size=n) > 0.5).astype(float)
        outcomes.append(_columns(queries, outcome, run=f"run{run}", k=10, output=""))
        for annotator in range(4):
            labels = scipy.stats.norm.cdf(latent + annotator * rng.normal(size=n))
            for measure in range(10):
                # Half of the measures have few values, like P and Success, half have many.
                values = np.round(labels * (measure + 1)) / (measure + 1)
                if measure >= 5:
                    values = labels ** (measure - 4)
                name = f"P@{measure + 1}" if measure < 5 else f"nDCG@{measure + 1}"
                names = {"run": f"run{run}", "annotator": f"a{annotator}", "measure": name}
                scores.append(_columns(queries, values, **names))
    return (
        pl.concat(scores).select(pl.col(name).cast(t) for name, t in tables.QUERY_SCORES.items()),
        pl.concat(outcomes).select(pl.col(name).cast(t) for name, t in tables.DOWNSTREAM.items()),
    )


def _columns(queries: pl.Series, values: Floats, **constants: str | int) -> pl.DataFrame:
    return pl.DataFrame({"query_id": queries, "value": values}).with_columns(
        pl.lit(value).alias(name) for name, value in constants.items()
    )


def lead_seconds(n: int) -> float:
    """CPU time of the intervals and p-values of every two of 30 runs with graded scores of n queries."""
    rng = np.random.default_rng(1)
    scores = np.clip(rng.random(n) + rng.normal(0, 0.2, (30, n)), 0, 1)
    first, second = np.triu_indices(len(scores), 1)
    start = time.process_time()
    paired_intervals(scores[first] - scores[second], 1.0, confidence=0.95, comparisons=len(first))
    return time.process_time() - start


def main(options: Sequence[str] | None = None) -> None:
    quick = {"resamples": 500, "rounds": 2, "sample": 10}
    parser = make_parser(__doc__, rounds=5, quick=quick)
    parser.add_argument("--resamples", type=int, default=10_000)
    parser.add_argument(
        "--sample", type=int, default=200, help="resamples that the peer is timed on"
    )
    arguments = parser.parse_args(options)
    bootstrap = Bootstrap(resamples=arguments.resamples)
    cores = len(os.sched_getaffinity(0))

    print(
        f"{arguments.resamples:,} resamples of tau-b and rho; medians of {arguments.rounds}; "
        f"SciPy timed on {arguments.sample} resamples and scaled; replicates equal to 1e-12"
    )
    print(
        f"{'cell':20}{'n':>7}{'SciPy s':>10}{'1 thread s':>12}{'ratio':>7}"
        f"{f'{cores} threads s':>13}{'ratio':>7}{'goal':>6}"
    )
    rows = []
    for kind in GOALS:
        for n in (3_000, 10_000):
            row = compare(kind, n, bootstrap, arguments.rounds, arguments.sample)
            rows.append(row)
            print(
                f"{kind:20}{n:7,}{row['scipy']:10.1f}{row['one thread']:12.3f}"
                f"{row['scipy'] / row['one thread']:7.0f}{row['all threads']:13.3f}"
                f"{row['scipy'] / row['all threads']:7.0f}{GOALS[kind]:6}"
            )
    scores, outcomes = make_job(3_000)
    start = time.perf_counter()
    statistics = analyse(scores, outcomes, bootstrap)
    job = time.perf_counter() - start
    print(
        f"whole job: {statistics.correlations.height} cells of 3,000 queries, "
        f"{statistics.comparisons.height} comparisons, {statistics.systems.height} orders of runs: {job:.1f} s "
        f"on {cores} cores (goal 180)"
    )
    leads = lead_seconds(1_000)
    print(f"leads of every two of 30 runs, 1,000 queries: {leads:.1f} s of CPU")
    page = [
        Line(
            f"{row['cell']}, {row['n']:,} queries: SciPy to one thread",
            f"{row['scipy'] / row['one thread']:.0f}",
        )
        for row in rows
    ]
    page.append(Line(f"240 cells, {arguments.resamples:,} resamples", f"{job:.1f} s"))
    page.append(Line("435 leads, 1,000 queries", f"{leads:.1f} s"))
    figures = {"cells": rows, "job_seconds": job, "leads_seconds": leads}
    write_report(arguments, ("numpy", "scipy", "polars"), figures, page)


if __name__ == "__main__":
    main()
