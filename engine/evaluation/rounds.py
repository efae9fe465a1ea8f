"""Read in rounds, in an order that does not depend on scores: until the runs are told apart, or a mean is known so well.

A round evaluates the first queries of the order, labels and lists together, as any evaluation is; what was read
before is in the store. Verdicts hold at any time of stopping (``statistics.until``), so that the rounds may end as
soon as every pair of runs is decided. A run all of whose pairs are decided is read no further: what its other queries
would give cannot change a decision. How many queries a round has follows from how many seem to be needed.

To reach a width, the first rounds show how well labels foretell lists, and so how many are needed, with the labels of all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import combinations

import polars as pl

from engine.evaluation.context import Context
from engine.evaluation.passes import Kept, Pass, read_and_score
from engine.evaluation.prepare import prepare
from engine.evaluation.reading_order import keep_order, reading_order
from engine.evaluation.score import largest_scores
from engine.evaluation.shards import FirstQueries
from engine.evaluation.workload import Workload
from engine.messages.notes import Note, count_note
from engine.messages.wording import agreeing, counted, listed
from engine.statistics.cells import clusters_of, shares_much
from engine.statistics.runs import RunScores, comparer, drawn_share, unit
from engine.statistics.sampled_lists import LEAST_LISTS, Estimate, compared, half_width, next_lists
from engine.tables import ANNOTATOR, CLUSTER, MEASURE, QUERY_ID

# Codes of the notes on queries that the verdict did without, on runs that it needed fewer of, and on the width.
STOPPED, DECIDED, REACHED = "queries_not_read", "runs_read_less", "width_reached"
# Queries of the first round; how much larger the next one is at least and at most. Lists of the first round to a width.
FIRST_ROUND, _LEAST, _MOST, FIRST_LISTS = 32, 1.25, 2.0, 40


def read_until_decided(
    work: Workload, passes: Sequence[Pass], context: Context
) -> tuple[Workload, tuple[Note, ...]]:
    """Read and score queries until every pair of runs is decided, or all are read.

    Lists of a run are read until it is told apart from every other one, and its passages labelled until then, too,
    where no measure of other runs' lists needs these labels.

    Returns:
        The evaluation of what was read, and notes on what was not.
    """
    settings, runs, queries = work.conditions[0], work.shards.runs, work.shards.queries()
    bootstrap, labels = settings.bootstrap, not settings.scores_lists_alone(len(runs))
    by_cluster = CLUSTER in queries.columns
    by_cluster = by_cluster and bool(bootstrap.cluster or shares_much(queries[CLUSTER]))
    order = reading_order(queries, bootstrap.seed, by_cluster=by_cluster, store=context.place)
    numbers = order[CLUSTER].sort()
    parts = ["passages"] * (not labels) + ["lists"] * settings.reader.end_to_end
    kept, stopped = Kept(), dict[str, int]()
    n = min(FIRST_ROUND, len(order))
    while True:
        last = int(numbers[n - 1])
        n = int(numbers.search_sorted(last, "right"))  # whole clusters
        keep_order(queries, order, last, context.place, bootstrap.seed)
        ends = tuple((run, int(numbers[read - 1])) for run, read in stopped.items())
        now = _first(work, FirstQueries(order, last, ends, labels))
        read_and_score(now, [shard.number for shard in now.shards.shards], passes, context, kept)
        found = _scores(now, order)
        if found and {*found.runs} != {*runs}:
            found = None  # a run has no score yet
        pairs = found.undecided() if found else list(combinations(runs, 2))
        if n == len(order) or not pairs:
            return now, tuple(_not_read(len(order) - n, stopped, parts))
        if parts:
            left = {run for pair in pairs for run in pair}
            stopped |= {run: n for run in runs if run not in left | stopped.keys()}
        # Of the queries that both runs of a pair have; others may lack scores (``missing``, ``failed_reads``).
        needed = [
            (found.needed(*pair, bootstrap.confidence) or 0) * n / found.shared(*pair)
            for pair in pairs
            if found
        ]
        wanted = max(filter(None, needed), default=_MOST * n)
        n = min(len(order), int(min(max(wanted, _LEAST * n), _MOST * n)))


def read_to_width(
    work: Workload, passes: Sequence[Pass], context: Context
) -> tuple[Workload, tuple[Note]]:
    """Read and score all queries, with as many whole lists as the width takes; errors are those of ``read_and_score``.

    Returns:
        The evaluation, under settings that say how many lists were read, and how wide the intervals are.
    """
    settings, query_ids = work.conditions[0], work.shards.queries()[QUERY_ID]
    bootstrap, of = settings.bootstrap, len(query_ids)
    width, level = bootstrap.width or 0.0, 1 - bootstrap.confidence
    order, kept = reading_order(work.shards.queries(), bootstrap.seed), Kept()
    n, labelled = min(FIRST_LISTS, of), False
    while True:
        if labelled:
            share = None if n == of else drawn_share(query_ids, bootstrap.seed, n)
            drawn = settings.but(lists=share, width=None)
            prepared = [prepare(work.shards.read(0), drawn)] if work.prepared else []
            now = replace(work, conditions=(drawn,), prepared=tuple(prepared))
        else:
            now = _first(work, FirstQueries(order, n - 1))
        read_and_score(now, [shard.number for shard in now.shards.shards], passes, context, kept)
        found = _compared(now)
        known, further = found[0].n if found else 0, (2 * n, labelled)
        if known >= LEAST_LISTS:
            # Lists may lack scores: of reads that failed, or where a run lists nothing.
            total = len(found[0].f) * of // (of if labelled else n)
            needed, to_all = next_lists(found, width, level, total, labelled=labelled)
            further = (of if needed >= total else -(-needed * n // known)), to_all
        if labelled and n in (of, further[0]):
            break
        n = min(of, further[0])
        labelled = further[1] or n == of
    if n == of:
        text = f"all lists were read: no fewer are known to give intervals of `width` {width:g}"
    else:
        half, one = half_width(found, level, known, len(found[0].f)), len(now.shards.runs) == 1
        what = f"the interval of {'the mean' if one else 'every lead'}"
        text = f"{what} reaches {half:.3f} to either side at most (`width` {width:g})"
    return now, (Note(REACHED, n, text),)


def _first(work: Workload, queries: FirstQueries) -> Workload:
    part = work.shards.first(queries)
    prepared = [prepare(part.read(0), one) for one in work.conditions[: bool(work.prepared)]]
    return replace(work, shards=part, prepared=tuple(prepared))


def _not_read(queries: int, stopped: Mapping[str, int], parts: Sequence[str]) -> Iterator[Note]:
    what = (
        "[query was|queries were] not read, since the verdict stands: all figures are of the others"
    )
    yield count_note(STOPPED, queries, what)
    numbers = listed([f"{run} for {counted(n, '[query|queries]')}" for run, n in stopped.items()])
    text = f"{' and '.join(parts)} were read of {numbers}: by then "
    text += f"{agreeing(len(stopped), '[it|each]')} was told apart from every other run"
    yield Note(DECIDED, len(stopped), text, tuple(stopped))


def _compared(work: Workload) -> list[Estimate]:
    """The leads of every two runs, or the mean of the only one; nothing where a run has no score yet."""
    done = [work.parts[0].done(shard).scored for shard in work.shards.shards]
    downstream = pl.concat([scored.downstream for scored in done])
    means, leads = compared(downstream, pl.concat([scored.query_scores for scored in done]))
    return (leads or list(means.values())) if {*means} == {*work.shards.runs} else []


def _scores(work: Workload, order: pl.DataFrame) -> RunScores | None:
    """The runs by the score that decides: that of whole lists, or of the primary measure."""
    settings = work.conditions[0]
    done = [work.parts[0].done(shard).scored for shard in work.shards.shards]
    clusters = clusters_of(order, settings.bootstrap.until)
    if settings.reader.end_to_end:
        whole = pl.concat([scored.downstream for scored in done])
        return comparer(settings.bootstrap, unit, clusters)(whole, None, None)
    annotator = settings.resolved.listed[0].name
    scores = pl.concat([one.query_scores for one in done]).filter(pl.col(ANNOTATOR) == annotator)
    measure = str(scores[MEASURE][0])
    compare = comparer(settings.bootstrap, largest_scores(settings, work.shards), clusters)
    return compare(scores.filter(pl.col(MEASURE) == measure), annotator, measure)
