"""Means of runs with their intervals, comparisons of every two runs, and orders of runs by measures."""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations, permutations
from typing import Any

import numpy as np
import polars as pl

from engine import tables
from engine.messages.errors import InputError
from engine.messages.wording import counted, quoted
from engine.statistics import bounded, leads
from engine.statistics.arrays import Floats, Ints
from engine.statistics.comparison import Cell, Clusters, numbered, on_shared_queries
from engine.statistics.correlation import DECIMALS, Bootstrap
from engine.statistics.leads import Differences
from engine.statistics.pairs import pair_table, tau_and_rho
from engine.statistics.until import as_small_as_likely, decided, queries_needed
from engine.tables import DIFFERENCE, END_TO_END, QUERY_ID, RUN, VALUE, N, difference_of, low_of

Row = dict[str, Any]
_NUMBER = "number"


@dataclass(frozen=True)
class RunScores:
    """Scores of some runs on the queries common to all; or, read ``until`` a verdict, on any run's queries."""

    runs: tuple[str, ...]
    values: Floats  # (runs, n); NaN beyond a run's last query read
    largest: float  # difference of two runs on a query
    differences: Differences  # for every two runs, in the order of ``combinations``
    clusters: Ints | None  # (n,) per query
    most: int = 1  # as in ``until.decided``
    means: tuple[float, ...] = ()  # over all queries, if ``values`` cover only some

    def of(self, run: str) -> Floats:
        values = np.asarray(self.values[self.runs.index(run)])
        return values[~np.isnan(values)]

    def paired(self, run: str, over: str) -> Floats:
        """The first run's scores less the second's, for the queries that both have."""
        differences = self._differences(run, over)
        return differences[~np.isnan(differences)]

    def _differences(self, run: str, over: str) -> Floats:
        first, second = (self.values[self.runs.index(name)] for name in (run, over))
        return np.asarray(np.round(first - second, DECIMALS))

    def mean(self, run: str) -> float:
        mean = self.means[self.runs.index(run)] if self.means else float(self.of(run).mean())
        return round(mean, DECIMALS)

    def ranked(self, runs: Sequence[str]) -> list[str]:
        """Runs, the best first: by mean; if read on different queries, by their decided leads, then by the others."""
        ahead = dict.fromkeys(runs, 0)
        if self.is_partial:
            for run, over in permutations(runs, 2):
                value, low, high, _ = self.difference(run, over)
                side = (low > 0) - (high < 0)
                ahead[run] += len(runs) * side + (value > 0) - (value < 0)
        return sorted(runs, key=lambda run: (-ahead[run], -self.mean(run)))

    def undecided(self) -> list[tuple[str, str]]:
        """Pairs of runs whose interval holds 0."""
        apart = (self.differences.low > 0) | (self.differences.high < 0)
        pairs = zip(combinations(self.runs, 2), apart, strict=True)
        return [pair for pair, is_apart in pairs if not is_apart]

    @cached_property
    def is_partial(self) -> bool:
        """Whether runs were read on different queries."""
        return bool(np.isnan(self.values).any())

    def shared(self, run: str, over: str) -> int:
        """Number of queries that both runs have."""
        return len(self.paired(run, over)) if self.is_partial else self.values.shape[1]

    def difference(self, run: str, over: str) -> tuple[float, float, float, float]:
        """The first run's mean less the second's, the bounds of its interval, and p."""
        first, second = self.runs.index(run), self.runs.index(over)
        pairs = list(combinations(range(len(self.runs)), 2))
        pair = pairs.index((min(first, second), max(first, second)))
        value, low, high, p = (float(column[pair]) for column in self.differences)
        if first > second:
            value, low, high = -value, -high, -low
        # Adding 0.0 turns -0.0 into 0.0, which is printed without its sign.
        return value + 0.0, low + 0.0, high + 0.0, p

    def most_apart(self, runs: Collection[str]) -> float:
        """The largest difference of two runs that no interval excludes; NaN without intervals, or for a single run."""
        among = [{*pair} <= {*runs} for pair in combinations(self.runs, 2)]
        bounds = np.abs([self.differences.low, self.differences.high])[:, among]
        return float(bounds.max()) if bounds.size else math.nan

    def needed(self, run: str, over: str, plan: Bootstrap, *, as_here: bool = True) -> int | None:
        """Queries that would decide, with a lead as here or as small as is likely (``until``); None with sampled lists."""
        pairs = len(self.differences.value)
        if not plan.until:
            if not plan.resamples or self.means:
                return None
            return queries_needed(
                self.paired(run, over),
                self.largest,
                confidence=plan.confidence,
                comparisons=pairs,
                clusters=self.clusters,
                as_here=as_here,
            )
        differences = self._differences(run, over)
        known = ~np.isnan(differences)
        if not as_here:
            likely = as_small_as_likely(differences[known])
            differences[known] = np.clip(likely, -self.largest, self.largest)
        level, clusters = 1 - (1 - plan.confidence) / pairs, self.clusters
        (decision,) = decided(
            [differences], confidence=level, largest=self.largest, clusters=clusters, most=self.most
        )
        return decision.needed


