"""The reads of an evaluation, or of a study: which model reads what, with which prompt, and the outputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from engine.errors import InputError, ReadError
from engine.evaluation.settings import Settings
from engine.labels.annotator import READER, Ask
from engine.labels.registry import ANNOTATORS
from engine.machine.device import Dtype
from engine.machine.pool import require_gpus_used
from engine.machine.survey import reading_dtype, reading_on_vllm, reads_on_gpus
from engine.machine.watch import OnEvent, silent
from engine.reading.api.settings import is_api
from engine.reading.api.specify import specify_api
from engine.reading.costs import ReadingCosts
from engine.reading.decided import with_references
from engine.reading.execute import reads_here
from engine.reading.function_reader import specify_function
from engine.reading.models.deciding import require_able
from engine.reading.models.vllm_support import refuse_uneven
from engine.reading.models.weights import resolve
from engine.reading.plan import WANTED, wanted_reads
from engine.reading.prompting.prompts import Prompt
from engine.reading.protocol import Engine, ReaderSpec
from engine.reading.readers import specify
from engine.reading.reads import Executor, Progress, Wanted, get_all_reads, is_kept, read_by
from engine.reading.settings import FailedReads, RunningSettings
from engine.scoring.metrics import score_outputs
from engine.sources.io.locations import Location
from engine.tables import CONFIDENCE, DOC_ID, DOC_IDS, FAILURE, QUERY_ID, READ_KEY, VALUE

# What identifies a read within a reading: the query, and its passages in their order.
_IDENTITY = (QUERY_ID, DOC_IDS)
_WHOLE = "whole"
# ``Request.lists`` without reads.
NO_LISTS = pl.DataFrame(
    schema={QUERY_ID: pl.String, DOC_IDS: pl.List(pl.String), _WHOLE: pl.Boolean}
)


@dataclass(frozen=True)
class Request:
    """What one role is asked for.

    Attributes:
        lists: ``query_id`` and ``doc_ids`` of each read, and ``whole``: whether it is wanted in full
            whatever the metric.
        metric: by which the other reads may end as soon as they are decided; empty for none.
    """

    ask: Ask
    lists: pl.DataFrame
    metric: str = ""


@dataclass(frozen=True)
class Job:
    """A request with the reader that does it and the prompt that the reader is given."""

    ask: Ask
    lists: pl.DataFrame
    spec: ReaderSpec
    prompt: Prompt

    @property
    def identity(self) -> tuple[object, ...]:
        """Jobs of equal identity are one job: the same reader in the same role, asked the same way."""
        return self.ask.role.name, self.spec, self.prompt.digest, self.prompt.fused


@dataclass(frozen=True)
class Reading:
    """A reader with a prompt, what it read, and what that cost.

    Attributes:
        ask: the request that it answers.
        wanted: the reads asked for, as ``plan.wanted_reads`` gives them.
        reads: the reads table, one row per row of ``wanted``, in that order; further ``failure``.
    """

    ask: Ask
    spec: ReaderSpec
    prompt: Prompt
    wanted: pl.DataFrame
    reads: pl.DataFrame
    costs: ReadingCosts

    def of(self, lists: pl.DataFrame) -> pl.DataFrame:
        """The reads of ``query_id`` and ``doc_ids``, a row for each row of ``lists``, in its order.

        Raises:
            ValueError: one of them was not read.
        """
        distinct = self.reads.unique(_IDENTITY, keep="first", maintain_order=True)
        reads = lists.select(_IDENTITY).join(
            distinct, on=_IDENTITY, how="left", maintain_order="left"
        )
        if lacking := reads[READ_KEY].null_count():
            raise ValueError(f"{lacking} of {reads.height} reads were never asked for")
        return reads.select(self.reads.columns)

    def part(self, lists: pl.DataFrame) -> Reading:
        """The reading of some of its reads alone, at the cost of looking them up."""
        distinct = self.wanted.unique(_IDENTITY, keep="first", maintain_order=True)
        wanted = lists.select(_IDENTITY).join(
            distinct, on=_IDENTITY, how="left", maintain_order="left"
        )
        reads = self.of(lists)
        failed = reads.filter(pl.col(FAILURE).is_not_null())[READ_KEY].n_unique()
        total = reads[READ_KEY].n_unique()
        costs = ReadingCosts(wanted=total, reused=total - failed, failed=failed)
        return Reading(self.ask, self.spec, self.prompt, wanted.select(list(WANTED)), reads, costs)


def alone(pairs: pl.DataFrame) -> pl.DataFrame:
    """``query_id`` and ``doc_ids`` of the reads of single passages, in the order of ``pairs``."""
    return pairs.select(QUERY_ID, pl.concat_list(DOC_ID).alias(DOC_IDS))


def requests_for(pairs: pl.DataFrame, lists: pl.DataFrame, settings: Settings) -> list[Request]:
    """What is asked of whom, a request for each role; single passages come before whole lists.

    Args:
        pairs: ``query_id`` and ``doc_id`` of the passages that are labelled.
        lists: ``query_id`` and ``doc_ids`` of the lists that are read whole.
    """
    singles = alone(pairs).with_columns(pl.lit(False).alias(_WHOLE))
    asks = settings.asks()
    of_reader = [a.name for a in settings.annotators_in_use() if a.is_the_readers]
    roles: dict[str, tuple[Ask, list[pl.DataFrame]]] = {}

    def add(ask: Ask, frame: pl.DataFrame) -> None:
        first, frames = roles.setdefault(ask.role.name, (ask, []))
        if first.terms != ask.terms:
            raise ValueError(f"two annotators ask different things in the role {ask.role.name!r}")
        if not any(known is frame for known in frames):
            frames.append(frame)

    for name in of_reader:
        if name in asks:
            add(asks[name], singles)
    if settings.reader.end_to_end:
        add(_of_whole_lists(settings), lists.select(*_IDENTITY, pl.lit(True).alias(_WHOLE)))
    # In the order of the registry, whatever the order of the annotators: tables of reads keep theirs.
    places = {name: place for place, name in enumerate(ANNOTATORS)}
    for name in sorted(asks, key=lambda name: places.get(name, len(places))):
        if name not in of_reader:
            add(asks[name], singles)
    requests = [
        Request(ask, pl.concat(frames), settings.decides(ask.role))
        for ask, frames in roles.values()
    ]
    return [request for request in requests if not request.lists.is_empty()]


def _of_whole_lists(settings: Settings) -> Ask:
    reader = settings.reader

    def value(reads: pl.DataFrame, queries: pl.DataFrame) -> pl.Series:
        return score_outputs(reads, queries, reader.metric)[VALUE]

    return Ask(
        role=READER,
        model=reader.reader,
        task=reader.task,
        prompt=reader.prompt,
        augmentation=reader.augmentation,
        value=value,
    )


def specify_jobs(
    requests: Iterable[Request],
    settings: Settings,
    executor: Executor | None = None,
    on_event: OnEvent = silent,
) -> list[Job]:
    """The readers that are asked, or the executor that stands in for them, with their prompts.

    Where no precision is given, it is that of the nodes that will read, for which ``on_event`` may hear us wait.

    Raises:
        InputError: one cannot be used.
    """
    if executor is not None and settings.running.decide:
        problem = "`decide` with an executor of your own, which reads in full"
        raise InputError(problem, "leave one of them out")
    jobs: list[Job] = []
    dtype, pool = settings.reader.dtype, settings.running.pool()
    for request in requests:
        elsewhere = is_api(request.ask.model) or settings.reader.own(request.ask.model)
        if dtype is None and executor is None and not elsewhere:
            dtype = reading_dtype(pool, on_event)
        engine = _engine_for(request.ask, settings, executor, on_event)
        spec, prompt = _specify(request.ask, settings, dtype, engine, asked=executor is None)
        if executor is None and spec.is_reproducible:
            # vLLM ends reads by itself; so do servers, and functions.
            spec = replace(spec, metric="" if engine == "vllm" else request.metric)
            if engine == "vllm":
                spec = replace(spec, gpus=max(1, int(pool.gpus_per_actor or 1)))
                refuse_uneven(Path(spec.path), spec.name, spec.gpus)
            require_gpus_used(pool, spec.name, spec.gpus)
            if settings.running.decide and spec.metric:
                require_able(spec)
        elif executor is None and spec.function and not reads_here(pool, [spec]):
            spec.function.reader.require_sendable()
        jobs.append(Job(request.ask, request.lists, read_by(spec, executor), prompt))
    return jobs


def _engine_for(
    ask: Ask, settings: Settings, executor: Executor | None, on_event: OnEvent
) -> Engine:
    """What runs a role's reader: what the user chose, or vLLM where the machines that read have it."""
    if settings.reader.own(ask.model):
        return "function"
    if is_api(ask.model):
        return "openai"
    if settings.reader.engine != "auto":
        return settings.reader.engine
    may = executor is None and not settings.running.decide
    # Nodes are asked only where it matters.
    if may and resolve(ask.model).architecture == "causal":
        return "vllm" if reading_on_vllm(settings.running.pool(), on_event) else "transformers"
    return "transformers"


