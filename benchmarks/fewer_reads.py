"""Loss of certainty by fewer reads: full evaluations, replayed with a part of their reads.

    python -m benchmarks.fewer_reads [--quick] [--replays 200] [--widths 20] [--verdicts 2000] [--workers 2] [--picture FILE] [--json FILE]

The tables (``replays``) hold every read of full evaluations by the bundled Fusion-in-Decoder reader: run, query, rank,
passage, prompt tokens, label and score of the whole list, the latter two by exact match and by F1 in hundredths.

- ``nq``: 1,362 Natural Questions, ten passages by BM25, by the bundled encoder, and by BM25 with 10%, 30% and 60% of the
  passages exchanged for random ones.
- ``trivia``: 166 TriviaQA questions, ten passages by BM25.
- ``fid``, ``fid10``: 1,000 made-up questions with 50 passages by BM25; with ten, also with 10% and 30% exchanged.

Sampled lists: the reader reads whole lists of a share of the queries: 45%, or for a rho of 0.77 or more as many as 55% of the
tokens pay for. The first three passages of all lists are labelled, up to the first useful one, whose label is 1: the reads of
``--lazy --measures Success@1 RR@3 Success@3``. "Gain" is the width of the interval over the width with all lists, beside the
expectation from rho alone, and the expectation with the half values that the interval adds at both ends of the range ("ends"),
by which cells with a lower rho are judged. "New" and
"these" are the shares of replays whose interval holds the mean of other queries (replays resample queries) and of
these. Tokens are counted as the reader takes them: a passage that is read alone and in a list is encoded once; "alone" counts
both reads, as in-prompt readers take them.

Lists for a width: for a rho of 0.77 or more, as many lists as ``--width`` reads for intervals 1.5 times as wide as with all
lists, beside the number that the same rule reads without labels ("alone"). "Lists" is the share of whole lists, to which the
target applies. "With labels" counts the tokens of labels too, as in-prompt readers take them.

Until decided: queries in random order, with a test of the lead after every query. Reading of a run stops once it differs significantly from
every other run: "lists" is the share saved, by its lists, of the passages in all prompts (a list is a prompt of its own), and "both"
the share saved by its lists and its own passages' labels. ``nq4``, ``trivia4`` and ``two-hop4`` are the cells of Table 1: 300 questions,
five passages each by BM25, dense vectors, both fused, and the late ranks of BM25, a poor run. The exit status is 1 if a target is
missed, except with `--quick`, whose few replays miss some by chance.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from scipy.optimize import brentq
from scipy.special import logsumexp

from benchmarks._harness import Line, beyond, make_parser, write_report
from engine.statistics.single_labels import (
    FIRST_LISTS,
    LEAST_LISTS,
    Estimate,
    estimate,
    half_width,
    next_lists,
)
from engine.statistics.until import decided

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]

REPLAYS = Path(__file__).parent / "replays"
TABLES = ("nq", "trivia", "fid", "fid10")
LEVEL = 0.05
# Number of passages of a list to label, fewer if one is useful earlier. All numbers from one to five reach the target.
LABELLED = 3
# Share of the lists to read: in theory the width is then 1.2 times as large for a rho of 0.77.
SHARE = 0.45
LEAST, MOST = 0.93, 0.97
GAIN, TOKENS, RHO, NEAR = 1.2, 0.55, 0.77, 0.1
TIMES, OF_ALONE = 1.5, 0.6
CLEAR_TOKENS, FALSE, SAVED, SINGLES = 0.2, 0.05, 0.5, 0.15
STOPS = 0.03


@dataclass(frozen=True)
class Run:
    """Results of a run's reads.

    Attributes:
        y: (N,) scores of whole lists.
        features: (N, p) features from the labels of a list.
        every, first: (N,) tokens of all passages, and of the passages that are labelled for means.
        singles: (N,) number of passages read in search of the first useful one.
        k: passages of a list.
    """

    y: Floats
    features: Floats
    every: Floats
    first: Floats
    singles: Floats
    k: int


@dataclass(frozen=True)
class Cell:
    """The mean of a run, or the difference of two runs' means, for replays."""

    name: str
    runs: tuple[Run, ...]

    @property
    def y(self) -> Floats:
        first, *other = (run.y for run in self.runs)
        return first - other[0] if other else first

    @property
    def needed(self) -> float:
        """Tokens of the labelled passages, as a share of all passages' tokens."""
        every, first = (
            sum(float(getattr(run, which).sum()) for run in self.runs)
            for which in ("every", "first")
        )
        return first / every

    def estimate(self, drawn: Ints, read: Ints) -> Estimate:
        """Estimate from the lists of some drawn queries."""
        unread = np.isin(np.arange(len(drawn)), read, invert=True)
        first, *other = (
            estimate(np.where(unread, np.nan, run.y[drawn]), run.features[drawn])
            for run in self.runs
        )
        return first.less(other[0]) if other else first


