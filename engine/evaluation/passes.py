"""Read and score the shards of an evaluation, one model after the other."""

from __future__ import annotations

import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl

from engine import tables
from engine.evaluation.context import Context
from engine.evaluation.parts import Done, InMemory, RoleReads
from engine.evaluation.read_jobs import Job, Reading, asks_of, reads_failed, specify_jobs
from engine.evaluation.score import score_queries
from engine.evaluation.settings import Settings
from engine.evaluation.shard_plans import Files, planned_reading, planner_for
from engine.evaluation.shard_plans import Planner as ShardPlanner
from engine.evaluation.workload import Workload
from engine.machine.remote.limits import limits_of
from engine.machine.watch import OnEvent, PoolTotals, silent
from engine.messages.errors import ReadError, WriteError
from engine.reading import store
from engine.reading.costs import (
    ReadingCosts,
    add_counters,
    add_kinds,
    set_wanted,
    share_costs,
    wanted_kinds,
)
from engine.reading.executors import Backend, backend_for, by_model, unit_tokens
from engine.reading.plan import INPUTS, SIZE, WANTED
from engine.reading.protocol import ReaderSpec
from engine.reading.stream import (
    USER_ERRORS,
    Failure,
    Host,
    Planner,
    Ready,
    ShardPlan,
    UnitDone,
    UnitSizes,
)
from engine.sources.io.folders import Folder
from engine.sources.queries.buckets import BUCKETS
from engine.tables import FAILURE

if TYPE_CHECKING:
    import ray


# The share of a reader's reads that may fail where nothing is said about failed reads.
FEW_FAILED = 0.05
_NOTHING = UnitDone(0, 0, 0, 0)


