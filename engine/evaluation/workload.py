"""What every process of an evaluation shares: its shards, its settings and its read jobs."""

from __future__ import annotations

import hashlib
import json
import platform
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import polars as pl

from engine.evaluation.budgets import cut_for
from engine.evaluation.inputs import EvaluationInputs
from engine.evaluation.parts import Parts
from engine.evaluation.prepare import Prepared, lists_to_read, pairs_to_label, prepare
from engine.evaluation.read_jobs import NO_LISTS, Job, requests_for
from engine.evaluation.settings import BOOTSTRAP_FIELDS, Settings
from engine.evaluation.shards import InputShards
from engine.machine.functions import by_value
from engine.machine.identity import refuse_other_versions
from engine.machine.remote.api_settings import ApiSettings
from engine.reading.protocol import versions
from engine.sources.io.folders import Folder

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
    "certify",
    "reread",  # what it comes to is in the fingerprints, too
    "shard_pairs",
    *(one.name for one in fields(ApiSettings)),  # what they decide is in the fingerprints, too
)


@dataclass(frozen=True)
class Workload:
    """An evaluation, or a study, as every process that works on it gets it.

    Attributes:
        conditions: the settings; several make a study.
        roles: of each condition, who reads what, by the name of the role.
        jobs: the same of all conditions together, each reader with its prompt once.
        parts: of each condition, where the tables of its shards are.
        unkept: the store, for as long as the evaluation lasts, of reads that no later one may look up; None
            where all is held.
        prepared: of each condition, where all inputs are held.
        versions: of the driver.
    """

    shards: InputShards
    conditions: tuple[Settings, ...]
    roles: tuple[dict[str, Job], ...]
    jobs: tuple[Job, ...]
    parts: tuple[Parts, ...]
    store: Folder
    unkept: Folder | None
    prepared: tuple[Prepared, ...] = ()
    versions: Mapping[str, str] = field(default_factory=versions)

    def refuse_others(self) -> None:
        """Refuse, with an InputError, to work in a process that has other versions than the driver."""
        refuse_other_versions(self.versions, versions(), f"node {platform.node()}")

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        # Settings may hold functions of the user's, whose files other machines lack.
        return by_value(Workload, *(getattr(self, entry.name) for entry in fields(self)))

    def place(self, job: Job) -> Folder | None:
        """The store that the reads of a job go to; None for none."""
        return self.store if job.spec.is_kept else self.unkept

    def prepare(self, condition: int, inputs: EvaluationInputs) -> Prepared:
        """A shard prepared under a condition."""
        if self.prepared:
            return self.prepared[condition]
        return prepare(inputs, self.conditions[condition])

    def lists(self, job: Job, inputs: EvaluationInputs, condition: int) -> pl.DataFrame:
        """What a condition asks a job to read of a shard, as ``Request.lists``."""
        settings = self.conditions[condition]
        own = self.roles[condition].get(job.ask.role.name)
        if own is None or own.identity != job.identity:
            return NO_LISTS
        cut = cut_for(inputs, settings)
        requests = requests_for(pairs_to_label(cut), lists_to_read(cut, settings), settings)
        lists = {request.ask.role.name: request.lists for request in requests}
        return lists.get(job.ask.role.name, NO_LISTS)

    def wanted(self, job: Job, inputs: EvaluationInputs) -> pl.DataFrame:
        """The reads that some condition asks a job for, of a shard (``plan.WANTED``)."""
        lists = [self.lists(job, inputs, number) for number in range(len(self.conditions))]
        distinct = lists[0] if len(lists) == 1 else pl.concat(lists).unique(maintain_order=True)
        return job.wanted(distinct, inputs.queries, inputs.corpus)

    def is_lazy(self, job: Job) -> bool:
        """Whether only those single passages are read for a job whose labels are needed."""
        settings = self.conditions[0]
        asking = [ask.role for ask in settings.resolved.asks.values()]
        return settings.running.lazy and job.ask.role in asking

    def before(self, job: Job) -> tuple[Job, ...]:
        """Jobs of the same reader that come before one, and do the reads that both want."""
        place = self.jobs.index(job)
        same = job.spec.fingerprint
        return tuple(earlier for earlier in self.jobs[:place] if earlier.spec.fingerprint == same)


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
