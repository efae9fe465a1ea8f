"""A probe of reads: some of those that are left, chosen to stand for all of them, done and timed.

What reads share they share within the groups of a plan (``plan.longest_first``): the reads of a query, or
those that begin with the same passage. So whole groups are chosen, and what they share is computed once, as
in the evaluation.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import polars as pl

from engine import tables
from engine.machine import device
from engine.machine.pool import Pool, PoolSettings, require_gpus_used
from engine.machine.watch import OnEvent, silent
from engine.reading import executors
from engine.reading.executors import Backend, Executor
from engine.reading.plan import GROUP, SIZE, Unit
from engine.reading.protocol import ReaderSpec
from engine.reading.stream import Host, Ready, ShardPlan, UnitDone, UnitSizes

# Whether a read is of a whole list.
WHOLE = "whole"
# Reads of a probe where nobody says how many, and for each actor at least; a GPU does the larger numbers in
# the time in which a CPU does the smaller ones.
READS, READS_OF_ACTOR = 64, 32
_ON_GPU = 8
# Actors that a probe starts at most, however many there is room for.
MOST_ACTORS = 8
# Batches of a stratum: of one group each, which show what any batch costs, and of many groups; the latter
# have three times as many at least, where there are enough.
_SMALL, _LARGE, _MANY = 3, 3, 3
# Of a stratum so many groups are read at least, if it has them: one to warm up, and some to be timed; of a
# probe that is to be small, fewer.
_LEAST, _LEAST_OF_ALL = 6, 2


class Stratum(NamedTuple):
    """Reads of like cost: of a job, by its place, in groups with whole lists or of single reads alone."""

    job: int
    whole: bool


class Batch(NamedTuple):
    """Reads of a stratum that are done together: rows of its plan. Some only warm a reader up."""

    stratum: Stratum
    reads: pl.DataFrame
    warming: bool


class Timed(NamedTuple):
    """A batch that was done.

    Attributes:
        done: its reads, and what they took.
        at: when it was done, in seconds from the beginning.
        first: whether it was the first of its worker for that reader, so that its time does not count.
    """

    batch: Batch
    done: UnitDone
    at: float
    first: bool

    @property
    def outputs(self) -> pl.DataFrame:
        """The reads that did not fail."""
        return tables.empty(tables.READS) if self.done.outputs is None else self.done.outputs

    @property
    def peak(self) -> int:
        """The highest memory of its worker so far, in bytes."""
        return self.done.stats["peak_memory"]


class ProbeBackend(NamedTuple):
    """By what a probe is read.

    Attributes:
        backend: does the reads.
        actors: that do them.
        room: for so many actors there is room now; 1 in this process.
        share: what an actor takes, in words.
    """

    backend: Backend
    actors: int
    room: int
    share: str


def strata(plan: pl.DataFrame, job: int) -> Iterator[tuple[Stratum, pl.DataFrame]]:
    """A plan with the column ``whole``, divided: groups with whole lists, and groups without."""
    with_lists = plan.with_columns(pl.col(WHOLE).any().over(GROUP).alias("_with_lists"))
    for whole in (True, False):
        part = with_lists.filter(pl.col("_with_lists") == whole).drop("_with_lists")
        if not part.is_empty():
            yield Stratum(job, whole), part


def default_reads(backend: ProbeBackend) -> int:
    """How many reads a probe has where nobody says."""
    reads = max(READS, READS_OF_ACTOR * backend.actors)
    return reads * _ON_GPU if backend.backend.gpu else reads


def choose(
    plans: Sequence[pl.DataFrame], reads: int, *, actors: int = 1, seed: int = 0
) -> list[Batch]:
    """The batches of a probe, in the order in which they are done.

    Each stratum has reads as its size is of the whole. Its groups, the largest first, are taken at even
    distances (systematic sampling), so that each size has its share. The largest group of all warms the
    reader up, and shows the memory that it takes.

    Args:
        plans: of jobs whose readers share a model, as ``plan.longest_first`` gives them, with ``whole``.
        reads: about how many; groups are taken whole, and a few of each stratum at least.
        actors: that share the batches; each has one more to warm up.
        seed: of the places of the groups.
    """
    rng = np.random.default_rng(seed)
    parts = [part for job, plan in enumerate(plans) for part in strata(plan, job)]
    total = sum(int(part[SIZE].sum()) for _, part in parts)
    warming: list[Batch] = []
    timed: list[list[Batch]] = []
    for stratum, part in parts:
        names = part[GROUP].unique(maintain_order=True)
        share = reads * int(part[SIZE].sum()) / max(1, total)
        least = min(_LEAST, max(_LEAST_OF_ALL, reads // 8))
        wanted = max(least, math.ceil(share * len(names) / part.height))
        warm = min(actors, max(1, wanted // 4)) if len(names) > 1 else 0
        left = len(names) - warm
        count = min(left, max(1, wanted - warm))
        places = warm + ((np.arange(count) + rng.random()) * left / count).astype(int)
        chosen = part.filter(pl.col(GROUP).is_in(names.gather([*range(warm), *places]).implode()))
        groups = chosen.partition_by(GROUP, maintain_order=True)
        warming += [Batch(stratum, group, True) for group in groups[:warm]]
        timed.append(_batches(stratum, groups[warm:], actors))
    in_turn = itertools.chain.from_iterable(itertools.zip_longest(*timed))
    return [*warming, *(batch for batch in in_turn if batch is not None)]


def _batches(stratum: Stratum, groups: Sequence[pl.DataFrame], actors: int) -> list[Batch]:
    """Groups in batches of many, each with groups of all sizes, and of one, in turn."""
    small = min(_SMALL, max(len(groups) // 4, min(2, len(groups) // 2)))
    alone = {int((i + 0.5) * len(groups) / small) for i in range(small)}
    others = [group for place, group in enumerate(groups) if place not in alone]
    large = max(1, min(max(_LARGE, 2 * actors), len(others) // _MANY))
    many = [pl.concat(others[place::large]) for place in range(large) if others]
    one = [groups[place] for place in sorted(alone)]
    mixed = itertools.chain.from_iterable(itertools.zip_longest(many, one))
    return [Batch(stratum, reads, False) for reads in mixed if reads is not None]


def read_batches(
    batches: Sequence[Batch],
    specs: Sequence[ReaderSpec],
    backend: Backend,
    begun: float,
    on_event: OnEvent = silent,
) -> Iterator[Timed]:
    """Do a probe; results come as batches end, in any order.

    Args:
        specs: of the readers, by the job of a stratum.
        backend: does the reads.
        begun: when the beginning was, by ``time.perf_counter``.
        on_event: as in ``stream_on_ray.read_on_ray``.
    """
    by_job = [[one for one in batches if one.stratum.job == job] for job in range(len(specs))]
    nothing = batches[0].reads.clear()
    planners = [Ready(_plan_of(own, nothing)) for own in by_job]
    host = Host(specs, [None] * len(specs), held=True)
    seen: set[tuple[str, int]] = set()
    for done in backend.read([0], planners, host, on_event=on_event):
        if done.reads:
            known = done.worker, done.role
            batch = by_job[done.role][done.number]
            yield Timed(batch, done, time.perf_counter() - begun, known not in seen)
            seen.add(known)


def _plan_of(batches: Sequence[Batch], nothing: pl.DataFrame) -> ShardPlan:
    """The batches of a job, each of which is a unit; ``nothing`` is a plan without reads."""
    offsets = itertools.accumulate((one.reads.height for one in batches), initial=0)
    units = [
        Unit(number, offset, one.reads.height)
        for number, (one, offset) in enumerate(zip(batches, offsets, strict=False))
    ]
    whole = pl.concat([nothing, *(one.reads for one in batches)])
    return ShardPlan(whole, 0, UnitSizes(1, 1, 1), None, cut=tuple(units))


def start_seconds(timed: Sequence[Timed]) -> float:
    """Seconds until an actor reads, and in which it loads further readers; the mean of all actors."""
    gaps: dict[str, float] = {}
    ended: dict[str, float] = {}
    for one in timed:
        worker = one.done.worker
        if one.first:
            gap = max(0.0, one.at - one.done.seconds - ended.get(worker, 0.0))
            gaps[worker] = gaps.get(worker, 0.0) + gap
        ended[worker] = one.at
    return sum(gaps.values()) / len(gaps) if gaps else 0.0


def peak_memory(timed: Sequence[Timed], size: float) -> int:
    """Bytes of an actor that reads batches of a size, from those that were measured; 0 without any.

    Above the largest batch of the probe it is taken to rise as it did up to there.
    """
    if not timed:
        return 0
    by_size = sorted((int(one.batch.reads[SIZE].sum()), one.peak) for one in timed)
    first = min(timed, key=lambda one: one.at)
    at, low = int(first.batch.reads[SIZE].sum()), first.peak
    largest, high = by_size[-1][0], max(peak for _, peak in by_size)
    rise = max(0, high - low) / (largest - at) if largest > at else 0.0
    return int(high + rise * max(0.0, size - largest))


def backend_for(
    settings: PoolSettings, specs: Sequence[ReaderSpec], executor: Executor | None = None
) -> ProbeBackend:
    """By what the evaluation reads: this process, or actors on Ray, as many as it would have up to a few.

    Args:
        settings: of the evaluation. Of actors that there is no room for now, fewer are started.
        specs: of the readers, which share a model.
        executor: a program of the user's that reads in their place.

    Raises:
        InputError: as ``pool.decide``.
    """
    if executor is not None:
        return ProbeBackend(
            executors.backend_for(settings, specs, executor), 1, 1, "a program of your own"
        )
    if specs[0].api:
        from engine.reading.remote.run import Requests

        # A batch is timed as a whole.
        backend = Backend(Requests(piece=0))
        return ProbeBackend(backend, 1, 1, f"requests to {specs[0].api.settings.host}")
    for spec in specs:
        require_gpus_used(settings, spec.name, spec.gpus)
    if executors.reads_here(settings, specs):
        backend = Backend(gpu=device.machine_has_gpu())
        return ProbeBackend(backend, 1, 1, "this machine, as one process")
    room = executors.pool_for(replace(settings, actors=None), specs).start
    wanted = settings.bounds()[1] or room
    # The share of an actor is what it is where all of them read.
    needs = executors.pool_for(replace(settings, actors=min(wanted, room)), specs).needs
    count = min(wanted, room, MOST_ACTORS)
    backend = Backend(pool=Pool(count, count, count, needs), gpu=needs.gpus > 0)
    return ProbeBackend(backend, count, room, str(needs))