@dataclass
class Pass:
    """The reads of one job while they are done.

    Attributes:
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
    rounds: int = 0

    def begin(self) -> None:
        """A round over the shards begins: what was read of them counts as reused there."""
        self.left.clear()
        self.rounds += 1

    def add(self, unit: UnitDone) -> UnitDone:
        """Count a unit; gives it with what was not counted yet of its shard."""
        costs = self.costs
        told, again = unit.shard in self.left, self.rounds > 1
        if not told:
            self.left[unit.shard] = unit.wanted - unit.reused
            costs.reused += unit.reused * (not again)
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
        if not (told or again):
            return unit
        return replace(unit, wanted=0 if told else unit.wanted - unit.reused, reused=0)

    def is_read(self, shard: int) -> bool:
        """Whether all reads of a shard are done."""
        return self.left.get(shard) == 0

    def total(self, reads: Iterable[RoleReads]) -> None:
        """Count what was wanted, and what failed, of all shards; those that were done before included."""
        of_shards = list(reads)
        self.is_totalled = True
        wanted = sum((Counter(shard.wanted) for shard in of_shards), Counter[str]())
        self.costs.wanted = wanted.total()
        self.costs.failed = sum(shard.failed for shard in of_shards)
        self.costs.reused = self.costs.wanted - self.costs.done
        set_wanted(self.costs, wanted)
        add_counters(self.costs, self.stats)


def without_reads(job: Job, costs: ReadingCosts) -> Reading:
    """What a job cost, without the reads."""
    nothing = tables.empty(WANTED)
    reads = tables.empty({**tables.READS, FAILURE: pl.String()})
    return Reading(job.ask, job.spec, job.prompt, nothing, reads, costs)


def read_and_score(
    work: Workload,
    shards: Sequence[int],
    passes: Sequence[Pass],
    context: Context,
    kept: Kept | None = None,
) -> None:
    """Read and score shards: all jobs of a model together, model after model; scored with the last one.

    Args:
        kept: where there is one model, what reads with it, for the next call with the same ``kept``.

    Raises:
        InputError: as ``score_queries``; a cluster can never host the readers.
        ReadError: reads failed and ``failed_reads`` is ``error``; ``refuse_many`` looks at its default.
    """
    refused = _all_needed(work.conditions[0])
    groups = (
        [[pass_] for pass_ in passes]
        if context.executor
        else by_model(passes, lambda pass_: pass_.job.spec)
    )
    for pass_ in passes:
        if (place := work.place(pass_.job)) is not None:
            pass_.costs.damaged_files += store.tidy(place, pass_.job.spec.fingerprint)
    # Of inputs that are held, all prompts are made before any reader is loaded.
    ready = [
        [planner_for(work, pass_.job, shards)(0) for pass_ in group] if work.prepared else []
        for group in groups
    ]
    progress = _Progress(work, shards, passes, [plan for plans in ready for plan in plans])
    executors = [
        _reads(work, group, shards, plans, context)
        if not kept
        else kept.pop().next_round(work, group, shards)
        for group, plans in zip(groups, ready, strict=True)
    ]
    parts = work.parts[0]
    scoring = _Scoring(work, on_ray=any(reads.on_ray for reads in executors))
    if passes:
        context.on_progress(*progress.reached)
    for group in groups:
        # Its readers are loaded no longer than they read.
        reads = executors.pop(0)
        for pass_ in group:
            context.on_unit(pass_.job.ask.role.name, _NOTHING, progress.reached, reads.totals)
        start = time.perf_counter()
        left, further = list(shards), set[int]()
        while left:
            for pass_, planner in zip(group, reads.planners, strict=True):
                pass_.begin()
                scoring.begin(pass_, planner)
            for unit in reads.read(left):
                added = (pass_ := group[unit.role]).add(unit)
                scoring.add(pass_, unit)
                if isinstance(parts, InMemory) and unit.outputs is not None:
                    parts.outputs[pass_.job.spec.fingerprint].append(unit.outputs)
                if not unit.last:
                    further.add(unit.shard)
                is_read = all(role_pass.is_read(unit.shard) for role_pass in group)
                if group is groups[-1] and is_read and unit.shard not in further:
                    failures = failures_of(passes, unit.shard)
                    if not (failures and refused):
                        scoring.score(unit.shard, failures)
                progress.add(pass_, unit)
                context.on_progress(*progress.reached)
                context.on_unit(pass_.job.ask.role.name, added, progress.reached, reads.totals)
            if left := [shard for shard in left if shard in further]:
                further.clear()
                reads = reads.next_round(work, group, left)
        if kept is not None and len(groups) == 1 and not reads.is_idle:
            kept.append(reads)
        share_costs([pass_.costs for pass_ in group], time.perf_counter() - start, reads.totals)
    for api in {pass_.job.spec.api.settings for pass_ in passes if pass_.job.spec.api}:
        limits_of(api).batch.write()
    for pass_ in passes if refused else ():
        _refuse_failures(pass_)
    for shard in () if passes else shards:
        scoring.score(shard, {})
    scoring.finish()


def check_readers(
    conditions: Sequence[Settings], on_event: OnEvent = silent, folders: Sequence[Folder] = ()
) -> None:
    """Refuse readers and pools that cannot be, and folders that nodes do not share; where Ray reads, it was started."""
    for settings in conditions:
        jobs = specify_jobs(asks_of(settings), settings, on_event=on_event)
        for group in by_model(jobs, lambda job: job.spec):
            backend_for(settings.running.pool(), [job.spec for job in group], folders=folders)


def failures_of(passes: Sequence[Pass], shard: int) -> dict[str, Failure]:
    """The failed reads of a shard, of all roles, by their keys; keys of different readers differ."""
    return {key: failure for pass_ in passes for key, failure in pass_.failures[shard].items()}


def _all_needed(settings: Settings) -> bool:
    """Whether any failed read is an error; a request in a file is a failed one until it is answered."""
    policy = settings.running.failed_reads
    return policy == "error" or (policy is None and settings.api.is_batch)


def _refuse_failures(pass_: Pass, wanted: int = 0) -> None:
    """Refuse failed reads, all others being stored; ``wanted``: distinct ones of all, of which few may fail."""
    failures = [failure for of_shard in pass_.failures.values() for failure in of_shard.values()]
    if len(failures) > FEW_FAILED * wanted:
        total = wanted or pass_.costs.done + pass_.costs.reused
        raise reads_failed(len(failures), total, *failures[0], stored=pass_.job.spec.is_kept)


def refuse_many(work: Workload, passes: Sequence[Pass]) -> None:
    """Refuse more than a few failed reads, once all shards are scored, where nothing is said about failed reads."""
    if work.conditions[0].running.failed_reads is not None:
        return
    for pass_ in passes:
        if any(pass_.failures.values()):
            place = next(i for i, roles in enumerate(work.roles) if pass_.job in roles.values())
            done = map(work.parts[place].done, work.shards.shards)
            wanted = (sum(one.of_jobs[pass_.job.key].wanted.values()) for one in done)
            _refuse_failures(pass_, sum(wanted))


class _Progress:
    """Reads done, and wanted as far as it is known: of shards that are not planned yet, an estimate."""

    def __init__(
        self,
        work: Workload,
        shards: Sequence[int],
        passes: Sequence[Pass],
        plans: Sequence[ShardPlan],
    ) -> None:
        known = work.shards.shards
        # Every listed passage, and every list; at most, since equal reads are one.
        whole = len(work.shards.runs) if work.conditions[0].reader.end_to_end else 0
        expected = {
            (pass_.job.identity, shard): known[shard].pairs + whole * known[shard].queries
            for pass_ in passes
            for shard in shards
        }
        self._done: Counter[tuple[tuple[object, ...], int]] = Counter()
        for pass_, plan in zip(passes, plans, strict=False):
            self._done[pass_.job.identity, 0] = plan.reused
            if plan.last:
                expected[pass_.job.identity, 0] = plan.wanted
        self._expected = expected
        self._total, self._sum = sum(expected.values()), self._done.total()

    @property
    def reached(self) -> tuple[int, int]:
        return self._sum, max(self._total, self._sum)

    def add(self, pass_: Pass, unit: UnitDone) -> None:
        key = pass_.job.identity, unit.shard
        # What was read in earlier rounds is reused in the next one.
        done = max(self._done[key], unit.reused) + unit.reads
        self._sum += done - self._done[key]
        self._done[key] = done
        if unit.last:
            self._total += unit.wanted - self._expected[key]
            self._expected[key] = unit.wanted


@dataclass(frozen=True)
class _Reads:
    """What plans and reads the jobs of a model; ``is_idle``: there is nothing to read, and nothing that would."""

    planners: Sequence[Planner]
    host: Host
    backend: Backend
    on_event: OnEvent
    totals: PoolTotals
    is_idle: bool = False

    @property
    def on_ray(self) -> bool:
        """Whether shards are planned and committed on Ray's workers."""
        return self.backend.pool is not None and not self.host.held

    def next_round(self, work: Workload, group: Sequence[Pass], shards: Sequence[int]) -> _Reads:
        """What reads what the labels so far leave open; readers that this process hosts stay loaded."""
        planners = _planners(work, group, shards, self.backend)
        if work.prepared:
            planners = _ready([planner(0) for planner in planners], self.backend)
        return replace(self, planners=planners)

    def read(self, shards: Sequence[int]) -> Iterator[UnitDone]:
        return self.backend.read(
            shards, self.planners, self.host, on_event=self.on_event, totals=self.totals
        )


