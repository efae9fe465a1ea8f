"""The read jobs of an evaluation (reader, prompt, requests), and the state that its processes share."""

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
from engine.reading.identity import with_origin
from engine.reading.local import Executor, Local
from engine.reading.plan import requested_reads
from engine.reading.prompting.prompts import QUESTION, Prompt
from engine.reading.protocol import ENGINES, ReaderSpec, call, versions
from engine.reading.readers import specify_asked
from engine.sources.io.folders import Folder, folder_at
from engine.sources.io.locations import Location
from engine.tables import ANSWERS, DOC_IDS, QUERY, QUERY_ID

# To be raised if equal inputs and settings would give other tables, or manifests.
_VERSION = 10
# Settings that change neither labels nor scores.
WITHOUT_EFFECT = (
    # `until`, `lists` and `width` decide which queries and lists are read, and so the scores.
    *(name for name in BOOTSTRAP_FIELDS if name not in ("until", "lists", "width")),
    "engine",  # the readers' fingerprints name the engine in use
    "memory",
    "actors",
    "gpus_per_actor",
    "cpus_per_actor",
    "accelerator_type",
    "reread",  # its effect is in the fingerprints, too
    "shard_pairs",
    *(entry.name for entry in fields(ApiSettings)),  # their effect is in the fingerprints, too
)
NO_LISTS = pl.DataFrame(schema={QUERY_ID: pl.String, DOC_IDS: pl.List(pl.String)})


@dataclass(frozen=True)
class Job:
    """A reader with its prompt for one role (reading, judging, …), the request, and the costs of the reads."""

    ask: Ask
    spec: ReaderSpec
    prompt: Prompt
    costs: ReadingCosts = field(default_factory=ReadingCosts, compare=False)

    @property
    def identity(self) -> tuple[object, ...]:
        """Jobs of equal identity are one job: the same reader in the same role with the same prompt."""
        return self.ask.role.name, self.spec, self.prompt.digest, self.prompt.fused

    @property
    def key(self) -> str:
        """The identity as a text, stable across evaluations."""
        fused = "-fused" if self.prompt.fused else ""
        return f"{self.ask.role.name}-{self.spec.fingerprint}-{self.prompt.digest}{fused}"

    def lists(self, pairs: pl.DataFrame, lists: pl.DataFrame) -> pl.DataFrame:
        """``query_id`` and ``doc_ids`` of its reads: single passages, whole lists, and queries without passages."""
        kinds = alone(pairs), lists.select(IDENTITY), closed_book(pairs)
        requested = self.ask.singles, self.ask.lists, self.ask.closed
        return pl.concat([NO_LISTS, *itertools.compress(kinds, requested)])

    def requested(
        self, lists: pl.DataFrame, queries: pl.DataFrame, corpus: pl.DataFrame
    ) -> pl.DataFrame:
        """The job's reads (``reading.plan.REQUESTED``), row by row as in ``lists``."""
        targets: dict[str, list[str]] | None = None
        if self.spec.scores == "target":
            scored = pl.concat_list(QUERY) if self.ask.task == QUESTION else pl.col(ANSWERS)
            rows = queries.select(QUERY_ID, scored.alias(ANSWERS)).iter_rows()
            targets = {query: list(map(self.prompt.target, texts)) for query, texts in rows}
        fingerprint = self.spec.fingerprint
        return requested_reads(
            lists, queries, corpus, prompt=self.prompt, fingerprint=fingerprint, targets=targets
        )


OnUnit = Callable[[str, UnitResult, tuple[int, int], PoolTotals], None]


@dataclass(frozen=True, kw_only=True)
class Context:
    """How an evaluation runs; of all this, only the executor may change figures.

    Attributes:
        store: the read store, a path or an address.
        on_progress: called with the distinct reads done and requested, an upper estimate until all shards are
            planned.
        on_event: called with a line when nodes of the cluster come or go, actors restart, or the job waits.
        on_unit: called as a unit ends, with the name of its role, the unit, the arguments of ``on_progress``, and the
            running totals of its actors. Only the first unit of a plan has ``wanted`` and ``reused``, so that
            they add up. Before a role's first unit, it is called with an empty unit.
        executor: a program of the user's that does the reads instead of the readers, from their
            prompts (docs/guide/python.md). The store keeps its reads under its name if it is a
            ``NamedExecutor``; otherwise they are neither stored nor looked up.
        host: the class that holds readers and reads units; for tests and observers.
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
    """An evaluation or a study, as sent to every process that works on it.

    Attributes:
        conditions: the settings; several make a study.
        roles: by condition, the jobs by name of the role.
        jobs: the distinct jobs of all conditions.
        parts: by condition, the folder of its shards' tables.
        unkept: a store of reads that no later evaluation may look up; it lasts as long as the evaluation.
        is_held: whether the driver holds inputs and scores; else they are files, which workers see.
        versions: versions of the driver's packages.
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
        """The inputs of a shard, by condition."""
        return self._held if self.is_held else cut_for(self.shards.read(shard), self.conditions)

    @cached_property
    def _held(self) -> tuple[EvaluationInputs, ...]:
        return cut_for(self.shards.read(0), self.conditions)

    def refuse_others(self) -> None:
        """Refuse to work in a process with other versions than the driver."""
        refuse_other_versions(self.versions, versions(), f"node {platform.node()}")

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        # Settings may hold the user's functions, whose files other machines lack.
        return by_value(Run, *(getattr(self, entry.name) for entry in fields(self)))

    def place(self, job: Job) -> Folder:
        """The store for the reads of a job."""
        return self.store if job.spec.is_kept else self.unkept

    def before(self, job: Job) -> list[Job]:
        """Earlier jobs of the same reader: these do the reads that both request."""
        earlier, same = self.jobs[: self.jobs.index(job)], job.spec.fingerprint
        return [other for other in earlier if other.spec.fingerprint == same]


