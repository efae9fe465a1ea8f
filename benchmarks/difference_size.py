"""Size, power and coverage of the tests of differences between two correlations.

    python -m benchmarks.difference_size [--samples 2000] [--quick] [--thin] [--saved FILE] [--workers 2] [--json FILE]

Two measures are drawn on the same queries with one right-or-wrong outcome (``_simulated_pairs``, which says
what is true in each kind of cell).

Every sample is tested as the engine tests it. Of each cell: the share of samples without a p-value; among
the others the share with p <= 0.05 and p <= 0.002 (the size, or the power where the cell is "apart"), the
share of 95% intervals that hold the true difference, and the median width; then the same of the bootstrap.
A cell FAILS where the 99% binomial interval of a size lies above 6% or 0.4%, or that of the coverage below
93%. Sizes of rho count where the true difference of rho is 0; coverage of rho always.

The table shows tau; the files have rho too. Cells in which the truth is no difference have two and a half
times ``--samples``, for sizes at 0.002; those of 1,000 queries a fifth. Where the engine does not use the
bootstrap, it is computed on a quarter of the samples, and on half with 30% right answers, where it may be
valid. A p-value is from 99 permutations: where that is above 0.2, that of 399 is above 0.05. Where it
is not, from 399, or resamples; and where these give 0.015 or less, from 1,999.
Samples of a cell share their draws in groups of 25. ``--thin`` draws other cells instead, with exactly 3 to 21
right answers, and without the bootstrap. At the end: the extremes by number of queries, and the power beside the bootstrap's where that cannot be shown to reject too often.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks._cells import beyond, figures_of
from benchmarks._harness import Line, make_parser, write_report
from benchmarks._simulated_pairs import Case, Exact, draw, true_differences, true_taus
from engine.statistics.comparison import with_intervals
from engine.statistics.correlation import Bootstrap
from engine.statistics.difference_tests import (
    DifferenceTest,
    Pair,
    enough_to_resample,
    prepare,
    quotients,
    studentized,
    tau_and_rho_tests,
    untestable,
)
from engine.statistics.intervals import p_value
from engine.statistics.pairs import pair_table, tau_and_rho

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
Counts = npt.NDArray[np.int32]

SIZES = (19, 30, 64, 100, 300, 1000)
SHARES = (0.03, 0.05, 0.10, 0.30)
# Alike in distribution, and unlike.
PAIRS = (
    ("P@10", "P@10"),
    ("Success", "Success"),
    ("Success", "P@10"),
    ("P@10", "nDCG"),
)
SPREAD_PAIR = ("P@10", "nDCG")
TRUTHS = ("none", "equal", "apart")
SPREAD_TRUTHS = ("spread none", "spread")
# Numbers of queries, and of right answers.
THIN = ((30, 3), (60, 4), (60, 6), (120, 5), (120, 8), (120, 10))
# One of 1,000 queries takes 30 times as long as one of 19.
_FEWER = {1000: 5}
_MORE_FOR_SIZES = 2.5
# The limits of size at both levels, and of coverage.
LEVELS = {0.05: 0.06, 0.002: 0.004}
LEAST_COVERAGE = 0.93
_FIRST_DRAWS, _DRAWS, _MORE_DRAWS = 99, 399, 1999
_LARGE_P, _SMALL_P = 0.2, 0.015
QUICK_SAMPLES = 200
_GROUP = 25
# The bootstrap serves for comparison only: it is computed on one in so many samples, on more where so many
# answers are right that it may be valid.
_BOOTSTRAP_PART, _BOOTSTRAP_MORE, _OFTEN_RIGHT = 4, 2, 0.3
# Cells with fewer tested samples say little of extremes.
_ENOUGH_SAMPLES = 100


@dataclass(frozen=True)
class Cell:
    """What is drawn, and how often."""

    case: Case
    samples: int


Results = list[tuple[Cell, dict[str, Any]]]


@dataclass(frozen=True)
class Found:
    """Of one sample: the engine's tests of tau and rho, None without a p-value, and the bootstrap's.

    ``bootstrap`` is None where it was left out.
    """

    tests: tuple[DifferenceTest, DifferenceTest] | None
    bootstrap: tuple[DifferenceTest, DifferenceTest] | None


def cells_of(sizes: Sequence[int], samples: int) -> list[Cell]:
    """The whole study, with ``samples`` (1 or more) of a cell in which the truth is a difference."""
    cases = []
    for n, share in product(sizes, SHARES):
        for (first, second), truth in product(PAIRS, TRUTHS):
            cases.append(Case(n, share, first, second, truth))
        for truth in SPREAD_TRUTHS:
            cases.append(Case(n, share, *SPREAD_PAIR, truth))
    return [Cell(case, _samples_of(case, samples)) for case in cases]


def _samples_of(case: Case, samples: int) -> int:
    more = 1 if case.truth == "apart" else _MORE_FOR_SIZES
    return max(1, int(samples * more) // _FEWER.get(case.n, 1))


def quick_cells() -> Iterator[Cell]:
    """Four numbers of queries and shares: the bootstrap fails in three, and nearly holds in one."""
    for n, share in ((19, 0.10), (64, 0.05), (64, 0.30), (300, 0.03)):
        yield Cell(Case(n, share, "Success", "P@10", "none"), QUICK_SAMPLES)
        yield Cell(Case(n, share, "P@10", "nDCG", "equal"), QUICK_SAMPLES)


def thin_cells(samples: int) -> Iterator[Cell]:
    """Exactly so many right answers: few ones, and both sides of where intervals begin to be inverted."""
    unlike = (SPREAD_PAIR, ("hit 0.2", "P@10"), ("hit 0.2", "hit 0.2"))
    cases = [Exact(n, right / n, *SPREAD_PAIR, "spread") for n, right in THIN]
    cases += [
        Exact(120, right / 120, "hit 0.25", "hit 0.25", truth)
        for right, truth in product((20, 21), TRUTHS)
    ]
    cases += [
        Exact(n, right / n, first, second, truth)
        for (first, second), (n, right), truth in product(unlike, THIN, TRUTHS)
    ]
    return (Cell(case, samples) for case in cases)


def examine(
    x_a: Floats, x_b: Floats, y: Floats, orders: Ints, weights: Counts, *, resample: bool
) -> Found | None:
    """Test one sample; None where a side is constant.

    Args:
        x_a, x_b, y: (n,).
        orders: (1999, n) permutations.
        weights: (1999, n) multiplicities of resamples.
        resample: whether the bootstrap's p-value is wanted where the engine does not use it.
    """
    if min(np.ptp(side) for side in (x_a, x_b, y)) == 0:
        return None
    scores = [(x_a, y), (x_b, y)]
    enough = enough_to_resample(scores)
    bootstrap = _by_resampling(scores, weights) if enough or resample else None
    if enough:
        return Found(bootstrap, bootstrap)
    if untestable(scores):
        return Found(None, bootstrap)
    found = _by_permutation(x_a, x_b, y, orders)
    (tau, rho), _, _ = with_intervals(scores, found, Bootstrap(resamples=_DRAWS))
    return Found((tau, rho), bootstrap)


def _by_resampling(
    scores: list[tuple[Floats, Floats]], weights: Counts
) -> tuple[DifferenceTest, DifferenceTest]:
    pairs = [pair_table(*pair) for pair in scores]

    def resampled(draws: int) -> Floats:
        first, second = tau_and_rho(pairs, weights[:draws]).swapaxes(0, 1)
        return np.asarray(first - second)

    differences = resampled(_DRAWS)
    if min(p_value(row) for row in differences) <= _SMALL_P:
        differences = resampled(_MORE_DRAWS)
    tau, rho = (
        DifferenceTest(p_value(row), *np.nanquantile(row, [0.025, 0.975]).tolist())
        for row in differences
    )
    return tau, rho


def _by_permutation(
    x_a: Floats, x_b: Floats, y: Floats, orders: Ints
) -> tuple[DifferenceTest, DifferenceTest]:
    outcome = prepare(y)
    first, second = Pair(prepare(x_a), outcome), Pair(prepare(x_b), outcome)

    def tests(draws: int) -> tuple[DifferenceTest, DifferenceTest]:
        permuted = quotients(*studentized(first, second, orders[:draws]))
        return tau_and_rho_tests(first, second, permuted, 0.95)

    for draws, enough in ((_FIRST_DRAWS, _LARGE_P), (_DRAWS, _SMALL_P), (_MORE_DRAWS, 0.0)):
        tau, rho = tests(draws)
        if min(tau.p, rho.p) > enough:
            break
    return tau, rho


def study(cell: Cell) -> dict[str, Any]:
    """One cell's figures."""
    start = time.perf_counter()
    case, samples = cell.case, cell.samples
    part = _BOOTSTRAP_MORE if case.share >= _OFTEN_RIGHT else _BOOTSTRAP_PART
    rng = np.random.default_rng([case.n, round(case.share * 1000), *map(ord, str(case))])
    x_a, x_b, y = draw(rng, case, samples)
    found: list[Found] = []
    for sample in range(samples):
        if sample % _GROUP == 0:
            places = np.tile(np.arange(case.n, dtype=np.intp), (_MORE_DRAWS, 1))
            orders = rng.permuted(places, axis=1)
            drawn = rng.integers(0, case.n, (_MORE_DRAWS, case.n))
            weights = np.zeros((_MORE_DRAWS, case.n), dtype=np.int32)
            for resample, queries in zip(weights, drawn, strict=True):
                resample[:] = np.bincount(queries, minlength=case.n)
        result = examine(
            x_a[sample],
            x_b[sample],
            y[sample],
            orders,
            weights,
            resample=sample < samples // part and not isinstance(case, Exact),
        )
        if result is not None:
            found.append(result)
    tested = [one.tests for one in found if one.tests is not None]
    resampled = [one.bootstrap for one in found if one.bootstrap is not None]
    figures: dict[str, Any] = {
        "defined": len(found),
        "tested": len(tested),
        "resampled": len(resampled),
        "true_tau": list(true_taus(case)),
    }
    for row, (name, truth) in enumerate(zip(("tau", "rho"), true_differences(case), strict=True)):
        figures[name] = {
            "true_difference": truth,
            **_figures([tests[row] for tests in tested], truth),
            "bootstrap": _figures([tests[row] for tests in resampled], truth),
        }
    figures["fails"] = _failures(figures)
    figures["seconds"] = round(time.perf_counter() - start, 1)
    return figures