def load(name: str, *, graded: bool) -> dict[str, Run]:
    table = pl.read_parquet(REPLAYS / f"{name}.parquet")
    label, whole, most = ("label_f1", "list_f1", 100.0) if graded else ("label", "list", 1.0)
    runs = {}
    for (run,), rows in table.group_by("run", maintain_order=True):
        lists = rows.group_by("query", maintain_order=True).agg(
            pl.col(label).cast(pl.Float64) / most,
            pl.col(whole).first().cast(pl.Float64) / most,
            pl.col("tokens").cast(pl.Float64),
        )
        labels, tokens = (np.array(lists[column].to_list()) for column in (label, "tokens"))
        k = labels.shape[1]
        found = labels >= 1
        singles = np.where(found.any(axis=1), 1 + found.argmax(axis=1), k)
        rank = np.minimum(singles, LABELLED)
        upto = np.arange(k) < rank[:, None]
        most_useful = np.where(upto, labels, 0.0).max(axis=1)
        features = [labels[:, 0], (most_useful >= 1) / rank, most_useful]
        runs[str(run)] = Run(
            lists[whole].to_numpy(), np.stack(features, axis=1), tokens.sum(axis=1),
            (tokens * upto).sum(axis=1), singles.astype(np.float64), k,
        )  # fmt: skip
    return runs


def cells() -> Iterator[Cell]:
    for name in TABLES:
        for graded in (False, True):
            runs, metric = load(name, graded=graded), "F1" if graded else "em"
            for run, of in runs.items():
                yield Cell(f"{name} {metric} {run}", (of,))
            base, *others = runs.items()
            for run, of in others:
                yield Cell(f"{name} {metric} {base[0]} - {run}", (base[1], of))


def replayed(cell: Cell, replays: int) -> dict[str, Any]:
    """Widths, coverage and tokens of a cell with some of its lists."""
    count, needed = len(cell.y), cell.needed
    every = np.arange(count)
    n, whole = round(SHARE * count), cell.estimate(every, every)
    if whole.rho >= RHO:
        n = int((TOKENS - needed) / (1 - needed) * count)
    held = {"new": 0, "these": 0}
    gains, rhos = [], []
    for replay in range(replays):
        rng = np.random.default_rng([count, replay])
        # A resample: as many queries, drawn from all. "These" compares with the mean of the resample itself.
        drawn = rng.integers(0, count, count)
        found = cell.estimate(drawn, rng.choice(count, n, replace=False))
        low, high = found.interval(LEVEL)
        here = found.interval(LEVEL, here=True)
        held["new"] += _within(cell.y.mean(), low, high)
        held["these"] += _within(cell.y[drawn].mean(), *here)
        least, most = cell.estimate(drawn, every).interval(LEVEL)
        gains.append((high - low) / (most - least))
        rhos.append(found.rho)
    rho, part = max(0.0, float(np.mean(rhos))), n / count
    theory = rho**2 + (1 - rho**2) / part
    # In variances of a score: the squares of the half values, added to the squares of all residuals.
    reach = np.array([whole.f.max() - whole.low, whole.high - whole.f.min()])
    added = float((np.minimum(reach, 1.0) ** 2).sum() / 2 / cell.y.var()) / n
    return {
        "n": n,
        "rho": rho,
        "gain": float(np.mean(gains)),
        "error": float(np.std(gains) / np.sqrt(replays)),
        "theory": float(np.sqrt(theory)),
        "expected": float(np.sqrt((theory + added / part) / (1 + added * part))),
        "tokens": part + (1 - part) * needed,
        "alone": (needed + part) / 2,
        **held,
    }


