"""Read queries in rounds, in an order independent of scores, until all pairs of runs are decided or intervals narrow.

A round evaluates the first queries of the order, labels and lists together, like any evaluation; earlier reads are in
the store. Verdicts hold at any time of stopping (``statistics.until``), so rounds may end once every pair of runs is
decided. A run stops once all its pairs are decided: further queries cannot change a decision. The size of a round
follows from an estimate of the queries that are still needed.

Queries added to a file come after all queries that an evaluation has read: the next evaluation continues the sequence
of the last, and their verdicts hold together. So the read store keeps the order for each seed. Scores decide, through
the stop, the number of queries; they never decide which query comes next.

To reach a width, the first rounds show how well labels predict lists, and so how many lists are needed, given all labels.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import combinations
from typing import NamedTuple

import polars as pl

from engine.messages.notes import Note, count_note
from engine.messages.wording import agreeing, counted, listed
from engine.sources.io.folders import Folder
from engine.statistics.comparison import clusters_of
from engine.statistics.correlation import Bootstrap
from engine.statistics.runs import RunScores, comparer, place_of, unit
from engine.statistics.single_labels import (
    FIRST_LISTS,
    LEAST_LISTS,
    Estimate,
    compared,
    half_width,
    next_lists,
)
from engine.tables import ANNOTATOR, CLUSTER, MEASURE, QUERY, QUERY_ID

STOPPED, DECIDED, REACHED = "queries_not_read", "runs_read_less", "width_reached"
# Queries of the first round; the least and the largest growth of the next.
FIRST_ROUND, _LEAST, _MOST = 32, 1.25, 2.0
# The file in the read store with the order of queries, by seed.
_KEPT = "reading-order-{}.txt"


class Round(NamedTuple):
    """The extent of the next round.

    Attributes:
        order: clusters of queries, in the order of reading (``tables.CLUSTERS``).
        last: the number of the last cluster to read; None for all queries.
        stopped: for runs that stopped earlier, the number of their last cluster.
        labels: whether passages of stopped runs are still labelled.
        lists: the number of whole lists to read per run; None for the lists of all queries read.
    """

    order: pl.DataFrame
    last: int | None
    stopped: tuple[tuple[str, int], ...] = ()
    labels: bool = True
    lists: int | None = None


# Yields rounds; receives the end-to-end scores and the scores by labels so far; returns notes.
Rounds = Generator[Round, tuple[pl.DataFrame, pl.DataFrame], tuple[Note, ...]]


def until_decided(
    queries: pl.DataFrame,
    runs: Sequence[str],
    bootstrap: Bootstrap,
    store: Folder,
    *,
    annotator: str,
    largest: Callable[[str, str], float],
    alone: bool,
    end_to_end: bool,
) -> Rounds:
    """Name the queries to read until every pair of runs is decided, or all queries are read.

    A run's lists are read until it is distinguished from every other run. Its passages are labelled until then, too,
    unless measures of other runs' lists need these labels.

    Args:
        queries: all queries, with a ``cluster`` if queries of a cluster are read together.
        annotator: its primary measure decides if there is no end-to-end score; ``largest``: of a list, by both.
        alone: whether no score by labels depends on passages that other runs list.
    """
    by_cluster = CLUSTER in queries.columns
    order = reading_order(queries, bootstrap.seed, by_cluster=by_cluster, store=store)
    numbers = order[CLUSTER].sort()
    parts = ["passages"] * alone + ["lists"] * end_to_end
    stopped: dict[str, int] = {}
    n = min(FIRST_ROUND, len(order))
    while True:
        last = int(numbers[n - 1])
        n = int(numbers.search_sorted(last, "right"))  # whole clusters
        keep_order(queries, order, last, store, bootstrap.seed)
        ends = tuple((run, int(numbers[read - 1])) for run, read in stopped.items())
        downstream, scores = yield Round(order, last, ends, not alone)
        clusters = clusters_of(order, bootstrap.until)
        comparison: RunScores | None
        if end_to_end:
            comparison = comparer(bootstrap, unit, clusters)(downstream, None, None)
        else:
            scores = scores.filter(pl.col(ANNOTATOR) == annotator)
            measure = str(scores[MEASURE][0])
            own = scores.filter(pl.col(MEASURE) == measure)
            comparison = comparer(bootstrap, largest, clusters)(own, annotator, measure)
        if comparison and {*comparison.runs} != {*runs}:
            comparison = None  # a run has no score yet
        pairs = comparison.undecided() if comparison else list(combinations(runs, 2))
        if n == len(order) or not pairs:
            return tuple(_not_read(len(order) - n, stopped, parts))
        if parts:
            left = {run for pair in pairs for run in pair}
            stopped |= {run: n for run in runs if run not in left | stopped.keys()}
        # Scaled from queries that both runs of a pair share; others may lack scores (``missing``, ``failed_reads``).
        needed = [
            (comparison.needed(*pair, bootstrap) or 0) * n / comparison.shared(*pair)
            for pair in pairs
            if comparison
        ]
        most = max(filter(None, needed), default=_MOST * n)
        n = min(len(order), int(min(max(most, _LEAST * n), _MOST * n)))


def to_width(queries: pl.DataFrame, runs: Sequence[str], bootstrap: Bootstrap) -> Rounds:
    """Name whole lists of all queries until intervals are as narrow as ``width``; a note reports the final width."""
    order, of = reading_order(queries, bootstrap.seed), queries.height
    width, level = bootstrap.width or 0.0, 1 - bootstrap.confidence
    n, labelled = min(FIRST_LISTS, of), False
    while True:
        tables = yield Round(order, None, lists=n) if labelled else Round(order, n - 1)
        estimates = _compare(runs, *tables)
        known, further = estimates[0].n if estimates else 0, (2 * n, labelled)
        if known >= LEAST_LISTS:
            # Lists may lack scores: of failed reads, or if a run lists nothing.
            total = len(estimates[0].f) * of // (of if labelled else n)
            needed, to_all = next_lists(estimates, width, level, total, labelled=labelled)
            further = (of if needed >= total else -(-needed * n // known)), to_all
        if labelled and n in (of, further[0]):
            break
        n = min(of, further[0])
        labelled = further[1] or n == of
    if n == of:
        text = f"all lists were read: no fewer are known to give intervals of `width` {width:g}"
    else:
        half = half_width(estimates, level, known, len(estimates[0].f))
        what = f"the interval of {'the mean' if len(runs) == 1 else 'every lead'}"
        text = f"{what} reaches {half:.3f} to either side at most (`width` {width:g})"
    return (Note(REACHED, n, text),)


def _compare(runs: Sequence[str], downstream: pl.DataFrame, scores: pl.DataFrame) -> list[Estimate]:
    """The leads of all pairs of runs, or the mean of a single run; empty if a run has no score yet."""
    means, leads = compared(downstream, scores)
    return (leads or list(means.values())) if {*means} == {*runs} else []


def _not_read(queries: int, stopped: Mapping[str, int], parts: Sequence[str]) -> Iterator[Note]:
    what = "[query was|queries were] not read, since the verdict is clear without [it|them]; all figures are over the others"
    yield count_note(STOPPED, queries, what)
    numbers = listed([f"{run} for {counted(n, '[query|queries]')}" for run, n in stopped.items()])
    text = f"{' and '.join(parts)} were read of {numbers}: by then "
    text += f"{agreeing(len(stopped), '[it|each]')} differed significantly from every other run"
    yield Note(DECIDED, len(stopped), text, tuple(stopped))


def reading_order(
    queries: pl.DataFrame, seed: int, *, by_cluster: bool = False, store: Folder | None = None
) -> pl.DataFrame:
    """All queries with their clusters (``tables.CLUSTERS``), numbered in the order of reading.

    Args:
        by_cluster: whether queries of a ``cluster`` are read together; else each query is its own cluster.
        store: has the order of earlier evaluations; None for the order of the seed alone.
    """
    unit = pl.col(CLUSTER if by_cluster else QUERY_ID)
    first = queries.select(pl.col(QUERY_ID).first().over(unit)).to_series()
    stored = {key: n for n, key in enumerate(_stored_order(store, seed))} if store else {}
    before = _keys(queries).replace_strict(stored, default=len(stored), return_dtype=pl.Int64)
    placed = queries.with_columns(place_of(first, seed).alias("place"), before.alias("before"))
    number = pl.struct(pl.col("before").min().over(unit), "place").rank("dense").cast(pl.Int64) - 1
    return placed.select(QUERY_ID, number.alias(CLUSTER))


def keep_order(
    queries: pl.DataFrame, order: pl.DataFrame, last: int, store: Folder, seed: int
) -> None:
    """Record in the store that clusters up to the number ``last`` are read, after all earlier ones."""
    read = order.filter(pl.col(CLUSTER) <= last).sort(CLUSTER, maintain_order=True)
    stored = dict.fromkeys(before := _stored_order(store, seed))
    stored |= dict.fromkeys(_keys(read.join(queries, on=QUERY_ID, maintain_order="left")))
    if len(stored) > len(before):
        store.write(_KEPT.format(seed), "\n".join(stored).encode())


def _stored_order(store: Folder, seed: int) -> list[str]:
    try:
        return store.read(_KEPT.format(seed)).decode().split()
    except (FileNotFoundError, NotADirectoryError):
        return []


def _keys(queries: pl.DataFrame) -> pl.Series:
    """Digests of queries' ids and texts: other data sets may have the same ids."""
    return place_of(queries[QUERY_ID] + " " + queries[QUERY], 0)
