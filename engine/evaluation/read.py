"""Read and score the shards of an evaluation, one model after the other."""

from __future__ import annotations

import contextlib
import time
from collections import ChainMap, Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from engine.evaluation.jobs import Context, Job, Run, specify_jobs
from engine.evaluation.plan import (
    Failures,
    Files,
    ShardPlans,
    lists_to_read,
    needed_reads,
    planned_reads,
)
from engine.evaluation.score import ReadCounts, count_reads, reads_of, score
from engine.evaluation.settings import Settings
from engine.machine.remote.limits import limits_of
from engine.machine.watch import OnEvent, PoolTotals, silent
from engine.messages.errors import ReadError, WriteError
from engine.reading import store
from engine.reading.backends import Backend, backend_for
from engine.reading.costs import ReadingCosts, UnitResult, add_counters, set_requested, share_costs
from engine.reading.local import USER_ERRORS, Local
from engine.reading.plan import PlansInMemory, ReadPlan, Unit
from engine.reading.protocol import ReaderSpec
from engine.sources.io.folders import Folder
from engine.sources.queries.buckets import BUCKETS

if TYPE_CHECKING:
    import ray


_NOTHING = UnitResult(Unit(0, 0, 0), (), "", 0.0, {})
# The share of a reader's reads that may fail if ``failed_reads`` is not set.
FEW_FAILED = 0.05


