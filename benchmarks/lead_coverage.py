"""How often the intervals of a chosen run's leads hold, and how often a planned number of queries suffices.

    python -m benchmarks.lead_coverage [--samples 2000] [--json FILE]

Nearly alike: two runs of the same quality whose scores differ by 0.1 on 30% of the queries and by 1 on a few
("alike"), or often by a little for one and rarely by 1 for the other ("equal means"). "Holds" is the share of
samples whose 95% interval (``engine.statistics.leads``) holds the true difference; "first" and "second" are the
shares in which either run is called better, which neither is. "Bonett & Price" is the share in which their
interval alone holds, with the same range; "largest seen" the same with the largest difference of the sample in
place of the range.

Several runs: runs whose true means are known, some equal, some nested. "All" is the share of samples in which
the simultaneous intervals of all pairs hold together.

Verdicts under exact match: of random evaluations, how often a lead is significant by the rule in use, and by the
rule before it (Bonett & Price's interval and the exact sign test after Holm's correction). No lead may be
significant by the rule in use alone.

Gates: pairs whose true difference is the margin itself, where either decision of ``erag gate`` is an error: the share
of samples in which the candidate is called not worse by more than the margin, and in which it is called worse, each at
most 5%. One query in fifty (margin 0.02) or twenty (0.05) is lost; "family" has three such pairs.

Power: for two runs, and for the best of four, ``queries_needed`` says how many queries a difference needs; as
many are drawn, and the share of samples in which the lead is significant is counted. A share of 2,000 samples
near 95% has a standard error of 0.5 points, near 80% one of 0.9.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import binomtest, t

from benchmarks._harness import Line, make_parser, write_report
from engine.statistics.intervals import holm
from engine.statistics.leads import p_values
from engine.statistics.non_inferiority import LEVEL as GATE_LEVEL
from engine.statistics.power import queries_needed

Floats = npt.NDArray[np.float64]
# Scores (runs, n) and the true means of the runs.
Drawn = tuple[Floats, Floats]
Draw = Callable[[np.random.Generator, int], Drawn]

CONFIDENCE = 0.95
LEVEL = 1 - CONFIDENCE
# Two standard errors below 95%, and of the calls to either side.
LEAST_COVERAGE, MOST_CALLS = 0.945, 0.05
POWERS = (0.78, 0.83)
FAMILY = 3
SIZES = (20, 30, 50, 100, 200, 300)
RARE = (0.01, 0.02, 0.03, 0.06, 0.1)


def alike(rare: float) -> Draw:
    """Differences of 0.1 either way on 30% of the queries, of 1 either way on few."""

    def draw(rng: np.random.Generator, n: int) -> Drawn:
        kind, sign = rng.random(n), rng.choice([-1.0, 1.0], n)
        differences = np.where(kind < rare, sign, np.where(kind < rare + 0.3, 0.1 * sign, 0.0))
        return np.stack([differences, np.zeros(n)]), np.zeros(2)

    return draw


def equal_means(rare: float) -> Draw:
    """The first run is ahead by 1 on few queries, the second by 0.1 or so on ten times as many."""

    def draw(rng: np.random.Generator, n: int) -> Drawn:
        often = min(10 * rare, 1 - rare)
        kind = rng.random(n)
        little = np.where(kind < rare + often, -rare / often, 0.0)
        return np.stack([np.where(kind < rare, 1.0, little), np.zeros(n)]), np.zeros(2)

    return draw


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


def graded(means: Floats, spread: float) -> Draw:
    """Continuous scores in [0, 1] around one that all runs share for a query."""

    def draw(rng: np.random.Generator, n: int) -> Drawn:
        shared = rng.random(n) * 0.4 + 0.3
        apart = rng.uniform(-spread, spread, (len(means), n))
        return means[:, None] + shared + apart, means

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
    "5 equal runs, continuous scores": (graded(np.zeros(5), 0.2), (19, 64, 300)),
}
PLANNED: dict[str, Draw] = {
    "5% differ, all for one": nested(np.array([0.05 / 0.7, 0]), graded=False),
    "8% for one, 2% for the other": unequal(np.array([0.08 / 0.98, 0.02 / 0.92])),
    "30% and 20% right": unequal(np.array([0.3, 0.2])),
    "graded, 10% differ for one": nested(np.array([0.1 / 0.7, 0]), graded=True),
    "continuous, 0.02 in the mean": graded(np.array([0.02, 0]), 0.2),
    "the best of four, 30%, others 20% right": unequal(np.array([0.3, 0.2, 0.2, 0.2])),
}


# Differences of n queries, candidate less baseline, whose true mean is minus the margin.
Loss = Callable[[np.random.Generator, int, float], Floats]


def _signed(rng: np.random.Generator, n: int, steps: Sequence[tuple[float, float]]) -> Floats:
    """Differences of given sizes, each with its probability; 0 else."""
    kind, found, before = rng.random(n), np.zeros(n), 0.0
    for size, share in steps:
        found[(kind >= before) & (kind < before + share)] = size
        before += share
    return found


LOSSES: dict[str, Loss] = {
    "ties, and the candidate wrong alone": lambda rng, n, m: _signed(rng, n, [(-1, m)]),
    "5% right alone, and 5% and the margin": lambda rng, n, m: _signed(
        rng, n, [(1, 0.05), (-1, 0.05 + m)]
    ),
    "3% right, of the baseline the margin more": lambda rng, n, m: (
        (rng.random(n) < 0.03).astype(np.float64) - (rng.random(n) < 0.03 + m)
    ),
    "50% right, of the baseline the margin more": lambda rng, n, m: (
        (rng.random(n) < 0.5).astype(np.float64) - (rng.random(n) < 0.5 + m)
    ),
    "F1, by 5 margins either way on 30%": lambda rng, n, m: _signed(
        rng, n, [(5 * m, 0.05), (-5 * m, 0.25)]
    ),
    "F1, often a little ahead, rarely 1 behind": lambda rng, n, m: _signed(
        rng, n, [(-1, 2 * m), (m / 0.4, 0.4)]
    ),
    "F1, often a little behind, rarely 1 ahead": lambda rng, n, m: _signed(
        rng, n, [(1, m / 2), (-1.5 * m / 0.4, 0.4)]
    ),
    "F1, up to 0.2 either way": lambda rng, n, m: rng.uniform(-0.2, 0.2, n) - m,
}
MARGINS = (0.02, 0.05)


def gates(loss: Loss, n: int, margin: float, samples: int, number: int) -> dict[str, Any]:
    """How often a gate errs at the margin: of one pair, and of a family of three, a third as many samples."""
    counts, drawn = np.zeros(4), max(1, samples // FAMILY)
    for sample in range(drawn):
        rng = np.random.default_rng([number, n, sample])
        rows = np.stack([loss(rng, n, margin) for _ in range(FAMILY)])
        p = p_values(rows, 1.0, np.full(FAMILY, -margin), comparisons=1)
        above = rows.mean(axis=1) > -margin
        passes, fails = above & (p < 2 * GATE_LEVEL), ~above & (p < 2 * GATE_LEVEL)
        any_fails = (~above & (p < 2 * GATE_LEVEL / FAMILY)).any()
        counts += passes.mean(), fails.mean(), passes.all(), any_fails
    names = ("not worse", "worse", "family not worse", "family worse")
    return {"n": n, "margin": margin} | dict(zip(names, (counts / drawn).tolist(), strict=True))


def nearly_alike(draw: Draw, n: int, samples: int, number: int) -> dict[str, Any]:
    """Of two runs with the same mean: how often intervals hold, and how often either is called better."""
    holds = first = second = bonett_price = largest_seen = 0
    for sample in range(samples):
        scores, _ = draw(np.random.default_rng([number, n, sample]), n)
        differences = scores[0] - scores[1]
        (p,) = p_values(differences[None], 1.0, np.zeros(1), comparisons=1)
        called = p < LEVEL
        holds += not called
        first += called and differences.sum() > 0
        second += called and differences.sum() < 0
        bonett_price += _bonett_price(differences, 1.0) >= LEVEL
        largest_seen += _bonett_price(differences, float(np.abs(differences).max())) >= LEVEL
    return {
        "n": n,
        "coverage": holds / samples,
        "first": first / samples,
        "second": second / samples,
        "bonett_price": bonett_price / samples,
        "largest_seen": largest_seen / samples,
    }


def _bonett_price(differences: Floats, largest: float) -> float:
    """The p-value of Bonett & Price's interval: the rule before, whose range was that of the sample."""
    added = np.append(differences, [largest, -largest])
    error = added.std() / np.sqrt(len(added))
    if error == 0:
        return 1.0
    return float(2 * t.sf(abs(added.mean()) / error, len(differences) - 1))


