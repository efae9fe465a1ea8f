"""How often intervals hold the truth and tests err, in samples of populations with known truth.

    python -m benchmarks.intervals [--cells NAME…] [--samples N] [--first N] [--saved FILE] [--workers 2] [--quick] [--list] [--json FILE]

A cell is a study (``_studies``) of a population (``_simulated``), with numbers of queries, samples and draws: ``CELLS``
has all. ``--cells`` takes beginnings of names ("clusters 12" gate), and ``--list`` prints the names;
``--samples`` and ``--first`` draw fewer or other samples; ``--saved`` stores each finished cell, and resumes from there.
Every figure is the mean over the samples that have it, most widths the median; brackets hold the share of
samples without it. A cell fails if the 99% binomial interval of a share lies beyond its limits.

- tau: intervals of tau-b and rho of a measure and an outcome, by the method that an evaluation would choose. ``lacks`` is
  the share of samples without an interval although no side is constant.
- difference: tests of the difference of two measures' correlations: how often p is at most 0.05 and 0.002 (the size
  without a true difference, else the power), and how often the interval holds it.
- clusters: the same intervals, and intervals of means and leads, for alike queries in clusters; ``alone`` is the interval
  of tau for queries treated as independent.
- alike: two runs with one mean that differ by little mostly; ``first`` and ``second`` are called better.
- several: all intervals of the leads among runs; ``unadjusted``: a percentile interval of a lead of the best run is above 0.
- gate: pairs whose loss is the margin, so that both decisions are errors; ``family`` has three pairs.
- plan: how often samples of the size that ``queries_needed`` returns, for a lead as large as here, show the lead.
- width: intervals at which ``--width`` stops; ``low`` and ``high`` lie below the truth and above it.
- lists: means from sampled lists with few expected right answers.
- ask: the mean preference of people from tasks that ``erag ask`` chooses; from its random tasks (``alone``), and
  from as many of all queries (``at random``). ``of random`` is the share of random tasks that have intervals as wide.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from benchmarks._harness import Line, beyond, make_parser, write_report
from benchmarks._simulated import LOSSES, MEASURES, PLANNED, PREFERENCES, SEVERAL, Pair
from benchmarks._studies import (
    HITS,
    KINDS,
    SIZES,
    Alike,
    Ask,
    Clusters,
    Difference,
    Gate,
    Lists,
    Plan,
    Several,
    Study,
    Tau,
    Width,
)

SHARES, TRUTHS = (0.03, 0.05, 0.1, 0.3), ("none", "equal", "apart")
PAIRS = (("P@10", "P@10"), ("Success", "Success"), ("Success", "P@10"), ("P@10", "nDCG"))
# Numbers of queries, and of right answers: few, and both sides of the bound for inverted intervals of binary measures.
FEW = ((30, 3), (60, 4), (60, 6), (120, 5), (120, 8), (120, 10))
SIZES_OF_RUNS = (20, 30, 50, 100, 200, 300)


def _cells() -> Iterator[Study]:
    for n, share, measure, truth in product(SIZES, SHARES, MEASURES, ("0", "0.3")):
        yield Tau(n, share, measure, truth, samples=2000 if n < 1000 else 500, draws=1000)
    for n, measure, truth, outcome in product(
        (12, 20), MEASURES[1:], ("0", "0.3"), ("right", "F1")
    ):
        yield Tau(n, 0.3, measure, truth, outcome, samples=100, draws=400)
    for n, share, hits, truth in product((60, 120, 300, 1000), (0.05, 0.1), HITS, ("0", "0.3")):
        yield Tau(n, share, hits, truth, "F1", samples=100 if n < 1000 else 25, draws=400)
    for n, share in product(SIZES, SHARES):
        cases = [*product(PAIRS, TRUTHS), *product(PAIRS[-1:], ("spread none", "spread"))]
        for pair, truth in cases:
            samples = (2000 if truth == "apart" else 5000) // (5 if n == 1000 else 1)
            yield Difference(Pair(n, share, pair[0], pair[1], truth), samples=samples, draws=1999)
    unlike = (PAIRS[-1], ("hit 0.2", "P@10"), ("hit 0.2", "hit 0.2"))
    few = [*product(unlike, FEW, TRUTHS), *product(PAIRS[-1:], FEW, ("spread",))]
    few += product([("hit 0.25", "hit 0.25")], ((120, 20), (120, 21)), TRUTHS)
    for pair, (n, right), truth in few:
        case = Pair(n, right / n, pair[0], pair[1], truth, exact=True)
        yield Difference(case, samples=250, draws=1999)
    kinds = (("P@10", "right", 0.0), ("P@10", "right", 0.3), ("nDCG", "F1", 0.3))
    for shape, within, kind in product(((12, 5), (20, 3), (40, 5)), (0.2, 0.5, 0.9), kinds):
        measure, outcome, tau = kind
        yield Clusters(*shape, within, measure, outcome, tau, samples=400, draws=200, first=1000)
    for kind, n, rare in product(KINDS, SIZES_OF_RUNS, (0.01, 0.02, 0.03, 0.06, 0.1)):
        yield Alike(kind, rare, n, samples=2000)
    for runs, n in product(SEVERAL, (19, 64, 300)):
        yield Several(runs, n, samples=500)
    for loss, margin, n in product(LOSSES, (0.02, 0.05), SIZES_OF_RUNS):
        yield Gate(loss, margin, n, samples=1000)
    for runs in PLANNED:
        yield Plan(runs, samples=4000)
    settings = ((400, 1.5, 0.85), (1000, 4.0, 0.98))
    for setting, share, graded, pair in product(settings, (0.03, 0.1, 0.3, 0.6), (False, True), (False, True)):  # fmt: skip
        yield Width(share, graded, pair, *setting, samples=1000)
    yield Width(0.03, False, False, 1500, 1.5, 0.85, samples=120)
    for lists, right, know in product((20, 40, 60, 200), (1, 2.4, 5), (0.3, 0.85)):
        yield Lists(lists, right, 10 * lists, know, samples=1000)
    for runs, tasks in product(PREFERENCES, (30, 60, 120)):
        yield Ask(runs, tasks, samples=1000)


CELLS = {cell.name: cell for cell in _cells()}
# A cell per study, which fails if a method is broken; in 20 to 100 samples.
QUICK = {
    "tau 64 0.05 Success 0.3 right": 100,
    "difference 64 0.1 P@10 nDCG equal": 100,
    "clusters 40 5 0.9 P@10 right 0.3": 30,
    "alike alike 0.06 100": 40,
    "several 10 equal runs, 5% right 64": 20,
    "gate 5% right alone, and 5% and the margin 0.05 100": 40,
    "plan 5% differ, all for one": 100,
    "width 0.1 400 1.5 0.85": 10,
    "lists 20 2.4 200 0.3": 100,
    "ask half differ, labels right in 70% 60": 40,
}


def figures(cell: Study) -> dict[str, list[float]]:
    """By figure, the mean or median over the samples that have it, and their number."""
    rows = list(cell.each())
    found = {}
    for key in rows[0]:
        values = np.array([row[key] for row in rows])
        there = values[np.isfinite(values)]
        middle = cell.amounts.get(key, np.mean)
        found[key] = [float(middle(there)) if len(there) else np.nan, len(there)]
    further = cell.further({key: value for key, (value, _) in found.items()})
    return found | {key: [value, len(rows)] for key, value in further.items()}


def faults(cell: Study, found: dict[str, list[float]]) -> list[str]:
    """The figures that lie beyond their limits by more than chance explains."""
    wrong = []
    for key, (least, most) in cell.limits.items():
        share, count = found[key]
        if count and beyond(round(share * count), int(count), least=least, most=most):
            wrong.append(key)
    return wrong


def shown(cell: Study, found: dict[str, list[float]]) -> str:
    """A line of a cell."""
    texts = []
    for key, (value, count) in found.items():
        lacking = 1 - count / cell.samples
        text = f"{value:.4g}" if key in cell.amounts else f"{value:.1%}"
        texts.append(f"{key} {text}" + (f" ({lacking:.0%})" if lacking > 0 else ""))
    return f"{cell.name}: {', '.join(texts)}"


def computed(
    cells: Sequence[Study], saved: Path | None, workers: int
) -> Iterator[tuple[Study, dict[str, list[float]]]]:
    """Each cell with its figures, known ones first.

    Args:
        saved: file of JSON lines to take figures from and add them to; None to keep none.
        workers: processes; 1 for this one.
    """
    known, missing = {}, []
    if saved is not None and saved.exists():
        # A killed run may leave half a line, which is dropped and computed again.
        *whole, _ = saved.read_text(encoding="utf-8").split("\n")
        saved.write_text("".join(f"{line}\n" for line in whole), encoding="utf-8")
        known = dict(json.loads(line) for line in whole)
    for cell in cells:
        if repr(cell) in known:
            yield cell, known[repr(cell)]
        else:
            missing.append(cell)
    with contextlib.ExitStack() as stack:
        # New processes: a fork would inherit locks that threads of Polars hold.
        one_by_one = (
            map if workers == 1 else stack.enter_context(get_context("spawn").Pool(workers)).imap
        )
        for cell, found in zip(missing, one_by_one(figures, missing), strict=True):
            if saved is not None:
                with saved.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([repr(cell), found]) + "\n")
            yield cell, found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--cells", nargs="+", default=[""], help="beginnings of names")
    parser.add_argument("--samples", type=int, help="of each cell, in the place of its own number")
    parser.add_argument("--first", type=int, help="number of the first sample")
    parser.add_argument("--saved", type=Path, help="file of figures, to go on from")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="a cell of each study, few samples")
    parser.add_argument("--list", action="store_true", help="print the names of the cells")
    options = parser.parse_args(arguments)
    cells = [cell for name, cell in CELLS.items() if name.startswith(tuple(options.cells))]
    if options.quick:
        cells = [replace(CELLS[name], samples=samples) for name, samples in QUICK.items()]
    given = {"samples": options.samples, "first": options.first}
    changed = {name: value for name, value in given.items() if value is not None}
    cells = [replace(cell, **changed) for cell in cells]
    if options.list:
        print("\n".join(cell.name for cell in cells))
        return 0
    rows, failed = [], 0
    for cell, found in computed(cells, options.saved, options.workers):
        wrong = faults(cell, found)
        failed += bool(wrong)
        print(shown(cell, found) + (f"  FAILS: {', '.join(wrong)}" if wrong else ""), flush=True)
        rows.append({"cell": cell.name, "samples": cell.samples, "figures": found})
    print(f"{failed} of {len(cells)} cells fail")
    page = [Line("cells whose intervals or tests fail", f"{failed} of {len(cells)}", "0")]
    write_report(options, ("numpy", "polars", "scipy"), {"cells": rows}, page)
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
