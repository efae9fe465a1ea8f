"""Plan an evaluation: count its reads, and estimate their cost from the pace of an earlier evaluation.

An evaluation too large for one process is counted by a sample of its queries: whole ranges of buckets, like shards,
spread over the whole. Queries of equal text are in one bucket, and a store that has the first shards alone counts with
its true share.
"""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from engine.adaptive.queries import FIRST_ROUND
from engine.evaluation.evaluate import check
from engine.evaluation.jobs import Context, Job, specify_jobs
from engine.evaluation.plan import lists_to_read, with_share
from engine.evaluation.score import pairs_to_label
from engine.evaluation.settings import Settings, cut_for, models_of, refuse_unfit
from engine.inputs.files import EvaluationInputs, InputFiles
from engine.inputs.lists import Lists, ScatteredParts, count_parts, pairs_by_bucket
from engine.inputs.partition import PAIRS_PER_SHARD
from engine.inputs.read import LoadedInputs, listed_queries
from engine.inputs.shards import InMemoryInputs
from engine.machine.device import default_actor_memory, this_machine
from engine.machine.remote.api_settings import HOUR, is_api
from engine.machine.remote.limits import forget
from engine.machine.watch import OnEvent, silent
from engine.messages.errors import InputError
from engine.messages.wording import listed
from engine.reading import store
from engine.reading.costs import SINGLE, WHOLE, ReadingCosts
from engine.reading.identity import earlier_reads
from engine.reading.lengths import prompt_tokens
from engine.reading.local import Executor
from engine.reading.plan import INPUTS, missing_reads
from engine.report.findings import Findings, costs_of, read_summary
from engine.report.planning.forecast import (
    SINGLE_PASSAGES,
    WHOLE_LISTS,
    Forecast,
    Kind,
    PlanSettings,
    Way,
)
from engine.report.summary import SUMMARY, describe_reader, jsonable
from engine.sources.io.files import reported_writing, temporary_directory
from engine.sources.io.folders import Folder
from engine.sources.io.locations import Location, inside_of, locate, shown
from engine.sources.queries.buckets import BUCKETS, Range, buckets_of, halved
from engine.sources.queries.read import QuerySet
from engine.statistics.runs import is_drawn
from engine.statistics.single_labels import FIRST_LISTS
from engine.tables import DOC_IDS, QUERY, QUERY_ID, RANK, READ_KEY, RUN, STATED_RANK

# The share of sampled lists that a plan has a row for.
LISTS = 0.4
_WHOLE, _DRAWN = "whole", "drawn"


@dataclass(frozen=True, eq=False)
class Sample:
    """A sample of an evaluation's queries, with all of their listed passages."""

    inputs: EvaluationInputs  # without the tables of annotators
    spans: tuple[tuple[Range, frozenset[str]], ...]  # ranges of buckets, with their queries' ids
    queries: int  # in the whole
    pairs: float  # pairs of query and listed passage in the whole, for each in the sample
    lists: float  # queries in the whole, for each in the sample


class JobSizes(NamedTuple):
    """The reads of a job on single passages or on whole lists, and the share of the reads left that ``LISTS`` needs."""

    job: Job
    is_whole: bool
    kind: Kind
    drawn: float