def _figures(tests: list[DifferenceTest], truth: float) -> dict[str, Any]:
    """How many p-values are at or below each level (not those that are not defined), and of the intervals."""
    printed = [test for test in tests if np.isfinite(test.low)]
    return {
        "rejected": [sum(test.p <= level for test in tests) for level in LEVELS],
        "intervals": len(printed),
        "covered": sum(bool(t.low - 1e-12 <= truth <= t.high + 1e-12) for t in printed),
        "width": float(np.median([t.high - t.low for t in printed])) if printed else None,
    }


def _failures(figures: dict[str, Any]) -> list[str]:
    """What lies beyond its limit with 99% confidence."""
    fails = []
    for name in ("tau", "rho"):
        own = figures[name]
        if own["true_difference"] == 0:
            for (level, most), count in zip(LEVELS.items(), own["rejected"], strict=True):
                if beyond(count, figures["tested"], most=most):
                    fails.append(f"size of {name} at {level}")
        if beyond(own["covered"], own["intervals"], least=LEAST_COVERAGE):
            fails.append(f"coverage of {name}")
    return fails


def line(cell: Cell, figures: dict[str, Any]) -> str:
    """A cell as a line of the printed table."""
    case, truth = cell.case, "{:.2f} {:.2f}".format(*figures["true_tau"])
    return (
        f"{case.n:5}{case.share:6.0%}  {case.first + ' ' + case.second:17} "
        f"{case.truth:12}{truth:>10}{1 - figures['tested'] / cell.samples:8.1%}"
        f"  {_columns(figures['tau'], figures['tested'])}  |"
        f"{_columns(figures['tau']['bootstrap'], figures['resampled'])}  {', '.join(figures['fails'])}"
    ).rstrip()