@dataclass
class JobReads:
    """The progress and the costs of a job's reads.

    Attributes:
        failures: failed reads, by shard.
        left: the number of reads still to do, by shard; of begun shards only.
        stats: the last counts, by actor.
        is_totalled: whether ``costs`` are of all shards, earlier ones included.
    """

    job: Job
    costs: ReadingCosts = field(default_factory=ReadingCosts)
    failures: dict[int, dict[str, tuple[str, str]]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    left: dict[int, int] = field(default_factory=dict)
    stats: dict[str, dict[str, int]] = field(default_factory=dict)
    is_totalled: bool = False
    rounds: int = 0

    def begin(self) -> None:
        """Begin a round over the shards, in which earlier reads count as reused."""
        self.left.clear()
        self.rounds += 1

    def add(self, unit: UnitResult) -> UnitResult:
        """Count a unit; returns it with only the new part of its shard's counts."""
        plan = unit.plan
        is_known, again = plan.shard in self.left, self.rounds > 1
        if not is_known:
            self.left[plan.shard] = plan.wanted - plan.reused
            self.costs.reused += plan.reused * (not again)
        self.left[plan.shard] -= unit.done
        self.failures[plan.shard].update(unit.failures)
        self.costs.add(unit)
        if unit.worker:
            self.stats[unit.worker] = unit.stats
        if not (is_known or again):
            return unit
        remaining = 0 if is_known else plan.wanted - plan.reused
        return replace(unit, plan=replace(plan, wanted=remaining, reused=0))

    def total(self, reads: Iterable[ReadCounts]) -> None:
        """Count the wanted and the failed reads of all shards, earlier ones included."""
        counts = list(reads)
        self.is_totalled = True
        requested = sum((Counter(kinds) for kinds, _ in counts), Counter[str]())
        self.costs.wanted = requested.total()
        self.costs.failed = sum(failed for _, failed in counts)
        self.costs.reused = self.costs.wanted - self.costs.done
        set_requested(self.costs, requested)
        add_counters(self.costs, self.stats)


class Readers:
    """The readers of an evaluation's jobs, grouped by model.

    Args:
        keeps: whether readers of a single model stay loaded in this process for further rounds of queries.
    """

    def __init__(self, jobs: Sequence[Job], context: Context, *, keeps: bool) -> None:
        self.context, self.reads, self._keeps = context, tuple(map(JobReads, jobs)), keeps
        groups: defaultdict[object, list[JobReads]] = defaultdict(list)
        for reads in self.reads:  # a program reads for each job by itself
            groups[id(reads) if context.executor else reads.job.spec.model].append(reads)
        self.groups = list(groups.values())
        self._kept: tuple[Backend, PoolTotals] | None = None

    def plans(
        self, run: Run, group: Sequence[JobReads], shards: Sequence[int], backend: Backend | None
    ) -> ShardPlans:
        """The plans of jobs that share a model, with fresh listings of their readers' stored reads."""
        plans = ShardPlans(
            run,
            tuple(run.jobs.index(reads.job) for reads in group),
            tuple(store.listing(run.place(own.job), own.job.spec.fingerprint) for own in group),
            tuple(shards),
            tuple(reads.failures for reads in group),
        )
        if backend is None:
            return plans
        return replace(plans, actors=backend.actors, gpu=backend.gpu, restarts=backend.on_ray)

    def backend(
        self, run: Run, group: Sequence[JobReads], in_memory: PlansInMemory | None
    ) -> tuple[Backend, PoolTotals]:
        """The backend of a model's jobs, and the totals of its actors; with ``in_memory`` if the plans are made."""
        if self._kept is not None:
            return self._kept
        totals = PoolTotals()
        places = [run.place(reads.job) for reads in group]
        specs, api = [reads.job.spec for reads in group], run.conditions[0].api
        local = self.context.host(specs, places, api, self.context.executor)
        if in_memory is not None and not any(plan.reads.height for plan in in_memory.by_role):
            return local, totals  # nothing to read: no actors
        backend = backend_for(
            run.conditions[0].running.pool(),
            local,
            size=sum(int(plan.reads.estimated_size()) for plan in in_memory.by_role)
            if in_memory
            else 0,
            folders=() if run.is_held else (run.unkept, run.store),
            on_event=self.context.on_event,
            totals=totals,
        )
        if self._keeps and len(self.groups) == 1:
            self._kept = backend, totals
        return backend, totals


def read_and_score(run: Run, shards: Sequence[int], readers: Readers) -> None:
    """Read shards, all jobs of a model together, model after model; score them during the last model's reads.

    Raises:
        InputError: as ``score``; a cluster can never host the readers.
        ReadError: reads failed and ``failed_reads`` is ``error``; ``refuse_many`` looks at its default.
    """
    context, all_reads, groups = readers.context, readers.reads, readers.groups
    settings, policy = run.conditions[0], run.conditions[0].running.failed_reads
    # A request in a file is a failed read until it is answered.
    refused = policy == "error" or (policy is None and settings.api.is_batch)
    for reads in all_reads:
        place, fingerprint = run.place(reads.job), reads.job.spec.fingerprint
        reads.costs.damaged_files += store.tidy(place, fingerprint)
    # Held inputs: make all prompts before any reader is loaded.
    planned = [readers.plans(run, group, shards, None) if run.is_held else None for group in groups]
    in_memory = [plans.in_memory() if plans else None for plans in planned]
    backends = [readers.backend(run, *of) for of in zip(groups, in_memory, strict=True)]
    shard_plans = [plan for plans in in_memory if plans for plan in plans.by_role]
    progress = _Progress(run, shards, all_reads, shard_plans)
    scoring = _Scorer(run, on_ray=not run.is_held and any(b.on_ray for b, _ in backends))
    if all_reads:
        context.on_progress(*progress.reached)
    for number, group in enumerate(groups):
        # Popped: a model's readers stay loaded no longer than they read.
        backend, totals = backends.pop(0)
        plans, ready = planned[number], in_memory[number]
        for reads in group:
            context.on_unit(reads.job.ask.role.name, _NOTHING, progress.reached, totals)
        start = time.perf_counter()
        left, further = list(shards), set[int]()
        while left:
            plans = plans or readers.plans(run, group, left, backend)
            if run.is_held:
                ready = (ready or plans.in_memory()).sized(
                    backend.actors, backend.gpu, backend.alone
                )
            for reads, listing in zip(group, plans.listings, strict=True):
                reads.begin()
                scoring.begin(reads.job, listing)
            for unit in backend.read(ready or plans):
                shard, reads = unit.plan.shard, group[unit.plan.role]
                added = reads.add(unit)
                scoring.add(reads.job, unit)
                if not unit.plan.last:
                    further.add(shard)
                is_read = all(own.left.get(shard) == 0 for own in group)
                if number == len(groups) - 1 and is_read and shard not in further:
                    # Keys of different readers differ.
                    failures = dict(ChainMap(*(own.failures[shard] for own in all_reads)))
                    if not (failures and refused):
                        scoring.score(shard, failures)
                progress.add(reads.job, unit)
                context.on_progress(*progress.reached)
                context.on_unit(reads.job.ask.role.name, added, progress.reached, totals)
            left = [shard for shard in left if shard in further]
            plans = ready = None
            further.clear()
        share_costs([reads.costs for reads in group], time.perf_counter() - start, totals)
    for api in {reads.job.spec.api.settings for reads in all_reads if reads.job.spec.api}:
        limits_of(api).batch.write()
    for reads in all_reads if refused else ():
        _refuse_failures(reads)
    for shard in () if all_reads else shards:
        scoring.score(shard, {})
    scoring.finish()


def check_readers(
    conditions: Sequence[Settings], on_event: OnEvent = silent, folders: Sequence[Folder] = ()
) -> None:
    """Refuse impossible readers and pools, and folders that nodes do not share; Ray must run already if it reads."""
    for settings in conditions:
        specs: dict[object, ReaderSpec] = {}
        for job in specify_jobs(settings.resolved.roles, settings, on_event=on_event):
            specs.setdefault(job.spec.model, job.spec)
        for spec in specs.values():
            backend_for(settings.running.pool(), Local([spec], [None]), folders=folders)


def _refuse_failures(reads: JobReads, requested: int = 0) -> None:
    """Refuse any failed reads, or more than ``FEW_FAILED`` of ``wanted`` distinct reads."""
    failures = [failure for shard in reads.failures.values() for failure in shard.values()]
    if len(failures) > FEW_FAILED * requested:
        total, stored = requested or reads.costs.done + reads.costs.reused, reads.job.spec.is_kept
        query_id, reason = failures[0]
        raise ReadError(
            f"{len(failures)} of {total} LLM calls failed (query {query_id!r}: {reason}); "
            f"the others are {'' if stored else 'not '}cached; run again, count failed calls as 0 "
            "with `failed_reads` zero, or leave their queries out with `failed_reads` skip"
        )


def refuse_many(run: Run, all_reads: Sequence[JobReads]) -> None:
    """Refuse more than a few failed reads if ``failed_reads`` is not set; called once all shards are scored."""
    if run.conditions[0].running.failed_reads is not None:
        return
    for reads in all_reads:
        if any(reads.failures.values()):
            place = next(i for i, roles in enumerate(run.roles) if reads.job in roles.values())
            done = map(run.parts[place].scores, run.shards.shards)
            requested = (sum(scores.job_reads[reads.job.key][0].values()) for scores in done)
            _refuse_failures(reads, sum(requested))


class _Progress:
    """Counts of done and wanted reads; wanted reads of unplanned shards are an estimate."""

    def __init__(
        self,
        run: Run,
        shards: Sequence[int],
        all_reads: Sequence[JobReads],
        plans: Sequence[ReadPlan],
    ) -> None:
        known = run.shards.shards
        # Every listed passage, and every list: an upper bound, since equal reads count once.
        whole = len(run.shards.runs) if run.conditions[0].reader.end_to_end is True else 0
        self._expected = {
            (reads.job.identity, shard): known[shard].pairs + whole * known[shard].queries
            for reads in all_reads
            for shard in shards
        }
        self._done: Counter[tuple[tuple[object, ...], int]] = Counter()
        for reads, plan in zip(all_reads, plans, strict=False):
            self._done[reads.job.identity, 0] = plan.reused
            if plan.last:
                self._expected[reads.job.identity, 0] = plan.wanted
        self._total, self._sum = sum(self._expected.values()), self._done.total()

    @property
    def reached(self) -> tuple[int, int]:
        return self._sum, max(self._total, self._sum)

    def add(self, job: Job, unit: UnitResult) -> None:
        plan, key = unit.plan, (job.identity, unit.plan.shard)
        # Reads of earlier rounds are reused in the next round.
        done = max(self._done[key], plan.reused) + unit.done
        self._sum += done - self._done[key]
        self._done[key] = done
        if plan.last:
            self._total += plan.wanted - self._expected[key]
            self._expected[key] = plan.wanted


# Attempts to score a shard: its process may lack memory, or end with its node.
_CALLS = 4


class _Scorer:
    """Scores shards: in this process, or on Ray's workers if workers read shards from files."""

    def __init__(self, run: Run, *, on_ray: bool) -> None:
        self._run = run
        # Listings of the store, by reader; and files that came later, by unscored shard and reader.
        self._listed: dict[str, store.Listing] = {}
        self._came: defaultdict[int, defaultdict[str, set[str]]]
        self._came = defaultdict(lambda: defaultdict(set))
        self._on_workers: partial[ray.ObjectRef] | None = None
        # For each running call: the function to repeat it, and its number of attempts.
        self._under_way: dict[ray.ObjectRef, tuple[partial[ray.ObjectRef], int]] = {}
        if on_ray:
            import ray

            # A part of a CPU: scoring runs beside actors that take nearly all CPUs. Ray's own retries never end if
            # its memory monitor kills a process.
            remote = ray.remote(num_cpus=0.1, max_retries=0)(score_shard).remote
            self._on_workers = partial(remote, ray.put(run))

    def begin(self, job: Job, listing: store.Listing) -> None:
        self._listed[job.spec.fingerprint] = listing

    def add(self, job: Job, unit: UnitResult) -> None:
        self._came[unit.plan.shard][job.spec.fingerprint].add(unit.file)

    def score(self, shard: int, failures: Failures) -> None:
        """Score a shard here, or on a worker once a CPU is free; may raise the error of an earlier shard."""
        span, came = self._run.shards.shards[shard].span or (0, BUCKETS), self._came[shard]
        del self._came[shard]
        files = {
            reader: listing.within(span, came[reader] - {""})
            for reader, listing in self._listed.items()
        }
        if self._on_workers is None:
            score_shard(self._run, shard, failures, files)
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
            (ended,), _ = ray.wait(list(self._under_way))
            call, calls = self._under_way.pop(ended)
            try:
                ray.get(ended)
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


def score_shard(run: Run, shard: int, failures: Failures, files: Files) -> None:
    """Label and score a shard under all settings, from stored reads; errors as in ``planned_reads``."""
    run.refuse_others()
    read = {job.identity: planned_reads(run, job, shard, failures, files) for job in run.jobs}
    job_reads = {job.key: count_reads(read[job.identity]) for job in run.jobs}
    for condition, inputs in enumerate(run.read(shard)):
        settings, by_role = run.conditions[condition], {}
        for role, job in run.roles[condition].items():
            reads = read[job.identity]
            if len(run.conditions) > 1:
                reads = reads_of(reads, needed_reads(run, job, inputs, condition))
            by_role[role] = job.spec, reads
        scores = score(inputs, settings, lists_to_read(inputs, settings), by_role)
        scores = replace(scores, job_reads=job_reads)
        run.parts[condition].keep(run.shards.shards[shard], scores)
    _compact(run, shard, files)


def _compact(run: Run, shard: int, files: Files) -> None:
    span = run.shards.shards[shard].span
    if span is None:
        return
    for job in run.jobs:
        place, fingerprint = run.place(job), job.spec.fingerprint
        names = files[fingerprint].inside(span).names
        # Files that cannot be deleted stay unmerged.
        with contextlib.suppress(WriteError):
            store.compact(place, fingerprint, names, span)