def _within(mean: float, low: float, high: float) -> bool:
    """Up to rounding."""
    return bool(low - 1e-9 <= mean <= high + 1e-9)


def faults(figures: dict[str, Any], replays: int) -> list[str]:
    """Faults of a cell of sampled lists."""
    wrong = []
    if figures["n"] >= LEAST_LISTS:
        for kind in ("new", "these"):
            if beyond(figures[kind], replays, least=LEAST, most=MOST):
                wrong.append(f"{kind} held in {figures[kind] / replays:.1%}")
    if figures["rho"] >= RHO:
        if figures["gain"] > GAIN or figures["tokens"] > TOKENS:
            wrong.append(
                f"{figures['gain']:.2f} times the width at {figures['tokens']:.0%} of the tokens"
            )
    elif abs(figures["gain"] / figures["expected"] - 1) > NEAR:
        wrong.append(f"{figures['gain'] / figures['expected']:.2f} of the width expected")
    return wrong


def lists_for_width(cell: Cell, drawn: Ints, order: Ints, width: float) -> Estimate:
    """The estimate once a width is reached, in rounds like ``--width``'s."""
    count = len(order)
    n, labelled = min(FIRST_LISTS, count), False
    while True:
        known = order if labelled else order[:n]
        found = cell.estimate(drawn[known], np.arange(n))
        further = next_lists([found], width, LEVEL, count, labelled=labelled)
        if labelled and n in (count, further[0]):
            return found
        n, labelled = further


def to_width(cell: Cell, replays: int) -> dict[str, Any] | None:
    """Lists for a width, with labels and without; None if the labels' rho is below the target's."""
    count = len(cell.y)
    every = np.arange(count)
    whole = cell.estimate(every, every)
    if whole.rho < RHO:
        return None
    width = TIMES * half_width([whole], LEVEL, count, count)
    bare = (replace(run, features=np.zeros((count, 1))) for run in cell.runs)
    alone = replace(cell, runs=tuple(bare))
    held = reached = 0
    lists = np.zeros(2)
    for replay in range(replays):
        rng = np.random.default_rng([3, count, replay])
        drawn, order = rng.integers(0, count, count), rng.permutation(count)
        found, other = (lists_for_width(one, drawn, order, width) for one in (cell, alone))
        low, high = found.interval(LEVEL)
        held += _within(cell.y.mean(), low, high)
        reached += int(high - low <= 2 * width + 1e-9)
        lists += np.array([found.n, other.n]) / count / replays
    share, of = lists.tolist()
    return {
        "rho": whole.rho, "width": width, "lists": share, "alone": of, "share": share / of,
        "with_labels": (cell.needed + share) / of, "new": held, "reached": reached,
    }  # fmt: skip