class _RequestedReads(NamedTuple):
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
    more: Sequence[tuple[EvaluationInputs, Settings]] = (),
) -> Iterator[JobSizes]:
    """Count the reads of an evaluation or a study, per job and kind; inputs are at the largest cutoff.

    ``more``: inputs and settings of further evaluations of the same passages.

    Raises:
        InputError: as ``check``, of a sample only faults that concern its reads; or a reader cannot be used.
    """
    for settings in conditions if sample is None else ():
        check(InMemoryInputs(inputs), settings)
    cuts = list(zip(cut_for(inputs, conditions), conditions, strict=True))
    cuts = [*cuts, *((cut_for(other, [settings])[0], settings) for other, settings in more)]
    requests = [entry for cut, settings in cuts for entry in _requests(cut, settings, context)]
    asks = conditions[0].resolved.asks.values()
    seen: defaultdict[str, list[pl.DataFrame]] = defaultdict(list)
    for job in {entry.job.identity: entry.job for entry in requests}.values():
        same = [entry for entry in requests if entry.job.identity == job.identity]
        lists = pl.concat([entry.reads for entry in same]).unique(maintain_order=True)
        reads = job.requested(lists, inputs.queries, inputs.corpus)
        # A list of one passage equals the read of that passage alone; an empty list equals the closed-book read.
        least = 1 - any(ask.closed for ask in asks if ask.role == job.ask.role)
        is_read = pl.lit(any(entry.singles for entry in same))
        alone = pl.col(DOC_IDS).list.len().is_between(least, 1) & is_read
        reads = reads.with_columns(
            (~alone).alias(_WHOLE),
            is_drawn(reads[QUERY_ID], conditions[0].bootstrap.seed, LISTS).alias(_DRAWN),
        ).with_columns(pl.col(_DRAWN).any().over(READ_KEY))
        none = reads[[READ_KEY]].clear()
        distinct = missing_reads(reads, pl.concat([none, *seen[job.spec.fingerprint]]))
        stored = _stored(context.place, job, distinct, sample) if job.spec.is_kept else none
        seen[job.spec.fingerprint].append(distinct[[READ_KEY]])
        # Several texts may be scored behind a passage.
        singles = max(sum(entry.singles for entry in same), reads.filter(~pl.col(_WHOLE)).height)
        for whole, count in ((False, singles), (True, sum(entry.lists for entry in same))):
            if count:
                own = distinct.filter(pl.col(_WHOLE) == whole)
                left = missing_reads(own, stored)
                times = (sample.lists if whole else sample.pairs) if sample else 1.0
                kind = _kind(job, count, own.height, left[INPUTS], whole, times)
                yield JobSizes(job, whole, kind, int(left[_DRAWN].sum()) / max(1, left.height))


def _kind(
    job: Job, requested: int, distinct: int, left: pl.Series, is_whole: bool, times: float
) -> Kind:
    spec, count, prompt, output = job.spec, round(left.len() * times), None, None
    if (tokens := prompt_tokens(spec, left)) is not None:
        # A given continuation is scored, so no output is generated.
        most = 0 if spec.scores == "target" else spec.most_new_tokens
        prompt, output = round(tokens * times), count * most
    title = job.ask.role.title.removeprefix("the ")
    return Kind(
        reader=spec.name,
        name=title or (WHOLE_LISTS if is_whole else SINGLE_PASSAGES),
        asked=round(requested * times),
        stored=round(distinct * times) - count,
        left=count,
        prompt_tokens=prompt,
        output_tokens=output,
        seconds=None if count else 0.0,
        token_price=spec.api.settings.cost(prompt or 0, output or 0) if spec.api else None,
    )


def _requests(
    cut: EvaluationInputs, settings: Settings, context: Context
) -> Iterator[_RequestedReads]:
    lists = lists_to_read(cut, settings)
    pairs, place = pairs_to_label(cut), context.place
    alone = {ask.role.name for ask in settings.resolved.asks.values()}
    roles = settings.resolved.roles
    for job in specify_jobs(roles, settings, context.executor, context.on_event, place):
        role, reads = job.ask.role.name, job.lists(pairs, lists)
        if not reads.is_empty():
            singles = cut.runs.height if role in alone else 0
            yield _RequestedReads(job, reads, singles, lists.height if job.ask.lists else 0)


def _stored(place: Folder, job: Job, distinct: pl.DataFrame, sample: Sample | None) -> pl.DataFrame:
    """Keys in the store, in a single column, without merging the store's files."""
    listing = store.listing(place, job.spec.fingerprint)
    earlier = earlier_reads(job.spec, place, distinct)[[READ_KEY]]
    parts: list[tuple[Range | None, pl.DataFrame]] = [(None, distinct)]
    if sample is not None:
        query_id = pl.col(QUERY_ID)
        parts = [(s, distinct.filter(query_id.is_in(list(ids)))) for s, ids in sample.spans]
    stored = (store.find(listing, part[READ_KEY], span=span).reads for span, part in parts)
    return pl.concat([earlier, *(reads[[READ_KEY]] for reads in stored)])


# Number of places of a sample. It has at most 1/_PART of a shard's pairs, since its prompts are held
# beside the keys of all queries.
_PLACES, _PART = 16, 2


