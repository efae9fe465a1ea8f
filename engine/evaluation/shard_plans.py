"""Plan the reads of a shard on workers, and fetch them from the store once they are done.

The plan of a shard for a job is kept until all shards are scored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from engine import tables
from engine.evaluation.parts import InMemory
from engine.evaluation.read_jobs import Job, Reading, refuse_written
from engine.evaluation.workload import Workload
from engine.messages.errors import ReadError
from engine.reading import store
from engine.reading.costs import ReadingCosts, set_wanted, wanted_kinds
from engine.reading.execute import output_columns
from engine.reading.executors import input_sizes, unit_tokens
from engine.reading.plan import INPUTS, SIZE, answered, longest_first, missing_reads
from engine.reading.protocol import ReadOutput
from engine.reading.store_files import Span
from engine.reading.stream import Failure, ShardPlan, UnitSizes
from engine.tables import FAILURE, OUTPUT, READ_KEY

# Columns of a plan that say how it was made: for which pass over the shards (``store.Listing.made``),
# for which pace, which reads are stored or done by another job, and which files of the store were damaged.
_PASS, _PACE, _STORED, _DAMAGED = "pass", "pace", "stored", "damaged"


@dataclass(frozen=True)
class Planner:
    """Plans the reads of one job (``stream.Planner``).

    Attributes:
        place: of the job, among those of ``work``.
        listing: what the store had when this pass over the shards began.
        left: shards of this pass, in their order.
        actors: for which units are cut, and whether these have GPUs.
    """

    work: Workload
    place: int
    listing: store.Listing
    left: tuple[int, ...]
    actors: int = 1
    gpu: bool = False

    def __call__(self, shard: int, pace: float | None = None) -> ShardPlan:
        job, known = self.work.jobs[self.place], self.work.shards.shards
        spec = job.spec
        inputs = self.work.shards.read(shard)
        wanted = self.work.wanted(job, inputs)
        earlier = [self.work.wanted(job, inputs)[[READ_KEY]] for job in self.work.before(job)]
        shard_plan = self._made(shard, wanted.drop(INPUTS), earlier, pace)
        pace = None if shard_plan.is_empty() else shard_plan[_PACE][0]
        damaged = () if shard_plan.is_empty() else tuple(shard_plan[_DAMAGED][0])
        missing = missing_reads(wanted, shard_plan.filter(_STORED))
        reused = wanted[READ_KEY].n_unique() - missing.height
        sizes = input_sizes(spec, missing[INPUTS].to_list())
        plan = longest_first(missing, sizes, lead=len(spec.shared_prefix))
        # As if all shards were like this one: units are as large as all that is left lets them be.
        pairs = sum(known[one].pairs for one in self.left)
        total = int(plan[SIZE].sum()) * max(1, pairs // max(1, known[shard].pairs))
        alone = spec.function is not None and self.actors == 1
        units = unit_sizes(total, actors=self.actors, gpu=self.gpu, alone=alone)
        sharing = self.actors if shard == self.left[-1] else 1
        return ShardPlan(plan, reused, units, known[shard].span, pace, sharing, damaged)

    def _made(
        self,
        shard: int,
        identified: pl.DataFrame,
        earlier: Sequence[pl.DataFrame],
        pace: float | None,
    ) -> pl.DataFrame:
        """The plan that this pass over the shards has made, else a new one."""
        parts, name = self.work.parts[0], plan_name(self.work, self.work.jobs[self.place])
        before = parts.plan(name, shard)
        if before is not None and before[_PASS].first() == self.listing.made:
            return before
        span = self.work.shards.shards[shard].span
        found = self._found(identified, span)
        stored = pl.concat([found.reads[[READ_KEY]], *earlier])
        plan = identified.with_columns(
            pl.col(READ_KEY).is_in(stored[READ_KEY].implode()).alias(_STORED),
            pl.lit(pace, pl.Float64).alias(_PACE),
            pl.lit(self.listing.made).alias(_PASS),
            pl.lit(list(found.damaged), pl.List(pl.String)).alias(_DAMAGED),
        )
        parts.keep_plan(name, shard, plan)
        return plan

    def _found(self, identified: pl.DataFrame, span: Span | None) -> store.Stored:
        """The stored reads among these; held where everything is, so that they are fetched once."""
        parts, spec = self.work.parts[0], self.work.jobs[self.place].spec
        if not isinstance(parts, InMemory):
            return store.find(self.listing, identified[READ_KEY].unique(), span=span)
        known = store.load(self.work.store, spec.fingerprint)
        reads = known.reads.join(identified, on=READ_KEY, how="semi")
        parts.outputs[spec.fingerprint].append(reads)
        return known._replace(reads=reads)


def plan_name(work: Workload, job: Job) -> str:
    """The name that the plans of a job have."""
    place = work.jobs.index(job)
    return f"{job.ask.role.name}-{place}" if len(work.conditions) > 1 else job.ask.role.name


def unit_sizes(total: int, *, actors: int, gpu: bool, alone: bool = False) -> UnitSizes:
    """How large units are of an evaluation of so many tokens, for so many actors."""
    first = unit_tokens(total, actors=actors, gpu=gpu, alone=alone)
    if alone:
        return UnitSizes(first, first, first)
    return UnitSizes(max(1, first // 4), first, max(first, total // (8 * actors)))


def planner_for(
    work: Workload, job: Job, shards: Sequence[int], *, actors: int = 1, gpu: bool = False
) -> Planner:
    """The planner of a job's reads in these shards, which knows what the store has of its reader now."""
    listing = store.listing(work.place(job) or work.store, job.spec.fingerprint)
    return Planner(work, work.jobs.index(job), listing, tuple(shards), actors, gpu)