def _specify(
    ask: Ask, settings: Settings, dtype: Dtype | None, engine: Engine, *, asked: bool
) -> tuple[ReaderSpec, Prompt]:
    """A role's reader and its prompt; ``asked``: whether it reads, and no executor in its place."""
    if own := settings.reader.own(ask.model):
        augmentation = ask.augmentation or "in-prompt"
        return specify_function(own, augmentation=augmentation, task=ask.task, prompt=ask.prompt)
    if is_api(ask.model):
        return specify_api(
            ask.model,
            settings.api,
            augmentation=ask.augmentation or "in-prompt",
            task=ask.task,
            prompt=ask.prompt,
            tried=asked,
        )
    # One passage is the same prompt to a decoder-only reader, however whole lists are read.
    usual = ask.augmentation or settings.reader.augmentation
    one = ask.augmentation is None and resolve(ask.model).architecture == "causal"
    return specify(
        ask.model,
        augmentation="in-prompt" if one else usual,
        task=ask.task,
        prompt=ask.prompt,
        dtype=dtype,
        memory=settings.running.memory,
        gpu=bool(settings.running.memory) and reads_on_gpus(settings.running.pool()),
        engine=engine,
        trust_remote_code=settings.reader.trust_remote_code,
    )


def merge_jobs(jobs: Iterable[Job]) -> list[Job]:
    """The jobs of several evaluations with those of equal identity made one, each read asked once."""
    groups: dict[tuple[object, ...], list[Job]] = {}
    for job in jobs:
        groups.setdefault(job.identity, []).append(job)
    return [
        Job(
            group[0].ask,
            pl.concat([job.lists for job in group]).unique(maintain_order=True),
            group[0].spec,
            group[0].prompt,
        )
        for group in groups.values()
    ]


