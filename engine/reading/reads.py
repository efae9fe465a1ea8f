"""Getting reads: from the store if they are in it, else by reading; the store grows as units end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeVar

import polars as pl

from engine import tables
from engine.errors import InputError, ReadError
from engine.machine import device
from engine.machine.batching import CPU_BATCH_TOKENS, GPU_BATCH_TOKENS
from engine.machine.pool import PoolSettings, require_gpus_used
from engine.machine.watch import OnEvent, PoolTotals, silent
from engine.reading import store
from engine.reading.costs import (
    ReadingCosts,
    add_counters,
    add_kinds,
    set_wanted,
    share_costs,
    unit_kinds,
    wanted_kinds,
)
from engine.reading.decided import answered, as_asked, as_kept, kept_keys
from engine.reading.execute import UnitResult, read_in_process, reads_here
from engine.reading.plan import INPUTS, SIZE, Unit, cut_units, longest_first, missing_reads
from engine.reading.protocol import ReaderSpec, ReadOutput, field_types
from engine.sources.io.folders import Folder, folder_at
from engine.sources.io.locations import Location
from engine.tables import DOC_IDS, FAILURE, OUTPUT_TOKENS, PROMPT_TOKENS, QUERY_ID, READ_KEY

_COLUMN_TYPES = {str: pl.String(), int: pl.Int64(), bool: pl.Boolean(), float: pl.Float64()}
# A read's output as columns.
OUTPUT_COLUMNS: tables.Schema = {
    name: _COLUMN_TYPES[kind] for name, kind in field_types(ReadOutput).items()
}

Progress = Callable[[int, int], None]
Executor = Callable[[pl.DataFrame, Sequence[Unit], ReaderSpec], Iterator[UnitResult]]
# The engine's own, whose actors several readers share.
Run = Callable[[pl.DataFrame, Sequence[Unit], Sequence[ReaderSpec]], Iterator[UnitResult]]
Read = TypeVar("Read")

# Stands for the name of an executor that has none.
UNNAMED = "a function without a name"


@dataclass(frozen=True)
class NamedExecutor:
    """A user's executor whose reads are kept in the store, under the name instead of the reader's.

    Attributes:
        name: of what reads, with all that decides its outputs (model, version, settings): reads in the
            store are taken for its own as long as the name is the same.
        function: takes the planned reads, the units that they are done in, and the specification of
            the reader that it stands in for, and yields the outputs of every unit.

    Raises:
        InputError: an empty name.
    """

    name: str
    function: Executor

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise InputError("an executor without a name", "name what reads")

    def __call__(
        self, plan: pl.DataFrame, units: Sequence[Unit], spec: ReaderSpec
    ) -> Iterator[UnitResult]:
        return self.function(plan, units, spec)


def read_by(spec: ReaderSpec, executor: Executor | None) -> ReaderSpec:
    """The specification of what reads: the reader, or the executor that stands in for it.

    Their fingerprints differ, so that the reads of one never answer for the other.
    """
    if executor is None:
        return replace(spec, executor="")
    return replace(spec, executor=executor.name if isinstance(executor, NamedExecutor) else UNNAMED)


def is_kept(executor: Executor | None, spec: ReaderSpec) -> bool:
    """Whether reads go to the store: a user's executor must have a name, and a user's function a version,
    since nothing else says whether its reads are those that it would do again.
    """
    return spec.is_kept if executor is None else isinstance(executor, NamedExecutor)


def get_reads(
    wanted: pl.DataFrame,
    spec: ReaderSpec,
    directory: Location,
    *,
    pool: PoolSettings,
    on_progress: Progress = lambda done, total: None,
    on_event: OnEvent = silent,
    executor: Executor | None = None,
) -> tuple[pl.DataFrame, ReadingCosts]:
    """Get all wanted reads of one reader: as ``get_all_reads``."""
    (got,) = get_all_reads(
        [Wanted(wanted, spec)],
        directory,
        pool=pool,
        on_progress=on_progress,
        on_event=on_event,
        executor=executor,
    )
    return got


class Wanted(NamedTuple):
    """Reads, as ``plan.wanted_reads`` gives them, of a reader, or of what ``read_by`` makes of it."""

    reads: pl.DataFrame
    spec: ReaderSpec


def get_all_reads(
    asked: Sequence[Wanted],
    directory: Location,
    *,
    pool: PoolSettings,
    on_progress: Progress = lambda done, total: None,
    on_event: OnEvent = silent,
    executor: Executor | None = None,
) -> list[tuple[pl.DataFrame, ReadingCosts]]:
    """Get all wanted reads of readers: reuse those in the store, do the others.

    Readers that share a model (``ReaderSpec.model``) share the actors, in which it is loaded once, and no
    actor waits at the end of one reader's work for the next to begin.

    Args:
        asked: a job for each reader.
        directory: the read store, a path or an address.
        pool: the actors on Ray, or none (the reads are done in this process).
        on_progress: called with the distinct reads done and wanted, first with what was reused.
        on_event: told one line when nodes come or go, actors restart, or the pool waits.
        executor: does the units instead of the readers, one reader's after another's. The reads of a
            ``NamedExecutor`` are stored and found under its name; any other's are neither stored nor
            looked up.

    Returns:
        for each job, the reads table with one row per row of the wanted reads in their order, and a
        further column ``failure`` (null, or why the read could not be done, and then ``output`` is empty);
        and what it cost. Failed reads are not stored.

    Raises:
        ReadError: reads were lost on the way.
        WriteError: the store cannot be written; the units before are in it.
        ValueError: a specification is of another executor, or of the reader.
    """
    if any(read_by(one.spec, executor) != one.spec for one in asked):
        raise ValueError("reads that were planned for another executor")
    place = folder_at(directory)
    jobs: list[_Job] = []
    for one in asked:
        kept = is_kept(executor, one.spec)
        before = [job for job in jobs if job.spec.fingerprint == one.spec.fingerprint and kept]
        same = before[0].same if before else []
        jobs.append(_job(one, _known(place, one.spec) if kept else store.NOTHING, same))
        same.append(jobs[-1])
    total = sum(job.costs.wanted for job in jobs)
    reused = sum(job.costs.reused for job in jobs)

    def on_unit() -> None:
        on_progress(reused + sum(job.costs.done for job in jobs), total)

    if jobs:
        on_unit()
    for group in _together([job for job in jobs if job.plan.height], executor):
        kept = is_kept(executor, group[0].spec)  # alone in its group if it is not
        _read(group, place if kept else None, pool, on_unit, on_event, executor)
    for job in jobs:
        set_wanted(job.costs, wanted_kinds(job.wanted))
    return [(job.table(), job.costs) for job in jobs]


@dataclass
class _Job:
    """The reads of one reader while they are done.

    Attributes:
        wanted: all that are asked for.
        plan: those that are left to do, in the order in which they are done.
        frames: tables of reads, with the column ``failure``.
        same: all jobs of the same reader. Those before it do some of its reads, and those behind it some
            in full that end early in this one.
        workers: the counters of those who read.
    """

    wanted: pl.DataFrame
    spec: ReaderSpec
    plan: pl.DataFrame
    costs: ReadingCosts
    frames: list[pl.DataFrame]
    same: list[_Job]
    workers: dict[str, dict[str, Any]] = field(default_factory=dict)

    def table(self) -> pl.DataFrame:
        """All reads that are asked for, in their order."""
        frames = pl.concat(frame for job in self.same for frame in job.frames)
        frames = frames.sort(FAILURE, nulls_last=False, maintain_order=True)
        return answered(self.wanted, frames).select([*tables.READS, FAILURE])


def _job(asked: Wanted, known: store.Stored, same: list[_Job]) -> _Job:
    wanted, spec = asked
    distinct = wanted[READ_KEY].n_unique()
    stored = known.reads.filter(pl.col(READ_KEY).is_in(kept_keys(wanted).implode()))
    keys = [stored[[READ_KEY]], *(as_asked(job.plan) for job in same)]
    missing = missing_reads(wanted, pl.concat(keys))
    sizes = input_sizes(spec, missing[INPUTS].to_list())
    costs = ReadingCosts(
        wanted=distinct,
        reused=distinct - missing.height,
        damaged_files=[*known.damaged],
    )
    plan = longest_first(missing, sizes, lead=len(spec.shared_prefix))
    found = stored.with_columns(pl.lit(None, pl.String).alias(FAILURE))
    return _Job(wanted, spec, plan, costs, [found], same)


def _together(jobs: Sequence[_Job], executor: Executor | None) -> list[list[_Job]]:
    """Jobs whose readers share a model; a user's executor knows one reader at a time."""
    if executor:
        return [[job] for job in jobs]
    return by_model(jobs, lambda job: job.spec)


