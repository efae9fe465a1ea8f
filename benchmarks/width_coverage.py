"""How often the intervals hold that ``--width`` stops at, where the true means are known.

    python -m benchmarks.width_coverage [--quick] [--replays 1000] [--saved FILE] [--workers 2] [--json FILE]

A cell is a share of right answers, exact match or a graded score, one run or two runs nearly alike, how much the labels
of a list's first three passages know of its score, a number of queries, and how wide the interval may be, in widths of that
of all lists. Queries are drawn from a population, and read in rounds as ``--width`` has them; where no fewer lists suffice,
all are read, and the interval is that of the full evaluation. How far the interval of other numbers of lists would reach is
interpolated, which takes a third of the time, and leads to the same numbers of lists in nearly all replays.

"Low" and "high" are the shares of replays whose interval lies above the true mean, and below it. A cell fails where
intervals hold in less than 93% of the replays by more than chance explains (99% binomial intervals).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from benchmarks._cells import beyond, figures_of
from benchmarks._harness import Line, make_parser, write_report
from engine.evaluation.rounds import FIRST_LISTS
from engine.statistics.bounded import mean_interval
from engine.statistics.leads import paired_intervals
from engine.statistics.sampled_lists import Estimate, estimate, half_width, next_lists

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

LEVEL, LEAST = 0.05, 0.93
SHARES = (0.03, 0.1, 0.3, 0.6)
# Queries; how wide, in widths of all lists; and how the variables of a list and of its labels correlate.
SETTINGS = ((400, 1.5, 0.85), (1000, 4.0, 0.98))
# Of graded scores, the share of the right answers that are wholly right; as many more than these are half right.
_WHOLLY, _HALF = 0.8, 0.3
# The second of two runs has so many right answers for one of the first; the qualities of their lists correlate.
_SECOND, _ALIKE = 0.8, 0.9
# How much less useful the second and the third passage are than the first, and the noise of a label.
_WORSE, _NOISE = np.array([0.0, 0.8, 1.2]), 0.45
# Samples of which a cell takes the width of all lists.
_PILOTS = 8


@dataclass(frozen=True)
class Cell:
    """What is drawn, and how often."""

    share: float
    graded: bool
    pair: bool
    queries: int
    times: float
    know: float
    replays: int

    @property
    def mean(self) -> float:
        """The true mean, or the true lead."""
        right = self.share * (1 - _SECOND if self.pair else 1)
        return right * (_WHOLLY + _HALF / 2) if self.graded else right

    @property
    def name(self) -> str:
        return f"{'lead' if self.pair else 'mean':6}{'graded' if self.graded else 'em':8}{self.share:5.0%}"


@dataclass(frozen=True, eq=False)
class Foreseen(Estimate):
    """An estimate that foresees other numbers of lists quickly; ``of`` is the number of queries.

    How far the mean of y - f reaches, times the root of n, is a cubic polynomial in u, one for that root: that of the normal
    distribution at u = 0, and exact at three numbers.
    """

    of: int

    @cached_property
    def _now(self) -> tuple[tuple[float, float], tuple[float, float]]:
        return super().reaches(LEVEL, self.n, self.of)

    @cached_property
    def _foreseen(self) -> tuple[Floats, float, float]:
        """Both polynomials, u cubed first; how far one standard error widens a variance; and how far f reaches."""
        residuals = self.known - self.foretold
        nodes = np.geomspace(self.n, self.of, 3)
        found = [self._now, *(super(Foreseen, self).reaches(LEVEL, m, self.of) for m in nodes[1:])]
        far = [(below, above) for (below, _), (above, _) in found] * np.sqrt(nodes)[:, None]
        normal = np.full((1, 2), float(ndtri(1 - LEVEL / 2) * residuals.std()))
        u = np.append(nodes**-0.5, 0.0)
        polynomials = np.linalg.solve(np.vander(u), np.concatenate([far, normal]))
        apart = np.append(residuals, self._ends()) - residuals.mean()
        second, fourth = (float((apart**power).mean()) for power in (2, 4))
        return polynomials, math.sqrt((fourth / second**2 - 1) / len(apart)), found[0][0][1]

    def reaches(
        self, level: float, n: int, of: int, doubt: float = 0.0
    ) -> tuple[tuple[float, float], tuple[float, float]]:
        if n == self.n and not doubt:
            return self._now
        polynomials, doubted, of_f = self._foreseen
        below, above = np.array([n**-1.5, 1 / n, n**-0.5, 1.0]) @ polynomials
        wider = math.sqrt((1 + doubt * doubted) / n)
        return (wider * float(below), of_f), (wider * float(above), of_f)


class Sample:
    """Queries of a cell: the scores of whole lists, and what labels say of these, by run."""

    def __init__(self, cell: Cell, rng: np.random.Generator) -> None:
        common = rng.normal(size=cell.queries)
        self.runs = []
        for share in (cell.share, _SECOND * cell.share)[: 1 + cell.pair]:
            quality = _near(common, _ALIKE, rng)
            scored = _near(quality, cell.know, rng)
            parts = (_WHOLLY * share, (_WHOLLY + _HALF) * share) if cell.graded else (share,)
            y = np.mean([scored > ndtri(1 - part) for part in parts], axis=0)
            noise = rng.normal(0, _NOISE, (cell.queries, len(_WORSE)))
            useful = quality[:, None] - _WORSE + noise > ndtri(1 - share)
            found = useful.any(axis=1)
            rank = 1 + useful.argmax(axis=1)
            self.runs.append((y, np.stack([useful[:, 0], found / rank, found], axis=1) * 1.0))

    def estimate(self, known: Ints, n: int) -> Estimate:
        """From the labels of some queries, and the lists of the first n of these."""
        unread = np.arange(len(known)) >= n
        first, *other = (
            estimate(np.where(unread, np.nan, y[known]), features[known])
            for y, features in self.runs
        )
        found = first.less(other[0]) if other else first
        return Foreseen(**vars(found), of=len(self.runs[0][0]))

    def of_all(self) -> tuple[float, float]:
        """The interval of the full evaluation."""
        first, *other = (y for y, _ in self.runs)
        if not other:
            return mean_interval(first, 1 - LEVEL)
        found = paired_intervals((first - other[0])[None], 1.0, confidence=1 - LEVEL, comparisons=1)
        return float(found.low[0]), float(found.high[0])


def _near(variable: Floats, correlation: float, rng: np.random.Generator) -> Floats:
    noise = np.sqrt(1 - correlation**2) * rng.normal(size=len(variable))
    return np.asarray(correlation * variable + noise)


def lists_for_width(sample: Sample, queries: int, width: float) -> tuple[int, tuple[float, float]]:
    """How many lists are read, in rounds as ``--width`` has them, and the interval then."""
    order, labelled, n = np.arange(queries), False, min(FIRST_LISTS, queries)
    while n < queries:
        found = sample.estimate(order if labelled else order[:n], n)
        further = next_lists([found], width, LEVEL, queries, labelled=labelled)
        if labelled and n == further[0]:
            return n, found.interval(LEVEL)
        n, labelled = further
    return n, sample.of_all()


def covered(cell: Cell) -> dict[str, Any]:
    """How often intervals hold, on which side they miss, and how many lists they take."""
    seed = [int(1000 * cell.share), cell.graded, cell.pair, cell.queries, int(100 * cell.know)]
    rng, count = np.random.default_rng([*seed, int(10 * cell.times)]), cell.queries
    pilots = (Sample(cell, rng).estimate(np.arange(count), count) for _ in range(_PILOTS))
    widths = [(half_width([one], LEVEL, count, count), one.rho) for one in pilots]
    width = cell.times * float(np.mean([half for half, _ in widths]))
    low = high = 0
    read = []
    for _ in range(cell.replays):
        n, bounds = lists_for_width(Sample(cell, rng), count, width)
        low += cell.mean < bounds[0] - 1e-9
        high += cell.mean > bounds[1] + 1e-9
        read.append(n)
    return {
        "width": width, "rho": float(np.mean([rho for _, rho in widths])), "lists": float(np.mean(read)),
        "all": float(np.mean(np.array(read) == count)),
        "low": int(low), "high": int(high), "held": int(cell.replays - low - high),
    }  # fmt: skip


def cells_of(*, replays: int, quick: bool) -> Iterator[Cell]:
    for queries, times, know in SETTINGS[: 1 if quick else None]:
        for share in SHARES:
            for graded in (False, True):
                for pair in (False, True):
                    yield Cell(share, graded, pair, queries, times, know, replays)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser(__doc__, quick={"replays": 20})
    parser.add_argument("--replays", type=int, default=1000)
    parser.add_argument("--saved", type=Path, help="file of figures, to go on from")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args(arguments)
    cells = list(cells_of(replays=options.replays, quick=options.quick))
    print(f"{'lists for a width':20}{'of':>5}{'times':>6}{'rho':>6}{'width':>7}{'lists':>7}{'all':>6}{'low':>7}{'high':>7}{'held':>8}")  # fmt: skip
    results, failed = [], 0
    for cell, found in figures_of(cells, covered, options.saved, workers=options.workers):
        wrong = beyond(found["held"], cell.replays, least=LEAST)
        failed += wrong
        print(
            f"{cell.name:20}{cell.queries:5}{cell.times:6.1f}{found['rho']:6.2f}{found['width']:7.3f}{found['lists']:7.0f}"
            f"{found['all']:6.0%}{found['low'] / cell.replays:7.1%}{found['high'] / cell.replays:7.1%}"
            f"{found['held'] / cell.replays:8.1%}{'  FAILS' * wrong}",
            flush=True,
        )
        results.append({"cell": vars(cell), "figures": found})
    print(f"{failed} of {len(cells)} cells fail; {options.replays:,} replays each")
    page = [Line("cells of --width whose intervals hold too seldom", f"{failed} of {len(cells)}", "0")]  # fmt: skip
    write_report(options, ("numpy", "scipy"), {"cells": results}, page)
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