# What reads with the only model, for as long as rounds of queries need it.
Kept = list[_Reads]


def _reads(
    work: Workload,
    group: Sequence[Pass],
    shards: Sequence[int],
    plans: Sequence[ShardPlan],
    context: Context,
) -> _Reads:
    """What plans and reads the jobs of a model; ``plans`` are of the only shard, where inputs are held."""
    settings = work.conditions[0].running.pool()
    specs = [pass_.job.spec for pass_ in group]
    size = sum(int(plan.reads.estimated_size()) for plan in plans)
    nothing = bool(plans) and all(plan.reads.is_empty() for plan in plans)
    folders = (work.unkept, work.store) if work.unkept else ()
    how: dict[str, Any] = {"size": size, "folders": folders}
    backend = Backend() if nothing else backend_for(settings, specs, context.executor, **how)
    planners = _ready(plans, backend) if plans else _planners(work, group, shards, backend)
    if specs[0].api and not (plans or context.executor):
        from engine.reading.remote.run import Requests

        backend = Backend(Requests(size=_size_of_prompts(planners, shards, specs)))
    places = [work.place(pass_.job) for pass_ in group]
    host = context.host(specs, places, held=bool(plans))
    host.bounds = work.conditions[0].api
    return _Reads(planners, host, backend, context.on_event, PoolTotals(), nothing)


def _planners(
    work: Workload, group: Sequence[Pass], shards: Sequence[int], backend: Backend
) -> Sequence[Planner]:
    how = {"actors": backend.actors, "gpu": backend.gpu, "restarts": backend.pool is not None}
    return [planner_for(work, one.job, shards, failures=one.failures, **how) for one in group]


def _size_of_prompts(
    planners: Sequence[Planner], shards: Sequence[int], specs: Sequence[ReaderSpec]
) -> int:
    """The bytes of all prompts that readers behind an API will be asked; 0 where no bound needs them."""
    return sum(
        spec.api.size("".join(inputs))
        for planner, spec in zip(planners, specs, strict=True)
        if spec.api and spec.api.settings.is_bounded
        for shard in shards
        for inputs in planner(shard).reads[INPUTS].to_list()
    )


def _ready(plans: Sequence[ShardPlan], backend: Backend) -> list[Ready]:
    actors = min(backend.actors, sum(plan.reads.height for plan in plans))
    total = sum(int(plan.reads[SIZE].sum()) for plan in plans)
    size = unit_tokens(total, actors=max(1, actors), gpu=backend.gpu, alone=backend.alone)
    sizes = UnitSizes(size, size, size)
    return [
        Ready(replace(plan, sizes=sizes, sharing=actors if plan is plans[-1] else 1))
        for plan in plans
    ]