def by_model(whats: Iterable[Read], spec_of: Callable[[Read], ReaderSpec]) -> list[list[Read]]:
    """What is read, in groups whose readers share a model, in the order of the first of each."""
    groups: dict[tuple[object, ...], list[Read]] = {}
    for what in whats:
        groups.setdefault(spec_of(what).model, []).append(what)
    return list(groups.values())


def _read(
    jobs: Sequence[_Job],
    place: Folder | None,
    settings: PoolSettings,
    on_unit: Callable[[], None],
    on_event: OnEvent,
    executor: Executor | None,
) -> None:
    """Do what is left of jobs whose readers share a model; ``place``: where reads are kept, if they are."""
    start = time.perf_counter()
    totals = PoolTotals()
    plan, specs = pl.concat([job.plan for job in jobs]), [job.spec for job in jobs]
    run, actors, gpu = (
        (one_at_a_time(executor), 1, False)
        if executor
        else executor_for(settings, plan, specs, on_event, totals)
    )
    units = _units(jobs, unit_tokens(int(plan[SIZE].sum()), actors=actors, gpu=gpu), actors)
    for result in run(plan, units, specs):
        unit = result.unit
        job = jobs[unit.reader]
        done = reads_table(plan.slice(unit.offset, unit.length), result.outputs)
        if place is not None:
            whole = done.filter(pl.col(FAILURE).is_null()).drop(FAILURE)
            store.add(place, job.spec.fingerprint, whole)
        job.frames.append(done)
        job.workers[result.worker] = result.stats
        job.costs.done += done.height
        job.costs.reader_seconds += result.seconds
        add_kinds(job.costs.kinds, unit_kinds(done, result))
        on_unit()
    if lost := plan.height - sum(job.costs.done for job in jobs):
        raise ReadError(f"{lost} reads were lost on the way; run again")
    for job in jobs:
        _add_up(job.costs, pl.concat(job.frames[1:]), job.workers)
    share_costs([job.costs for job in jobs], time.perf_counter() - start, totals)


