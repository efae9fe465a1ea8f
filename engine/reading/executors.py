"""Choose what does reads: this process, actors on Ray, requests to a server, or a user's program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import polars as pl

from engine.machine import device
from engine.machine.batching import CPU_BATCH_TOKENS, GPU_BATCH_TOKENS
from engine.machine.pool import Pool, PoolSettings, decide, require_gpus_used
from engine.machine.watch import OnEvent, PoolTotals, silent
from engine.messages.errors import InputError
from engine.reading.answers import given, rule_of
from engine.reading.execute import Run, UnitResult
from engine.reading.plan import Unit
from engine.reading.protocol import UNNAMED, ReaderSpec
from engine.reading.stream import Host, Planner, UnitDone, read_here
from engine.sources.io.folders import Folder

Progress = Callable[[int, int], None]
Executor = Callable[[pl.DataFrame, Sequence[Unit], ReaderSpec], Iterator[UnitResult]]
Read = TypeVar("Read")


@dataclass(frozen=True)
class NamedExecutor:
    """A user's executor whose reads are kept in the store, under the name instead of the reader's.

    Attributes:
        name: of what reads, with all that decides its outputs (model, version, settings): reads in the
            store are taken for its own as long as the name is the same.
        function: takes the planned reads, the units that they are done in, and the specification of
            the reader that it stands in for, and yields the outputs of every unit.

    Raises:
        InputError: an empty name.
    """

    name: str
    function: Executor

    def __post_init__(self) -> None:
        if not self.name.strip():
            raise InputError("an executor without a name", "name what reads")

    def __call__(
        self, plan: pl.DataFrame, units: Sequence[Unit], spec: ReaderSpec
    ) -> Iterator[UnitResult]:
        return self.function(plan, units, spec)


def read_by(spec: ReaderSpec, executor: Executor | None) -> ReaderSpec:
    """The specification of what reads: the reader, or the executor that stands in for it.

    Their fingerprints differ, so that the reads of one never answer for the other.
    """
    if executor is None:
        return replace(spec, executor="")
    return replace(spec, executor=executor.name if isinstance(executor, NamedExecutor) else UNNAMED)


def by_model(items: Iterable[Read], spec_of: Callable[[Read], ReaderSpec]) -> list[list[Read]]:
    """What is read, in groups whose readers share a model, in the order of the first of each."""
    groups: dict[tuple[object, ...], list[Read]] = {}
    for item in items:
        groups.setdefault(spec_of(item).model, []).append(item)
    return list(groups.values())


def input_sizes(spec: ReaderSpec, inputs: Sequence[Sequence[str]]) -> list[int]:
    """About how many tokens each read costs; only the order and the size of units depend on it.

    A quarter of the characters beyond the shared prefix: texts are tokenized once, by their reader.
    """
    shared = len(spec.shared_prefix)
    return [max(1, (sum(map(len, texts)) - shared) // 4) for texts in inputs]


def unit_tokens(total: int, *, actors: int, gpu: bool, alone: bool = False) -> int:
    """Size of a unit: one device batch on a CPU, half of one on a GPU, and never so much that an actor has
    fewer than eight of them: the last ones end together.

    Nobody knows how fast a GPU reads. Half a batch takes a slow one (1,000 tokens a second) half a minute,
    and a fast one has soon done it; smaller ones are more than two cores can handle for 64 actors.
    Where one process reads ``alone`` nobody waits for it: a function is given many prompts in each call, the first included.
    """
    most = GPU_BATCH_TOKENS // 2 if gpu else CPU_BATCH_TOKENS
    if alone:
        return most
    return max(1, min(most, total // (8 * actors)))


def reads_here(settings: PoolSettings, specs: Sequence[ReaderSpec]) -> bool:
    """Whether this process reads; it calls users' functions unless actors are asked for, since nobody knows
    what such a function needs.
    """
    functions = len(specs) > 0 and all(spec.function for spec in specs)
    return settings.in_process or (settings.actors is None and functions)


@dataclass(frozen=True)
class Backend:
    """What does the reads of readers that share a model: this process, or actors on Ray.

    Attributes:
        run: does them here, by requests or by a program of the user's; None for readers that are hosted.
        pool: the actors that host them; None for this process.
        gpu: whether reads are sized as for GPUs.
        alone: whether a function reads here, which units are not cut small for.
    """

    run: Run | None = None
    pool: Pool | None = None
    gpu: bool = False
    alone: bool = False

    @property
    def actors(self) -> int:
        """Actors for which units are cut: as many as there may come to be."""
        return self.pool.foreseen if self.pool else 1

    def read(
        self,
        shards: Sequence[int],
        planners: Sequence[Planner],
        host: Host,
        *,
        on_event: OnEvent = silent,
        totals: PoolTotals | None = None,
    ) -> Iterator[UnitDone]:
        """Read shards: ``stream.read_here``, or ``stream_on_ray.read_on_ray``."""
        if self.pool is None:
            return read_here(shards, planners, host, self.run)
        from engine.reading.stream_on_ray import read_on_ray

        return read_on_ray(shards, planners, host, pool=self.pool, on_event=on_event, totals=totals)


def backend_for(
    settings: PoolSettings,
    specs: Sequence[ReaderSpec],
    executor: Executor | None = None,
    *,
    size: int = 0,
    folders: Sequence[Folder] = (),
) -> Backend:
    """What does reads; Ray is started where it is needed and is not.

    Args:
        executor: a program of the user's that reads in their place.
        size: bytes of what they read, where this process gives it to actors.
        folders: where actors read and write.

    Raises:
        InputError: the cluster can never host such a pool, or a reader not use it; its nodes do not share the folders.
    """
    if executor is not None:
        return Backend(lambda plan, units, specs: _by_program(executor, plan, units, specs[0]))
    if specs[0].api:
        from engine.reading.remote.run import Requests

        return Backend(Requests())
    for spec in specs:
        require_gpus_used(settings, spec.name, spec.gpus)
    if reads_here(settings, specs):
        # Functions take as much at a time as GPUs do: most have a GPU, or a server, behind them.
        own = bool(specs[0].function)
        return Backend(gpu=own or device.machine_has_gpu(), alone=own)
    from engine.machine import cluster

    cluster.start_ray(size)
    cluster.require_shared(folders)
    loading = device.default_actor_memory(specs[0].weight_bytes)
    pool = decide(settings, loading, budget=specs[0].memory)
    return Backend(pool=pool, gpu=pool.needs.gpus > 0)


def _by_program(
    executor: Executor, plan: pl.DataFrame, units: Sequence[Unit], spec: ReaderSpec
) -> Iterator[UnitResult]:
    """The results of a user's program; of what it writes, thoughts are taken off as of all readers' texts."""
    for result in executor(plan, units, spec):
        yield replace(result, outputs=given(result.outputs, rule_of(spec)))