# Calls of a shard's scoring after which it is given up: its process may lack memory, or go with its node.
_CALLS = 4


class _Scoring:
    """Scores shards: in this process, or on Ray's workers where these read shards that are files."""

    def __init__(self, work: Workload, *, on_ray: bool) -> None:
        self._work = work
        # Of the store, by reader: what was listed, and what came since of shards that are not scored.
        self._listed: dict[str, store.Listing] = {}
        self._came: defaultdict[int, defaultdict[str, set[str]]]
        self._came = defaultdict(lambda: defaultdict(set))
        self._on_workers: partial[ray.ObjectRef] | None = None
        # What calls again for each call that is under way, and how often it has.
        self._under_way: dict[ray.ObjectRef, tuple[partial[ray.ObjectRef], int]] = {}
        if on_ray:
            import ray

            # A part of a CPU: they go on beside actors that take nearly all. Ray's own retries have no end where
            # its memory monitor kills a process.
            remote = ray.remote(num_cpus=0.1, max_retries=0)(score_shard).remote
            self._on_workers = partial(remote, ray.put(work))

    def begin(self, pass_: Pass, planner: Planner) -> None:
        if isinstance(planner, ShardPlanner):
            self._listed[pass_.job.spec.fingerprint] = planner.listing

    def add(self, pass_: Pass, unit: UnitDone) -> None:
        self._came[unit.shard][pass_.job.spec.fingerprint].add(unit.file)

    def score(self, shard: int, failures: Mapping[str, Failure]) -> None:
        """Score a shard here, or when fewer are scored on workers than the cluster has CPUs now; errors of an earlier one."""
        span, came = self._work.shards.shards[shard].span or (0, BUCKETS), self._came[shard]
        del self._came[shard]
        files = {
            reader: listing.within(span, came[reader] - {""})
            for reader, listing in self._listed.items()
        }
        if self._on_workers is None:
            score_shard(self._work, shard, failures, files)
            return
        import ray

        self._wait(max(2, int(ray.cluster_resources().get("CPU", 1))) - 1)
        call = partial(self._on_workers, shard, failures, files)
        self._under_way[call()] = call, 1

    def finish(self) -> None:
        if self._under_way:
            self._wait(0)

    def _wait(self, left: int) -> None:
        import ray

        from engine.machine import cluster

        while len(self._under_way) > left:
            (done,), _ = ray.wait(list(self._under_way))
            call, calls = self._under_way.pop(done)
            try:
                ray.get(done)
            except ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, USER_ERRORS):
                    raise error.cause from None
                raise ReadError(f"scoring on Ray failed: {cluster.cause(error)}") from error
            except ray.exceptions.RayError as error:
                if calls == _CALLS:
                    raise ReadError(
                        "scoring on Ray failed: its process died again and again, perhaps for want of memory; "
                        f"what is finished is kept ({cluster.cause(error)})"
                    ) from error
                self._under_way[call()] = call, calls + 1


def score_shard(work: Workload, shard: int, failures: Mapping[str, Failure], files: Files) -> None:
    """Label and score a shard whose reads are in the store, under all settings; errors as in ``planned_reading``."""
    work.refuse_others()
    inputs = work.shards.read(shard)
    readings = {
        job.identity: planned_reading(work, job, shard, failures, files) for job in work.jobs
    }
    alone = len(work.conditions) == 1
    for condition in range(len(work.conditions)):
        prepared = work.prepare(condition, inputs)
        by_role = {
            role: readings[job.identity]
            if alone
            else readings[job.identity].part(work.lists(job, inputs, condition))
            for role, job in work.roles[condition].items()
        }
        done = Done(
            score_queries(prepared, by_role),
            {role: _reads_of(reading) for role, reading in by_role.items()},
            {job.key: _reads_of(readings[job.identity]) for job in work.jobs},
            by_role if work.prepared else {},
        )
        work.parts[condition].keep(work.shards.shards[shard], done)
    _compact(work, shard, files)


def _reads_of(reading: Reading) -> RoleReads:
    return RoleReads(wanted_kinds(reading.wanted), reading.costs.failed)


def _compact(work: Workload, shard: int, files: Files) -> None:
    """Merge the files of a shard's units, a file for each reader, now that they were read for the last time."""
    span = work.shards.shards[shard].span
    if span is None:
        return
    for job in work.jobs:
        place, fingerprint = work.place(job) or work.store, job.spec.fingerprint
        names = files[fingerprint].inside(span).names
        # Where files can be written and not deleted, they stay as they are.
        with contextlib.suppress(WriteError):
            store.compact(place, fingerprint, names, span)