def _units(jobs: Sequence[_Job], size: int, actors: int) -> list[Unit]:
    """The units of the jobs' plans, one behind the other; they become smaller towards the end of the last."""
    units: list[Unit] = []
    offset = 0
    for place, job in enumerate(jobs):
        sharing = actors if place == len(jobs) - 1 else 1
        units += [
            Unit(len(units) + unit.number, offset + unit.offset, unit.length, place)
            for unit in cut_units(job.plan, size, actors=sharing)
        ]
        offset += job.plan.height
    return units


def _known(place: Folder, spec: ReaderSpec) -> store.Stored:
    """All that the store has of a reader, from few files."""
    damaged = store.tidy(place, spec.fingerprint)
    known = store.load(place, spec.fingerprint)
    return known._replace(damaged=[*damaged, *known.damaged])


def _add_up(
    costs: ReadingCosts, fresh: pl.DataFrame, workers: Mapping[str, Mapping[str, Any]]
) -> None:
    """Put into the costs what the reads done now took, by the counters of those who did them."""
    costs.failed = fresh[FAILURE].count()
    costs.prompt_tokens = int(fresh[PROMPT_TOKENS].sum())
    costs.output_tokens = int(fresh[OUTPUT_TOKENS].sum())
    costs.decided = int(fresh[tables.DECIDED].sum())
    add_counters(costs, workers)