def wanted_of(
    job: Job, lists: pl.DataFrame, queries: pl.DataFrame, corpus: pl.DataFrame
) -> pl.DataFrame:
    """The reads of a job (``plan.WANTED``), row by row as in ``lists`` (``Request.lists``)."""
    spec = job.spec
    wanted = wanted_reads(lists, queries, corpus, prompt=job.prompt, fingerprint=spec.fingerprint)
    return with_references(wanted, lists[_WHOLE], queries, spec.metric)


def read(
    jobs: Sequence[Job],
    queries: pl.DataFrame,
    corpus: pl.DataFrame,
    running: RunningSettings,
    *,
    store: Location,
    on_progress: Progress,
    on_event: OnEvent = silent,
    executor: Executor | None = None,
) -> list[Reading]:
    """Have the reads of all jobs: of one evaluation, or of all conditions of a study.

    Args:
        jobs: each of another identity; all prompts are made before any reader is loaded.
        queries, corpus: the tables that the jobs' ids point into.
        running: the actors, and whether a failed read is an error.
        store: the read store, a path or an address.
        on_progress: called with the distinct reads done and wanted, of all jobs together.
        on_event: as in ``get_all_reads``.
        executor: does the reads instead of the readers, as in ``get_all_reads``; the one that the jobs
            were specified with.

    Returns:
        a reading for each job.

    Raises:
        ReadError: reads failed and ``failed_reads`` is ``error``; or a reader wrote text where it had
            to choose.
    """
    tell_engines(jobs, on_event)
    wanted = [wanted_of(job, job.lists, queries, corpus) for job in jobs]
    got = get_all_reads(
        [Wanted(frame, job.spec) for job, frame in zip(jobs, wanted, strict=True)],
        store,
        pool=running.pool(),
        on_progress=on_progress,
        on_event=on_event,
        executor=executor,
    )
    for job, (reads, _) in zip(jobs, got, strict=True):
        stored = is_kept(executor, job.spec)
        _refuse_failures(reads, running.failed_reads, stored=stored)
        refuse_written(reads, job.spec)
    return [
        Reading(job.ask, job.spec, job.prompt, frame, reads, costs)
        for job, frame, (reads, costs) in zip(jobs, wanted, got, strict=True)
    ]