def _columns(own: dict[str, Any], tested: int) -> str:
    if not tested:
        return " " * 24
    at, at_small = (100 * count / tested for count in own["rejected"])
    if not own["intervals"]:
        return f"{at:6.1f}{at_small:6.2f}" + " " * 12
    return (
        f"{at:6.1f}{at_small:6.2f}{100 * own['covered'] / own['intervals']:6.1f}{own['width']:6.2f}"
    )


HEADER = (
    f"{'n':>5}{'right':>6}  {'measures':17} {'truth':12}{'true tau':>10}{'no p':>8}"
    f"  {'p<=.05  .002 holds width':>24}  |{'bootstrap: the same':>24}  fails"
)


def extremes(results: Results, n: int) -> str:
    """Of the cells of n queries: the greatest sizes of tau or rho, and the least coverage, in percent."""
    sizes, small, least, bootstrap = [0.0], [0.0], [1.0], [0.0]
    for cell, figures in results:
        if cell.case.n != n or figures["tested"] < _ENOUGH_SAMPLES:
            continue
        for own in (figures["tau"], figures["rho"]):
            if own["true_difference"] == 0:
                sizes.append(own["rejected"][0] / figures["tested"])
                small.append(own["rejected"][1] / figures["tested"])
                bootstrap.append(own["bootstrap"]["rejected"][0] / max(1, figures["resampled"]))
            if own["intervals"] >= _ENOUGH_SAMPLES:
                least.append(own["covered"] / own["intervals"])
    cells = sum(cell.case.n == n for cell, _ in results)
    return f"{n:7}{cells:7}{max(sizes):12.1%}{max(small):10.2%}{min(least):12.1%}{max(bootstrap):16.1%}"