def input_sizes(spec: ReaderSpec, inputs: Sequence[Sequence[str]]) -> list[int]:
    """About how many tokens each read costs; only the order and the size of units depend on it.

    A quarter of the characters beyond the shared prefix: texts are tokenized once, by their reader.
    """
    shared = len(spec.shared_prefix)
    return [max(1, (sum(map(len, texts)) - shared) // 4) for texts in inputs]


def unit_tokens(total: int, *, actors: int, gpu: bool) -> int:
    """Size of a unit: one device batch on a CPU, half of one on a GPU, and never so much that an actor has
    fewer than eight of them: the last ones end together.

    Nobody knows how fast a GPU reads. Half a batch takes a slow one (1,000 tokens a second) half a minute,
    and a fast one has soon done it; smaller ones are more than two cores can handle for 64 actors.
    """
    most = GPU_BATCH_TOKENS // 2 if gpu else CPU_BATCH_TOKENS
    return max(1, min(most, total // (8 * actors)))


def one_at_a_time(executor: Executor) -> Run:
    """A user's executor as what does the reads of one reader."""
    return lambda plan, units, specs: executor(plan, units, specs[0])


def executor_for(
    settings: PoolSettings,
    plan: pl.DataFrame,
    specs: Sequence[ReaderSpec],
    on_event: OnEvent = silent,
    totals: PoolTotals | None = None,
) -> tuple[Run, int, bool]:
    """The function that does the reads, how many actors it may come to have, and whether they have GPUs.

    Args:
        settings: as in ``get_all_reads``.
        plan: the reads; none needs more actors than these.
        specs: of the readers, which share a model.
        on_event, totals: as in ``pipeline.read_on_ray``.

    Raises:
        InputError: the cluster can never host such a pool, or a reader not use it.
    """
    if specs[0].api:
        from engine.reading.api.run import read_by_requests

        return read_by_requests, 1, False
    for spec in specs:
        require_gpus_used(settings, spec.name, spec.gpus)
    if reads_here(settings, specs):
        # Functions take as much at a time as GPUs do: most have a GPU, or a server, behind them.
        return read_in_process, 1, bool(specs[0].function) or device.machine_has_gpu()
    from engine.machine import cluster
    from engine.machine import pool as pools
    from engine.reading import pipeline

    cluster.start_ray(int(plan.estimated_size()))
    loading = device.default_actor_memory(specs[0].weight_bytes)
    pool = pools.decide(settings, loading, budget=specs[0].memory)

    def on_ray(
        plan: pl.DataFrame, units: Sequence[Unit], specs: Sequence[ReaderSpec]
    ) -> Iterator[UnitResult]:
        return pipeline.read_on_ray(plan, units, specs, pool=pool, on_event=on_event, totals=totals)

    return on_ray, min(pool.foreseen, plan.height), pool.needs.gpus > 0


def reads_table(planned: pl.DataFrame, outputs: Sequence[ReadOutput]) -> pl.DataFrame:
    """The reads table of planned reads and their outputs, as they are kept, with the column ``failure``."""
    # Taken by name, and not selected: units are many and small, and a selection is handed to a thread.
    reads = planned[[READ_KEY, QUERY_ID, DOC_IDS]].hstack(output_columns(outputs))
    return as_kept(reads, planned)[[*tables.READS, FAILURE]]


def output_columns(outputs: Sequence[ReadOutput]) -> pl.DataFrame:
    """The outputs of reads as a table with the columns ``OUTPUT_COLUMNS``, one row each."""
    return pl.DataFrame(
        {name: [getattr(output, name) for output in outputs] for name in OUTPUT_COLUMNS},
        schema=OUTPUT_COLUMNS,
    )