def widths(
    of_cells: Iterator[tuple[Cell, dict[str, Any] | None]], replays: int
) -> tuple[dict[str, Any], list[tuple[Line, bool]]]:
    """Cost of a width for every cell with a sufficient rho; printed, and compared with the target."""
    print(f"\n{'lists for a width':32}{'rho':>6}{'width':>7}{'lists':>7}{'alone':>7}{'share':>7}"
          f"{'with labels':>13}{'new':>6}{'reached':>9}")  # fmt: skip
    cases = {}
    for cell, found in of_cells:
        if found is None:
            continue
        cases[cell.name] = found
        print(
            f"{cell.name:32}{found['rho']:6.2f}{found['width']:7.3f}{found['lists']:7.0%}{found['alone']:7.0%}"
            f"{found['share']:7.0%}{found['with_labels']:13.0%}{found['new']:4}/{replays}{found['reached']:6}/{replays}"
            f"{'  MISSED' * (found['share'] > OF_ALONE)}",
            flush=True,
        )
    over = sum(found["share"] > OF_ALONE for found in cases.values())
    short = sum(found["reached"] < replays for found in cases.values())
    few = sum(beyond(found["new"], replays, least=LEAST, most=1.0) for found in cases.values())
    what = f"cells where a width takes more than {OF_ALONE:.0%} of the lists alone"
    return cases, [
        (Line(what, f"{over} of {len(cases)}", "0"), over == 0),
        (Line("cells where it is not reached, or held too seldom", f"{short + few}", "0"), short + few == 0),
    ]  # fmt: skip


def tilted(differences: Floats, mean: float) -> Floats:
    """Chances of the differences for a mean of ``mean``: exponential tilting."""

    def chances(tilt: float) -> Floats:
        return np.exp(tilt * differences - logsumexp(tilt * differences))

    tilt = brentq(lambda tilt: float(chances(tilt) @ differences) - mean, -20, 20)
    return chances(float(tilt))


def verdicts(differences: Floats, replays: int) -> dict[str, Any]:
    """Equal runs, and a lead of twice the final half-width: false verdicts at any time, and reads saved."""
    count = len(differences)
    rng = np.random.default_rng(1)
    null = tilted(differences, 0.0)
    found = [
        decided([rng.choice(differences, count, p=null)], confidence=1 - LEVEL)[0]
        for _ in range(replays)
    ]
    half = float(np.mean([(one.high - one.low) / 2 for one in found]))
    wrong = sum(one.leads != 0 for one in found)
    away = tilted(differences, min(2 * half, 0.9 * float(differences.max())))
    led = [
        decided([rng.choice(differences, count, p=away)], confidence=1 - LEVEL)[0]
        for _ in range(replays)
    ]
    read = [one.decided_at or count for one in led]
    return {
        "half": half,
        "false_null": wrong / replays,
        "false_shifted": sum(one.leads < 0 for one in led) / replays,
        "decided": sum(one.leads > 0 for one in led) / replays,
        "saved": 1 - float(np.mean(read)) / count,
    }


def in_order(first: Run, second: Run, replays: int) -> dict[str, Any]:
    """A real pair in random orders: the share of the tokens until the decision, and of false decisions."""
    differences, tokens = first.y - second.y, first.every + second.every
    shares, true, wrong = [], np.sign(differences.mean()), 0
    for replay in range(replays):
        order = np.random.default_rng([2, replay]).permutation(len(differences))
        one = decided([differences[order]], confidence=1 - LEVEL)[0]
        wrong += one.leads == -true
        shares.append(float(tokens[order][: one.decided_at or len(order)].sum() / tokens.sum()))
    return {"share": float(np.mean(shares)), "shares": shares, "false": wrong / replays}


def several() -> Iterator[tuple[str, Floats, list[list[Any]]]]:
    """Evaluations of several runs: scores (runs, N), and the passages of every run's lists."""
    for name in ("nq", "fid10"):
        table = pl.read_parquet(REPLAYS / f"{name}.parquet")
        scores = table.select("run", "query", value=pl.col("list").cast(pl.Float64)).unique()
        yield _lists(name, scores, table.select("run", "query", "rank", "doc"))
    for task in ("nq", "trivia", "two-hop"):
        cell = REPLAYS.parent / "cells" / f"{task}-bundled-fid"
        scores = pl.read_parquet(f"{cell}-scores.parquet").filter(annotator="end to end")
        table = pl.read_parquet(f"{cell}-labels.parquet").rename({"doc_id": "doc"})
        scores, table = (one.rename({"query_id": "query"}) for one in (scores, table))
        yield _lists(f"{task}4", scores, table)


