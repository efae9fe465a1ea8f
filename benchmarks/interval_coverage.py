"""How often a 95% bootstrap interval for tau-b holds the true value.

    python -m benchmarks.interval_coverage [--samples 1000] [--resamples 1000] [--json FILE]

Queries are drawn from a bivariate normal with correlation r; the measure and the outcome are functions
of its two sides: a measure with many values (nDCG) or 11 (P@10, 30% of the queries at 0), an outcome
that is binary (30% right) or continuous (F1). The true tau-b is 2 / pi asin(r) for two continuous
sides, else that of four million queries (standard error below 0.0005, a thirtieth of an interval's half
width at 3,000 queries). Each sample gets both intervals from the same resamples. A share of 1,000
samples has a standard error of 0.7 points.
"""

from __future__ import annotations

import math
import time
from itertools import product
from typing import Any, get_args

import numpy as np
import numpy.typing as npt
import scipy.stats

from benchmarks._harness import make_parser, write_report
from engine.statistics.intervals import IntervalMethod, interval
from engine.statistics.resampling import replicate

Floats = npt.NDArray[np.float64]

SIZES = (100, 300, 1000, 3000)
CORRELATIONS = (0.0, 0.4, 0.8)
METHODS: tuple[IntervalMethod, ...] = get_args(IntervalMethod)
_EDGES = scipy.stats.norm.ppf(np.linspace(0.3, 0.97, 10))


def draw(
    rng: np.random.Generator, n: int, measure: str, outcome: str, r: float
) -> tuple[Floats, Floats]:
    """A measure and an outcome of n queries."""
    x = rng.normal(size=n)
    y = r * x + math.sqrt(1 - r**2) * rng.normal(size=n)
    return (
        np.searchsorted(_EDGES, x).astype(float) if measure == "P@10" else x,
        (y > scipy.stats.norm.ppf(0.7)).astype(float) if outcome == "binary" else y,
    )


def true_tau(measure: str, outcome: str, r: float) -> float:
    if (measure, outcome) == ("nDCG", "continuous"):
        return 2 / math.pi * math.asin(r)
    if r == 0:
        return 0.0
    x, y = draw(np.random.default_rng(99), 4_000_000, measure, outcome, r)
    return float(scipy.stats.kendalltau(x, y).statistic)


def covered(
    cell: int, measure: str, outcome: str, r: float, n: int, samples: int, resamples: int
) -> dict[str, Any]:
    """Share of the samples whose interval holds the true tau-b, and the mean width, by method."""
    truth = true_tau(measure, outcome, r)
    holds = dict.fromkeys(METHODS, 0)
    widths = dict.fromkeys(METHODS, 0.0)
    # Every sample of every cell, and its resamples, come from separate streams.
    for sample in range(samples):
        x, y = draw(np.random.default_rng([cell, n, sample]), n, measure, outcome, r)
        found = replicate(
            np.stack([x, y]),
            [(0, 1)],
            resamples=resamples,
            seed=(cell * 10**5 + n) * 10**5 + sample,
            leave_out=True,
        )
        assert found.without is not None
        for method in METHODS:
            low, high, _ = interval(
                float(found.tau[0]),
                found.taus[0],
                found.without[0, 0],
                method=method,
                confidence=0.95,
            )
            holds[method] += low <= truth <= high
            widths[method] += high - low
    return {
        "measure": measure,
        "outcome": outcome,
        "r": r,
        "tau": truth,
        "n": n,
        "coverage": {method: holds[method] / samples for method in METHODS},
        "width": {method: widths[method] / samples for method in METHODS},
    }


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--resamples", type=int, default=1000)
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    arguments = parser.parse_args()
    start = time.perf_counter()
    print(f"coverage of 95% intervals for tau-b: {' / '.join(METHODS)}, in percent")
    print(f"{'measure':9}{'outcome':12}{'tau':>6}" + "".join(f"{n:>15,}" for n in arguments.sizes))
    rows: list[dict[str, Any]] = []
    kinds = product(("P@10", "nDCG"), ("binary", "continuous"), CORRELATIONS)
    for number, (measure, outcome, r) in enumerate(kinds):
        cells = [
            covered(number, measure, outcome, r, n, arguments.samples, arguments.resamples)
            for n in arguments.sizes
        ]
        shown = [" / ".join(f"{100 * cell['coverage'][m]:.1f}" for m in METHODS) for cell in cells]
        print(f"{measure:9}{outcome:12}{cells[0]['tau']:6.3f}" + "".join(f"{s:>15}" for s in shown))
        rows += cells
    for method in METHODS:
        good = sum(0.93 <= row["coverage"][method] <= 0.97 for row in rows)
        print(f"{method}: between 93% and 97% in {good} of {len(rows)} cells")
    print(
        f"{arguments.samples} samples of {arguments.resamples} resamples in each cell, "
        f"{time.perf_counter() - start:.0f} s"
    )
    write_report(arguments, ("numpy", "scipy"), {"cells": rows})


if __name__ == "__main__":
    main()
