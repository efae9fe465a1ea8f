"""What does reads: this process, actors on Ray, requests to a server, or a program of the user's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import polars as pl

from engine.errors import InputError
from engine.machine import device
from engine.machine.batching import CPU_BATCH_TOKENS, GPU_BATCH_TOKENS
from engine.machine.pool import Pool, PoolSettings, require_gpus_used
from engine.machine.watch import OnEvent, PoolTotals, silent
from engine.reading.execute import Run, UnitResult, read_in_process, reads_here
from engine.reading.plan import Unit
from engine.reading.protocol import UNNAMED, ReaderSpec

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


def by_model(whats: Iterable[Read], spec_of: Callable[[Read], ReaderSpec]) -> list[list[Read]]:
    """What is read, in groups whose readers share a model, in the order of the first of each."""
    groups: dict[tuple[object, ...], list[Read]] = {}
    for what in whats:
        groups.setdefault(spec_of(what).model, []).append(what)
    return list(groups.values())


def input_sizes(spec: ReaderSpec, inputs: Sequence[Sequence[str]]) -> list[int]:
    """About how many tokens each read costs; only the order and the size of units depend on it.

    A quarter of the characters beyond the shared prefix: texts are tokenized once, by their reader.
    """
    shared = len(spec.shared_prefix)
    return [max(1, (sum(map(len, texts)) - shared) // 4) for texts in inputs]


def unit_tokens(total: int, *, actors: int, gpu: bool) -> int:
    """Size of a unit: one device batch on a CPU, half of one on a GPU, and never so much that an actor has
    fewer than eight of them: the last ones end together.

    Nobody knows how fast a GPU reads. Half a batch takes a slow one (1,000 tokens a second) half a minute,
    and a fast one has soon done it; smaller ones are more than two cores can handle for 64 actors.
    """
    most = GPU_BATCH_TOKENS // 2 if gpu else CPU_BATCH_TOKENS
    return max(1, min(most, total // (8 * actors)))


def one_at_a_time(executor: Executor) -> Run:
    """A user's executor as what does the reads of one reader."""
    return lambda plan, units, specs: executor(plan, units, specs[0])


def run_in_driver(settings: PoolSettings, specs: Sequence[ReaderSpec]) -> tuple[Run, bool] | None:
    """What does the reads in this process, and whether they are sized as for GPUs; None for actors on Ray.

    Args:
        settings: of the actors.
        specs: of the readers, which share a model.

    Raises:
        InputError: a reader cannot use the GPUs of the settings.
    """
    if specs[0].api:
        from engine.reading.api.run import Requests

        return Requests(), False
    for spec in specs:
        require_gpus_used(settings, spec.name, spec.gpus)
    if reads_here(settings, specs):
        # Functions take as much at a time as GPUs do: most have a GPU, or a server, behind them.
        return read_in_process, bool(specs[0].function) or device.machine_has_gpu()
    return None


def executor_for(
    settings: PoolSettings,
    plan: pl.DataFrame,
    specs: Sequence[ReaderSpec],
    on_event: OnEvent = silent,
    totals: PoolTotals | None = None,
) -> tuple[Run, int, bool]:
    """The function that does the reads, how many actors it may come to have, and whether they have GPUs.

    Args:
        settings: of the actors.
        plan: the reads; none needs more actors than these.
        specs: of the readers, which share a model.
        on_event, totals: as in ``stream_on_ray.read_on_ray``.

    Raises:
        InputError: the cluster can never host such a pool, or a reader not use it.
    """
    if (here := run_in_driver(settings, specs)) is not None:
        return here[0], 1, here[1]
    from engine.reading import stream_on_ray

    pool = pool_for(settings, specs, size=int(plan.estimated_size()))

    def on_ray(
        plan: pl.DataFrame, units: Sequence[Unit], specs: Sequence[ReaderSpec]
    ) -> Iterator[UnitResult]:
        return stream_on_ray.run_on_ray(
            plan, units, specs, pool=pool, on_event=on_event, totals=totals
        )

    return on_ray, min(pool.foreseen, plan.height), pool.needs.gpus > 0


def pool_for(settings: PoolSettings, specs: Sequence[ReaderSpec], *, size: int = 0) -> Pool:
    """The actors that host readers of one model; Ray is started where it is not.

    Args:
        size: bytes of what they read, where this process gives it to them.

    Raises:
        InputError: the cluster can never host such a pool.
    """
    from engine.machine import cluster, pool

    cluster.start_ray(size)
    loading = device.default_actor_memory(specs[0].weight_bytes)
    return pool.decide(settings, loading, budget=specs[0].memory)
