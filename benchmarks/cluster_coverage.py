"""How often 95% intervals hold the true value where questions come in clusters, which share an article.

    python -m benchmarks.cluster_coverage [--quick] [--clusters 12 20] [--saved FILE] [--workers 2] [--json FILE]

A cell is a number of clusters of a size, an intraclass correlation (of the normal variables that measure and
outcome are functions of), a measure, an outcome and a true tau. Of every sample there are the intervals
of tau, of rho, of the difference between the taus of two measures that are equally good, of the mean outcome, and of
the lead of one of two runs that are equally good over the other; beside them the share of the intervals of tau that
hold if queries are taken as independent.

A cell fails where intervals hold in less than 93% of the samples that have one, those of tau and of differences also
where they hold in more than 98%, by more than chance explains (99% binomial intervals); where fewer than 80% have an
interval of the mean or of the lead, or from 40 clusters on of tau. Intervals of means and leads are made to hold also
where whole clusters differ rarely and by much, which these cells do not show, and hold in more than 98% here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from benchmarks._cells import beyond, figures_of
from benchmarks._harness import Line, make_parser, write_report
from benchmarks._simulated import correlation_for, measure_of, true_correlations
from benchmarks._single import correlate
from engine.statistics.bounded import mean_interval
from engine.statistics.cells import Cell as Scores
from engine.statistics.comparison import compare_cells, correlate_cells
from engine.statistics.correlation import Bootstrap
from engine.statistics.leads import paired_intervals
from engine.tables import TAU, difference_of, high_of, low_of

Floats = npt.NDArray[np.float64]

LEAST, MOST, PRINTED, FROM = 0.93, 0.98, 0.8, 40
KINDS = ("tau", "rho", "difference", "mean", "lead")
# Share of right outcomes; those between 0 and 1 are even between.
_SHARE = 0.3
# Of the variances of two measures, given the outcome, what they have in common.
_COMMON = 0.6


@dataclass(frozen=True)
class Cell:
    """What is drawn, and how often; ``first`` is the number of the first sample."""

    clusters: int
    size: int
    within: float
    measure: str
    outcome: str
    truth: float
    samples: int
    draws: int
    first: int = 0


def cells_of(*, quick: bool, samples: int, draws: int, first: int = 0) -> list[Cell]:
    if quick:
        return [Cell(40, 5, within, "P@10", "right", 0.3, 100, 100) for within in (0.2, 0.9)]
    kinds = [("P@10", "right", 0.0), ("P@10", "right", 0.3), ("nDCG", "F1", 0.3)]
    shapes = product(((12, 5), (20, 3), (40, 5)), (0.2, 0.5, 0.9), kinds)
    return [
        Cell(clusters, size, within, measure, outcome, truth, samples, draws, first)
        for (clusters, size), within, (measure, outcome, truth) in shapes
    ]


def draw(rng: np.random.Generator, cell: Cell, r: float) -> tuple[Floats, Floats, Floats]:
    """Two measures, equally good, and an outcome."""
    own, shared = np.sqrt(1 - cell.within), np.sqrt(cell.within)
    of_clusters = np.repeat(rng.normal(size=(4, cell.clusters)), cell.size, axis=1)
    outcome, common, *apart = own * rng.normal(size=of_clusters.shape) + shared * of_clusters
    noises = [np.sqrt(_COMMON) * common + np.sqrt(1 - _COMMON) * noise for noise in apart]
    first, second = (
        measure_of(cell.measure, ndtr(r * outcome + np.sqrt(1 - r**2) * noise)) for noise in noises
    )
    y = (ndtr(outcome) - (1 - _SHARE)) / _SHARE
    return first, second, (y > 0).astype(float) if cell.outcome == "right" else np.maximum(0.0, y)


@cache
def true_values(measure: str, outcome: str, truth: float) -> tuple[float, float]:
    """tau and rho of all queries."""
    r = correlation_for(measure, _SHARE, truth)
    if outcome == "right" or r == 0:
        return true_correlations(measure, _SHARE, r)
    cell = Cell(400_000, 1, 0.0, measure, outcome, truth, 1, 0)
    x, _, y = draw(np.random.default_rng(99), cell, r)
    found = correlate(x, y, Bootstrap(resamples=0))
    return found.tau, found.rho


def covered(cell: Cell) -> dict[str, Any]:
    """Of how many samples there are intervals, and of how many they hold."""
    r = correlation_for(cell.measure, _SHARE, cell.truth)
    tau, rho = true_values(cell.measure, cell.outcome, cell.truth)
    mean = _SHARE if cell.outcome == "right" else _SHARE / 2
    clusters = np.repeat(np.arange(cell.clusters), cell.size)
    ids = tuple(map(str, range(len(clusters))))
    printed: Counter[str] = Counter()
    holds: Counter[str] = Counter()
    for number in range(cell.first, cell.first + cell.samples):
        seeds = [cell.clusters, cell.size, round(10 * cell.within), number]
        first, second, y = draw(np.random.default_rng(seeds), cell, r)
        bootstrap = Bootstrap(resamples=cell.draws, seed=number % 4, threads=1)
        scores = [
            Scores("run", name, "M", 1, ids, x, y, clusters)
            for name, x in (("a", first), ("b", second))
        ]
        results = correlate_cells(scores, bootstrap)
        found = results[0].correlation
        (row,) = compare_cells(scores, results, bootstrap).to_dicts()
        alone = correlate(first, y, bootstrap)
        # Two runs that are equally good, scored by the measure; or right where it is above its middle.
        apart = first - second if cell.outcome == "F1" else (first > 0.5) - 1.0 * (second > 0.5)
        lead = paired_intervals(
            apart[None], 1.0, confidence=bootstrap.confidence, comparisons=1, clusters=clusters
        )
        for kind, low, high, value in (
            ("tau", found.tau_low, found.tau_high, tau),
            ("rho", found.rho_low, found.rho_high, rho),
            ("difference", row[low_of(TAU)], row[high_of(TAU)], 0.0),
            ("mean", *mean_interval(y, bootstrap.confidence, clusters), mean),
            ("lead", lead.low[0], lead.high[0], 0.0),
            ("independent", alone.tau_low, alone.tau_high, tau),
        ):
            printed[kind] += int(low <= high)
            holds[kind] += int(low <= value <= high)
        assert np.isfinite(row[difference_of(TAU)]) or not row["method"]
    return {"printed": printed, "holds": holds}


def faults(cell: Cell, figures: dict[str, Any]) -> Iterator[str]:
    """What is wrong with a cell."""
    for kind in KINDS:
        printed, holds = figures["printed"].get(kind, 0), figures["holds"].get(kind, 0)
        most = 1.0 if kind in ("mean", "lead") else MOST
        if beyond(holds, printed, least=LEAST, most=most):
            yield f"{kind} is held in {holds / printed:.1%}"
        owed = kind in ("mean", "lead") or (kind == "tau" and cell.clusters >= FROM)
        if owed and printed < PRINTED * cell.samples:
            yield f"{kind} has an interval in {printed / cell.samples:.0%}"


def shown(cell: Cell, figures: dict[str, Any]) -> str:
    texts = []
    for kind in (*KINDS, "independent"):
        printed, holds = figures["printed"].get(kind, 0), figures["holds"].get(kind, 0)
        held = f"{holds / printed:.1%}" if printed else "-"
        texts.append(f"{held:>7} / {printed / cell.samples:4.0%}")
    name = f"{cell.clusters} x {cell.size}"
    return f"{name:8}{cell.within:5}  {cell.measure:5}{cell.outcome:6}{cell.truth:4}  " + " ".join(
        texts
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--samples", type=int, default=400)
    parser.add_argument("--draws", type=int, default=400, help="resamples, or tables drawn")
    parser.add_argument("--first", type=int, default=0, help="number of the first sample")
    parser.add_argument("--clusters", type=int, nargs="+", default=[12, 20, 40])
    parser.add_argument("--quick", action="store_true", help="two cells of 100 samples")
    parser.add_argument("--saved", type=Path, help="file of figures, to go on from")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args(arguments)
    cells = [
        cell
        for cell in cells_of(
            quick=options.quick, samples=options.samples, draws=options.draws, first=options.first
        )
        if cell.clusters in options.clusters
    ]
    print("share of the intervals that hold / share of the samples that have one")
    columns = " ".join(f"{kind:>14}" for kind in (*KINDS, "independent"))
    print(f"clusters within measure outcome tau{columns}")
    results, failed = [], 0
    for cell, figures in figures_of(cells, covered, options.saved, workers=options.workers):
        wrong = "; ".join(faults(cell, figures))
        failed += bool(wrong)
        print(shown(cell, figures) + (f"  FAILS: {wrong}" if wrong else ""), flush=True)
        results.append((cell, figures))
    print(f"{failed} of {len(cells)} cells fail")
    write_report(
        options,
        ("numpy", "scipy"),
        {"cells": [{"cell": vars(cell), "figures": figures} for cell, figures in results]},
        [Line("cells of clusters whose intervals fail", f"{failed} of {len(cells)}", "0")],
    )
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