# Scores of a table by an annotator's measure (None: end to end); None for a single run, or no query.
Compare = Callable[[pl.DataFrame, str | None, str | None], RunScores | None]


def comparer(
    bootstrap: Bootstrap, largest: Callable[[str, str], float], clusters: Clusters
) -> Compare:
    """A function that compares the runs of a table with ``run``, ``query_id`` and ``value``, once for equal scores.

    ``largest`` gives the largest difference on a query, but for end-to-end scores, where it is 1.
    """
    known: dict[tuple[bytes, float], Differences] = {}

    def compare(
        scored: pl.DataFrame, annotator: str | None, measure: str | None
    ) -> RunScores | None:
        each = scored.select(RUN, QUERY_ID, VALUE).partition_by(RUN, as_dict=True)
        by_run = {str(run): scores for (run,), scores in each.items()}
        if len(by_run) < 2:
            return None
        first, *others = by_run.values()
        shared = first.select(QUERY_ID).sort(QUERY_ID)
        for scores in others:
            shared = shared.join(scores, on=QUERY_ID, how="semi", maintain_order="left")
        if shared.is_empty():
            return None
        size = 1
        if bootstrap.until:
            shared, size = _read_as_far(by_run, bootstrap.seed, clusters)
        columns = [
            shared.join(scores, on=QUERY_ID, how="left", maintain_order="left")[VALUE].to_numpy()
            for scores in by_run.values()
        ]
        values = np.stack(columns).round(DECIMALS)
        most = 1.0 if annotator is None or measure is None else largest(annotator, measure)
        codes = numbered(shared[QUERY_ID], clusters)
        if bootstrap.until:
            codes = shared[_NUMBER].to_numpy()
        content = values.tobytes() + (b"" if codes is None else codes.tobytes())
        key = hashlib.sha256(content).digest(), most
        if key not in known:
            known[key] = leads.mean_differences(values, most, bootstrap, codes, size)
        return RunScores(tuple(by_run), values, most, known[key], codes, size)

    return compare


def _read_as_far(
    runs: Mapping[str, pl.DataFrame], seed: int, clusters: Clusters
) -> tuple[pl.DataFrame, int]:
    """The queries that every run read as far has, in the order of reading; and the size of the largest cluster.

    A run was read as far as its last cluster. A run that lacks an earlier query (it lists nothing there, or a read
    failed) excludes that query for all: leads of pairs on other queries could contradict each other.
    """
    rows = pl.concat(table.select(QUERY_ID, pl.lit(run).alias(RUN)) for run, table in runs.items())
    numbers, most = in_order(rows[QUERY_ID], seed, clusters)
    rows = rows.with_columns(numbers.alias(_NUMBER))
    ends = rows.group_by(RUN).agg(pl.col(_NUMBER).max())[_NUMBER].sort()
    queries = rows.group_by(_NUMBER, QUERY_ID).len().sort(_NUMBER, QUERY_ID)
    read_less = ends.search_sorted(queries[_NUMBER], "left")
    return queries.filter(queries["len"] + read_less == len(runs)), most


def place_of(query_ids: pl.Series, seed: int) -> pl.Series:
    """Places of queries in a random order by the seed: a hash, which does not depend on other queries."""
    digests = (hashlib.sha256(f"{seed} {query_id}".encode()).hexdigest() for query_id in query_ids)
    return pl.Series("place", list(digests), dtype=pl.String)


