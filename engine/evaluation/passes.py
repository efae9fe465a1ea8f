"""Reading and judging the shards of an evaluation: all readers of a model together, model after model."""

from __future__ import annotations

import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import polars as pl

from engine import tables
from engine.errors import WriteError
from engine.evaluation.context import Context
from engine.evaluation.edited import count_edited_reads
from engine.evaluation.judge import judge
from engine.evaluation.parts import Done, InMemory, RoleReads
from engine.evaluation.plans import planned_reading, planner_for
from engine.evaluation.read import Job, Reading, asks_of, reads_failed, specify_jobs
from engine.evaluation.settings import Settings
from engine.evaluation.work import Work
from engine.machine.pool import Pool, PoolSettings
from engine.machine.watch import OnEvent, PoolTotals, silent
from engine.reading import store
from engine.reading.costs import (
    ReadingCosts,
    add_counters,
    add_kinds,
    set_wanted,
    share_costs,
    wanted_kinds,
)
from engine.reading.execute import Run, read_in_process
from engine.reading.plan import SIZE, WANTED
from engine.reading.protocol import ReaderSpec
from engine.reading.reads import (
    by_model,
    executor_for,
    one_at_a_time,
    pool_for,
    run_in_driver,
    unit_tokens,
)
from engine.reading.stream import (
    TOLD,
    Failure,
    Host,
    Planner,
    Ready,
    ShardPlan,
    UnitDone,
    UnitSizes,
    read_here,
)
from engine.tables import FAILURE

if TYPE_CHECKING:
    from engine.machine.tasks import Tasks


@dataclass
class Pass:
    """The reads of one job while they are done.

    Attributes:
        costs: of the reads done now.
        failures: by shard, the reads that failed.
        left: by shard, how many reads are not done yet, of shards that were begun.
        stats: of each actor, its last counts.
        is_totalled: whether ``costs`` are of all shards, those included that were done before.
    """

    job: Job
    costs: ReadingCosts = field(default_factory=ReadingCosts)
    failures: dict[int, dict[str, Failure]] = field(default_factory=lambda: defaultdict(dict))
    left: dict[int, int] = field(default_factory=dict)
    stats: dict[str, dict[str, int]] = field(default_factory=dict)
    is_totalled: bool = False

    def add(self, unit: UnitDone) -> None:
        """Count a unit."""
        costs = self.costs
        if unit.shard not in self.left:
            self.left[unit.shard] = unit.wanted - unit.reused
            costs.reused += unit.reused
        self.left[unit.shard] -= unit.reads
        self.failures[unit.shard].update(unit.failures)
        costs.done += unit.reads
        costs.damaged_files = list(dict.fromkeys([*costs.damaged_files, *unit.damaged]))
        costs.prompt_tokens += unit.prompt_tokens
        costs.output_tokens += unit.output_tokens
        costs.reader_seconds += unit.seconds
        add_kinds(costs.kinds, unit.kinds)
        if unit.worker:
            self.stats[unit.worker] = unit.stats

    def is_read(self, shard: int) -> bool:
        """Whether all reads of a shard are done."""
        return self.left.get(shard) == 0

    def total(self, reads: Iterable[RoleReads]) -> None:
        """Count what was wanted, and what failed, of all shards; those that were done before included."""
        of_shards = list(reads)
        self.is_totalled = True
        wanted = sum((Counter(one.wanted) for one in of_shards), Counter[str]())
        self.costs.wanted = wanted.total()
        self.costs.failed = sum(one.failed for one in of_shards)
        self.costs.reused = self.costs.wanted - self.costs.done
        set_wanted(self.costs, wanted)
        add_counters(self.costs, self.stats)

    def reading(self) -> Reading:
        """What was read and what that cost, without the reads themselves."""
        return without_reads(self.job, self.costs)


def without_reads(job: Job, costs: ReadingCosts) -> Reading:
    """What a job cost, without the reads."""
    nothing = tables.empty(WANTED)
    reads = tables.empty({**tables.READS, FAILURE: pl.String()})
    return Reading(job.ask, job.spec, job.prompt, nothing, reads, costs)


