"""Which reads an evaluation wants, how many of them are equal or stored, and what is left, by kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import polars as pl

from engine.evaluation.evaluate import check
from engine.evaluation.jobs import Context, Job, specify_jobs
from engine.evaluation.plan import cut_for, lists_to_read
from engine.evaluation.score import pairs_to_label
from engine.evaluation.settings import Settings
from engine.inputs.files import EvaluationInputs
from engine.inputs.shards import InMemoryInputs
from engine.planning.forecast import SINGLE_PASSAGES, WHOLE_LISTS, Kind
from engine.reading import store
from engine.reading.identity import earlier_reads
from engine.reading.lengths import prompt_tokens
from engine.reading.plan import INPUTS, missing_reads
from engine.reading.store import Span
from engine.sources.io.folders import Folder
from engine.statistics.runs import is_drawn
from engine.tables import DOC_IDS, QUERY_ID, READ_KEY

# The share of sampled lists that a plan has a row for.
LISTS = 0.4
_WHOLE, _DRAWN = "whole", "drawn"


@dataclass(frozen=True, eq=False)
class Sample:
    """Some of the queries of an evaluation, with all that is listed for them.

    Attributes:
        inputs: of these queries, without the tables of annotators.
        spans: the ranges of buckets that they are, with the ids of their queries.
        pairs: pairs of query and listed passage in the whole, for each in the sample.
        lists: queries in the whole, for each in the sample.
    """

    inputs: EvaluationInputs
    spans: tuple[tuple[Span, frozenset[str]], ...]
    queries: int
    pairs: float
    lists: float


class Counted(NamedTuple):
    """The reads of a job on single passages or on whole lists, and the share of those left that ``LISTS`` needs."""

    job: Job
    is_whole: bool
    kind: Kind
    drawn: float


class _Asked(NamedTuple):
    """What a condition asks of a job: its reads, and single reads and whole lists, as often as runs list them."""

    job: Job
    reads: pl.DataFrame
    singles: int
    lists: int


def count_reads(
    inputs: EvaluationInputs,
    conditions: Sequence[Settings],
    context: Context,
    *,
    sample: Sample | None = None,
) -> Iterator[Counted]:
    """Count the reads of an evaluation, or of a study: of each job, by kind; inputs are at the largest cutoff.

    Raises:
        InputError: as ``check``, of a sample only what concerns its reads; or a reader cannot be
            used.
    """
    is_part = sample is not None
    asked = [one for each in conditions for one in _asked(inputs, each, context, part=is_part)]
    asks = conditions[0].resolved.asks.values()
    seen: defaultdict[str, list[pl.DataFrame]] = defaultdict(list)
    for job in {one.job.identity: one.job for one in asked}.values():
        same = [one for one in asked if one.job.identity == job.identity]
        reads = pl.concat([one.reads for one in same]).unique(maintain_order=True)
        wanted = job.wanted(reads, inputs.queries, inputs.corpus)
        # A list of one passage that is read alone too is the same read, as is one of none.
        least = 1 - any(ask.closed for ask in asks if ask.role == job.ask.role)
        is_read = pl.lit(any(one.singles for one in same))
        alone = pl.col(DOC_IDS).list.len().is_between(least, 1) & is_read
        wanted = wanted.with_columns(
            (~alone).alias(_WHOLE),
            is_drawn(wanted[QUERY_ID], conditions[0].bootstrap.seed, LISTS).alias(_DRAWN),
        ).with_columns(pl.col(_DRAWN).any().over(READ_KEY))
        none = wanted[[READ_KEY]].clear()
        distinct = missing_reads(wanted, pl.concat([none, *seen[job.spec.fingerprint]]))
        stored = _stored(context.place, job, distinct, sample) if job.spec.is_kept else none
        seen[job.spec.fingerprint].append(distinct[[READ_KEY]])
        # Several texts may be scored behind a passage.
        singles = max(sum(one.singles for one in same), wanted.filter(~pl.col(_WHOLE)).height)
        for whole, count in ((False, singles), (True, sum(one.lists for one in same))):
            if count:
                of_kind = distinct.filter(pl.col(_WHOLE) == whole)
                left = missing_reads(of_kind, stored)
                times = (sample.lists if whole else sample.pairs) if sample else 1.0
                kind = _kind(job, count, of_kind.height, left[INPUTS], whole, times)
                yield Counted(job, whole, kind, int(left[_DRAWN].sum()) / max(1, left.height))


def _kind(
    job: Job, asked: int, distinct: int, left: pl.Series, is_whole: bool, times: float
) -> Kind:
    """Counts of reads as a plan has them, so many times; ``left``: the inputs of those that are to be done."""
    spec, count, prompt, output = job.spec, round(left.len() * times), None, None
    if (tokens := prompt_tokens(spec, left)) is not None:
        # Nothing is written behind a prompt whose continuation is given.
        most = 0 if spec.scores == "target" else spec.most_new_tokens
        prompt, output = round(tokens * times), count * most
    title = job.ask.role.title.removeprefix("the ")
    return Kind(
        reader=spec.name,
        name=title or (WHOLE_LISTS if is_whole else SINGLE_PASSAGES),
        asked=round(asked * times),
        stored=round(distinct * times) - count,
        left=count,
        prompt_tokens=prompt,
        output_tokens=output,
        seconds=None if count else 0.0,
        token_price=spec.api.settings.cost(prompt or 0, output or 0) if spec.api else None,
    )


def _asked(
    inputs: EvaluationInputs, settings: Settings, context: Context, *, part: bool
) -> Iterator[_Asked]:
    if not part:
        check(InMemoryInputs(inputs), settings)
    cut = cut_for(inputs, settings)
    lists = lists_to_read(cut, settings)
    pairs, place = pairs_to_label(cut), context.place
    of_singles = {ask.role.name for ask in settings.resolved.asks.values()}
    roles = settings.resolved.roles
    for job in specify_jobs(roles, settings, context.executor, context.on_event, place):
        role, reads = job.ask.role.name, job.lists(pairs, lists)
        if not reads.is_empty():
            yield _Asked(
                job,
                reads,
                singles=cut.runs.height if role in of_singles else 0,
                lists=lists.height if job.ask.lists else 0,
            )


def _stored(place: Folder, job: Job, distinct: pl.DataFrame, sample: Sample | None) -> pl.DataFrame:
    """The keys that the store has, in one column. Nothing is merged there."""
    listing = store.listing(place, job.spec.fingerprint)
    earlier = earlier_reads(job.spec, place, distinct)[[READ_KEY]]
    parts: list[tuple[Span | None, pl.DataFrame]] = [(None, distinct)]
    if sample is not None:
        of_query = pl.col(QUERY_ID)
        parts = [(s, distinct.filter(of_query.is_in(list(ids)))) for s, ids in sample.spans]
    found = (store.find(listing, part[READ_KEY], span=span).reads for span, part in parts)
    return pl.concat([earlier, *(reads[[READ_KEY]] for reads in found)])
