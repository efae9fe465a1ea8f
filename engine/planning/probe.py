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

from engine.machine import device
from engine.machine.pool import PoolSettings, require_gpus_used
from engine.machine.watch import OnEvent, silent
from engine.reading.execute import Run, UnitResult, read_in_process, reads_here, reads_table
from engine.reading.plan import GROUP, SIZE, Unit
from engine.reading.protocol import ReaderSpec

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
        reads: the reads table with ``failure``.
        seconds: of its reader.
        worker: who did it.
        peak: the highest memory of that worker so far, in bytes.
        at: when it was done, in seconds from the beginning.
        first: whether it was the first of its worker for that reader, so that its time does not count.
    """

    batch: Batch
    reads: pl.DataFrame
    seconds: float
    worker: str
    peak: int
    at: float
    first: bool


class Means(NamedTuple):
    """By what a probe is read.

    Attributes:
        run: does the reads.
        actors: that do them.
        room: for so many actors there is room now; 1 in this process.
        gpu: whether they have GPUs.
        share: what an actor takes, in words.
    """

    run: Run
    actors: int
    room: int
    gpu: bool
    share: str


def strata(plan: pl.DataFrame, job: int) -> Iterator[tuple[Stratum, pl.DataFrame]]:
    """A plan with the column ``whole``, divided: groups with whole lists, and groups without."""
    with_lists = plan.with_columns(pl.col(WHOLE).any().over(GROUP).alias("_with_lists"))
    for whole in (True, False):
        part = with_lists.filter(pl.col("_with_lists") == whole).drop("_with_lists")
        if not part.is_empty():
            yield Stratum(job, whole), part


def default_reads(means: Means) -> int:
    """How many reads a probe has where nobody says."""
    reads = max(READS, READS_OF_ACTOR * means.actors)
    return reads * _ON_GPU if means.gpu else reads


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
    batches: Sequence[Batch], specs: Sequence[ReaderSpec], run: Run, begun: float
) -> Iterator[Timed]:
    """Do a probe; results come as batches end, in any order.

    Args:
        specs: of the readers, by the job of a stratum.
        begun: when the beginning was, by ``time.perf_counter``.
    """
    plan = pl.concat([batch.reads for batch in batches])
    offsets = itertools.accumulate((batch.reads.height for batch in batches), initial=0)
    units = [
        Unit(number, offset, batch.reads.height, batch.stratum.job)
        for number, (batch, offset) in enumerate(zip(batches, offsets, strict=False))
    ]
    seen: set[tuple[str, int]] = set()
    for result in run(plan, units, specs):
        batch, known = batches[result.unit.number], (result.worker, result.unit.reader)
        yield _timed(batch, result, time.perf_counter() - begun, first=known not in seen)
        seen.add(known)


def _timed(batch: Batch, result: UnitResult, at: float, *, first: bool) -> Timed:
    reads = reads_table(batch.reads, result.outputs)
    peak = result.stats["peak_memory"]
    return Timed(batch, reads, result.seconds, result.worker, peak, at, first)


def start_seconds(timed: Sequence[Timed]) -> float:
    """Seconds until an actor reads, and in which it loads further readers; the mean of all actors."""
    gaps: dict[str, float] = {}
    ended: dict[str, float] = {}
    for one in timed:
        if one.first:
            gap = max(0.0, one.at - one.seconds - ended.get(one.worker, 0.0))
            gaps[one.worker] = gaps.get(one.worker, 0.0) + gap
        ended[one.worker] = one.at
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


def means_for(
    settings: PoolSettings, specs: Sequence[ReaderSpec], on_event: OnEvent = silent
) -> Means:
    """By what the evaluation reads: this process, or actors on Ray, as many as it would have up to a few.

    Args:
        settings: of the evaluation. Of actors that there is no room for now, fewer are started.
        specs: of the readers, which share a model.
        on_event: as in ``stream_on_ray.read_on_ray``.

    Raises:
        InputError: as ``pool.decide``.
    """
    if specs[0].api:
        from engine.reading.api.run import Requests

        # A batch is timed as a whole.
        return Means(Requests(piece=0), 1, 1, False, f"requests to {specs[0].api.settings.host}")
    for spec in specs:
        require_gpus_used(settings, spec.name, spec.gpus)
    if reads_here(settings, specs):
        gpu = device.machine_has_gpu()
        return Means(read_in_process, 1, 1, gpu, "this machine, as one process")
    from engine.machine import cluster
    from engine.machine import pool as pools
    from engine.reading import stream_on_ray

    cluster.start_ray()
    loading = device.default_actor_memory(specs[0].weight_bytes)

    def decide(actors: int | None) -> pools.Pool:
        asked = replace(settings, actors=actors)
        return pools.decide(asked, loading, budget=specs[0].memory)

    room = decide(None).start
    wanted = settings.bounds()[1] or room
    # The share of an actor is what it is where all of them read.
    needs = decide(min(wanted, room)).needs
    count = min(wanted, room, MOST_ACTORS)
    pool = pools.Pool(count, count, count, needs)

    def on_ray(
        plan: pl.DataFrame, units: Sequence[Unit], specs: Sequence[ReaderSpec]
    ) -> Iterator[UnitResult]:
        return stream_on_ray.run_on_ray(plan, units, specs, pool=pool, on_event=on_event)

    return Means(on_ray, count, room, needs.gpus > 0, str(needs))
