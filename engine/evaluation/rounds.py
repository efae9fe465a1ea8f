"""Read queries in rounds until it is decided which runs lead, in an order that does not depend on their scores.

A round evaluates the first queries of the order, labels and lists together, as any evaluation is; what was read
before is in the store. Verdicts hold at any time of stopping (``statistics.until``), so that the rounds may end as
soon as every pair of runs is decided. How many queries a round has follows from how many seem to be needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import polars as pl

from engine.evaluation.context import Context
from engine.evaluation.passes import Kept, Pass, read_and_score
from engine.evaluation.prepare import prepare
from engine.evaluation.shards import FirstQueries
from engine.evaluation.workload import Workload
from engine.messages.notes import Note, count_note
from engine.ranking.measures import largest_value, parse_measure
from engine.statistics.leads import Differences
from engine.statistics.runs import comparer, place_of, unit
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
    seed = work.conditions[0].bootstrap.seed
    order = place_of(work.shards.queries()[QUERY_ID], seed).sort()
    kept: Kept = []
    n = min(FIRST_ROUND, len(order))
    while True:
        part = work.shards.first(FirstQueries(seed, order[n - 1]))
        prepared = [
            prepare(part.read(0), one, part=True) for one in work.conditions[: bool(work.prepared)]
        ]
        now = replace(work, shards=part, prepared=tuple(prepared))
        read_and_score(now, [shard.number for shard in part.shards], passes, context, kept)
        found = _differences(now)
        if n == len(order) or (found and ((found.low > 0) | (found.high < 0)).all()):
            what = "[query was|queries were] not read, since the verdict stands: all figures are of the others"
            return now, (count_note(STOPPED, len(order) - n, what),)
        needed = [one for one in found.needed if one] if found else []
        wanted = max(needed, default=_MOST * n)
        n = min(len(order), int(min(max(wanted, _LEAST * n), _MOST * n)))


def _differences(work: Workload) -> Differences | None:
    """The differences of every two runs by the score that decides: that of whole lists, or of the primary measure."""
    settings = work.conditions[0]
    done = [work.parts[0].done(shard).scored for shard in work.shards.shards]
    if settings.reader.end_to_end:
        whole = pl.concat([scored.downstream for scored in done])
        found = comparer(settings.bootstrap, unit, None)(whole, None, None)
    else:
        annotator = settings.resolved.listed[0].name
        scores = pl.concat([scored.query_scores for scored in done])
        scores = scores.filter(pl.col(ANNOTATOR) == annotator)
        measure = str(scores[MEASURE][0])
        largest = max(scored.largest[annotator] for scored in done)
        most = largest_value(parse_measure(measure), settings.ranking.k, largest)
        compare = comparer(settings.bootstrap, lambda *_: most, None)
        found = compare(scores.filter(pl.col(MEASURE) == measure), annotator, measure)
    return None if found is None else found.differences
