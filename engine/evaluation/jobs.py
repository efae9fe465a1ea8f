"""The read jobs of an evaluation, and all that its processes share: who reads what with which prompt, for which settings."""

from __future__ import annotations

import hashlib
import itertools
import json
import platform
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import polars as pl

from engine.evaluation.kept import ShardFolder
from engine.evaluation.score import IDENTITY, alone, closed_book
from engine.evaluation.settings import BOOTSTRAP_FIELDS, Settings, cut_for
from engine.inputs.files import EvaluationInputs
from engine.inputs.shards import InputShards
from engine.labels.annotator import Ask
from engine.machine.device import refuse_other_versions
from engine.machine.functions import by_value
from engine.machine.pool import require_gpus_used
from engine.machine.remote.api_settings import ApiSettings
from engine.machine.survey import either_engine_reads
from engine.machine.watch import OnEvent, PoolTotals, silent
from engine.messages.extras import command
from engine.reading.backends import Progress, read_by, reads_here
from engine.reading.costs import ReadingCosts, UnitResult
from engine.reading.identity import identified
from engine.reading.local import Executor, Local
from engine.reading.plan import wanted_reads
from engine.reading.prompting.prompts import QUESTION, Prompt
from engine.reading.protocol import ENGINES, ReaderSpec, call, versions
from engine.reading.readers import specify_asked
from engine.sources.io.folders import Folder, folder_at
from engine.sources.io.locations import Location
from engine.tables import ANSWERS, DOC_IDS, QUERY, QUERY_ID

# Changed when equal inputs and settings would give other tables, or manifests.
_VERSION = 10
# Settings that change neither labels nor scores.
WITHOUT_EFFECT = (
    # Which queries and lists are read decides what is scored.
    *(name for name in BOOTSTRAP_FIELDS if name not in ("until", "lists", "width")),
    "engine",  # what it came to is in the readers' fingerprints
    "memory",
    "actors",
    "gpus_per_actor",
    "cpus_per_actor",
    "accelerator_type",
    "reread",  # what it comes to is in the fingerprints, too
    "shard_pairs",
    *(entry.name for entry in fields(ApiSettings)),  # what they decide is in the fingerprints, too
)
NO_LISTS = pl.DataFrame(schema={QUERY_ID: pl.String, DOC_IDS: pl.List(pl.String)})


@dataclass(frozen=True)
class Job:
    """What is asked of a role, the reader that does it, and the prompt that the reader is given; and what its reads cost."""

    ask: Ask
    spec: ReaderSpec
    prompt: Prompt
    costs: ReadingCosts = field(default_factory=ReadingCosts, compare=False)

    @property
    def identity(self) -> tuple[object, ...]:
        """Jobs of equal identity are one job: the same reader in the same role, asked the same way."""
        return self.ask.role.name, self.spec, self.prompt.digest, self.prompt.fused

    @property
    def key(self) -> str:
        """The identity as a text, which is the same for every evaluation."""
        fused = "-fused" if self.prompt.fused else ""
        return f"{self.ask.role.name}-{self.spec.fingerprint}-{self.prompt.digest}{fused}"

    def lists(self, pairs: pl.DataFrame, lists: pl.DataFrame) -> pl.DataFrame:
        """``query_id`` and ``doc_ids`` of its reads: each of the pairs alone, each of the lists, and queries without passages."""
        kinds = alone(pairs), lists.select(IDENTITY), closed_book(pairs)
        asked = self.ask.singles, self.ask.lists, self.ask.closed
        return pl.concat([NO_LISTS, *itertools.compress(kinds, asked)])

    def wanted(
        self, lists: pl.DataFrame, queries: pl.DataFrame, corpus: pl.DataFrame
    ) -> pl.DataFrame:
        """Its reads (``plan.WANTED``), row by row as in ``lists``."""
        targets: dict[str, list[str]] | None = None
        if self.spec.scores == "target":
            scored = pl.concat_list(QUERY) if self.ask.task == QUESTION else pl.col(ANSWERS)
            rows = queries.select(QUERY_ID, scored.alias(ANSWERS)).iter_rows()
            targets = {query: list(map(self.prompt.target, texts)) for query, texts in rows}
        fingerprint = self.spec.fingerprint
        return wanted_reads(
            lists, queries, corpus, prompt=self.prompt, fingerprint=fingerprint, targets=targets
        )


OnUnit = Callable[[str, UnitResult, tuple[int, int], PoolTotals], None]


@dataclass(frozen=True, kw_only=True)
class Context:
    """How an evaluation is run; no figure depends on it but for the executor.

    Attributes:
        store: the read store, a path or an address.
        on_progress: called with the distinct reads done and wanted. Until all shards are planned, the
            latter is an estimate from above.
        on_event: told one line when nodes of the cluster come or go, actors restart, or the job waits.
        on_unit: called as a unit ends, with the name of its role, what ``on_progress`` is called with, and what happened
            to its actors, which goes on changing. ``wanted`` and ``reused`` of its plan come with the
            first unit alone, so they add up. Before the first unit of a role, it is called with one of nothing.
        executor: a program of the user's that does the reads instead of the readers, given their
            prompts (docs/guide/python.md). The store keeps its reads under its name if it is a
            ``NamedExecutor``; otherwise they are neither stored nor looked up.
        host: hosts the readers.
    """

    store: Location
    on_progress: Progress = lambda done, total: None
    on_event: OnEvent = silent
    on_unit: OnUnit = lambda role, unit, reached, pool: None
    executor: Executor | None = None
    host: type[Local] = Local

    @property
    def place(self) -> Folder:
        """The read store."""
        return folder_at(self.store)