def _lists(
    name: str, scores: pl.DataFrame, table: pl.DataFrame
) -> tuple[str, Floats, list[list[Any]]]:
    runs = table["run"].unique(maintain_order=True)
    of_runs = [scores.filter(pl.col("run") == run).sort("query")["value"] for run in runs]
    lists = table.sort("rank").group_by("run", "query").agg("doc").sort("query")
    docs = [lists.filter(pl.col("run") == run)["doc"].to_list() for run in runs]
    return name, np.stack([values.to_numpy() for values in of_runs]), docs


def stopping(scores: Floats, lists: list[list[Any]], orders: int) -> dict[str, float]:
    """The share of passages in prompts, of an evaluation until the verdict, that stopping of single runs saves."""
    count, pairs = scores.shape[1], list(combinations(range(len(scores)), 2))
    saved, of = np.zeros(2), 0
    for place in range(orders):
        order = np.random.default_rng([4, place]).permutation(count)
        found = decided([(scores[a] - scores[b])[order] for a, b in pairs], confidence=1 - LEVEL)
        at = {pair: one.decided_at or count for pair, one in zip(pairs, found, strict=True)}
        ends = [max(n for pair, n in at.items() if run in pair) for run in range(len(scores))]
        for n, query in enumerate(order[: max(ends)].tolist()):
            every = [tuple(of_run[query]) for of_run in lists]
            kept = [one for one, end in zip(every, ends, strict=True) if n < end]
            whole = [sum(map(len, set(some))) for some in (every, kept)]
            labels = [len(set[Any]().union(*some)) for some in (every, kept)]
            of += whole[0] + labels[0]
            saved += np.array([0, labels[0] - labels[1]]) + whole[0] - whole[1]
    return dict(zip(("lists", "both"), (saved / of).tolist(), strict=True))