def covered(draw: Draw, n: int, samples: int, number: int) -> dict[str, Any]:
    held = 0
    for sample in range(samples):
        scores, means = draw(np.random.default_rng([number, n, sample]), n)
        first, second = np.triu_indices(len(scores), 1)
        paired, true = scores[first] - scores[second], means[first] - means[second]
        held += bool((p_values(paired, 1.0, true, comparisons=len(paired)) >= LEVEL).all())
    return {"n": n, "coverage": held / samples}


def verdicts(samples: int) -> dict[str, int]:
    """Leads that are significant by the rule in use, and by the one before it, under exact match."""
    counts = {"leads": 0, "both": 0, "before alone": 0, "now alone": 0}
    for sample in range(samples):
        rng = np.random.default_rng([sample, 1])
        runs, n = int(rng.integers(2, 11)), int(rng.integers(10, 301))
        common = rng.random()
        base, shares = rng.random(n) < rng.random(), rng.random((runs, 1)) * rng.random()
        scores = np.where(rng.random((runs, n)) < common, base, rng.random((runs, n)) < shares)
        first, second = np.triu_indices(runs, 1)
        paired = scores[first].astype(np.float64) - scores[second]
        now = p_values(paired, 1.0, np.zeros(len(paired)), comparisons=len(paired)) < LEVEL
        signs = [
            binomtest(int((row > 0).sum()), int((row != 0).sum())).pvalue if row.any() else 1.0
            for row in paired
        ]
        interval = np.array([_bonett_price(row, 1.0) * len(paired) < LEVEL for row in paired])
        before = interval & (np.array(holm(signs)) < LEVEL)
        counts["leads"] += len(paired)
        counts["both"] += int((now & before).sum())
        counts["before alone"] += int((before & ~now).sum())
        counts["now alone"] += int((now & ~before).sum())
    return counts