def specify_jobs(
    asks: Iterable[Ask],
    settings: Settings,
    executor: Executor | None = None,
    on_event: OnEvent = silent,
    store: Folder | None = None,
    begun: str = "",
) -> list[Job]:
    """The jobs of some requests: readers, or the executor in their place, with prompts.

    The default precision is that of the reading nodes, for which ``on_event`` may report a wait. If ``engine`` is auto,
    a ``store`` with mostly vLLM's reads of a model selects vLLM. The store's reads are checked for their origin
    (``identity.with_origin``, which documents ``begun``).
    """
    jobs: list[Job] = []
    pool, how = settings.running.pool(), (settings.reader, settings.running, settings.api)
    for ask in asks:
        spec, prompt = specify_asked(ask, *how, on_event, reads=executor is None)
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
        spec = with_origin(job.spec, store, function, begun=begun, reread=reread)
        jobs[number] = replace(job, spec=spec)
    return jobs


def _as_stored(jobs: Sequence[Job], store: Folder) -> list[Job]:
    """The jobs, on vLLM if it made most of the stored reads of their model."""
    pairs = [(job, replace(job, spec=replace(job.spec, engine="vllm"))) for job in jobs]
    more = Counter[tuple[object, ...]]()
    for pair in pairs:
        own, by_vllm = (sum((store / job.spec.fingerprint).sizes().values()) for job in pair)
        more[pair[0].spec.model] += by_vllm - own
    return [other if more[job.spec.model] > 0 else job for job, other in pairs]


def tell_engines(jobs: Sequence[Job], settings: Settings, on_event: OnEvent) -> None:
    """Report readers placed on vLLM or in this process automatically, and API servers in use."""
    pool, specs = settings.running.pool(), [job.spec for job in jobs]
    elsewhere = all(spec.api or spec.function or spec.executor for spec in specs)
    if not elsewhere and pool.actors is None and pool.in_process:
        on_event(f"this process reads, since Ray is not installed; {command('ray')} adds others")
    as_stored = settings.reader.engine == "auto" and either_engine_reads(pool)
    why = ", as its reads in the store did; `engine` names the other" if as_stored else ""
    for name, engine in dict.fromkeys((spec.name, spec.engine) for spec in specs):
        if engine != "transformers" and ENGINES[engine].help:
            on_event(f"reader {name} runs on {ENGINES[engine].title}{why}")
    requests = ((spec.name, spec.api, spec.room, spec.max_new_tokens) for spec in specs)
    for name, api, room, tokens in dict.fromkeys(requests):
        if api is None:
            continue
        thinks = f"; it thinks first, in {room:,} tokens at most" if room else ""
        without = f", without {', '.join(api.refused)}, which it refuses" if api.refused else ""
        most = f"{api.settings.concurrency} requests at a time at most"
        took = f", and took {api.cut:,}" if api.cut else ""
        cut = f"; its answer to the trial was cut at max_new_tokens ({tokens:,}){took}"
        cut *= api.cut is not None
        on_event(f"reader {name} is asked of {api.settings.host}, {most}{without}{thinks}{cut}")


def digest_of(shards: InputShards, settings: Settings, jobs: Sequence[Job]) -> str:
    """A digest of all that decides labels and scores: inputs, settings, readers and prompts.

    The names of all runs are part of it: a run that lists nothing for a shard's queries is not in the shard's files,
    and still has scores for these queries. If the settings are not ``is_lasting``, every call gives another digest.
    """
    decisive = {n: value for n, value in settings.flat().items() if n not in WITHOUT_EFFECT}
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
    """Whether labels and scores are reproducible: the user's functions may change unnoticed."""
    return not settings.has_functions and all(job.spec.is_kept for job in jobs)


def digest_of_shards(shards: InputShards) -> str:
    """A digest of the inputs of all shards."""
    digests = "".join(shard.digest for shard in shards.shards)
    return hashlib.sha256(digests.encode()).hexdigest()
