"""Getting reads: from the store if they are in it, else by reading; the store grows as units end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import polars as pl

from engine import tables
from engine.errors import InputError, ReadError
from engine.machine import device
from engine.machine.batching import CPU_BATCH_TOKENS, GPU_BATCH_TOKENS
from engine.machine.pool import PoolSettings
from engine.machine.watch import OnEvent, PoolTotals, silent
from engine.reading import store
from engine.reading.execute import UnitResult, read_in_process
from engine.reading.plan import INPUTS, SIZE, Unit, cut_units, longest_first, missing_reads
from engine.reading.protocol import ReaderSpec, ReadOutput, field_types
from engine.sources.io.folders import Folder, folder_at
from engine.sources.io.locations import Location
from engine.tables import DOC_IDS, FAILURE, OUTPUT_TOKENS, PROMPT_TOKENS, QUERY_ID, READ_KEY

_COLUMN_TYPES = {str: pl.String(), int: pl.Int64(), bool: pl.Boolean(), float: pl.Float64()}
# A read's output as columns.
OUTPUT_COLUMNS: tables.Schema = {
    name: _COLUMN_TYPES[kind] for name, kind in field_types(ReadOutput).items()
}

Progress = Callable[[int, int], None]
Executor = Callable[[pl.DataFrame, Sequence[Unit], ReaderSpec], Iterator[UnitResult]]

# How far a pool without a bound is taken to grow, where units are cut for it.
_GROWTH = 4
# Stands for the name of an executor that has none.
UNNAMED = "a function without a name"


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
            raise InputError(None, None, "an executor without a name", "name what reads")

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


def is_kept(executor: Executor | None) -> bool:
    """Whether reads go to the store: a user's executor must have a name, since nothing else says
    whether its reads are those that it would do again.
    """
    return executor is None or isinstance(executor, NamedExecutor)


@dataclass(kw_only=True)
class ReadingCosts:
    """What a job's reads cost.

    Attributes:
        wanted: distinct reads that the job asked for.
        reused: those found in the store.
        done: those done now, failed ones included.
        failed: those that could not be done.
        seconds: wall-clock seconds of reading, start of the actors included.
        reads_per_second: ``done`` by ``seconds``.
        reader_seconds: time that the actors spent reading, in total.
        prompt_tokens, output_tokens: of the reads done now.
        computed_tokens: prompt tokens that were computed; fewer, since what several prompts begin with
            counts once.
        padded_tokens: the same with padding.
        padding_share: of the padded tokens.
        memory_halvings: batches halved because memory ran out.
        workers: peak memory in bytes of each actor.
        damaged_files: paths of files of the store that the disk damaged, now set aside; reads in them
            that were wanted were done again.
        lost_nodes, joined_nodes: nodes that left the cluster, and that joined it, while it read.
        restarted_actors: actors whose process ended and was started again.
        repeated_units: units of work that were begun more than once.
        waited_seconds: time without any node that an actor fits on.
    """

    wanted: int = 0
    reused: int = 0
    done: int = 0
    failed: int = 0
    seconds: float = 0.0
    reads_per_second: float = 0.0
    reader_seconds: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    computed_tokens: int = 0
    padded_tokens: int = 0
    padding_share: float = 0.0
    memory_halvings: int = 0
    workers: dict[str, int] = field(default_factory=dict)
    damaged_files: list[str] = field(default_factory=list)
    lost_nodes: int = 0
    joined_nodes: int = 0
    restarted_actors: int = 0
    repeated_units: int = 0
    waited_seconds: float = 0.0


def get_reads(
    wanted: pl.DataFrame,
    spec: ReaderSpec,
    directory: Location,
    *,
    pool: PoolSettings,
    on_progress: Progress = lambda done, total: None,
    on_event: OnEvent = silent,
    executor: Executor | None = None,
) -> tuple[pl.DataFrame, ReadingCosts]:
    """Get all wanted reads: reuse those in the store, do the others.

    Args:
        wanted: as ``plan.wanted_reads`` gives them.
        spec: the reader, or what ``read_by`` makes of it for the executor.
        directory: the read store, a path or an address.
        pool: the actors on Ray, or none (the reads are done in this process).
        on_progress: called with the distinct reads done and wanted, first with what was reused.
        on_event: told one line when nodes come or go, actors restart, or the pool waits.
        executor: does the units instead of the reader. The reads of a ``NamedExecutor`` are stored
            and found under its name; any other's are neither stored nor looked up.

    Returns:
        the reads table with one row per row of ``wanted`` in its order, and a further column
        ``failure`` (null, or why the read could not be done, and then ``output`` is empty); and
        what it cost. Failed reads are not stored.

    Raises:
        ReadError: reads were lost on the way.
        WriteError: the store cannot be written; the units before are in it.
        ValueError: ``spec`` is of another executor, or of the reader.
    """
    start = time.perf_counter()
    if read_by(spec, executor) != spec:
        raise ValueError("reads that were planned for another executor")
    kept = is_kept(executor)
    place = folder_at(directory)
    known = _known(place, spec) if kept else store.NOTHING
    stored = known.reads.join(wanted, on=READ_KEY, how="semi")
    plan = missing_reads(wanted, stored)
    distinct = stored.height + plan.height
    costs = ReadingCosts(wanted=distinct, reused=stored.height, damaged_files=[*known.damaged])
    on_progress(stored.height, distinct)
    frames = [stored.with_columns(pl.lit(None, pl.String).alias(FAILURE))]
    if plan.height:
        totals = PoolTotals()
        plan = longest_first(
            plan, input_sizes(spec, plan[INPUTS].to_list()), lead=len(spec.shared_prefix)
        )
        run, actors, gpu = (
            (executor, 1, False) if executor else executor_for(pool, plan, spec, on_event, totals)
        )
        size = unit_tokens(int(plan[SIZE].sum()), actors=actors, gpu=gpu)
        units = cut_units(plan, size, actors=actors)
        workers: dict[str, dict[str, Any]] = {}
        for result in run(plan, units, spec):
            unit = result.unit
            done = reads_table(plan.slice(unit.offset, unit.length), result.outputs)
            if kept:
                whole = done.filter(pl.col(FAILURE).is_null()).drop(FAILURE)
                store.add(place, spec.fingerprint, whole)
            frames.append(done)
            workers[result.worker] = result.stats
            costs.done += done.height
            costs.reader_seconds += result.seconds
            on_progress(stored.height + costs.done, distinct)
        if costs.done != plan.height:
            raise ReadError(f"{plan.height - costs.done} reads were lost on the way; run again")
        _add_up(costs, pl.concat(frames[1:]), workers, totals)
        costs.seconds = time.perf_counter() - start
        costs.reads_per_second = costs.done / costs.seconds
    outputs = pl.concat(frames).drop(QUERY_ID, DOC_IDS)
    reads = wanted.select(READ_KEY, QUERY_ID, DOC_IDS).join(
        outputs, on=READ_KEY, how="left", maintain_order="left"
    )
    return reads.select([*tables.READS, FAILURE]), costs


def _known(place: Folder, spec: ReaderSpec) -> store.Stored:
    """All that the store has of a reader, from few files."""
    damaged = store.tidy(place, spec.fingerprint)
    known = store.load(place, spec.fingerprint)
    return known._replace(damaged=[*damaged, *known.damaged])


def _add_up(
    costs: ReadingCosts,
    fresh: pl.DataFrame,
    workers: Mapping[str, Mapping[str, Any]],
    totals: PoolTotals,
) -> None:
    """Put into the costs what the reads done now took, by the counters of those who did them."""
    costs.failed = fresh[FAILURE].count()
    costs.prompt_tokens = int(fresh[PROMPT_TOKENS].sum())
    costs.output_tokens = int(fresh[OUTPUT_TOKENS].sum())
    costs.computed_tokens = sum(stats["prompt_tokens"] for stats in workers.values())
    costs.padded_tokens = sum(stats["padded_tokens"] for stats in workers.values())
    costs.memory_halvings = sum(stats["memory_halvings"] for stats in workers.values())
    costs.workers = {name: stats["peak_memory"] for name, stats in workers.items()}
    if costs.padded_tokens:
        costs.padding_share = 1 - costs.computed_tokens / costs.padded_tokens
    for name, value in asdict(totals).items():
        setattr(costs, name, value)


def input_sizes(spec: ReaderSpec, inputs: Sequence[Sequence[str]]) -> list[int]:
    """About how many tokens each read costs; only the order and the size of units depend on it.

    A quarter of the characters beyond the shared prefix: texts are tokenized once, by their reader.
    """
    shared = len(spec.shared_prefix)
    return [max(1, (sum(map(len, texts)) - shared) // 4) for texts in inputs]


def unit_tokens(total: int, *, actors: int, gpu: bool) -> int:
    """Size of a unit: some seconds of work (one device batch on a CPU, several on a GPU), and never
    so much that an actor has fewer than eight of them: the last ones end together.
    """
    most = 4 * GPU_BATCH_TOKENS if gpu else CPU_BATCH_TOKENS
    return max(1, min(most, total // (8 * actors)))


def executor_for(
    settings: PoolSettings,
    plan: pl.DataFrame,
    spec: ReaderSpec,
    on_event: OnEvent = silent,
    totals: PoolTotals | None = None,
) -> tuple[Executor, int, bool]:
    """The function that does the reads, how many actors it may come to have, and whether they have GPUs.

    Args:
        settings: as in ``get_reads``.
        plan: the reads; none needs more actors than these.
        on_event, totals: as in ``pipeline.read_on_ray``.

    Raises:
        InputError: the cluster can never host such a pool, or a reader not use it.
    """
    if (settings.gpus_per_actor or 0) > 1:
        raise InputError(
            None,
            None,
            f"`gpus_per_actor` is {settings.gpus_per_actor:g}, and a reader runs on one GPU",
            "use 1 or a fraction",
        )
    if settings.in_process:
        return read_in_process, 1, device.machine_has_gpu()
    from engine.machine import cluster
    from engine.machine import pool as pools
    from engine.reading import pipeline

    cluster.start_ray(int(plan.estimated_size()))
    weights = device.weight_bytes(spec.parameters, spec.dtype)
    loading = device.default_actor_memory(weights)
    pool = pools.decide(settings, loading, budget=spec.memory)
    # Units are for the pool as it may become; of one without a bound, some growth is foreseen.
    foreseen = min(pool.most or _GROWTH * pool.start, plan.height)

    def on_ray(plan: pl.DataFrame, units: Sequence[Unit], spec: ReaderSpec) -> Iterator[UnitResult]:
        return pipeline.read_on_ray(plan, units, spec, pool=pool, on_event=on_event, totals=totals)

    return on_ray, foreseen, pool.needs.gpus > 0


def reads_table(planned: pl.DataFrame, outputs: Sequence[ReadOutput]) -> pl.DataFrame:
    """The reads table of planned reads and their outputs, with the column ``failure``."""
    return (
        planned.select(READ_KEY, QUERY_ID, DOC_IDS)
        .hstack(output_columns(outputs))
        .select([*tables.READS, FAILURE])
    )


def output_columns(outputs: Sequence[ReadOutput]) -> pl.DataFrame:
    """The outputs of reads as a table with the columns ``OUTPUT_COLUMNS``, one row each."""
    return pl.DataFrame(
        {name: [getattr(output, name) for output in outputs] for name in OUTPUT_COLUMNS},
        schema=OUTPUT_COLUMNS,
    )