def stopped(orders: int) -> tuple[dict[str, Any], tuple[Line, bool]]:
    """Savings by stopping, for every evaluation of several runs; printed, and compared with the target."""
    print(f"\n{'runs read until told apart':32}{'runs':>6}{'lists':>8}{'both':>8}")
    cases = {}
    for name, scores, lists in several():
        cases[name] = found = stopping(scores, lists, orders)
        print(f"{name:32}{len(scores):6}{found['lists']:8.1%}{found['both']:8.1%}", flush=True)
    least = min(found["both"] for name, found in cases.items() if name.endswith("4"))
    what = "passages in prompts saved by runs that stop, one of four bad, at least"
    return cases, (Line(what, f"{least:.1%}", f"{STOPS:.0%} at least"), least >= STOPS)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = make_parser(__doc__, quick={"replays": 40, "widths": 5, "verdicts": 100})
    parser.add_argument("--replays", type=int, default=200)
    parser.add_argument("--widths", type=int, default=20, help="replays of lists for a width")
    parser.add_argument("--verdicts", type=int, default=2000)
    parser.add_argument("--picture", type=Path, help="share of tokens against certainty, as PNG")
    parser.add_argument("--workers", type=int, default=1, help="processes")
    options = parser.parse_args(arguments)
    start = time.perf_counter()
    lines: list[tuple[Line, bool]] = []
    nq, fid10, fid = (load(name, graded=False) for name in ("nq", "fid10", "fid"))
    pairs = {
        "NQ, bm25 and noise60": (nq["bm25"], nq["noise60"]),
        "FiD, bm25 and noise30": (fid10["bm25"], fid10["noise30"]),
    }
    every, pool = list(cells()), ProcessPoolExecutor(options.workers)
    of_shares = pool.map(partial(replayed, replays=options.replays), every)
    differences = [first.y - second.y for first, second in pairs.values()]
    of_verdicts = pool.map(partial(verdicts, replays=options.verdicts), differences)
    of_widths = pool.map(partial(to_width, replays=options.widths), every)
    print(f"{'sampled lists':32}{'n':>5}{'rho':>6}{'gain':>6}{'theory':>8}"
          f"{'ends':>6}{'tokens':>8}{'alone':>7}{'new':>8}{'these':>8}")  # fmt: skip
    sampled = {}
    for cell, found in zip(every, of_shares, strict=True):
        sampled[cell.name] = found
        wrong = faults(found, options.replays)
        held = "".join(f"{found[kind] / options.replays:8.1%}" for kind in ("new", "these"))
        print(
            f"{cell.name:32}{found['n']:5}{found['rho']:6.2f}{found['gain']:6.2f}{found['theory']:8.2f}"
            f"{found['expected']:6.2f}{found['tokens']:8.0%}{found['alone']:7.0%}{held}{'  MISSED: ' * bool(wrong)}{'; '.join(wrong)}",
            flush=True,
        )
    missed = sum(bool(faults(found, options.replays)) for found in sampled.values())
    lines.append(
        (Line("cells of sampled lists that miss", f"{missed} of {len(sampled)}", "0"), missed == 0)
    )
    to_widths, width_lines = widths(zip(every, of_widths, strict=True), options.widths)
    lines += width_lines
    until = {}
    for name, found in zip(pairs, of_verdicts, strict=True):
        until[name] = found
        worst = max(found["false_null"], found["false_shifted"])
        lines += [
            (Line(f"{name}: false verdicts at any n", f"{worst:.1%}", f"{FALSE:.0%} at most"), worst <= FALSE),
            (
                Line(
                    f"{name}: reads saved, lead of twice the final half-width {found['half']:.3f}",
                    f"{found['saved']:.0%}", f"{SAVED:.0%} at least",
                ),
                found["saved"] >= SAVED,
            ),
        ]  # fmt: skip
    # The single pair with a clear lead: more than six standard errors of all questions.
    orders = {name: in_order(*pair, options.replays) for name, pair in pairs.items()}
    clear = orders["FiD, bm25 and noise30"]
    lines += [
        (Line("tokens until a clear verdict (FiD, bm25 and noise30)", f"{clear['share']:.0%}",
              f"{CLEAR_TOKENS:.0%} at most"), clear["share"] <= CLEAR_TOKENS),
        (Line("false ones", f"{clear['false']:.1%}", f"{FALSE:.0%} at most"), clear["false"] <= FALSE),
    ]  # fmt: skip
    stops, of_stops = stopped(max(1, options.replays // 20))
    lines.append(of_stops)
    bm25 = fid["bm25"]
    singles = float(bm25.singles.mean()) / bm25.k
    lines.append((
        Line("single reads for RR and Success, FiD, k = 50", f"{singles:.1%}", f"{SINGLES:.0%} at most"),
        singles <= SINGLES,
    ))  # fmt: skip
    print()
    for line, good in lines:
        print(f"{line.what:78}{line.figure:>10}   {line.target:16}{'' if good else 'MISSED'}")
    print(
        f"{options.replays} replays a cell, {options.verdicts:,} verdicts, {time.perf_counter() - start:.0f} s"
    )
    if options.picture:
        draw({name: found["shares"] for name, found in orders.items()}, options.picture)
    figures = {"sampled": sampled, "until": until, "orders": orders, "singles": singles}
    figures |= {"widths": to_widths, "stops": stops}
    write_report(options, ("numpy", "scipy"), figures, [line for line, _ in lines])
    return int(not options.quick and not all(good for _, good in lines))


def draw(shares: dict[str, list[float]], file: Path) -> None:
    """Plot the share of orders with a verdict against the share of tokens read."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.4), layout="constrained")
    axes = figure.subplots()
    for name, found in shares.items():
        decided_at = np.sort([share for share in found if share < 1])
        at = np.concatenate([[0.0], decided_at, [1.0]])
        certain = np.minimum(np.arange(len(at)), len(decided_at)) / len(found)
        axes.step(100 * at, 100 * certain, where="post", label=name)
    axes.set(xlabel="share of the tokens read, %", ylabel="orders with a verdict, %", ylim=(0, 101))
    axes.legend(frameon=False)
    figure.savefig(file, dpi=150)


if __name__ == "__main__":
    raise SystemExit(main())