def take_sample(files: InputFiles, *, k: int, pairs: int = PAIRS_PER_SHARD) -> Sample:
    """Take a sample with at most about half of a shard's pairs.

    Runs are read, checked and cut in parts, as for shards, in a temporary folder. Of the corpus, a sample needs only
    its listed passages.

    Raises:
        InputError: as ``inputs.read_inputs``; for documents that the corpus lacks, only documents in the sample.
    """
    place = Path(tempfile.gettempdir()) / "erag-plan"
    with reported_writing(place), temporary_directory(place) as folder:

        def parts_of(queries: pl.DataFrame) -> ScatteredParts:
            return ScatteredParts(queries, folder, count_parts(files.run))

        _, queries, lists, _ = listed_queries(files, k=k, parts_of=parts_of)
        counted, buckets = pairs_by_bucket(lists), buckets_of(queries[QUERY])
        evaluated = np.bincount(buckets, minlength=BUCKETS)
        ranges = halved(counted, evaluated, max(1, pairs // (_PART * _PLACES)))
        count = min(_PLACES, len(ranges))
        spans = [ranges[int((place + 0.5) * len(ranges) / count)] for place in range(count)]
        inside = np.concatenate([np.arange(low, high) for low, high in spans])
        sampled = queries.filter(pl.Series(np.isin(buckets, inside)))
        rows = pl.concat(part.join(sampled, on=QUERY_ID, how="semi") for part in lists)
        inputs = _read(files, sampled, rows, lists, k)
    ids = queries[QUERY_ID]
    within = ((buckets >= low) & (buckets < high) for low, high in spans)
    return Sample(
        inputs=inputs,
        spans=tuple(zip(spans, (frozenset(ids.filter(is_in)) for is_in in within), strict=True)),
        queries=queries.height,
        pairs=int(counted.sum()) / max(1, int(counted[inside].sum())),
        lists=queries.height / max(1, sampled.height),
    )


def _read(
    files: InputFiles, queries: pl.DataFrame, rows: pl.DataFrame, lists: Lists, k: int
) -> EvaluationInputs:
    ordered = rows.sort(QUERY_ID, RANK).with_columns(pl.lit(None, pl.Int32).alias(STATED_RANK))
    by_run = {name: run for (name,), run in ordered.partition_by(RUN, as_dict=True).items()}
    paths = {n: path for n, path in zip(lists.names, lists.paths, strict=True) if n in by_run}
    runs = pl.concat([ordered.clear(), *(by_run[name] for name in paths)])
    names = ("queries", "corpus", "skip_bad", "need_answers")
    sampled = InputFiles(**{n: getattr(files, n) for n in names}, run=tuple(paths.values()))
    loaded = LoadedInputs(QuerySet(queries), (runs, None, Counter()))
    return InMemoryInputs.of_files(sampled, k=k, loaded=loaded).inputs


_REMEDY = "name the results of an evaluation that made LLM calls of its own"
# Properties of a reader, of actors and of a machine that determine the speed of LLM calls, by keys of summary.json.
_OF_READERS = {"weights_sha256": "weights", "prompt_sha256": "prompt", "name": "name"} | {
    name: name for name in ("augmentation", "dtype", "engine", "executor", "max_new_tokens")
}
_OF_ACTORS = ("gpus_per_actor", "cpus_per_actor", "accelerator_type", "concurrency")
_OF_MACHINES = ("processor", "cpus", "gpus")


@dataclass(frozen=True, eq=False)
class RolePace:
    """Costs of a role's reads; ``reader``: the description of its reader in ``summary.json``."""

    reader: Mapping[str, Any]
    costs: ReadingCosts

    @property
    def actors(self) -> int:
        return max(1, len(self.costs.workers))

    @property
    def start(self) -> float:
        """Seconds of an actor before it reads: start, and load of the model."""
        return max(0.0, self.costs.seconds - self.costs.reader_seconds / self.actors)

    def timed(self, sizes: JobSizes) -> Kind:
        """Reads with their seconds: in proportion to their prompt tokens if the earlier evaluation counted tokens,
        else to their number. The seconds are None if it has no reads of the kind.
        """
        costs = self.costs.kinds.get(WHOLE if sizes.is_whole else SINGLE)
        kind, spec = sizes.kind, sizes.job.spec
        if costs is None or not costs.done:
            return kind
        amount, base = float(kind.left), costs.done
        # A server or a user's program counts tokens in its own way.
        if spec.is_reproducible and not spec.executor and costs.prompt_tokens:
            amount, base = kind.prompt_tokens or 0, costs.prompt_tokens
        return replace(kind, seconds=amount * costs.reader_seconds / base)

    def differences(self, job: Job) -> list[str]:
        """Differences between this reader and the reader of a planned job."""
        planned = jsonable(describe_reader(job))
        planned["augmentation"] = "fid" if job.prompt.fused else "in-prompt"
        return [name for key, name in _OF_READERS.items() if _differ(self.reader, planned, key)]


@dataclass(frozen=True)
class Pace:
    """Costs of an evaluation's reads by role; a study has a reader's role for each reader."""

    roles: tuple[tuple[str, RolePace], ...]
    summary: Mapping[str, Any]

    @property
    def actors(self) -> int:
        return max(pace.actors for _, pace in self.roles)

    def of(self, job: Job) -> RolePace | None:
        """Pace of the job's role, of the most similar reader; None if that role made no reads."""
        paces = [pace for role, pace in self.roles if role == job.ask.role.name]
        return min(paces, key=lambda pace: len(pace.differences(job)), default=None)

    def differences(self, configuration: Mapping[str, Any]) -> list[str]:
        """Differences of the planned actors, and of this machine."""
        earlier, machine = self.summary["configuration"], self.summary.get("audit", {})
        here, there = jsonable(asdict(this_machine())), machine.get("machine", {})
        unlike = [name for name in _OF_ACTORS if _differ(earlier, configuration, name)]
        return unlike + [name for name in _OF_MACHINES if _differ(there, here, name)]


def _differ(then: Mapping[str, Any], now: Mapping[str, Any], key: str) -> bool:
    return key in then and key in now and then[key] != now[key]


def pace_of(summary: Mapping[str, Any]) -> Pace:
    """The pace in the content of a ``summary.json``.

    Raises:
        InputError: it is not of an evaluation, or the evaluation read nothing.
    """
    if not {"configuration", "reader", "reading"} <= summary.keys():
        raise InputError("is not an evaluation's summary", _REMEDY, "results.summary")
    if study := summary.get("study"):
        # Its rows name reader and augmentation; all readers of a study have one precision.
        dtype = {"dtype": (summary["reader"] or {}).get("dtype")}
        readers = [{"name": row["reader"], **row, **dtype} for row in study["costs"]]
        roles = [(reader["role"], RolePace(reader, costs_of(reader))) for reader in readers]
    else:
        costs_by_role = Findings(summary, Path(), None).roles.items()
        roles = [(role.name, RolePace(summary[role.key] or {}, c)) for role, c in costs_by_role]
    if not any(kind.done for _, pace in roles for kind in pace.costs.kinds.values()):
        problem = "has no time of LLM calls: all were cached, or none was needed"
        raise InputError(problem, _REMEDY, "plan.pace")
    return Pace(tuple(roles), summary)


def read_pace(results: Location) -> Pace:
    """The pace of an evaluation, by the folder or address of its results or of their summary.json.

    Raises:
        InputError: as ``pace_of``; or no summary can be read.
    """
    folder = locate(str(results).removesuffix(SUMMARY))
    try:
        return pace_of(read_summary(folder))
    except InputError as error:
        path = shown(inside_of(folder, SUMMARY))
        raise InputError(error.problem, _REMEDY, "plan.pace", path=path) from None


def plan_evaluation(
    inputs: EvaluationInputs,
    conditions: Iterable[Settings],
    plan: PlanSettings,
    *,
    store: Location,
    sample: Sample | None = None,
    on_event: OnEvent = silent,
    executor: Executor | None = None,
    more: Sequence[tuple[EvaluationInputs, Settings]] = (),
) -> Forecast:
    """Forecast the cost of an evaluation or a study, without LLM calls and without writing files.

    Inputs are the inputs of the ``sample`` if the evaluation is done in shards. ``more``: as in ``count_reads``.

    Raises:
        InputError: as ``evaluate.evaluate`` and ``pace_for``; or the time limit is over before the actors
            have started, or the pace lacks the time of some reads.
    """
    settings = list(conditions)
    first, pace = settings[0], pace_for(plan, settings)
    refuse_unfit(settings)
    forget()
    context = Context(store=store, on_event=on_event, executor=executor)
    query_ids, each = inputs.queries[QUERY_ID], sample.lists if sample else 1
    drawn = [with_share(condition, query_ids, each) for condition in settings]
    jobs = list(count_reads(inputs, drawn, context, sample=sample, more=more))
    # Reads that are all stored need no pace.
    paces = [pace.of(sizes.job) if pace and sizes.kind.left else None for sizes in jobs]
    both = list(zip(jobs, paces, strict=True))
    queries = sample.queries if sample else inputs.queries.height
    ways = _ways(first, inputs, queries, jobs) if len(settings) == 1 else ()
    most = first.running.pool().bounds()[1]
    if most is None:  # the cluster decides: as many as in the earlier evaluation
        most = pace.actors if pace else 1
    forecast = Forecast(
        kinds=tuple(own.timed(sizes) if own else sizes.kind for sizes, own in both),
        queries=queries,
        sampled=inputs.queries.height if sample else None,
        pace=None if plan.pace is None else shown(locate(plan.pace)),
        start=sum(own.start for own in set(paces) if own),
        peak=max((_peak(sizes, own) for sizes, own in both), default=0),
        actors=max(1, most),
        settings=plan,
        price_per_hour=first.api.price_per_hour if pace else None,
        ways=tuple(ways),
    )
    if pace is None:
        return forecast
    unlike = [
        f"{name} of {sizes.job.ask.role.title or 'the reader'}"
        for sizes, own in both
        for name in (own.differences(sizes.job) if own else ())
    ]
    unlike += pace.differences(first.flat())
    return _at_pace(forecast, pace, list(dict.fromkeys(unlike)))


def pace_for(plan: PlanSettings, conditions: Collection[Settings]) -> Pace | None:
    """The pace for a plan; None if the settings name none.

    Raises:
        InputError: as ``read_pace``; or the plan has both `finish_in` and a number of actors, or `finish_in` with a
            server in place of actors.
    """
    actors = next(iter(conditions)).running.actors
    if plan.finish_in is not None and actors is not None:
        problem = f"`actors` {actors} beside `finish_in` {plan.finish_in:g}, which asks how many"
        raise InputError(problem, "leave one of them out", "plan.actors")
    models = (model for condition in conditions for model in models_of(condition))
    if plan.finish_in is not None and any(map(is_api, models)):
        problem = "`finish_in` asks for a number of actors, and a reader behind an API has none"
        remedy = "leave it out, and try other values of `concurrency`"
        raise InputError(problem, remedy, "plan.actorless")
    return None if plan.pace is None else read_pace(plan.pace)


def _peak(sizes: JobSizes, pace: RolePace | None) -> int:
    spec = sizes.job.spec
    if pace is not None and pace.costs.workers and not pace.differences(sizes.job):
        return max(pace.costs.workers.values())
    if spec.executor or not spec.is_reproducible:
        return 0
    return spec.memory or default_actor_memory(spec.weight_bytes)


def _ways(
    settings: Settings, inputs: EvaluationInputs, queries: int, jobs: Sequence[JobSizes]
) -> Iterator[Way]:
    with contextlib.suppress(InputError):
        if not settings.bootstrap.lists and settings.but(lists=LISTS):
            # Which of the lists that are left they read.
            left = [(sizes.kind.left, sizes.drawn) for sizes in jobs if sizes.is_whole]
            drawn = sum(n * share for n, share in left) / max(1, sum(n for n, _ in left))
            yield Way(f"lists {LISTS:g}", lists=drawn, known=True)
    if width := settings.bootstrap.width:
        yield Way(f"width {width:g}", lists=min(1.0, FIRST_LISTS / max(1, queries)))
        return
    k, few = settings.ranking.k, min(1.0, FIRST_ROUND / max(1, queries))
    ways = Way("lazy", 1 / k), Way("until", few, few), Way("lazy until", few / k, few)
    for way in ways if len(inputs.run_names) > 1 else ways[:1]:
        with contextlib.suppress(InputError):
            until = "verdict" if "until" in way.name else None
            settings.but(lazy="lazy" in way.name, until=until)
            yield way


def _at_pace(forecast: Forecast, pace: Pace, unlike: list[str]) -> Forecast:
    """The plan with the number of actors that finish in time, if a time was set, and with the limits of its pace."""
    untimed = dict.fromkeys(kind.name for kind in forecast.kinds if kind.seconds is None)
    lacks = f"that evaluation made no LLM calls of this kind: {listed(list(untimed))}"
    hours, actors, reading = forecast.settings.finish_in, forecast.actors, forecast.all.seconds
    if hours is not None and forecast.all.left:
        left, start = hours * HOUR - forecast.start, forecast.start
        if reading is None:
            raise InputError(f"`finish_in` by `pace`, but {lacks}", "name another one", "plan.pace")
        if left <= 0:
            problem = f"`finish_in` is {hours:g} hours, and the start of the actors alone takes {start:.0f} s"
            raise InputError(problem, f"give more than {start / HOUR:.2g} hours", "plan.deadline")
        actors = max(1, math.ceil(reading / left))
    unlike = [*unlike, *["actors"] * (actors != pace.actors)]
    notes = [f"that evaluation differs from the planned one in {listed(unlike)}"] * bool(unlike)
    notes += [f"{lacks}; their time is not known"] * bool(untimed)
    return replace(forecast, actors=actors, notes=tuple(notes))
