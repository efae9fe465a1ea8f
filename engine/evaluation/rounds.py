"""Read queries in rounds until it is decided which runs lead, in an order that does not depend on their scores.

A round evaluates the first queries of the order, labels and lists together, as any evaluation is; what was read
before is in the store. Verdicts hold at any time of stopping (``statistics.until``), so that the rounds may end as
soon as every pair of runs is decided. How many queries a round has follows from how many seem to be needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations

import polars as pl

from engine.evaluation.context import Context
from engine.evaluation.passes import Kept, Pass, read_and_score
from engine.evaluation.prepare import prepare
from engine.evaluation.shards import FirstQueries
from engine.evaluation.workload import Workload
from engine.messages.notes import Note, count_note
from engine.ranking.measures import largest_value, parse_measure
from engine.statistics.runs import RunScores, comparer, place_of, unit
from engine.tables import ANNOTATOR, MEASURE, QUERY_ID

# Code of the note on queries that the verdict did without.
STOPPED = "queries_not_read"
# Queries of the first round; how much larger the next one is at least and at most.
FIRST_ROUND, _LEAST, _MOST = 32, 1.25, 2.0


def read_until_decided(
    work: Workload, passes: Sequence[Pass], context: Context
) -> tuple[Workload, tuple[Note]]:
    """Read and score queries until every pair of runs is decided, or all are read.

    Returns:
        The evaluation of the queries that were read, and how many were not.

    Raises:
        InputError, ReadError: as ``passes.read_and_score``.
    """
    bootstrap = work.conditions[0].bootstrap
    order = place_of(work.shards.queries()[QUERY_ID], bootstrap.seed).sort()
    kept: Kept = []
    n = min(FIRST_ROUND, len(order))
    while True:
        part = work.shards.first(FirstQueries(bootstrap.seed, order[n - 1]))
        prepared = [
            prepare(part.read(0), one, part=True) for one in work.conditions[: bool(work.prepared)]
        ]
        now = replace(work, shards=part, prepared=tuple(prepared))
        read_and_score(now, [shard.number for shard in part.shards], passes, context, kept)
        found = _scores(now)
        apart = found and ((found.differences.low > 0) | (found.differences.high < 0)).all()
        if n == len(order) or apart:
            what = "[query was|queries were] not read, since the verdict stands: all figures are of the others"
            return now, (count_note(STOPPED, len(order) - n, what),)
        pairs = combinations(found.runs, 2) if found else ()
        needed = [found.needed(*pair, bootstrap.confidence) for pair in pairs if found]
        wanted = max(filter(None, needed), default=_MOST * n)
        n = min(len(order), int(min(max(wanted, _LEAST * n), _MOST * n)))


def _scores(work: Workload) -> RunScores | None:
    """The runs by the score that decides: that of whole lists, or of the primary measure."""
    settings = work.conditions[0]
    done = [work.parts[0].done(shard).scored for shard in work.shards.shards]
    if settings.reader.end_to_end:
        whole = pl.concat([scored.downstream for scored in done])
        return comparer(settings.bootstrap, unit, None)(whole, None, None)
    annotator = settings.resolved.listed[0].name
    scores = pl.concat([one.query_scores for one in done]).filter(pl.col(ANNOTATOR) == annotator)
    measure = str(scores[MEASURE][0])
    largest = max(scored.largest[annotator] for scored in done)
    most = largest_value(parse_measure(measure), settings.ranking.k, largest)
    compare = comparer(settings.bootstrap, lambda *_: most, None)
    return compare(scores.filter(pl.col(MEASURE) == measure), annotator, measure)