def in_order(query_ids: pl.Series, seed: int, clusters: Clusters) -> tuple[pl.Series, int]:
    """Numbers of the queries' clusters in the order of reading, and the largest cluster's number of queries.

    Clusters are numbered in this order; without clusters, as in earlier versions, it is that of ``place_of``.
    """
    if clusters is None:
        return place_of(query_ids, seed).rank("dense").cast(pl.Int64), 1
    numbers = query_ids.replace_strict(clusters, return_dtype=pl.Int64)
    return numbers, max(Counter(clusters.values()).values())


def is_drawn(query_ids: pl.Series, seed: int, share: float) -> pl.Series:
    """Whether a query is approximately among the first share in (0, 1) in the order of ``place_of``."""
    return place_of(query_ids, seed) < f"{int(share * 2**64):016x}"


def drawn_share(query_ids: pl.Series, seed: int, lists: float) -> float:
    """The share in (0, 1) for which ``is_drawn`` draws so many of the queries; a share of 1 or less is unchanged.

    An InputError if no query would be drawn, or all.
    """
    places = place_of(query_ids, seed).sort()
    share, count = lists, len(places)
    if 1 <= lists < count:
        # Half-way between the last drawn query and the next: no rounding reaches either.
        around = places[int(lists) - 1 : int(lists) + 1]
        share = sum(int(place[:16], 16) for place in around) / 2**65
    if lists >= max(1, count) or not is_drawn(query_ids, seed, share).any():
        what = "all" if lists >= 1 else "none"
        problem = f"`lists` {lists:.15g} draws {what} of {counted(count, '[query|queries]')}"
        remedy = "use another share or number, or leave it out to read all lists"
        raise InputError(problem, remedy, "settings.lists")
    return share


def unit(annotator: str, measure: str) -> float:
    """The largest difference of scores that lie in [0, 1]."""
    return 1.0


@dataclass(frozen=True)
class Interval:
    """A mean of ``n`` queries and the bounds of its interval, NaN without an interval."""

    value: float
    low: float
    high: float
    n: int


def mean_interval(values: pl.Series, confidence: float, clusters: Ints | None = None) -> Interval:
    """The mean of scores over queries with its interval.

    Clopper & Pearson's for scores of 0 and 1, Gaffke's for others in [0, 1] (``bounded``); NaN for any outside.
    """
    mean, n = float(values.mean()), len(values)  # type: ignore[arg-type]
    if float(values.min()) < 0 or float(values.max()) > 1:  # type: ignore[arg-type]
        return Interval(mean, math.nan, math.nan, n)
    low, high = bounded.mean_interval(values.to_numpy(), confidence, clusters)
    return Interval(mean, low, high, n)


def mean_until(scores: pl.DataFrame, bootstrap: Bootstrap, clusters: Clusters) -> Interval:
    """The same with the confidence sequence of queries (``query_id``) in the order of reading (``in_order``)."""
    numbers, most = in_order(scores[QUERY_ID], bootstrap.seed, clusters)
    values, numbers = scores[VALUE].to_numpy()[numbers.arg_sort()], numbers.sort()
    if values.min() < 0 or values.max() > 1:
        return Interval(float(values.mean()), math.nan, math.nan, len(values))
    level, codes = bootstrap.confidence, numbers.to_numpy()
    (mean,) = decided([values], confidence=level, clusters=codes, most=most)
    return Interval(mean.value, max(mean.low, 0.0), mean.high, mean.n)


