"""How often the intervals of a chosen run's leads hold, and how often a planned number of queries suffices.

    python -m benchmarks.lead_coverage [--samples 1000] [--json FILE]

Coverage: runs are drawn whose true means are known: equal ones with few right answers or with most answers
in common, unequal ones, and ones that differ by a few queries all in favour of one. Of each sample the
intervals of all pairs of runs are made as the verdict makes them (``engine.statistics.leads``), but
without the last step, which only widens them: that they reach to 0 where the randomization test does not
reject. "All" is the share of samples in which every interval holds its true difference; "by itself" the
same for percentile intervals, which are made for one pair at a time; "best fails" is the share in which some
percentile interval of a lead of the run with the best mean does not hold. "Width" is the median ratio of the two.

Power: for two runs, and for the best of four, ``queries_for`` says how many queries a difference needs; as many
are drawn, and the verdict's own test is applied: the interval above 0, and the randomization test
rejecting after Holm's correction. A share of 1,000 samples near 95% has a standard error of 0.7 points,
near 80% one of 1.3.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks._harness import Line, make_parser, write_report
from engine.statistics.correlation import Bootstrap
from engine.statistics.differences import mean_differences
from engine.statistics.intervals import holm
from engine.statistics.leads import largest_difference, paired_intervals
from engine.statistics.power import queries_for

Floats = npt.NDArray[np.float64]
# Scores (runs, n) and the true means of the runs.
Drawn = tuple[Floats, Floats]
Draw = Callable[[np.random.Generator, int], Drawn]

CONFIDENCE = 0.95
LEAST_COVERAGE = 0.93
POWERS = (0.78, 0.83)
# Resamples of the percentile intervals and draws of the randomization test: enough for shares of samples.
RESAMPLES = 500


def equal(runs: int, share: float, common: float = 0.0) -> Draw:
    """Runs of the same quality; each takes a share ``common`` of its answers from one that all share."""

    def draw(rng: np.random.Generator, n: int) -> Drawn:
        own, shared = rng.random((runs, n)) < share, rng.random(n) < share
        scores = np.where(rng.random((runs, n)) < common, shared, own)
        return scores.astype(np.float64), np.full(runs, share)

    return draw


def unequal(shares: Floats) -> Draw:
    def draw(rng: np.random.Generator, n: int) -> Drawn:
        return (rng.random((len(shares), n)) < shares[:, None]).astype(np.float64), shares

    return draw


def nested(extra: Floats, *, graded: bool) -> Draw:
    """Runs that are right where a common one is, and now and then elsewhere: differences of one sign."""

    def draw(rng: np.random.Generator, n: int) -> Drawn:
        base = np.where(rng.random(n) < 0.3, rng.random(n) if graded else 1.0, 0.0)
        more = (rng.random((len(extra), n)) < extra[:, None]) & (base == 0)
        gains = rng.random((len(extra), n)) if graded else np.ones((len(extra), n))
        return base + more * gains, 0.7 * extra * (0.5 if graded else 1)

    return draw


def normal(means: Floats, deviation: float) -> Draw:
    def draw(rng: np.random.Generator, n: int) -> Drawn:
        shared = rng.random(n)
        return means[:, None] + shared + rng.normal(0, deviation, (len(means), n)), means

    return draw


COVERED: dict[str, tuple[Draw, tuple[int, ...]]] = {
    "2 equal runs, 5% right": (equal(2, 0.05), (19, 64, 300)),
    "10 equal runs, 5% right": (equal(10, 0.05), (19, 64, 300)),
    "10 equal runs, 30% right, 9 of 10 answers shared": (equal(10, 0.3, 0.9), (19, 64, 300)),
    "10 runs, 2% to 30% right": (unequal(np.linspace(0.02, 0.3, 10)), (19, 64, 300)),
    "6 runs, one 10% right, the others 1%": (
        unequal(np.array([0.1, *[0.01] * 5])),
        (19, 64, 300),
    ),
    "6 nested runs, up to 8% more right": (
        nested(np.array([0, 0.01, 0.02, 0.03, 0.05, 0.08]), graded=False),
        (19, 64, 300),
    ),
    "the same with graded scores": (
        nested(np.array([0, 0.01, 0.02, 0.03, 0.05, 0.08]), graded=True),
        (19, 64, 300),
    ),
    "5 equal runs, normal scores": (normal(np.zeros(5), 0.2), (19, 64, 300)),
}
PLANNED: dict[str, Draw] = {
    "5% differ, all for one": nested(np.array([0.05 / 0.7, 0]), graded=False),
    "8% for one, 2% for the other": unequal(np.array([0.08 / 0.98, 0.02 / 0.92])),
    "30% and 20% right": unequal(np.array([0.3, 0.2])),
    "graded, 10% differ for one": nested(np.array([0.1 / 0.7, 0]), graded=True),
    "normal, 0.15 deviations": normal(np.array([0.15 * 2**0.5, 0]), 1.0),
    "normal, 0.3 deviations": normal(np.array([0.3 * 2**0.5, 0]), 1.0),
    "the best of four, 30%, others 20% right": unequal(np.array([0.3, 0.2, 0.2, 0.2])),
}


def bounds(scores: Floats) -> tuple[Floats, Floats]:
    """The verdict's intervals of all pairs of runs."""
    first, second = np.triu_indices(len(scores), 1)
    paired = scores[first] - scores[second]
    return paired_intervals(
        paired,
        largest_difference(scores),
        confidence=CONFIDENCE,
        comparisons=len(paired),
    )