def powers(results: Results) -> Iterator[str]:
    """Power at 0.05 beside the bootstrap's, where no size of the bootstrap is shown to be above its limit."""
    by_case = {cell.case: figures for cell, figures in results}
    for case, figures in by_case.items():
        nulls = [by_case.get(replace(case, truth=truth)) for truth in ("none", "equal")]
        if case.truth != "apart" or not all(nulls) or not figures["resampled"]:
            continue
        if any(_bootstrap_rejects_too_often(null) for null in nulls if null is not None):
            continue
        own = figures["tau"]["rejected"][0] / max(1, figures["tested"])
        other = figures["tau"]["bootstrap"]["rejected"][0] / figures["resampled"]
        yield f"{case.n:7}{case.share:6.0%}  {case.first + ' ' + case.second:17}{own:8.1%}{other:8.1%}"


def _bootstrap_rejects_too_often(figures: dict[str, Any]) -> bool:
    counts = figures["tau"]["bootstrap"]["rejected"]
    return any(
        beyond(count, figures["resampled"], most=most)
        for count, most in zip(counts, LEVELS.values(), strict=True)
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--samples", type=int, default=2000, help="samples of a cell with a difference"
    )
    parser.add_argument("--quick", action="store_true", help="eight cells of 200 samples")
    parser.add_argument("--thin", action="store_true", help="thin cells instead")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--saved", type=Path, help="file of figures, to go on from")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args(arguments)
    cells = list(quick_cells()) if options.quick else cells_of(options.sizes, options.samples)
    if options.thin:
        cells = list(thin_cells(options.samples))
    print(HEADER)
    results: Results = []
    for cell, figures in figures_of(cells, study, options.saved, workers=options.workers):
        print(line(cell, figures), flush=True)
        results.append((cell, figures))
    print("\nqueries  cells  size, .05  at .002    coverage   bootstrap, .05")
    for n in sorted({cell.case.n for cell in cells}):
        print(extremes(results, n))
    print(
        "\nqueries right  measures            power  bootstrap's, where it is not shown to be invalid"
    )
    for text in powers(results):
        print(text)
    failed = sum(bool(figures["fails"]) for _, figures in results)
    print(f"\n{failed} of {len(results)} cells fail")
    rows = [{"cell": asdict(cell), "figures": figures} for cell, figures in results]
    page = [Line("cells whose tests or intervals fail", f"{failed} of {len(results)}", "0")]
    write_report(options, ("numpy", "scipy"), {"cells": rows}, page)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