def read_and_judge(
    work: Work, shards: Sequence[int], passes: Sequence[Pass], context: Context
) -> None:
    """Read and judge shards: all jobs of a model together, model after model; judged with the last one.

    Raises:
        InputError: as ``judge``; a cluster can never host the readers.
        ReadError: reads failed and ``failed_reads`` is ``error``.
    """
    refused = work.conditions[0].running.failed_reads == "error"
    groups = (
        [[one] for one in passes]
        if context.executor
        else by_model(passes, lambda one: one.job.spec)
    )
    for one in passes:
        if (place := work.place(one.job)) is not None:
            one.costs.damaged_files += store.tidy(place, one.job.spec.fingerprint)
    # Of inputs that are held, all prompts are made before any reader is loaded.
    ready = [
        [planner_for(work, one.job, shards)(0) for one in group] if work.prepared else []
        for group in groups
    ]
    progress = _Progress(work, shards, passes, [plan for plans in ready for plan in plans])
    executors = [
        _executor(work, group, shards, plans, context)
        for group, plans in zip(groups, ready, strict=True)
    ]
    parts = work.parts[0]
    judging = _Judging(work, on_ray=any(isinstance(reads, _OnRay) for reads in executors))
    if passes:
        context.on_progress(*progress.reached)
    for group in groups:
        # Its readers are loaded no longer than they read.
        reads = executors.pop(0)
        start = time.perf_counter()
        for unit in reads.read(shards):
            one = group[unit.role]
            one.add(unit)
            if isinstance(parts, InMemory) and unit.outputs is not None:
                parts.outputs[one.job.spec.fingerprint].append(unit.outputs)
            if group is groups[-1] and all(of_role.is_read(unit.shard) for of_role in group):
                failures = failures_of(passes, unit.shard)
                if not (failures and refused):
                    judging.judge(unit.shard, failures)
            progress.add(one, unit)
            context.on_progress(*progress.reached)
        share_costs([one.costs for one in group], time.perf_counter() - start, reads.totals)
    if refused:
        for one in passes:
            _refuse_failures(one)
    if not passes:
        for shard in shards:
            judging.judge(shard, {})
    judging.finish()


def check_readers(conditions: Sequence[Settings], on_event: OnEvent = silent) -> None:
    """Refuse readers that cannot be used and pools that cannot be, for which no inputs are needed.

    Where the reads are done on Ray, it must have been started.

    Raises:
        InputError, ReadError: as ``evaluate.evaluate_shards``, which looks at them too.
    """
    for settings in conditions:
        jobs = specify_jobs(asks_of(settings), settings, on_event=on_event)
        for group in by_model(jobs, lambda job: job.spec):
            specs = [job.spec for job in group]
            if run_in_driver(settings.running.pool(), specs) is None:
                pool_for(settings.running.pool(), specs)


def failures_of(passes: Sequence[Pass], shard: int) -> dict[str, Failure]:
    """The failed reads of a shard, of all roles, by their keys; keys of different readers differ."""
    return {key: failure for one in passes for key, failure in one.failures[shard].items()}


def _refuse_failures(one: Pass) -> None:
    """Refuse failed reads where they are an error: after all others were done and stored."""
    failures = [failure for of_shard in one.failures.values() for failure in of_shard.values()]
    if failures:
        total = one.costs.done + one.costs.reused
        raise reads_failed(len(failures), total, *failures[0], stored=one.job.spec.is_kept)


class _Progress:
    """Reads done, and wanted as far as it is known: of shards that are not planned yet, an estimate.

    Attributes:
        reached: reads done and wanted.
    """

    def __init__(
        self, work: Work, shards: Sequence[int], passes: Sequence[Pass], plans: Sequence[ShardPlan]
    ) -> None:
        known = work.shards.shards
        # Every listed passage, and every list; at most, since equal reads are one.
        whole = len(work.shards.runs) if work.conditions[0].reader.end_to_end else 0
        expected = {
            (one.job.identity, shard): known[shard].pairs + whole * known[shard].queries
            for one in passes
            for shard in shards
        }
        for one, plan in zip(passes, plans, strict=False):
            expected[one.job.identity, 0] = plan.wanted
        self._left = expected
        self._total = sum(expected.values())
        self._done = sum(plan.reused for plan in plans)
        self._begun = {(one.job.identity, 0) for one, _ in zip(passes, plans, strict=False)}

    @property
    def reached(self) -> tuple[int, int]:
        return self._done, max(self._total, self._done)

    def add(self, one: Pass, unit: UnitDone) -> None:
        begun = one.job.identity, unit.shard
        if begun not in self._begun:
            self._begun.add(begun)
            self._total += unit.wanted - self._left[begun]
            self._done += unit.reused
        self._done += unit.reads


@dataclass(frozen=True)
class _Here:
    """Plans in this process, and reads by what ``run`` is: readers hosted here, requests, a user's program, or
    actors that are given the only shard there is.
    """

    planners: Sequence[Planner]
    host: Host
    run: Run | None
    totals: PoolTotals

    def read(self, shards: Sequence[int]) -> Iterator[UnitDone]:
        return read_here(shards, self.planners, self.host, self.run)


@dataclass(frozen=True)
class _OnRay:
    """Plans on Ray's workers, and reads on actors, which commit what they read."""

    planners: Sequence[Planner]
    host: Host
    pool: Pool
    on_event: OnEvent
    totals: PoolTotals

    def read(self, shards: Sequence[int]) -> Iterator[UnitDone]:
        from engine.reading.stream_on_ray import read_on_ray

        return read_on_ray(
            shards, self.planners, self.host,
            pool=self.pool, on_event=self.on_event, totals=self.totals,
        )  # fmt: skip


