"""How often the 95% intervals of tau-b and rho hold the true value, also where data are thin.

    python -m benchmarks.interval_coverage [--quick] [--thin] [--saved FILE] [--workers 2] [--json FILE]

A cell is a number of queries, a share of right answers, a measure and a true correlation
(``_simulated``). Of every sample the interval is the one that an evaluation would print, by whichever
method. A cell fails if the coverage of its printed intervals is below 93% by more than chance explains
(99% binomial intervals), or above 97%, or if a sample has none although neither side is constant.
Inverted tests may be above 97%: with few queries a table has few likely
neighbours, and no interval can hold the truth in just 95% of them. ``--extreme`` adds what is harder than any
evaluation should be: associations at 90% of the greatest possible, right answers at both ends of the
measure, and an outcome with many values. ``--thin`` draws other cells instead: 12 and 20 queries with
30% right, and F1 that is 0 for 90% or 95% of the queries beside a measure of two values.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtr

from benchmarks._cells import beyond, figures_of
from benchmarks._harness import Line, make_parser, write_report
from benchmarks._simulated import (
    MEASURES,
    correlation_for,
    draw,
    measure_of,
    of_table,
    true_correlations,
)
from benchmarks._single import correlate
from engine.statistics.correlation import Bootstrap, Correlation
from engine.statistics.inversion import table_of
from engine.statistics.methods import side
from engine.statistics.resampling import replicate

Floats = npt.NDArray[np.float64]

SIZES = (19, 30, 64, 100, 300, 1000)
SHARES = (0.03, 0.05, 0.1, 0.3)
TRUTHS = ("0", "0.3")
LEAST, MOST = 0.93, 0.97
STATISTICS = ("tau", "rho")
THIN_SIZES = (12, 20)
F1_SIZES = (60, 120, 300, 1000)
# Measures of two values, by their share of hits.
HITS = ("hit 0.05", "hit 0.2", "hit 0.5")
# Samples of each cell whose percentile intervals are computed too, for their width.
_BESIDE = 100


@dataclass(frozen=True)
class Cell:
    """What is drawn, and how often.

    Attributes:
        truth: "0"; "0.3", or 60% of the greatest possible tau where that is less; "0.9 of most"; or
            a kind of ``_uneven``.
        outcome: "right" (0 or 1) or "F1" (0, or evenly between 0 and 1).
        first: the number of the first sample.
    """

    n: int
    share: float
    measure: str
    truth: str
    outcome: str
    samples: int
    draws: int
    first: int = 0


def cells_of(
    *, quick: bool, extreme: bool, samples: int, draws: int, thin: bool = False
) -> list[Cell]:
    if quick:
        return [
            Cell(64, 0.05, "Success", "0.3", "right", 300, 400),
            Cell(64, 0.3, "nDCG", "0", "right", 300, 400),
            Cell(100, 0.1, "R", "0", "right", 300, 400),
            Cell(300, 0.03, "P@10", "0.3", "right", 300, 400),
        ]
    if thin:
        return [
            Cell(n, 0.3, measure, truth, outcome, samples, draws)
            for n, measure, truth, outcome in product(
                THIN_SIZES, MEASURES[1:], TRUTHS, ("right", "F1")
            )
        ] + [
            Cell(n, share, measure, truth, "F1", _affordable(n, samples), draws)
            for n, share, measure, truth in product(F1_SIZES, (0.05, 0.1), HITS, TRUTHS)
        ]
    cells = [
        Cell(n, share, measure, truth, "right", _affordable(n, samples), draws)
        for n, share, measure, truth in product(SIZES, SHARES, MEASURES, TRUTHS)
    ]
    if extreme:
        cells += [
            Cell(n, share, measure, truth, "right", samples, draws)
            for n, share, measure, truth in product(
                (64, 300), (0.1, 0.3), MEASURES, ("0.9 of most", "both ends", "mostly low")
            )
        ]
        cells += [
            Cell(n, share, measure, truth, "F1", samples, draws)
            for n, share, measure, truth in product((30, 64, 300), (0.1, 0.3), MEASURES, TRUTHS)
        ]
    return cells


def _affordable(n: int, samples: int) -> int:
    return samples // 4 if n >= 1000 else samples


def _uneven(rng: np.random.Generator, n: int, cell: Cell) -> tuple[Floats, Floats]:
    """Right answers that are not merely shifted: what methods that assume equal spread fail on.

    - both ends: right answers within the lowest or highest tenth of the measure, others between.
    - mostly low: three in four of the right answers in the lower third, the others in the top tenth.
    """
    right = rng.random(n) < cell.share
    at, coin = rng.random((2, n))
    if cell.truth == "both ends":
        quantiles = np.where(right, 0.1 * at + 0.9 * (coin < 0.5), 0.1 + 0.8 * at)
    else:
        quantiles = np.where(right, np.where(coin < 0.75, 0.35 * at, 0.9 + 0.1 * at), at)
    return measure_of(cell.measure, np.clip(quantiles, 1e-9, 1 - 1e-9)), right.astype(np.float64)


def _with_grades(rng: np.random.Generator, n: int, cell: Cell, r: float) -> tuple[Floats, Floats]:
    """As ``draw``, but right outcomes differ: the more, the better."""
    outcome, noise = rng.normal(size=(2, n))
    values = measure_of(cell.measure, ndtr(r * outcome + np.sqrt(1 - r**2) * noise))
    return values, np.maximum(0.0, (ndtr(outcome) - (1 - cell.share)) / cell.share)


def source(cell: Cell) -> tuple[Callable[[np.random.Generator], Any], tuple[float, float]]:
    """What draws a sample, and the true tau and rho."""
    if cell.truth in ("both ends", "mostly low"):
        x, y = _uneven(np.random.default_rng(99), 2_000_000, cell)
        # Values in 1,000 groups: their order is all that counts.
        return (lambda rng: _uneven(rng, cell.n, cell)), of_table(
            table_of(np.round(y), np.round(x, 3)).astype(np.float64)
        )
    r = correlation_for(cell.measure, cell.share, 0.0 if cell.truth == "0" else 0.3)
    if cell.truth == "0.9 of most":
        r = correlation_for(cell.measure, cell.share, 1.0, 0.9)
    if cell.outcome == "F1":
        if r == 0:
            return (lambda rng: _with_grades(rng, cell.n, cell, 0.0)), (0.0, 0.0)
        x, y = _with_grades(np.random.default_rng(99), 400_000, cell, r)
        found = correlate(x, y, Bootstrap(resamples=0))
        return (lambda rng: _with_grades(rng, cell.n, cell, r)), (found.tau, found.rho)
    return (
        lambda rng: draw(rng, cell.n, cell.measure, cell.share, r)
    ), true_correlations(cell.measure, cell.share, r)  # fmt: skip


def covered(cell: Cell) -> dict[str, Any]:
    """What became of the samples of a cell."""
    sample, truth = source(cell)
    seeds = [SIZES.index(cell.n) if cell.n in SIZES else cell.n, round(1000 * cell.share)]
    seeds += [(*MEASURES, *HITS).index(cell.measure), *map(ord, cell.truth[:3])]
    start = time.perf_counter()
    methods: Counter[str] = Counter()
    holds: Counter[str] = Counter()
    widths: dict[str, list[float]] = {"tau": [], "rho": []}
    beside: list[float] = []
    withheld, many = 0, 0
    for number in range(cell.first, cell.first + cell.samples):
        x, y = sample(np.random.default_rng([*seeds, number]))
        found = correlate(x, y, Bootstrap(resamples=cell.draws, seed=number % 4, threads=1))
        if not found.method:
            methods["none"] += 1
            withheld += int(min(side(x).amount, side(y).amount) > 0)
            continue
        methods[found.method] += 1
        discrete = found.method == "inverted"
        many += int(not discrete)
        for name, value in zip(STATISTICS, truth, strict=True):
            low, high = getattr(found, f"{name}_low"), getattr(found, f"{name}_high")
            holds[name] += int(low <= value <= high)
            if not discrete:
                holds[f"{name} of many"] += int(low <= value <= high)
            widths[name].append(high - low)
        if len(beside) < _BESIDE:
            beside.append(_percentile_width(x, y, found, cell.draws, number))
    return {
        "truth": list(map(float, truth)),
        "methods": methods,
        "holds": holds,
        "withheld": withheld,
        "many": many,
        "widths": {name: float(np.median(values or [0])) for name, values in widths.items()},
        "percentile_width": float(np.nanmedian(beside or [0])),
        "seconds": time.perf_counter() - start,
    }


def _percentile_width(x: Floats, y: Floats, found: Correlation, draws: int, seed: int) -> float:
    if found.method == "percentile":
        return found.tau_high - found.tau_low
    replicates = replicate(np.stack([x, y]), [(0, 1)], resamples=draws, seed=seed, threads=1)
    low, high = np.nanquantile(replicates.taus[0], [0.025, 0.975])
    return float(high - low)


def faults(cell: Cell, figures: dict[str, Any]) -> Iterator[str]:
    """What is wrong with a cell."""
    printed = cell.samples - figures["methods"].get("none", 0)
    many = figures["many"]
    for name in STATISTICS:
        hits = figures["holds"].get(name, 0)
        hits_of_many = figures["holds"].get(f"{name} of many", 0)
        if beyond(hits, printed, least=LEAST):
            yield f"{name} is held in {hits / printed:.1%}"
        elif beyond(hits_of_many, many, least=LEAST, most=MOST):
            yield f"{name} is held in {hits_of_many / many:.1%} of samples not inverted"
    if figures["withheld"]:
        yield f"{figures['withheld']} samples lack an interval"


def shown(cell: Cell, figures: dict[str, Any]) -> str:
    printed = cell.samples - figures["methods"].get("none", 0)
    shares = [figures["holds"].get(name, 0) / max(printed, 1) for name in STATISTICS]
    held = "     -     -" if not printed else f"{shares[0]:6.1%}{shares[1]:6.1%}"
    methods = " ".join(
        f"{name} {count / cell.samples:.0%}"
        for name, count in sorted(figures["methods"].items())
        if name != "none"
    )
    return (
        f"{cell.n:5}{cell.share:6.0%}  {cell.measure:8}{cell.outcome:6}{figures['truth'][0]:7.3f}"
        f"{1 - printed / cell.samples:7.0%}  {held}{figures['widths']['tau']:7.2f}"
        f"{figures['percentile_width']:7.2f}  {methods}"
    )


def overview(results: Sequence[tuple[Cell, dict[str, Any]]]) -> Iterator[str]:
    """The grid in a table: of each cell the coverage of tau in percent, and the percentage without."""
    found = {
        (cell.n, cell.share, cell.measure, cell.truth): (cell, figures)
        for cell, figures in results
        if cell.outcome == "right" and cell.truth in TRUTHS
    }
    kinds = list(product(MEASURES, TRUTHS))
    yield "    n right" + "".join(f"{f'{measure} {truth}':>13}" for measure, truth in kinds)
    for n, share in dict.fromkeys((key[0], key[1]) for key in sorted(found)):
        texts = []
        for kind in kinds:
            if (n, share, *kind) not in found:
                texts.append("")
                continue
            cell, figures = found[n, share, *kind]
            printed = cell.samples - figures["methods"].get("none", 0)
            held = f"{100 * figures['holds'].get('tau', 0) / printed:.1f}" if printed else "-"
            texts.append(f"{held} / {100 * (1 - printed / cell.samples):.0f}")
        yield f"{n:5}{share:6.0%}" + "".join(f"{text:>13}" for text in texts)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--samples", type=int, default=2000, help="a quarter at 1,000 queries")
    parser.add_argument("--draws", type=int, default=1000, help="resamples, or tables drawn")
    parser.add_argument("--first", type=int, default=0, help="number of the first sample")
    parser.add_argument("--sizes", type=int, nargs="+", help="numbers of queries; all by default")
    parser.add_argument("--quick", action="store_true", help="four cells of 300 samples")
    parser.add_argument("--thin", action="store_true", help="thin cells instead")
    parser.add_argument("--extreme", action="store_true", help="harder cells as well")
    parser.add_argument("--saved", type=Path, help="file of figures, to go on from")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args(arguments)
    cells = cells_of(
        quick=options.quick,
        extreme=options.extreme,
        samples=options.samples,
        draws=options.draws,
        thin=options.thin,
    )
    cells = [
        replace(cell, first=options.first)
        for cell in cells
        if not options.sizes or cell.n in options.sizes
    ]
    print("coverage of 95% intervals for tau and rho among samples with one; median width for tau")
    print("    n right  measure outcome  tau   none     tau   rho  width  perc.  methods")
    results, failed = [], 0
    for cell, figures in figures_of(cells, covered, options.saved, workers=options.workers):
        wrong = "; ".join(faults(cell, figures))
        failed += bool(wrong)
        print(shown(cell, figures) + (f"  FAILS: {wrong}" if wrong else ""), flush=True)
        results.append((cell, figures))
    print("\ncoverage of tau / samples without an interval, in percent")
    for line in overview(results):
        print(line)
    print(f"{failed} of {len(cells)} cells fail")
    write_report(
        options,
        ("numpy", "scipy"),
        {"cells": [{"cell": vars(cell), "figures": figures} for cell, figures in results]},
        [
            Line(
                "cells whose intervals hold too rarely, or too often",
                f"{failed} of {len(cells)}",
                "0",
            )
        ],
    )
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