def planned_reading(
    work: Workload, job: Job, shard: int, failures: Mapping[str, Failure]
) -> Reading:
    """The reads of a job, as they were planned, from the store.

    Args:
        failures: reads that failed, by their keys.

    Raises:
        ReadError: reads are lost, or a reader wrote where it had to choose.
    """
    plan = work.parts[0].needed_plan(plan_name(work, job), shard)
    wanted = plan.drop(_STORED, _PACE, _PASS, _DAMAGED)
    spec = job.spec
    failed = pl.DataFrame({READ_KEY: list(failures)}, {READ_KEY: pl.String}).hstack(
        output_columns([ReadOutput.failed(failure.reason) for failure in failures.values()])
    )
    outputs = _outputs(work, job, shard, wanted).with_columns(
        pl.lit(None, pl.String).alias(FAILURE)
    )
    reads = answered(wanted, pl.concat([outputs, failed], how="diagonal"))
    if lost := reads.filter(pl.col(OUTPUT).is_null()).height:
        raise ReadError(f"{lost} reads were lost on the way; run again")
    reads = reads.select([*tables.READS, FAILURE])
    refuse_written(reads, spec)
    lost = reads.filter(pl.col(FAILURE).is_not_null())[READ_KEY].n_unique()
    total = wanted[READ_KEY].n_unique()
    costs = ReadingCosts(wanted=total, reused=total - lost, failed=lost)
    set_wanted(costs, wanted_kinds(wanted))
    return Reading(job.ask, spec, job.prompt, wanted, reads, costs)


def _outputs(work: Workload, job: Job, shard: int, wanted: pl.DataFrame) -> pl.DataFrame:
    """The reads that a job has of a shard: those that are held, or those in the store."""
    parts, fingerprint = work.parts[0], job.spec.fingerprint
    if isinstance(parts, InMemory):
        return pl.concat([tables.empty(tables.READS), *parts.outputs[fingerprint]])
    listing = store.listing(work.place(job) or work.store, fingerprint)
    span = work.shards.shards[shard].span
    return store.find(listing, wanted[READ_KEY].unique(), span=span).reads
