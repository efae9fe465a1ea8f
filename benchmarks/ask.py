"""How many random tasks tell as much of what people prefer as the tasks that ``erag ask`` chooses, and how often intervals hold.

    python -m benchmarks.ask [--samples 2000] [--json FILE]

Two runs give the same on some queries and differ on the others, on a share of which people prefer one: 1, -1, or 0 for
neither. Two kinds of label say what people prefer, right as often as a cell says and else by chance (so that labels that are
right in 0% of the cases know nothing); queries are drawn as ``engine.report.page.asking`` draws them, and the
interval of the mean over all queries is that of ``engine.labels.preference``.

Two cells are of evaluations that were done (``benchmarks/replays``): a person would prefer the run whose answer has the higher
F1, and labels are the gains of right passages and the mean F1 of single passages. Their queries are drawn with replacement.

"Holds" is the share of samples whose 95% interval holds the true mean of such queries; "alone" the same of the random third
of the tasks by itself. "Random" is the number of tasks drawn from all queries whose intervals, by the same rule without
labels, are as wide on average; "of random" is the number of chosen ones over it, and "of differing" the same over tasks that
are drawn at random from the queries on which the runs differ, as anybody could without labels. "Floor" is what "of random" would
be for somebody who knows the mean and the spread of what people prefer under every pattern of both labels, and draws by the
spread (Neyman 1934): who knows no more than the labels cannot do with less. "Spread" is the variance of the means over that of as
many random tasks. Intervals of 2,000 samples near 95% have a standard error of 0.5 points.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks._harness import Line, make_parser, write_report
from engine.labels.preference import preferred
from engine.report.page import asking
from engine.tables import LABEL, PROBABILITY, STRATUM, VALUE

QUERIES = 600
TASKS = (30, 60, 120)
LEVEL = 0.05
MOST_TASKS, LEAST_HELD, MOST_HELD = 0.6, 0.93, 0.97
# Of random tasks, where labels cannot do with fewer than ``MOST_TASKS``.
MOST_IN_VAIN = 1.05
# Sizes of random samples, by those of chosen ones; widths between are interpolated.
_TIMES = (0.5, 0.75, 1, 1.4, 2, 3, 4.5, 7)
_LABELS = 2
_MANY = 200_000


@dataclass(frozen=True)
class Cell:
    """What is true of queries.

    Attributes:
        differ: the share on which the runs give something else.
        prefer: of these, the share on which people prefer one.
        first: of these, the share for the first run.
        right: how often each label says what people do, and not by chance.
        replay: of an evaluation that was done, its name and its two runs, in the place of all that.
    """

    name: str
    differ: float
    prefer: float
    first: float
    right: float
    replay: tuple[str, str, str] | None = None

    @property
    def mean(self) -> float:
        """The true mean."""
        if self.replay:
            return float(replayed(*self.replay)[VALUE].mean())  # type: ignore[arg-type]
        return self.differ * self.prefer * (2 * self.first - 1)


CELLS = (
    Cell("nearly alike, labels right in 70%", 0.15, 0.5, 0.5, 0.7),
    Cell("nearly alike, labels know nothing", 0.15, 0.5, 0.5, 0.0),
    Cell("half differ, labels right in 70%", 0.5, 0.5, 0.6, 0.7),
    Cell("half differ, labels know nothing", 0.5, 0.5, 0.6, 0.0),
    Cell("most differ, labels right in 70%", 0.9, 0.6, 0.6, 0.7),
    Cell("most differ, labels right in 40%", 0.9, 0.6, 0.6, 0.4),
    Cell("most differ, one is better, right in 70%", 0.9, 0.7, 0.8, 0.7),
    Cell("all differ, labels right in 90%", 1.0, 0.5, 0.55, 0.9),
    Cell("all differ, labels right in 40%", 1.0, 0.5, 0.55, 0.4),
    Cell("all differ, labels know nothing", 1.0, 0.5, 0.55, 0.0),
    Cell("all differ, people rarely prefer one", 1.0, 0.1, 0.5, 0.7),
    Cell("all differ, 97% prefer one, know nothing", 1.0, 1.0, 0.97, 0.0),
    Cell("all differ, 97% prefer one, right in 70%", 1.0, 1.0, 0.97, 0.7),
    Cell("replay of NQ, bm25 and dense", 0, 0, 0, 0, ("nq", "bm25", "dense")),
    Cell("replay of FiD, bm25 and noise30", 0, 0, 0, 0, ("fid10", "bm25", "noise30")),
)


@cache
def replayed(name: str, run: str, run_b: str) -> pl.DataFrame:
    """All queries of an evaluation, as ``queries_of`` has them."""
    rows = pl.read_parquet(Path(__file__).parent / "replays" / f"{name}.parquet")
    gain = (pl.col("label") / (pl.col("rank") + 1).log(2)).sum().round(6)
    # The answers of a list are as good as its F1; the order of passages counts, for the reader and for the gain.
    lists = rows.sort("rank").group_by("run", "query", maintain_order=True)
    found = lists.agg(
        "doc", gain.alias("gain"), pl.col("label_f1").mean(), pl.col("list_f1").first()
    )
    first, second = (found.filter(pl.col("run").cast(pl.String) == one) for one in (run, run_b))
    both = first.join(second, on="query", suffix="_b").sort("query")
    signs = [(both[n] - both[f"{n}_b"]).sign().to_numpy() for n in ("gain", "label_f1")]
    value = (both["list_f1"].cast(pl.Float64) - both["list_f1_b"].cast(pl.Float64)).sign()
    return _with_strata(value.to_numpy(), (both["doc"] != both["doc_b"]).to_numpy(), signs)


_STRATA = pl.Series(["b", "a and b", "a", "b, disputed", "a and b, disputed", "a, disputed", None])


def _with_strata(value: Any, differs: Any, labels: Iterable[Any]) -> pl.DataFrame:
    first, second = labels
    places = np.where(differs, first + 1 + 3 * (first != second), len(_STRATA) - 1)
    label = (first + second) / 2
    return pl.DataFrame(
        {
            VALUE: np.where(differs, value, 0.0),
            STRATUM: _STRATA[places.astype(int)],
            LABEL: np.where(differs, label - label[differs].mean(), 0.0),
        }
    )


def queries_of(cell: Cell, rng: np.random.Generator, amount: int = QUERIES) -> pl.DataFrame:
    """Queries with ``value``, what people prefer, and ``stratum`` and ``label``; those on which the runs give the same have none."""
    if cell.replay:
        every = replayed(*cell.replay)
        drawn = every[rng.integers(0, every.height, amount)]
        label = pl.col(LABEL) - pl.col(LABEL).filter(pl.col(STRATUM).is_not_null()).mean()
        return drawn.with_columns(label)

    def preferences() -> Any:
        sign = np.where(rng.random(amount) < cell.first, 1.0, -1.0)
        return np.where(rng.random(amount) < cell.prefer, sign, 0.0)

    value = preferences()
    labels = [
        np.where(rng.random(amount) < cell.right, value, preferences()) for _ in range(_LABELS)
    ]
    return _with_strata(value, rng.random(amount) < cell.differ, labels)


def floor(cell: Cell, tasks: int) -> float:
    """The share of random tasks that is needed where all is known of every pattern of labels."""
    every = replayed(*cell.replay) if cell.replay else None
    if every is None:
        every = queries_of(cell, np.random.default_rng(0), _MANY)
    patterns = every.group_by(STRATUM, LABEL).agg(
        (pl.len() / every.height).alias("share"),
        pl.col(VALUE).mean().alias("mean"),
        pl.col(VALUE).std(ddof=0).alias("spread"),
    )
    shares, means, spreads = patterns["share", "mean", "spread"].to_numpy().T
    # By the spread, and no more of a pattern than there is.
    most, amounts = shares * QUERIES, np.zeros(len(shares))
    left = (spreads > 0) & (most > 0)
    while left.any():
        odds = np.where(left, shares * spreads, 0.0)
        amounts[left] = ((tasks - amounts[~left].sum()) * odds / odds.sum())[left]
        if not (beyond := left & (amounts > most)).any():
            break
        amounts[beyond], left = most[beyond], left & ~beyond
    drawn = amounts > 0
    variance = float(((shares * spreads)[drawn] ** 2 / amounts[drawn]).sum())
    variance += float(shares @ means**2 - (shares @ means) ** 2) / QUERIES
    return variance * tasks / float(every[VALUE].var(ddof=0))  # type: ignore[arg-type]


Interval = tuple[float, float, float]


def chosen(
    queries: pl.DataFrame, tasks: int, rng: np.random.Generator
) -> tuple[Interval, Interval]:
    """The interval of chosen tasks, and that of the random part alone."""
    differing = queries.drop_nulls(STRATUM)
    drawn = asking.draw_tasks(differing, tasks, rng)
    of_all = partial(preferred, differing=differing.height, queries=QUERIES, level=LEVEL)
    return of_all(drawn), of_all(_unlabelled(drawn.filter("random")))


def _unlabelled(drawn: pl.DataFrame) -> pl.DataFrame:
    return drawn.with_columns(pl.lit(0.0).alias(LABEL), pl.lit(1.0).alias(PROBABILITY))


def at_random(queries: pl.DataFrame, tasks: int, rng: np.random.Generator) -> Interval:
    """The interval of tasks drawn from all the queries that are given."""
    drawn = queries[rng.permutation(queries.height)[:tasks]]
    amount = queries.height
    return preferred(_unlabelled(drawn), differing=amount, queries=QUERIES, level=LEVEL)


def _width(
    cell: Cell, tasks: int, samples: int, of: Callable[[pl.DataFrame], pl.DataFrame]
) -> float:
    """The mean width of the intervals of random tasks."""
    widths = []
    for sample in range(samples):
        rng = np.random.default_rng([tasks, sample])
        _, low, high = at_random(of(queries_of(cell, rng)), tasks, rng)
        widths.append(high - low)
    return float(np.mean(widths))


def _as_wide(width: float, tasks: Sequence[int], widths: Sequence[float]) -> float:
    """How many random tasks have intervals of a width on average; beyond the largest number as if these went on."""
    logs, amounts = np.log(widths), np.log(tasks)
    slope, start = np.polyfit(logs[-3:], amounts[-3:], 1)
    if width < widths[-1]:
        return float(np.exp(start + slope * np.log(width)))
    return float(np.exp(np.interp(np.log(width), logs[::-1], amounts[::-1])))


def figures(cell: Cell, tasks: int, samples: int) -> dict[str, Any]:
    """Of a cell and a number of tasks."""
    kinds: dict[str, list[Interval]] = {"chosen": [], "alone": [], "random": []}
    for sample in range(samples):
        rng = np.random.default_rng([tasks, sample, 1])
        queries = queries_of(cell, rng)
        for kind, found in zip(kinds, (*chosen(queries, tasks, rng), at_random(queries, tasks, rng)), strict=True):  # fmt: skip
            kinds[kind].append(found)
    means = {kind: np.array(found).T for kind, found in kinds.items()}
    holds = {
        kind: float(((low <= cell.mean) & (cell.mean <= high)).mean())
        for kind, (_, low, high) in means.items()
    }
    width = float((means["chosen"][2] - means["chosen"][1]).mean())
    fewer = max(1, samples // 8)
    amounts = [n for times in _TIMES if (n := round(times * tasks)) <= QUERIES]
    of_all = [_width(cell, n, fewer, lambda queries: queries) for n in amounts]
    some = queries_of(cell, np.random.default_rng(0))
    most = int(0.8 * (QUERIES - some[STRATUM].null_count()))
    within = [n for n in amounts if n <= most] or amounts[:1]
    of_differing = [_width(cell, n, fewer, lambda q: q.drop_nulls(STRATUM)) for n in within]
    random = _as_wide(width, amounts, of_all)
    return {
        "tasks": tasks,
        "holds": holds,
        "floor": floor(cell, tasks),
        "spread": float(means["chosen"][0].var() / means["random"][0].var()),
        "bias": float(means["chosen"][0].mean() - cell.mean),
        "width": width,
        "random": random,
        "of_random": tasks / random,
        "of_differing": tasks / _as_wide(width, within, of_differing) if len(within) > 2 else None,
    }


def main(options: Sequence[str] | None = None) -> None:
    parser = make_parser(__doc__, quick={"samples": 40})
    parser.add_argument("--samples", type=int, default=2000)
    arguments = parser.parse_args(options)
    start = time.perf_counter()
    print(
        f"{'runs':42}{'tasks':>6}{'holds':>8}{'alone':>8}{'random':>8}{'bias':>8}{'width':>7}"
        f"{'random':>8}{'of random':>11}{'of differing':>14}{'floor':>7}{'spread':>8}"
    )
    cells: list[dict[str, Any]] = []
    for cell in CELLS:
        for tasks in TASKS:
            found = figures(cell, tasks, arguments.samples)
            cells.append({"cell": asdict(cell)} | found)
            beside = "-" if found["of_differing"] is None else f"{found['of_differing']:.0%}"
            held = found["holds"]
            print(
                f"{cell.name:42}{tasks:6}{held['chosen']:8.1%}{held['alone']:8.1%}{held['random']:8.1%}"
                f"{found['bias']:+8.4f}{found['width']:7.3f}{found['random']:8.0f}{found['of_random']:11.0%}{beside:>14}{found['floor']:7.0%}{found['spread']:8.0%}",
                flush=True,
            )
    can = [one for one in cells if one["floor"] <= MOST_TASKS]
    enough = [one for one in can if one["of_random"] <= MOST_TASKS]
    cannot = [one for one in cells if one not in can]
    in_vain = max(one["of_random"] for one in cannot)
    held = [one for one in cells if LEAST_HELD <= one["holds"]["chosen"] <= MOST_HELD]
    below = min(one["holds"]["chosen"] for one in cells)
    names = "; ".join(sorted({one["cell"]["name"] for one in cannot}))
    print(
        f"{MOST_TASKS:.0%} of random tasks or fewer: {len(enough)} of the {len(can)} cells where labels allow it"
    )
    print(f"the floor is higher in {len(cannot)}, which take up to {in_vain:.0%}: {names}")
    print(
        f"intervals that hold in {LEAST_HELD:.0%} to {MOST_HELD:.0%}: {len(held)} of {len(cells)} cells; least {below:.1%}"
    )
    print(f"{arguments.samples:,} samples each, {time.perf_counter() - start:.0f} s")
    page = [
        Line(
            "tasks that are chosen, of random ones",
            f"{len(enough)} of {len(can)} cells where labels allow it",
            f"{MOST_TASKS:.0%} or fewer",
        ),
        Line(
            "where labels do not allow it", f"{in_vain:.0%} at most", f"{MOST_IN_VAIN:.0%} or fewer"
        ),
        Line("intervals that hold least often", f"{below:.1%}", "93% to 97%"),
    ]
    write_report(arguments, ("numpy", "polars", "scipy"), {"cells": cells}, page)


if __name__ == "__main__":
    main()
