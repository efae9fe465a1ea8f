"""Size, power and coverage of the tests of differences between two correlations.

    python -m benchmarks.difference_size [--samples 2000] [--quick] [--out cells.jsonl] [--json FILE]

Two measures are drawn on the same queries with one right-or-wrong outcome (``_simulated_pairs``, which says
what is true in each kind of cell).

Every sample is tested as the engine tests it. Of each cell: the share of samples without a p-value; among
the others the share with p <= 0.05 and p <= 0.002 (the size, or the power where the cell is "apart"), the
share of 95% intervals that hold the true difference, and the median width; then the same of the bootstrap. A cell FAILS where the 99% binomial interval of a size lies above 6% or 0.4%, or that of the
coverage below 93%. Sizes of rho count where the true difference of rho is 0; coverage of rho always.

The table shows tau; the files have rho too. The bootstrap is computed on a quarter of the samples where
the engine does not use it. A p-value is from 399 permutations or resamples; where that is 0.015 or less, from 1,999. Samples of a cell
share their draws in groups of 25. Cells are appended to the file of ``--out`` as they finish, and a run
goes on from there.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import binomtest

from benchmarks._harness import make_parser, write_report
from benchmarks._simulated_pairs import Case, draw, true_differences, true_taus
from engine.statistics.difference_tests import (
    DifferenceTest,
    Pair,
    degrees_of_freedom,
    enough_to_resample,
    judge,
    prepare,
    quotients,
    studentized,
    untestable,
    without_interval,
)
from engine.statistics.intervals import p_value
from engine.statistics.pairs import pair_table, pair_weights, tau_and_rho

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
# The number of samples is divided by these, because one of 1,000 queries takes 30 times as long as one of 19.
FEWER = {300: 2, 1000: 5}
# The limits of size at both levels, and of coverage.
LEVELS = {0.05: 0.06, 0.002: 0.004}
LEAST_COVERAGE = 0.93
_DRAWS, _MORE_DRAWS, _SMALL_P = 399, 1999, 0.015
QUICK_SAMPLES = 200
_GROUP = 25
# The bootstrap is computed on one in so many samples: it serves for comparison only.
_BOOTSTRAP_PART = 4


@dataclass(frozen=True)
class Found:
    """Of one sample: the engine's tests of tau and rho, None without a p-value, and the bootstrap's.

    ``bootstrap`` is None where it was left out.
    """

    tests: tuple[DifferenceTest, DifferenceTest] | None
    bootstrap: tuple[DifferenceTest, DifferenceTest] | None


def all_cases() -> Iterator[Case]:
    for n, share in product(SIZES, SHARES):
        for (first, second), truth in product(PAIRS, TRUTHS):
            yield Case(n, share, first, second, truth)
        for truth in SPREAD_TRUTHS:
            yield Case(n, share, *SPREAD_PAIR, truth)


def quick_cases() -> Iterator[Case]:
    """Four numbers of queries and shares: the bootstrap fails in three, and nearly holds in one."""
    for n, share in ((19, 0.10), (64, 0.05), (64, 0.30), (300, 0.03)):
        yield Case(n, share, "Success", "P@10", "none")
        yield Case(n, share, "P@10", "nDCG", "equal")


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
    tau, rho = _by_permutation(x_a, x_b, y, orders)
    if without_interval(scores):
        tau, rho = DifferenceTest(tau.p), DifferenceTest(rho.p)
    return Found((tau, rho), bootstrap)


def _by_resampling(
    scores: list[tuple[Floats, Floats]], weights: Counts
) -> tuple[DifferenceTest, DifferenceTest]:
    pairs = [pair_table(*pair) for pair in scores]

    def resampled(draws: int) -> Floats:
        values = [tau_and_rho(pair, pair_weights(pair, weights[:draws])) for pair in pairs]
        return np.array(values[0]) - np.array(values[1])

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
    freedom = degrees_of_freedom(outcome)
    differences, errors = studentized(first, second, np.arange(len(y))[None, :])

    def judged(draws: int) -> list[DifferenceTest]:
        permuted = quotients(*studentized(first, second, orders[:draws]))
        return [
            judge(
                float(differences[row, 0]),
                float(errors[row, 0]),
                permuted[row],
                confidence=0.95,
                freedom=freedom,
            )
            for row in range(2)
        ]

    tau, rho = judged(_DRAWS)
    if min(tau.p, rho.p) <= _SMALL_P:
        tau, rho = judged(_MORE_DRAWS)
    return tau, rho


def study(case: Case, samples: int) -> dict[str, Any]:
    """One cell's figures."""
    start = time.perf_counter()
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
            resample=sample < samples // _BOOTSTRAP_PART,
        )
        if result is not None:
            found.append(result)
    tested = [one.tests for one in found if one.tests is not None]
    resampled = [one.bootstrap for one in found if one.bootstrap is not None]
    figures: dict[str, Any] = {
        **asdict(case),
        "samples": samples,
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
        if own["true_difference"] == 0 and figures["tested"]:
            for (level, most), count in zip(LEVELS.items(), own["rejected"], strict=True):
                if _range(count, figures["tested"])[0] > most:
                    fails.append(f"size of {name} at {level}")
        if own["intervals"] and _range(own["covered"], own["intervals"])[1] < LEAST_COVERAGE:
            fails.append(f"coverage of {name}")
    return fails


def _range(count: int, of: int) -> tuple[float, float]:
    found = binomtest(count, of).proportion_ci(0.99)
    return float(found.low), float(found.high)


def line(cell: dict[str, Any]) -> str:
    """A cell as a line of the printed table."""
    truth = f"{cell['true_tau'][0]:.2f} {cell['true_tau'][1]:.2f}"
    return (
        f"{cell['n']:5}{cell['share']:6.0%}  {cell['first'] + ' ' + cell['second']:17} "
        f"{cell['truth']:12}{truth:>10}{1 - cell['tested'] / cell['samples']:8.1%}"
        f"  {_columns(cell['tau'], cell['tested'])}  |"
        f"{_columns(cell['tau']['bootstrap'], cell['resampled'])}  {', '.join(cell['fails'])}"
    )


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


def run(
    cases: list[Case], samples: Callable[[Case], int], out: Path | None
) -> list[dict[str, Any]]:
    """Study the cases that the file lacks, printing each."""
    done: dict[Case, dict[str, Any]] = {}
    if out is not None and out.exists():
        for text in out.read_text(encoding="utf-8").splitlines():
            cell = json.loads(text)
            if cell["samples"] == samples(
                case := Case(**{k: cell[k] for k in Case.__annotations__})
            ):
                done[case] = cell
    cells = []
    print(HEADER)
    for case in cases:
        if case not in done:
            done[case] = study(case, samples(case))
            if out is not None:
                with out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(done[case]) + "\n")
        cells.append(done[case])
        print(line(done[case]), flush=True)
    return cells


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--samples", type=int, default=2000, help="samples of each cell")
    parser.add_argument("--quick", action="store_true", help="eight cells of 200 samples")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--out", type=Path, help="JSONL file of finished cells, to go on from")
    return parser.parse_args()


def main() -> None:
    arguments = parse()
    cases = list(quick_cases() if arguments.quick else all_cases())
    cases = [case for case in cases if case.n in arguments.sizes]

    def samples(case: Case) -> int:
        if arguments.quick:
            return QUICK_SAMPLES
        return max(1, arguments.samples // FEWER.get(case.n, 1))

    cells = run(cases, samples, arguments.out)
    failed = [cell for cell in cells if cell["fails"]]
    print(f"{len(failed)} of {len(cells)} cells fail")
    write_report(arguments, ("numpy", "scipy"), {"cells": cells})


if __name__ == "__main__":
    main()
