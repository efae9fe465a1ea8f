"""One driver and its actors as a simulation: more actors than this machine can start as processes."""

from __future__ import annotations

import heapq
import math
from collections import deque
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from engine.inputs.partition import PAIRS_PER_SHARD
from engine.reading.plan import GROUP, SIZE, ReadPlan, shared_pace

# The driver's cost of a unit, as measured with 64 actors; its units go through one core in turn.
DRIVER_SECONDS = 0.0094
# Relative range of actors' speeds, to either side.
_SPREAD = 0.1
# Most units of an actor, as set for Ray Data.
_IN_FLIGHT = 2
# Average share of a shard's limit on pairs.
_FILLED = 0.7


def simulate(
    actors: int, seconds: float, *, tokens_per_second: float, tokens_per_pair: float
) -> dict[str, Any]:
    """Simulate reading for ``seconds``, in units as the engine cuts them, which one driver hands out and takes back.

    A shard is planned, for the pace known by then, when fewer units wait than there are actors. Each actor
    gets two units in turn; a finished unit waits for the driver, which then gives its actor another one.

    Returns:
        The figures of ``scaling._by_actors`` that a simulation has; ``efficiency`` from the start to the end.
    """
    rng = np.random.default_rng(0)
    speeds = (tokens_per_second * rng.uniform(1 - _SPREAD, 1 + _SPREAD, actors)).tolist()
    of_shard = PAIRS_PER_SHARD * _FILLED * tokens_per_pair
    shards = max(1, round(sum(speeds) * seconds / of_shard))
    sizes = ReadPlan(reads=pl.DataFrame(), wanted=0)
    sizes = sizes.sized(int(shards * of_shard), actors=actors, gpu=True)
    known: dict[int, float] = {}
    waiting: deque[float] = deque()
    planned = 0

    def plan() -> None:
        nonlocal planned
        while planned < shards and len(waiting) < actors:
            planned += 1
            size = sizes.unit_size(shared_pace(list(known.values())))
            behind = int((shards - planned) * of_shard)
            if behind > 4 * actors * size:  # no smaller units for the end of the job
                units = math.ceil(of_shard / size)
                waiting.extend([of_shard / units] * units)
                continue
            reads = round(of_shard / tokens_per_pair)
            rows = pl.DataFrame({GROUP: range(reads), SIZE: [int(tokens_per_pair)] * reads})
            cut = replace(sizes, reads=rows, first=size, sharing=actors, behind=behind)
            waiting.extend(unit.length * tokens_per_pair for unit in cut.units())

    held: list[deque[float]] = [deque() for _ in range(actors)]
    ends: list[tuple[float, int]] = []  # of the units in progress
    driver = busy = last = 0.0
    units, longest = 0, 0.0

    def give(actor: int, now: float) -> None:
        if waiting:
            held[actor].append(waiting.popleft())
            if len(held[actor]) == 1:
                begin(actor, now)

    def begin(actor: int, now: float) -> None:
        heapq.heappush(ends, (now + held[actor][0] / speeds[actor], actor))

    for _ in range(_IN_FLIGHT):
        for actor in range(actors):
            plan()
            driver += DRIVER_SECONDS
            give(actor, driver)
    while ends:
        now, actor = heapq.heappop(ends)
        taken = held[actor].popleft() / speeds[actor]
        busy, units, longest, last = busy + taken, units + 1, max(longest, taken), now
        known[actor] = speeds[actor]
        if held[actor]:
            begin(actor, now)
        driver = max(driver, now) + DRIVER_SECONDS
        plan()
        give(actor, driver)
    return {
        "actors": actors,
        "simulated": True,
        "units": units,
        "unit_seconds": round(busy / units, 2),
        "longest_unit_seconds": round(longest, 2),
        "reading_seconds": round(last, 1),
        "units_a_second": round(units / last, 2),
        "efficiency": round(busy / actors / last, 3),
    }
