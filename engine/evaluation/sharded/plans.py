"""The reads of a shard: planned on workers, and taken from the store once they are done.

The plan of a shard for a role is a file, until all shards are judged.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import polars as pl

from engine import tables
from engine.errors import ReadError
from engine.evaluation.inputs import EvaluationInputs
from engine.evaluation.prepare import lists_to_read, pairs_to_label
from engine.evaluation.read import (
    NO_LISTS,
    Job,
    Reading,
    refuse_written,
    requests_for,
    wanted_of,
)
from engine.evaluation.settings import Settings
from engine.evaluation.sharded.partition import read_shard
from engine.evaluation.sharded.work import Work, found_table, read_table, write_table
from engine.reading import store
from engine.reading.costs import ReadingCosts, set_wanted, wanted_kinds
from engine.reading.decided import answered, kept_keys
from engine.reading.plan import INPUTS, REFERENCES, SIZE, longest_first, missing_reads
from engine.reading.protocol import ReadOutput
from engine.reading.reads import input_sizes, output_columns, unit_tokens
from engine.reading.stream import Failure, ShardPlan, UnitSizes
from engine.tables import FAILURE, OUTPUT, READ_KEY

_PLANS = "plans"
# Columns of a plan's file that say how it was made: for which pass over the shards (``store.Listing.made``),
# for which pace, which reads were stored, and which files of the store were damaged.
_PASS, _PACE, _STORED, _DAMAGED = "pass", "pace", "stored", "damaged"


@dataclass(frozen=True)
class Planner:
    """Plans the reads of one role (``stream.Planner``); the file of a plan has what it was made by."""

    work: Work
    job: Job
    listing: store.Listing
    left: tuple[int, ...]  # shards of this pass, in their order

    def __call__(self, shard: int, pace: float | None = None) -> ShardPlan:
        work, spec = self.work, self.job.spec
        inputs = read_shard(work.partition, shard)
        known = work.partition.shards[shard]
        lists = _lists_of(inputs, work.settings, self.job)
        wanted = wanted_of(self.job, lists, inputs.queries, inputs.corpus)
        made = self._made(shard, wanted.drop(INPUTS, REFERENCES), pace)
        pace = None if made.is_empty() else made[_PACE][0]
        damaged = () if made.is_empty() else tuple(made[_DAMAGED][0])
        missing = missing_reads(wanted, made.filter(_STORED))
        reused = wanted[READ_KEY].n_unique() - missing.height
        sizes = input_sizes(spec, missing[INPUTS].to_list())
        plan = longest_first(missing, sizes, lead=len(spec.shared_prefix))
        # As if all shards were like this one: units are as large as all that is left lets them be.
        pairs = sum(work.partition.shards[one].pairs for one in self.left)
        total = int(plan[SIZE].sum()) * max(1, pairs // max(1, known.pairs))
        units = unit_sizes(total, actors=work.actors, gpu=work.gpu)
        sharing = work.actors if shard == self.left[-1] else 1
        return ShardPlan(plan, reused, units, known.span, pace, sharing, damaged)

    def _made(self, shard: int, identified: pl.DataFrame, pace: float | None) -> pl.DataFrame:
        """The plan's file: the one that this pass over the shards has written, else a new one."""
        folder = self.work.folder / _PLANS / self.job.ask.role.name
        with contextlib.suppress(FileNotFoundError):
            before = found_table(folder, shard)
            if _PASS in before.columns and before[_PASS].first() == self.listing.made:
                return before
        span = self.work.partition.shards[shard].span
        found = store.find(self.listing, kept_keys(identified), span=span)
        missing = missing_reads(identified, found.reads)
        made = identified.with_columns(
            (~pl.col(READ_KEY).is_in(missing[READ_KEY].implode())).alias(_STORED),
            pl.lit(pace, pl.Float64).alias(_PACE),
            pl.lit(self.listing.made).alias(_PASS),
            pl.lit(list(found.damaged), pl.List(pl.String)).alias(_DAMAGED),
        )
        write_table(made, folder, shard)
        return made


def unit_sizes(total: int, *, actors: int, gpu: bool) -> UnitSizes:
    """How large units are of an evaluation of so many tokens, for so many actors."""
    first = unit_tokens(total, actors=actors, gpu=gpu)
    return UnitSizes(max(1, first // 4), first, max(first, total // (8 * actors)))


def planner_for(work: Work, job: Job, shards: Sequence[int]) -> Planner:
    """The planner of a role's reads in these shards, which knows what the store has of its reader now."""
    return Planner(work, job, store.listing(work.store, job.spec.fingerprint), tuple(shards))


def planned_reading(work: Work, job: Job, shard: int, failures: Mapping[str, Failure]) -> Reading:
    """The reads of a role, as they were planned, from the store.

    Args:
        failures: reads that failed, by their keys.

    Raises:
        ReadError: reads are lost, or a reader wrote where it had to choose.
    """
    spec = job.spec
    asked = read_table(work.folder / _PLANS / job.ask.role.name, shard).drop(
        _STORED, _PACE, _PASS, _DAMAGED
    )
    listing = store.listing(work.store, spec.fingerprint)
    found = store.find(listing, kept_keys(asked), span=work.partition.shards[shard].span)
    failed = pl.DataFrame({READ_KEY: list(failures)}, {READ_KEY: pl.String}).hstack(
        output_columns([ReadOutput.failed(one.reason) for one in failures.values()])
    )
    outputs = found.reads.with_columns(pl.lit(None, pl.String).alias(FAILURE))
    reads = answered(asked, pl.concat([outputs, failed], how="diagonal"))
    if lost := reads.filter(pl.col(OUTPUT).is_null()).height:
        raise ReadError(f"{lost} reads were lost on the way; run again")
    reads = reads.select([*tables.READS, FAILURE])
    refuse_written(reads, spec)
    lost = reads.filter(pl.col(FAILURE).is_not_null())[READ_KEY].n_unique()
    costs = ReadingCosts(wanted=asked[READ_KEY].n_unique(), failed=lost)
    set_wanted(costs, wanted_kinds(asked))
    return Reading(job.ask, spec, job.prompt, asked, reads, costs)


def clear_plans(work: Work) -> None:
    """Remove what is only needed until all shards are judged."""
    for job in work.jobs:
        plans = work.folder / _PLANS / job.ask.role.name
        plans.delete(plans.names())


def _lists_of(inputs: EvaluationInputs, settings: Settings, job: Job) -> pl.DataFrame:
    """What a role is asked to read of a shard, as ``Request.lists`` has it."""
    pairs, lists = pairs_to_label(inputs), lists_to_read(inputs, settings)
    asked = {
        request.ask.role.name: request.lists for request in requests_for(pairs, lists, settings)
    }
    return asked.get(job.ask.role.name, NO_LISTS)