@dataclass(frozen=True)
class Run:
    """An evaluation, or a study, as every process that works on it gets it.

    Attributes:
        conditions: the settings; several make a study.
        roles: of each condition, who reads what, by the name of the role.
        jobs: the same of all conditions together, each reader with its prompt once.
        parts: of each condition, where the tables of its shards are.
        unkept: the store, for as long as the evaluation lasts, of reads that no later one may look up.
        is_held: whether the driver holds inputs and scores; else they are files, which workers see.
        versions: of the driver.
    """

    shards: InputShards
    conditions: tuple[Settings, ...]
    roles: tuple[dict[str, Job], ...]
    jobs: tuple[Job, ...]
    parts: tuple[ShardFolder, ...]
    store: Folder
    unkept: Folder
    is_held: bool
    versions: Mapping[str, str] = field(default_factory=versions)

    def read(self, shard: int) -> tuple[EvaluationInputs, ...]:
        """The inputs of a shard, as each condition has them."""
        return self._held if self.is_held else cut_for(self.shards.read(shard), self.conditions)

    @cached_property
    def _held(self) -> tuple[EvaluationInputs, ...]:
        return cut_for(self.shards.read(0), self.conditions)

    def refuse_others(self) -> None:
        """Refuse, with an InputError, to work in a process that has other versions than the driver."""
        refuse_other_versions(self.versions, versions(), f"node {platform.node()}")

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        # Settings may hold functions of the user's, whose files other machines lack.
        return by_value(Run, *(getattr(self, entry.name) for entry in fields(self)))

    def place(self, job: Job) -> Folder:
        """The store that the reads of a job go to."""
        return self.store if job.spec.is_kept else self.unkept

    def before(self, job: Job) -> tuple[Job, ...]:
        """Jobs of the same reader that come before one, and do the reads that both want."""
        place = self.jobs.index(job)
        same = job.spec.fingerprint
        return tuple(earlier for earlier in self.jobs[:place] if earlier.spec.fingerprint == same)


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
    pool, how = settings.running.pool(), (settings.reader, settings.running, settings.api)
    for ask in asks:
        spec, prompt = specify_asked(ask, *how, on_event, asked=executor is None)
        if executor is None and spec.is_reproducible:
            if refuse_gpus := ENGINES[spec.engine].refuse_gpus:
                spec = replace(spec, gpus=max(1, int(pool.gpus_per_actor or 1)))
                call(refuse_gpus, spec)
            require_gpus_used(pool, spec.name, spec.gpus)
        elif executor is None and spec.function and not reads_here(pool, spec):
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
            sum((store / reader.spec.fingerprint).sizes().values()) for reader in (job, other)
        )
        more[job.spec.model] += by_vllm - by_own
    return [
        other if more[job.spec.model] > 0 else job for job, other in zip(jobs, others, strict=True)
    ]


def tell_engines(jobs: Sequence[Job], settings: Settings, on_event: OnEvent) -> None:
    """Report readers placed on vLLM or in this process automatically, and API servers in use."""
    pool = settings.running.pool()
    elsewhere = all(job.spec.api or job.spec.function or job.spec.executor for job in jobs)
    if not elsewhere and pool.actors is None and pool.in_process:
        on_event(f"this process reads, since Ray is not installed; {command('ray')} adds others")
    as_stored = settings.reader.engine == "auto" and either_engine_reads(pool)
    why = ", as its reads in the store did; `engine` names the other" if as_stored else ""
    for name, engine in dict.fromkeys((job.spec.name, job.spec.engine) for job in jobs):
        if engine != "transformers" and ENGINES[engine].help:
            on_event(f"reader {name} runs on {ENGINES[engine].title}{why}")
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


def digest_of(shards: InputShards, settings: Settings, jobs: Sequence[Job]) -> str:
    """A digest of all that decides labels and scores: inputs, settings, and who reads with which prompt.

    The names of all runs count apart from the shards: one that lists nothing for a shard's queries
    is not in its files, and has scores for them. Where it is not ``is_lasting``, it is another one each time.
    """
    decisive = {
        name: value for name, value in settings.flat().items() if name not in WITHOUT_EFFECT
    }
    readers = [
        [job.ask.role.name, job.spec.fingerprint, job.prompt.digest, job.prompt.fused]
        for job in jobs
    ]
    known: list[Any] = [_VERSION, versions()["erag-engine"], shards.runs, digest_of_shards(shards)]
    known += [decisive, readers, settings.bootstrap.samples and settings.bootstrap.seed]
    if not is_lasting(settings, jobs):
        known.append(uuid.uuid4().hex)
    content = json.dumps(known, sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:16]


def is_lasting(settings: Settings, jobs: Iterable[Job]) -> bool:
    """Whether all that decides labels and scores is known, which what functions of the user's do is not."""
    return not settings.has_functions and all(job.spec.is_kept for job in jobs)


def digest_of_shards(shards: InputShards) -> str:
    """A digest of the inputs of all shards."""
    digests = "".join(shard.digest for shard in shards.shards)
    return hashlib.sha256(digests.encode()).hexdigest()
