"""Which reads an evaluation wants, how many of them are equal or stored, and what is left, by kind."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from engine.evaluation.budgets import cut_for
from engine.evaluation.context import Context
from engine.evaluation.inputs import EvaluationInputs
from engine.evaluation.prepare import lists_to_read, pairs_to_label, prepare
from engine.evaluation.read_jobs import Job, requests_for, specify_jobs
from engine.evaluation.settings import Settings
from engine.labels.annotator import READER
from engine.planning.probe import WHOLE
from engine.reading import store
from engine.reading.executors import input_sizes
from engine.reading.plan import INPUTS, longest_first, missing_reads
from engine.reading.store_files import Span
from engine.sources.io.folders import Folder
from engine.statistics.runs import is_drawn
from engine.tables import DOC_IDS, QUERY_ID, READ_KEY

# The share of sampled lists that a plan has a row for; of a read of whole lists, whether they need it.
LISTS, DRAWN = 0.4, "drawn"


@dataclass(frozen=True, eq=False)
class Sample:
    """Some of the queries of an evaluation, with all that is listed for them.

    Attributes:
        inputs: of these queries, without the tables of annotators.
        spans: the ranges of buckets that they are, with the ids of their queries.
        queries: of the whole evaluation.
        pairs: pairs of query and listed passage in the whole, for each in the sample.
        lists: queries in the whole, for each in the sample.
    """

    inputs: EvaluationInputs
    spans: tuple[tuple[Span, frozenset[str]], ...]
    queries: int
    pairs: float
    lists: float


@dataclass(frozen=True)
class Counted:
    """The reads of a job.

    Attributes:
        left: those to be done, as ``plan.longest_first`` gives them, with the columns ``whole`` and
            ``drawn``: whether a query that needs it is among the share ``LISTS``.
        asked: how many are asked for, of every run and condition; by whether they are of whole lists.
        stored: how many distinct ones of these are in the store.
    """

    job: Job
    left: pl.DataFrame
    asked: Mapping[bool, int]
    stored: Mapping[bool, int]


@dataclass(frozen=True)
class _ConditionReads:
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
    """Count the reads of an evaluation, or of a study, job by job; what is left has its prompts.

    Args:
        inputs: read at the largest cutoff of the conditions, or those of the sample.
        conditions: the settings of each.
        sample: what the inputs are a sample of, if they are one.

    Raises:
        InputError: as ``prepare.prepare``, of a sample only what concerns its reads; or a reader cannot be
            used.
    """
    asked = [
        one
        for settings in conditions
        for one in _asked(inputs, settings, context, part=sample is not None)
    ]
    seen: defaultdict[str, list[pl.DataFrame]] = defaultdict(list)
    for job in {one.job.identity: one.job for one in asked}.values():
        same = [one for one in asked if one.job.identity == job.identity]
        reads = pl.concat([one.reads for one in same]).unique(maintain_order=True)
        wanted = job.wanted(reads, inputs.queries, inputs.corpus)
        # A list of one passage that is read alone too is the same read, as is one of none.
        asks = conditions[0].resolved.asks.values()
        least = 1 - any(ask.closed for ask in asks if ask.role == job.ask.role)
        is_read = pl.lit(any(one.singles for one in same))
        alone = pl.col(DOC_IDS).list.len().is_between(least, 1) & is_read
        wanted = wanted.with_columns(
            (~alone).alias(WHOLE),
            is_drawn(wanted[QUERY_ID], conditions[0].bootstrap.seed, LISTS).alias(DRAWN),
        ).with_columns(pl.col(DRAWN).any().over(READ_KEY))
        none = wanted[[READ_KEY]].clear()
        distinct = missing_reads(wanted, pl.concat([none, *seen[job.spec.fingerprint]]))
        stored = _stored(context.place, job, distinct, sample) if job.spec.is_kept else none
        missing = missing_reads(distinct, stored)
        found = distinct.join(missing, on=READ_KEY, how="anti")
        sizes = input_sizes(job.spec, missing[INPUTS].to_list())
        seen[job.spec.fingerprint].append(distinct[[READ_KEY]])
        # Several texts may be scored behind a passage.
        singles = max(sum(one.singles for one in same), wanted.filter(~pl.col(WHOLE)).height)
        yield Counted(
            job=job,
            left=longest_first(missing, sizes, lead=len(job.spec.shared_prefix)),
            asked={False: singles, True: sum(one.lists for one in same)},
            stored={whole: found.filter(pl.col(WHOLE) == whole).height for whole in (False, True)},
        )


def _asked(
    inputs: EvaluationInputs,
    settings: Settings,
    context: Context,
    *,
    part: bool,
) -> Iterator[_ConditionReads]:
    cut = cut_for(inputs, settings)
    if part:
        lists = lists_to_read(cut, settings)
        requests = requests_for(pairs_to_label(cut), lists, settings)
    else:
        prepared = prepare(cut, settings)
        lists, requests = prepared.lists, list(prepared.requests)
    of_singles = {ask.role.name for ask in settings.resolved.asks.values()}
    jobs = specify_jobs(
        (request.ask for request in requests),
        settings,
        context.executor,
        context.on_event,
        context.place,
    )
    for job, request in zip(jobs, requests, strict=True):
        role = job.ask.role.name
        whole = role == READER.name and settings.reader.end_to_end
        yield _ConditionReads(
            job,
            request.lists,
            singles=cut.runs.height if role in of_singles else 0,
            lists=lists.height if whole else 0,
        )


def _stored(place: Folder, job: Job, distinct: pl.DataFrame, sample: Sample | None) -> pl.DataFrame:
    """The keys that the store has, in one column. Nothing is merged there."""
    listing = store.listing(place, job.spec.fingerprint)
    if sample is None:
        return store.find(listing, distinct[READ_KEY]).reads[[READ_KEY]]
    found = [
        store.find(
            listing,
            distinct.filter(pl.col(QUERY_ID).is_in(list(ids)))[READ_KEY],
            span=span,
        ).reads[[READ_KEY]]
        for span, ids in sample.spans
    ]
    return pl.concat([distinct[[READ_KEY]].clear(), *found])
