"""The read jobs of an evaluation: which model reads what with which prompt, and the outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import polars as pl

from engine.evaluation.settings import Settings
from engine.labels.annotator import Ask
from engine.machine import device
from engine.machine.device import Dtype
from engine.machine.pool import require_gpus_used
from engine.machine.remote.api_settings import is_api
from engine.machine.survey import either_engine_reads, reading_dtype, reading_on_vllm, reads_on_gpus
from engine.machine.watch import OnEvent, silent
from engine.messages.errors import InputError, ReadError
from engine.messages.extras import command
from engine.reading.costs import ReadingCosts
from engine.reading.executors import Executor, read_by, reads_here
from engine.reading.function_reader import specify_function
from engine.reading.identity import identified
from engine.reading.models.vllm_support import refuse_uneven
from engine.reading.models.weights import resolve
from engine.reading.plan import wanted_reads
from engine.reading.prompting.prompts import Prompt
from engine.reading.prompting.template import QUESTION
from engine.reading.protocol import Engine, ReaderSpec
from engine.reading.readers import specify
from engine.reading.remote.specify import specify_api
from engine.sources.io.folders import Folder
from engine.tables import ANSWERS, CONFIDENCE, DOC_ID, DOC_IDS, FAILURE, QUERY, QUERY_ID, READ_KEY

# What identifies a read within a reading: the query, and its passages in their order.
IDENTITY = (QUERY_ID, DOC_IDS)
# The same where several texts are scored behind one prompt: they have one key each.
_READ = (*IDENTITY, READ_KEY)
# ``Request.lists`` without reads.
NO_LISTS = pl.DataFrame(schema={QUERY_ID: pl.String, DOC_IDS: pl.List(pl.String)})


class Request(NamedTuple):
    """What one role is asked for; ``lists`` has ``query_id`` and ``doc_ids`` of each read."""

    ask: Ask
    lists: pl.DataFrame


@dataclass(frozen=True)
class Job:
    """What is asked of a role, the reader that does it, and the prompt that the reader is given."""

    ask: Ask
    spec: ReaderSpec
    prompt: Prompt

    @property
    def identity(self) -> tuple[object, ...]:
        """Jobs of equal identity are one job: the same reader in the same role, asked the same way."""
        return self.ask.role.name, self.spec, self.prompt.digest, self.prompt.fused

    @property
    def key(self) -> str:
        """The identity as a text, which is the same for every evaluation."""
        fused = "-fused" if self.prompt.fused else ""
        return f"{self.ask.role.name}-{self.spec.fingerprint}-{self.prompt.digest}{fused}"

    def wanted(
        self, lists: pl.DataFrame, queries: pl.DataFrame, corpus: pl.DataFrame
    ) -> pl.DataFrame:
        """Its reads (``plan.WANTED``), row by row as in ``lists`` (``Request.lists``)."""
        targets: dict[str, list[str]] | None = None
        if self.spec.scores == "target":
            scored = pl.concat_list(QUERY) if self.ask.task == QUESTION else pl.col(ANSWERS)
            rows = queries.select(QUERY_ID, scored.alias(ANSWERS)).iter_rows()
            targets = {query: list(map(self.prompt.target, texts)) for query, texts in rows}
        fingerprint = self.spec.fingerprint
        return wanted_reads(
            lists, queries, corpus, prompt=self.prompt, fingerprint=fingerprint, targets=targets
        )


@dataclass(frozen=True)
class Reading:
    """A reader with a prompt, what it read, and what that cost.

    Attributes:
        wanted: the reads asked for, as ``plan.wanted_reads`` gives them, without their inputs.
        reads: the reads table, one row per row of ``wanted``, in that order; further ``failure``.
    """

    ask: Ask
    spec: ReaderSpec
    prompt: Prompt
    wanted: pl.DataFrame
    reads: pl.DataFrame
    costs: ReadingCosts

    def of(self, lists: pl.DataFrame) -> pl.DataFrame:
        """The reads of ``lists``, a row for each, in its order, or for each text that is scored; all must have been asked."""
        distinct = self.reads.unique(_READ, keep="first", maintain_order=True)
        reads = lists.select(IDENTITY).join(
            distinct, on=IDENTITY, how="left", maintain_order="left_right"
        )
        if lacking := reads[READ_KEY].null_count():
            raise ValueError(f"{lacking} of {reads.height} reads were never asked for")
        return reads.select(self.reads.columns)

    def part(self, lists: pl.DataFrame) -> Reading:
        """The reading of some of its reads alone, at the cost of looking them up."""
        distinct = self.wanted.unique(_READ, keep="first", maintain_order=True)
        wanted = lists.select(IDENTITY).join(
            distinct, on=IDENTITY, how="left", maintain_order="left_right"
        )
        reads = self.of(lists)
        failed = reads.filter(pl.col(FAILURE).is_not_null())[READ_KEY].n_unique()
        total = reads[READ_KEY].n_unique()
        costs = ReadingCosts(wanted=total, reused=total - failed, failed=failed)
        return Reading(self.ask, self.spec, self.prompt, wanted, reads, costs)


def alone(pairs: pl.DataFrame) -> pl.DataFrame:
    """``query_id`` and ``doc_ids`` of the reads of single passages, in the order of ``pairs``."""
    return pairs.select(QUERY_ID, pl.concat_list(DOC_ID).alias(DOC_IDS))


def closed_book(pairs: pl.DataFrame) -> pl.DataFrame:
    """``query_id`` and ``doc_ids`` of the reads without passages, one for each query of ``pairs``."""
    nothing = pl.lit([], pl.List(pl.String)).alias(DOC_IDS)
    return pairs.select(QUERY_ID).unique(maintain_order=True).with_columns(nothing)


def asks_of(settings: Settings) -> list[Ask]:
    """What is asked of each role."""
    return [role.ask for role in settings.resolved.roles]


def requests_for(pairs: pl.DataFrame, lists: pl.DataFrame, settings: Settings) -> list[Request]:
    """What is asked of whom, a request for each role; single passages come before whole lists."""
    kinds = alone(pairs), lists.select(IDENTITY), closed_book(pairs)
    requests = [
        Request(
            role.ask,
            pl.concat(kind for kind, is_asked in zip(kinds, asked, strict=True) if is_asked),
        )
        for role in settings.resolved.roles
        if any(asked := role[1:])
    ]
    return [request for request in requests if not request.lists.is_empty()]


def specify_jobs(
    asks: Iterable[Ask],
    settings: Settings,
    executor: Executor | None = None,
    on_event: OnEvent = silent,
    store: Folder | None = None,
    begun: str = "",
) -> list[Job]:
    """The readers that are asked, or the executor that stands in for them, with their prompts.

    Where no precision is given, it is that of the nodes that will read, for which ``on_event`` may hear us wait. A
    ``store`` that vLLM's reads of a model are in decides for vLLM, where ``engine`` leaves it open; and it is looked at
    for whose the reads are that it has (``identity.identified``, which says what ``begun`` is).
    """
    jobs: list[Job] = []
    dtype, pool = settings.reader.dtype, settings.running.pool()
    for ask in asks:
        engine = _engine_for(ask, settings, executor, on_event)
        elsewhere = is_api(ask.model) or settings.reader.own(ask.model)
        if dtype is None and executor is None and not elsewhere:
            dtype = reading_dtype(pool, on_event)
        spec, prompt = _specify(ask, settings, dtype, engine, asked=executor is None)
        spec = _scoring(spec, ask)
        if executor is None and spec.is_reproducible:
            if engine == "vllm":
                spec = replace(spec, gpus=max(1, int(pool.gpus_per_actor or 1)))
                refuse_uneven(Path(spec.path), spec.name, spec.gpus)
            require_gpus_used(pool, spec.name, spec.gpus)
        elif executor is None and spec.function and not reads_here(pool, [spec]):
            spec.function.reader.require_sendable()
        jobs.append(Job(ask, read_by(spec, executor), prompt))
    if store is None:
        return jobs
    if settings.reader.engine == "auto" and executor is None and either_engine_reads(pool):
        jobs = _as_stored(jobs, store)
    for number, job in enumerate(jobs):
        own = job.spec.function.reader.function if job.spec.function else None
        function = own if executor is None else getattr(executor, "function", None)
        reread = settings.running.reread
        spec = identified(job.spec, store, function, begun=begun, reread=reread)
        jobs[number] = replace(job, spec=spec)
    return jobs


def _as_stored(jobs: Sequence[Job], store: Folder) -> list[Job]:
    """The jobs, on vLLM where it did most of the reads of their model that the store has."""
    others = [replace(job, spec=replace(job.spec, engine="vllm")) for job in jobs]
    more = Counter[tuple[object, ...]]()
    for job, other in zip(jobs, others, strict=True):
        by_own, by_vllm = (
            sum((store / one.spec.fingerprint).sizes().values()) for one in (job, other)
        )
        more[job.spec.model] += by_vllm - by_own
    return [
        other if more[job.spec.model] > 0 else job for job, other in zip(jobs, others, strict=True)
    ]


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
    # Nodes are asked only where it matters.
    if executor is None and resolve(ask.model).architecture == "causal":
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
            scores=ask.scores,
            tried=asked,
        )
    # One passage is the same prompt to a decoder-only reader, however whole lists are read.
    usual = ask.augmentation or settings.reader.augmentation
    one = ask.augmentation is None and resolve(ask.model).architecture == "causal"
    # Only what a budget is judged by, and what AMX changes, needs to know: on a cluster nodes are asked.
    on_gpu = bool(settings.running.memory) or (engine == "transformers" and device.has_amx())
    return specify(
        ask.model,
        augmentation="in-prompt" if one else usual,
        task=ask.task,
        prompt=ask.prompt,
        dtype=dtype,
        memory=settings.running.memory,
        gpu=on_gpu and reads_on_gpus(settings.running.pool()),
        engine=engine,
        trust_remote_code=settings.reader.trust_remote_code,
    )


def _scoring(spec: ReaderSpec, ask: Ask) -> ReaderSpec:
    if not ask.scores:
        return spec
    thinks = spec.room and ask.scores != "own"
    if spec.function or thinks:
        begins = "begins to think behind its prompt, where a text would be scored"
        why = begins if thinks else "is a function and gives no log-probabilities of texts"
        raise InputError(
            f"the reader {spec.name} {why}",
            "leave out annotators that score texts, or give them another model",
        )
    return replace(spec, scores=ask.scores, choices=())


def tell_engines(jobs: Sequence[Job], settings: Settings, on_event: OnEvent) -> None:
    """Report readers placed on vLLM or in this process automatically, and API servers in use."""
    pool = settings.running.pool()
    elsewhere = all(job.spec.api or job.spec.function or job.spec.executor for job in jobs)
    if not elsewhere and pool.actors is None and pool.in_process:
        on_event(f"this process reads, since Ray is not installed; {command('ray')} adds others")
    as_stored = settings.reader.engine == "auto" and either_engine_reads(pool)
    why = ", as its reads in the store did; `engine` names the other" if as_stored else ""
    for name in dict.fromkeys(job.spec.name for job in jobs if job.spec.engine == "vllm"):
        on_event(f"reader {name} runs on vLLM{why}")
    asked = ((job.spec.name, job.spec.api, job.spec.room, job.spec.max_new_tokens) for job in jobs)
    for name, api, room, tokens in dict.fromkeys(asked):
        if api is None:
            continue
        thinks = f"; it thinks first, in {room:,} tokens at most" if room else ""
        without = f", without {', '.join(api.refused)}, which it refuses" if api.refused else ""
        most = f"{api.settings.concurrency} requests at a time at most"
        cut = ""
        if api.cut is not None:
            took = f", and took {api.cut:,}" if api.cut else ""
            cut = f"; its answer to the trial was cut at max_new_tokens ({tokens:,}){took}"
        on_event(f"reader {name} is asked of {api.settings.host}, {most}{without}{thinks}{cut}")


def failed_queries(reads: pl.DataFrame) -> list[str]:
    """The queries of which a read failed."""
    failed = reads.filter(pl.col(FAILURE).is_not_null())
    return failed[QUERY_ID].unique(maintain_order=True).to_list()


def reads_failed(
    failed: int, reads: int, query_id: str, reason: str, *, stored: bool = True
) -> ReadError:
    """The error for failed reads, with the first of them."""
    return ReadError(
        f"{failed} of {reads} LLM calls failed (query {query_id!r}: {reason}); "
        f"the others are {'' if stored else 'not '}cached; run again, count failed calls as 0 "
        "with `failed_reads` zero, or leave their queries out with `failed_reads` skip"
    )


def refuse_written(reads: pl.DataFrame, spec: ReaderSpec) -> None:
    """Without its probability, what had to be a choice would silently count as no (NaN: as yes)."""
    unsure = reads[CONFIDENCE].is_null() | reads[CONFIDENCE].is_nan().fill_null(False)
    written = reads[FAILURE].is_null() & unsure
    if (spec.choices or spec.scores) and written.any():
        asked = f"choose between {', '.join(map(repr, spec.choices))}" * bool(spec.choices)
        raise ReadError(
            f"{spec.name!r} generated text in {written.sum()} of {reads.height} LLM calls where it had to "
            f"{asked or 'give log-probabilities'}"
        )