def covered(draw: Draw, n: int, samples: int, number: int) -> dict[str, Any]:
    all_hold = all_hold_alone = best_fails = 0
    widths = []
    for sample in range(samples):
        rng = np.random.default_rng([number, n, sample])
        scores, means = draw(rng, n)
        first, second = np.triu_indices(len(scores), 1)
        true = means[first] - means[second]
        low, high = bounds(scores)
        all_hold += bool(((low <= true) & (true <= high)).all())
        weights = rng.multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
        resampled = weights @ (scores[first] - scores[second]).T / n
        by_itself = np.quantile(resampled, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
        hold = (by_itself[0] <= true + 1e-12) & (true <= by_itself[1] + 1e-12)
        all_hold_alone += bool(hold.all())
        best = scores.mean(axis=1).argmax()
        best_fails += not hold[(first == best) | (second == best)].all()
        widths.append(np.median(high - low) / max(np.median(by_itself[1] - by_itself[0]), 1 / n))
    return {
        "n": n,
        "coverage": all_hold / samples,
        "coverage_by_itself": all_hold_alone / samples,
        "best_fails_by_itself": best_fails / samples,
        "width_ratio": float(np.median(widths)),
    }


def power(draw: Draw, samples: int, number: int) -> dict[str, Any]:
    """The queries that the first run's lead over the second needs, and how often as many show it."""
    scores, means = draw(np.random.default_rng(number), 100_000)
    comparisons = len(scores) * (len(scores) - 1) // 2
    differences = scores[0] - scores[1]
    # About the largest of some hundred queries; of binary scores it is 1 in any case.
    scale = float(np.quantile(np.abs(differences), 0.995))
    if set(np.unique(differences)) <= {-1.0, 0.0, 1.0}:
        scale = 1.0
    n = queries_for(
        differences,
        float(means[0] - means[1]),
        scale,
        confidence=CONFIDENCE,
        comparisons=comparisons,
    )
    found = tests = 0
    for sample in range(samples):
        scores, _ = draw(np.random.default_rng([number, n, sample]), n)
        low, _ = bounds(scores)
        p = holm(mean_differences(scores, Bootstrap(RESAMPLES, seed=sample, threads=1)).p.tolist())
        tests += p[0] < 1 - CONFIDENCE
        found += bool(p[0] < 1 - CONFIDENCE and low[0] > 0)
    return {"n": n, "power": found / samples, "power_of_the_test": tests / samples}


def main(options: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, quick={"samples": 40})
    parser.add_argument("--samples", type=int, default=1000)
    arguments = parser.parse_args(options)
    start = time.perf_counter()
    print(f"{'runs':50}{'n':>5}{'all':>8}{'by itself':>11}{'best fails':>12}{'width':>7}")
    cells: list[dict[str, Any]] = []
    for number, (name, (draw, sizes)) in enumerate(COVERED.items()):
        for n in sizes:
            cell = {"runs": name} | covered(draw, n, arguments.samples, number)
            cells.append(cell)
            print(
                f"{name:50}{n:5}{cell['coverage']:8.1%}{cell['coverage_by_itself']:11.1%}"
                f"{cell['best_fails_by_itself']:12.1%}{cell['width_ratio']:7.2f}",
                flush=True,
            )
    held = sum(cell["coverage"] >= LEAST_COVERAGE for cell in cells)
    print(f"all intervals hold in {LEAST_COVERAGE:.0%} or more: {held} of {len(cells)} cells")
    print(f"\n{'difference':50}{'n':>5}{'power':>8}{'of the test':>13}")
    plans: list[dict[str, Any]] = []
    for number, (name, draw) in enumerate(PLANNED.items()):
        plan = {"difference": name} | power(draw, arguments.samples, number)
        plans.append(plan)
        print(
            f"{name:50}{plan['n']:5}{plan['power']:8.1%}{plan['power_of_the_test']:13.1%}",
            flush=True,
        )
    near = sum(POWERS[0] <= plan["power"] <= POWERS[1] for plan in plans)
    print(f"power between {POWERS[0]:.0%} and {POWERS[1]:.0%}: {near} of {len(plans)}")
    print(f"{arguments.samples:,} samples each, {time.perf_counter() - start:.0f} s")
    page = [
        Line("cells whose intervals all hold often enough", f"{held} of {len(cells)}"),
        Line("planned numbers of queries with the power asked for", f"{near} of {len(plans)}"),
    ]
    write_report(arguments, ("numpy", "scipy"), {"cells": cells, "plans": plans}, page)


if __name__ == "__main__":
    main()