def compare_runs(
    cells: Sequence[Cell], whole: RunScores | None, compare: Compare, bootstrap: Bootstrap
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The tables ``systems`` and ``run_pairs``; empty for a single run.

    Intervals and p-values are adjusted for all pairs of runs, separately by score: the best run is one question,
    however many measures are reported beside it.

    Args:
        cells: all with end-to-end scores, or all without.
        whole: the end-to-end scores. Their differences appear beside every measure's, over all their queries, even if
            the measure has only some.
    """
    systems: list[Row] = []
    measures: list[Row] = []
    chances: dict[bytes, Floats] = {}  # scores are often equal to another measure's

    def above(scores: Floats, clusters: Ints | None) -> Floats:
        content = scores.tobytes() + (b"" if clusters is None else clusters.tobytes())
        key = hashlib.sha256(content).digest()
        if key not in chances:
            chances[key] = leads.chances_above(scores, bootstrap, clusters)
        return chances[key]

    for each, group in _by_measure(cells):
        x, y = np.stack([cell.x for cell in group]), np.stack([cell.y for cell in group])
        clusters = group[0].clusters
        annotator, measure, k = group[0].annotator, group[0].measure, group[0].k
        key = {tables.ANNOTATOR: annotator, tables.MEASURE: measure, tables.K: k}
        if k is not None:
            sides = (above(scores, clusters) for scores in (x, y))
            soft = {tables.SOFT_ACCURACY: leads.soft_pairwise_accuracy(*sides)}
            counts = {tables.RUNS_COMPARED: len(group), N: x.shape[1]}
            systems.append(key | counts | soft)
        table = pl.concat(
            pl.DataFrame({RUN: cell.run, QUERY_ID: cell.query_ids, VALUE: cell.x}) for cell in each
        )
        scored = compare(table, annotator, measure)
        assert scored is not None
        for a, b in combinations(group, 2):
            names = {RUN: a.run, tables.RUN_B: b.run, tables.PAIRS: math.comb(len(group), 2)}
            n = 0 if whole is None else whole.shared(a.run, b.run)
            counts = {N: scored.shared(a.run, b.run), tables.END_TO_END_N: n}
            figures = _figures(scored, a.run, b.run, DIFFERENCE)
            measures.append(
                key | names | counts | figures | _figures(whole, a.run, b.run, END_TO_END)
            )
    run_pairs = pl.DataFrame(measures, schema=tables.RUN_PAIRS)
    return pl.DataFrame(systems, schema=tables.SYSTEMS), run_pairs


def _figures(scores: RunScores | None, run: str, run_b: str, name: str) -> Row:
    column = DIFFERENCE if name == DIFFERENCE else difference_of(name)
    names = column, low_of(name), tables.high_of(name), tables.p_of(name)
    figures = [math.nan] * 4 if scores is None else scores.difference(run, run_b)
    return dict(zip(names, figures, strict=True))


def _by_measure(cells: Sequence[Cell]) -> Iterator[tuple[list[Cell], list[Cell]]]:
    """The cells of a measure, and the same on the queries that all its runs share; for two runs or more."""
    groups: dict[tuple[str, str, int | None], list[Cell]] = defaultdict(list)
    for cell in cells:
        groups[cell.annotator, cell.measure, cell.k].append(cell)
    for group in groups.values():
        if len(group) > 1 and (shared := on_shared_queries(group)):
            yield group, shared


def agreement(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    """Kendall's tau-b, Spearman's rho and tau_AP-b of two leaderboards, as ``tau``, ``rho`` and ``tau_ap_b``.

    Higher values are better, and equal up to the 12th decimal. All are NaN if the runs of a leaderboard are all tied.
    tau_AP-b weighs the top more (Urbano & Marrero, ICTIR 2017, "The Treatment of Ties in AP Correlation").
    """
    if alone := first.keys() ^ second.keys():
        problem = f"the run {quoted(min(alone))} is in one of the leaderboards alone"
        raise InputError(problem, "compare leaderboards of the same runs", "leaderboards.runs")
    x, y = (np.array([board[run] for run in first]).round(DECIMALS) for board in (first, second))
    if min(len({*x}), len({*y})) < 2:
        return dict.fromkeys(("tau", "rho", "tau_ap_b"), np.nan)
    tau, rho = tau_and_rho([pair_table(x, y)], np.ones((1, len(x)), np.int16))[:, 0, 0]
    return {"tau": tau, "rho": rho, "tau_ap_b": _concordance(x, y) + _concordance(y, x) - 1}


def _concordance(x: Floats, y: Floats) -> float:
    """The mean over runs, the top of y apart, of the share of the runs above in y that are above in x, too."""
    above = y[:, None] < y
    agreeing, counts = (above & (x[:, None] < x)).sum(axis=1), above.sum(axis=1)
    return float((agreeing[counts > 0] / counts[counts > 0]).mean())
