"""Choose the backend of planned reads: this process, requests to a server, a user's program, or actors on Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import polars as pl

from engine.machine import device
from engine.machine.pool import PoolSettings, decide, require_gpus_used
from engine.machine.watch import OnEvent, PoolTotals, silent
from engine.messages.errors import InputError
from engine.reading.costs import UnitResult
from engine.reading.local import Executor, Local
from engine.reading.plan import Plans, Unit
from engine.reading.protocol import UNNAMED, ReaderSpec
from engine.sources.io.folders import Folder

Progress = Callable[[int, int], None]


class Backend(Protocol):
    """Does the reads of readers that share a model: ``Local``, its kinds, or ``stream_on_ray.OnRay``."""

    actors: int  # the most that there may be: units are cut for them
    gpu: bool  # whether they have GPUs
    alone: bool  # a function reads here, whose units are not cut small
    on_ray: bool

    def read(self, plans: Plans) -> Iterator[UnitResult]:
        """Read shards; yields results as units end, on Ray in any order.

        Raises:
            ReadError: reads were lost on the way, or the next unit would pass a bound (BoundError).
        """


def backend_for(
    settings: PoolSettings,
    local: Local,
    *,
    size: int = 0,
    folders: Sequence[Folder] = (),
    on_event: OnEvent = silent,
    totals: PoolTotals | None = None,
) -> Backend:
    """Choose the backend of reads; starts Ray if it is needed and not running.

    Args:
        local: hosts the readers, here or on actors, or the program that reads in their place.
        size: bytes of the inputs, if this process sends them to actors.
        folders: folders that actors read and write.
        on_event: receives a line when nodes come or go, actors restart, or the pool waits.

    Raises:
        InputError: the cluster can never host such a pool, a reader cannot use it, or its nodes do not share the folders.
    """
    first = local.specs[0]
    if local.executor is not None:
        return local
    if first.api:
        from engine.reading.remote.run import Requests

        return Requests(local)
    require_gpus_used(settings, first.name, first.gpus)
    if reads_here(settings, first):
        # Functions take as much at a time as GPUs do: most have a GPU, or a server, behind them.
        local.alone = first.function is not None
        local.gpu = local.alone or device.machine_has_gpu()
        return local
    from engine.machine import cluster
    from engine.reading.stream_on_ray import OnRay

    cluster.start_ray(size)
    cluster.require_shared(folders)
    loading = device.default_actor_memory(first.weight_bytes)
    return OnRay(local, decide(settings, loading, budget=first.memory), on_event, totals)


def reads_here(settings: PoolSettings, spec: ReaderSpec) -> bool:
    """Whether this process reads; users' functions, whose needs are unknown, run here unless actors are set."""
    return settings.in_process or (settings.actors is None and spec.function is not None)


@dataclass(frozen=True)
class NamedExecutor:
    """A user's executor whose reads are kept in the store, under this name instead of the reader's.

    Attributes:
        name: name of the executor, with everything that decides its outputs (model, version, settings): stored reads
            count as its own while the name is the same; an InputError if empty.
    """

    name: str
    function: Executor

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise InputError("an executor without a name", "name what reads", "reader.nameless")

    def __call__(
        self, plan: pl.DataFrame, units: Sequence[Unit], spec: ReaderSpec
    ) -> Iterator[UnitResult]:
        return self.function(plan, units, spec)


def read_by(spec: ReaderSpec, executor: Executor | None) -> ReaderSpec:
    """The specification of the reader, or of the executor in its place, whose fingerprint differs."""
    name = executor.name if isinstance(executor, NamedExecutor) else UNNAMED
    return replace(spec, executor=name if executor else "")