def tell_engines(jobs: Iterable[Job], on_event: OnEvent) -> None:
    """Say which readers run on vLLM, which nobody need have asked for, and which servers are asked."""
    jobs = list(jobs)
    for name in dict.fromkeys(job.spec.name for job in jobs if job.spec.engine == "vllm"):
        on_event(f"reader {name} runs on vLLM")
    for name, api in dict.fromkeys((job.spec.name, job.spec.api) for job in jobs if job.spec.api):
        without = f", without {', '.join(api.refused)}, which it refuses" if api.refused else ""
        most = f"{api.settings.concurrency} requests at a time at most"
        on_event(f"reader {name} is asked of {api.settings.host}, {most}{without}")


def by_role(readings: Iterable[Reading]) -> dict[str, Reading]:
    """Readings by the name of the role that read."""
    return {reading.ask.role.name: reading for reading in readings}


def failed_queries(reads: pl.DataFrame) -> list[str]:
    """The queries of which a read failed."""
    failed = reads.filter(pl.col(FAILURE).is_not_null())
    return failed[QUERY_ID].unique(maintain_order=True).to_list()


def failures(readings: Mapping[str, Reading]) -> int:
    """Distinct reads that failed, over all roles."""
    return sum(reading.costs.failed for reading in readings.values())


def _refuse_failures(reads: pl.DataFrame, failed_reads: FailedReads, *, stored: bool) -> None:
    failed = reads.filter(pl.col(FAILURE).is_not_null())
    if failed.height and failed_reads == "error":
        query_id, reason = failed.select(QUERY_ID, FAILURE).row(0)
        raise reads_failed(failed.height, reads.height, query_id, reason, stored=stored)


def reads_failed(
    failed: int, reads: int, query_id: str, reason: str, *, stored: bool = True
) -> ReadError:
    """The error for failed reads, with the first of them."""
    return ReadError(
        f"{failed} of {reads} reads failed (query {query_id!r}: {reason}); "
        f"the others are {'' if stored else 'not '}in the store; run again, count failed reads as 0 "
        "with `failed_reads` zero, or leave their queries out with `failed_reads` skip"
    )


def refuse_written(reads: pl.DataFrame, spec: ReaderSpec) -> None:
    """Without its probability, what had to be a choice would silently count as no (NaN: as yes)."""
    unsure = reads[CONFIDENCE].is_null() | reads[CONFIDENCE].is_nan().fill_null(False)
    written = reads[FAILURE].is_null() & unsure
    if spec.choices and written.any():
        raise ReadError(
            f"{spec.name!r} generated text in {written.sum()} of {reads.height} reads where it had to "
            f"choose between {', '.join(map(repr, spec.choices))}"
        )