def power(draw: Draw, samples: int, number: int) -> dict[str, Any]:
    """The queries that the first run's lead over the second needs, and how often as many show it."""
    # So many that their mean is the true one: with 100,000 it is off by 3% where leads are small, and n by 6%.
    scores, _ = draw(np.random.default_rng(number), 4_000_000)
    comparisons = len(scores) * (len(scores) - 1) // 2
    n = queries_needed(scores[0] - scores[1], 1.0, confidence=CONFIDENCE, comparisons=comparisons)
    assert n is not None
    found = 0
    for sample in range(samples):
        scores, _ = draw(np.random.default_rng([number, n, sample]), n)
        (p,) = p_values((scores[0] - scores[1])[None], 1.0, np.zeros(1), comparisons=comparisons)
        found += bool(p < LEVEL)
    return {"n": n, "power": found / samples}


def _rates(cells: Sequence[dict[str, Any]]) -> list[float]:
    return [rate for cell in cells for key, rate in cell.items() if key.endswith("worse")]


def _gates(samples: int) -> list[dict[str, Any]]:
    """Print how often gates err, and by how much that may be chance."""
    found: list[dict[str, Any]] = []
    print(
        f"\n{'gates':44}{'margin':>7}{'n':>5}{'not worse':>11}{'worse':>8}{'family':>8}{'worse':>8}"
    )
    for number, (name, loss) in enumerate(LOSSES.items()):
        for margin in MARGINS:
            for n in SIZES:
                cell = gates(loss, n, margin, samples, number)
                found.append({"pairs": name} | cell)
                print(
                    f"{name:44}{margin:7}{n:5}{cell['not worse']:11.1%}{cell['worse']:8.1%}"
                    f"{cell['family not worse']:8.1%}{cell['family worse']:8.1%}",
                    flush=True,
                )
    error = (GATE_LEVEL * (1 - GATE_LEVEL) / max(1, samples // FAMILY)) ** 0.5
    rates = _rates(found)
    print(
        f"gates that err in {MOST_CALLS:.0%} or less, or up to two standard errors ({2 * error:.1%}) more: "
        f"{sum(rate <= MOST_CALLS + 2 * error for rate in rates)} of {len(rates)}; most often {max(rates):.1%}"
    )
    return found


def main(options: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, quick={"samples": 40})
    parser.add_argument("--samples", type=int, default=2000)
    arguments = parser.parse_args(options)
    start = time.perf_counter()
    print(
        f"{'nearly alike':24}{'rare':>5}{'n':>5}{'holds':>8}{'first':>8}{'second':>8}"
        f"{'Bonett & Price':>16}{'largest seen':>14}"
    )
    pairs: list[dict[str, Any]] = []
    for number, (name, kind) in enumerate((("alike", alike), ("equal means", equal_means))):
        for n in SIZES:
            for rare in RARE:
                cell = nearly_alike(kind(rare), n, arguments.samples, number)
                pairs.append({"runs": name, "rare": rare} | cell)
                print(
                    f"{name:24}{rare:5.0%}{n:5}{cell['coverage']:8.1%}{cell['first']:8.1%}"
                    f"{cell['second']:8.1%}{cell['bonett_price']:16.1%}{cell['largest_seen']:14.1%}",
                    flush=True,
                )
    good = sum(
        cell["coverage"] >= LEAST_COVERAGE and max(cell["first"], cell["second"]) <= MOST_CALLS
        for cell in pairs
    )
    print(f"hold in {LEAST_COVERAGE:.1%} or more: {good} of {len(pairs)} cells")
    print(f"\n{'runs':50}{'n':>5}{'all':>8}")
    cells: list[dict[str, Any]] = []
    # A sample of ten runs has 45 intervals.
    fewer = max(1, arguments.samples // 4)
    for number, (name, (draw, sizes)) in enumerate(COVERED.items()):
        for n in sizes:
            cells.append({"runs": name} | covered(draw, n, fewer, number))
            print(f"{name:50}{n:5}{cells[-1]['coverage']:8.1%}", flush=True)
    held = sum(cell["coverage"] >= LEAST_COVERAGE for cell in cells)
    print(f"all intervals hold in {LEAST_COVERAGE:.1%} or more: {held} of {len(cells)} cells")
    gated = _gates(arguments.samples)
    counts = verdicts(arguments.samples // 2)
    print(f"\nverdicts under exact match, {arguments.samples // 2:,} evaluations: {counts}")
    print(f"\n{'difference':50}{'n':>5}{'power':>8}")
    plans: list[dict[str, Any]] = []
    for number, (name, draw) in enumerate(PLANNED.items()):
        plans.append({"difference": name} | power(draw, arguments.samples, number))
        print(f"{name:50}{plans[-1]['n']:5}{plans[-1]['power']:8.1%}", flush=True)
    near = sum(POWERS[0] <= plan["power"] <= POWERS[1] for plan in plans)
    print(f"power between {POWERS[0]:.0%} and {POWERS[1]:.0%}: {near} of {len(plans)}")
    print(
        f"{arguments.samples:,} samples each ({fewer:,} of several runs), "
        f"{time.perf_counter() - start:.0f} s"
    )
    page = [
        Line("cells of runs nearly alike whose intervals hold", f"{good} of {len(pairs)}"),
        Line("cells of several runs whose intervals all hold", f"{held} of {len(cells)}"),
        Line("error rate of a gate at its margin, at most", f"{max(_rates(gated)):.1%}"),
        Line("verdicts that became more certain under exact match", str(counts["now alone"])),
        Line("planned numbers of queries with the power asked for", f"{near} of {len(plans)}"),
    ]
    found = {"pairs": pairs, "cells": cells, "gates": gated, "verdicts": counts, "plans": plans}
    write_report(arguments, ("numpy", "scipy"), found, page)


if __name__ == "__main__":
    main()