def _executor(
    work: Work,
    group: Sequence[Pass],
    shards: Sequence[int],
    plans: Sequence[ShardPlan],
    context: Context,
) -> _Here | _OnRay:
    """What plans and reads the jobs of a model.

    Args:
        plans: of the only shard, where inputs are held.
    """
    settings, totals = work.conditions[0].running.pool(), PoolTotals()
    specs = [one.job.spec for one in group]
    hosting = context.host(specs, [work.place(one.job) for one in group])
    if plans:
        return _held(plans, specs, settings, hosting, context, totals)
    here = (
        (one_at_a_time(context.executor), False)
        if context.executor
        else run_in_driver(settings, specs)
    )
    if here is not None:
        run, gpu = here
        planners = [planner_for(work, one.job, shards, gpu=gpu) for one in group]
        return _Here(planners, hosting, None if run is read_in_process else run, totals)
    pool = pool_for(settings, specs)
    planners = [
        planner_for(work, one.job, shards, actors=pool.foreseen, gpu=pool.needs.gpus > 0)
        for one in group
    ]
    return _OnRay(planners, hosting, pool, context.on_event, totals)


def _held(
    plans: Sequence[ShardPlan],
    specs: Sequence[ReaderSpec],
    settings: PoolSettings,
    hosting: Host,
    context: Context,
    totals: PoolTotals,
) -> _Here:
    """What reads the only shard, whose plans are made; nothing is started where it has nothing to read."""
    whole = pl.concat([plan.reads for plan in plans])
    if whole.is_empty():
        return _Here([Ready(plan) for plan in plans], hosting, None, totals)
    run, actors, gpu = (
        (one_at_a_time(context.executor), 1, False)
        if context.executor
        else executor_for(settings, whole, specs, context.on_event, totals)
    )
    size = unit_tokens(int(whole[SIZE].sum()), actors=actors, gpu=gpu)
    sizes = UnitSizes(size, size, size)
    ready = [
        Ready(replace(plan, sizes=sizes, sharing=actors if plan is plans[-1] else 1))
        for plan in plans
    ]
    return _Here(ready, hosting, None if run is read_in_process else run, totals)


class _Judging:
    """Judges shards: in this process, or on Ray's workers where these read shards that are files."""

    def __init__(self, work: Work, *, on_ray: bool) -> None:
        self._work = work
        self._tasks: Tasks | None = None
        if on_ray:
            from engine.machine.tasks import Tasks

            self._tasks = Tasks(_judged, work, "judging")

    def judge(self, shard: int, failures: Mapping[str, Failure]) -> None:
        if self._tasks is None:
            judge_shard(self._work, shard, failures)
        else:
            self._tasks.submit(shard, failures)

    def finish(self) -> None:
        if self._tasks is not None:
            self._tasks.finish()


def _judged(work: Work, shard: int, failures: Mapping[str, Failure]) -> Exception | None:
    try:
        judge_shard(work, shard, failures)
    except TOLD as error:
        return error
    return None


def judge_shard(work: Work, shard: int, failures: Mapping[str, Failure]) -> None:
    """Label and score a shard whose reads are in the store, under all settings, and keep what that gives.

    Args:
        failures: reads that failed, by their keys.

    Raises:
        InputError: as ``judge``.
        ReadError: reads are lost, or a reader wrote where it had to choose.
    """
    inputs = work.shards.read(shard)
    readings = {job.identity: planned_reading(work, job, shard, failures) for job in work.jobs}
    alone = len(work.conditions) == 1
    for condition, settings in enumerate(work.conditions):
        prepared = work.prepare(condition, inputs)
        own = {
            role: readings[job.identity]
            if alone
            else readings[job.identity].part(work.lists(job, inputs, condition))
            for role, job in work.asked[condition].items()
        }
        done = Done(
            judge(prepared, own),
            {role: _reads_of(reading) for role, reading in own.items()},
            {job.key: _reads_of(readings[job.identity]) for job in work.jobs},
            count_edited_reads(
                prepared.inputs,
                prepared.lists,
                alone=bool(settings.asks()),
                whole=settings.reader.end_to_end,
            ),
            own if work.prepared else {},
        )
        work.parts[condition].keep(work.shards.shards[shard], done)
    _compact(work, shard)


def _reads_of(reading: Reading) -> RoleReads:
    return RoleReads(wanted_kinds(reading.wanted), reading.costs.failed)


def _compact(work: Work, shard: int) -> None:
    """Merge the files of a shard's units, a file for each reader, now that they were read for the last time."""
    span = work.shards.shards[shard].span
    if span is None:
        return
    for job in work.jobs:
        place, fingerprint = work.place(job) or work.store, job.spec.fingerprint
        names = store.listing(place, fingerprint).inside(span).names
        # Where files can be written and not deleted, they stay as they are.
        with contextlib.suppress(WriteError):
            store.compact(place, fingerprint, names, span)
