"""An evaluation too large for one process: shard by shard, planned, read and judged on workers.

The figures are those of ``evaluate.evaluate``. The driver holds counts, and in the end the scores by
query; prompts, outputs and labels pass through workers' memory, some shards at a time, and through
files. A shard that is done stays done: an evaluation that was stopped goes on where it was.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import polars as pl

from engine import tables
from engine.evaluation.assess import Evaluation, conclude
from engine.evaluation.judge import merge
from engine.evaluation.read import Job, Reading, reads_failed, specify_jobs, tell_engines
from engine.evaluation.settings import Settings
from engine.evaluation.sharded.early import refuse_early
from engine.evaluation.sharded.partition import Partition, query_shards, shards_sha256
from engine.evaluation.sharded.plans import clear_plans, planner_for
from engine.evaluation.sharded.results import Finished, finished, judge_shard, unfinished
from engine.evaluation.sharded.work import Work, asked, evaluation_digest
from engine.machine import device
from engine.machine.pool import Pool
from engine.machine.watch import OnEvent, PoolTotals, silent
from engine.reading import store
from engine.reading.costs import ReadingCosts, add_counters, add_kinds, set_wanted, share_costs
from engine.reading.execute import reads_here
from engine.reading.plan import WANTED
from engine.reading.reads import Progress, by_model
from engine.reading.stream import TOLD, Failure, Host, UnitDone, read_here
from engine.sources.io.folders import Folder
from engine.statistics.cells import clusters_of
from engine.tables import FAILURE


def evaluate_shards(
    partition: Partition,
    settings: Settings,
    *,
    place: Folder,
    folder: Folder,
    on_progress: Progress = lambda done, total: None,
    on_event: OnEvent = silent,
    host: type[Host] = Host,
) -> Evaluation:
    """Evaluate what was partitioned.

    Args:
        partition: cut at the ``k`` of the settings.
        settings: what to do, with the engine's own annotators.
        place: the read store.
        folder: for the tables of passages, which the evaluation that is returned lacks: they are in a
            folder of this evaluation's own inside, of the name ``Evaluation.shards``.
        on_progress: called with the distinct reads done and wanted. Until all shards are planned, the
            latter is an estimate from above.
        on_event: as in ``evaluate.evaluate``.
        host: what hosts the readers.

    Raises:
        InputError: as ``evaluate.evaluate``; of labels made from texts or by reading, when the shard that it
            is about is judged.
        ReadError: reads failed and ``failed_reads`` is ``error``.
    """
    start = time.perf_counter()
    jobs = specify_jobs(asked(settings), settings)
    name = evaluation_digest(partition, settings, jobs)[:16]
    work = Work(partition, settings, tuple(jobs), folder / name, place)
    left = unfinished(work)
    passes = [_Pass(job) for job in jobs]
    if left:
        refuse_early(partition, settings)
        tell_engines(jobs, on_event)
        _do(work, left, passes, on_progress, on_event, host)
    clear_plans(work)
    done = [finished(work, shard.number) for shard in partition.shards]
    readings = {one.job.ask.role.name: _reading(one, done) for one in passes}
    judged = merge(
        [one.judged for one in done], settings, runs=partition.runs, passages=partition.listed
    )
    done.clear()  # the scores are held once while statistics are made of them
    evaluation = conclude(
        replace(judged, notes=(*partition.notes, *judged.notes)),
        readings,
        settings,
        settings.judged(len(partition.runs)),
        runs=partition.runs,
        clusters=clusters_of(query_shards(partition)),
    )
    return replace(
        evaluation,
        shards=name,
        sha256={"shards": shards_sha256(partition)},
        seconds=time.perf_counter() - start,
    )


def check_readers(settings: Settings, on_event: OnEvent = silent) -> None:
    """Refuse readers that cannot be used and pools that cannot be, for which no inputs are needed.

    Where the reads are done on Ray, it must have been started.

    Raises:
        InputError, ReadError: as ``evaluate_shards``, which looks at them too.
    """
    jobs = specify_jobs(asked(settings), settings, on_event=on_event)
    if not reads_here(settings.running.pool(), [job.spec for job in jobs]):
        _decide_pool(settings, jobs)


@dataclass
class _Pass:
    """The reads of one role while they are done.

    Attributes:
        costs: of the reads done now.
        failures: by shard, the reads that failed.
        left: by shard, the units that are not done yet, of shards that were begun.
        stats: of each actor, its last counts.
    """

    job: Job
    costs: ReadingCosts = field(default_factory=ReadingCosts)
    failures: dict[int, dict[str, Failure]] = field(default_factory=lambda: defaultdict(dict))
    left: Counter[int] = field(default_factory=Counter)
    stats: dict[str, dict[str, int]] = field(default_factory=dict)

    def add(self, unit: UnitDone) -> None:
        """Count a unit."""
        costs = self.costs
        if unit.shard not in self.left:
            self.left[unit.shard] = max(1, unit.units)
            costs.reused += unit.reused
        self.left[unit.shard] -= 1
        self.failures[unit.shard].update(unit.failures)
        costs.done += unit.reads
        costs.damaged_files = list(dict.fromkeys([*costs.damaged_files, *unit.damaged]))
        costs.prompt_tokens += unit.prompt_tokens
        costs.output_tokens += unit.output_tokens
        costs.decided += unit.decided
        costs.reader_seconds += unit.seconds
        add_kinds(costs.kinds, unit.kinds)
        if unit.worker:
            self.stats[unit.worker] = unit.stats

    def is_read(self, shard: int) -> bool:
        """Whether all units of a shard are done."""
        return self.left.get(shard) == 0


def _do(
    work: Work,
    shards: Sequence[int],
    passes: Sequence[_Pass],
    on_progress: Progress,
    on_event: OnEvent,
    host: type[Host],
) -> None:
    """Read and judge shards: all roles of a model together, model after model; judged with the last one."""
    executor: _Here | _OnRay
    if reads_here(work.settings.running.pool(), [job.spec for job in work.jobs]):
        executor = _Here(work, host)
    else:
        executor = _OnRay(work, host, on_event)
    progress = _Progress(work, shards, len(passes), on_progress)
    refused = work.settings.running.failed_reads == "error"
    groups = by_model(passes, lambda one: one.job.spec)
    for group in groups:
        start, totals = time.perf_counter(), PoolTotals()
        for one in group:
            one.costs.damaged_files += store.tidy(work.store, one.job.spec.fingerprint)
        for unit in executor.read(shards, group, totals):
            one = group[unit.role]
            one.add(unit)
            if group is groups[-1] and all(of_role.is_read(unit.shard) for of_role in group):
                failures = _failures(passes, unit.shard)
                if not (failures and refused):
                    executor.judge(unit.shard, failures)
            progress.add(one, unit)
        share_costs([one.costs for one in group], time.perf_counter() - start, totals)
    for one in passes:
        _refuse_failures(one, work)
    if not passes:
        for shard in shards:
            executor.judge(shard, {})
    executor.finish()


def _failures(passes: Sequence[_Pass], shard: int) -> dict[str, Failure]:
    """The failed reads of a shard, of all roles; keys of different readers differ."""
    return {key: failure for one in passes for key, failure in one.failures[shard].items()}


def _refuse_failures(one: _Pass, work: Work) -> None:
    """Refuse failed reads where they are an error: after all others were done and stored."""
    failures = [failure for of_shard in one.failures.values() for failure in of_shard.values()]
    if failures and work.settings.running.failed_reads == "error":
        total = one.costs.done + one.costs.reused
        raise reads_failed(len(failures), total, *failures[0])


def _reading(one: _Pass, done: Sequence[Finished]) -> Reading:
    """What a role read and what that cost, without the reads themselves."""
    role, costs = one.job.ask.role.name, one.costs
    of_role = [shard.reads[role] for shard in done]
    wanted = sum((Counter(wanted) for wanted, _ in of_role), Counter[str]())
    costs.wanted = wanted.total()
    costs.failed = sum(failed for _, failed in of_role)
    costs.reused = costs.wanted - costs.done
    set_wanted(costs, wanted)
    add_counters(costs, one.stats)
    nothing = tables.empty(WANTED)
    reads = tables.empty({**tables.READS, FAILURE: pl.String()})
    return Reading(one.job.ask, one.job.spec, one.job.prompt, nothing, reads, costs)


class _Progress:
    """Reads done, and wanted as far as it is known: of shards that are not planned yet, an estimate."""

    def __init__(self, work: Work, shards: Sequence[int], jobs: int, report: Progress) -> None:
        known = work.partition.shards
        # Every listed passage, and every list; at most, since equal reads are one.
        whole = len(work.partition.runs) if work.settings.reader.end_to_end else 0
        self._expected = {
            shard: known[shard].pairs + whole * known[shard].queries for shard in shards
        }
        self._total = jobs * sum(self._expected.values())
        self._begun: set[tuple[str, int]] = set()
        self._done = 0
        self._report = report

    def add(self, one: _Pass, unit: UnitDone) -> None:
        begun = one.job.ask.role.name, unit.shard
        if begun not in self._begun:
            self._begun.add(begun)
            self._total += unit.wanted - self._expected[unit.shard]
            self._done += unit.reused
        self._done += unit.reads
        self._report(self._done, max(self._total, self._done))


class _Here:
    """Does everything in this process."""

    def __init__(self, work: Work, host: type[Host]) -> None:
        self._host, self._work = host, work

    def read(
        self, shards: Sequence[int], group: Sequence[_Pass], totals: PoolTotals
    ) -> Iterator[UnitDone]:
        planners = [planner_for(self._work, one.job, shards) for one in group]
        host = self._host([one.job.spec for one in group], self._work.store)
        return read_here(shards, planners, host)

    def judge(self, shard: int, failures: Mapping[str, Failure]) -> None:
        judge_shard(self._work, shard, failures)

    def finish(self) -> None:
        """Nothing is under way."""


class _OnRay:
    """Plans, reads and judges on Ray's workers."""

    def __init__(self, work: Work, host: type[Host], on_event: OnEvent) -> None:
        from engine.machine import cluster
        from engine.machine.tasks import Tasks

        cluster.start_ray()
        self._host, self._on_event = host, on_event
        self._pool = _decide_pool(work.settings, work.jobs)
        self._work = replace(work, actors=self._pool.foreseen, gpu=self._pool.needs.gpus > 0)
        self._judging = Tasks(_judge, self._work, "judging")

    def read(
        self, shards: Sequence[int], group: Sequence[_Pass], totals: PoolTotals
    ) -> Iterator[UnitDone]:
        from engine.reading.stream_on_ray import read_on_ray

        return read_on_ray(
            shards,
            [planner_for(self._work, one.job, shards) for one in group],
            self._host([one.job.spec for one in group], self._work.store),
            pool=self._pool,
            on_event=self._on_event,
            totals=totals,
        )

    def judge(self, shard: int, failures: Mapping[str, Failure]) -> None:
        self._judging.submit(shard, failures)

    def finish(self) -> None:
        self._judging.finish()


def _decide_pool(settings: Settings, jobs: Sequence[Job]) -> Pool:
    """The actors that read, by the largest of their readers."""
    from engine.machine import pool

    weights = max((job.spec.weight_bytes for job in jobs), default=0)
    loading = device.default_actor_memory(weights)
    return pool.decide(settings.running.pool(), loading, budget=settings.running.memory)


def _judge(work: Work, shard: int, failures: Mapping[str, Failure]) -> Exception | None:
    try:
        judge_shard(work, shard, failures)
    except TOLD as error:
        return error
    return None
