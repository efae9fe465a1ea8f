"""Doing the reads of a large evaluation as a stream: planned on workers, read on actors, shard by shard.

The rows of the dataset are shards (numbers; what they stand for, the planner knows). One stage plans:
a task a shard makes the prompts, leaves out the reads that are stored, and cuts the rest into units.
The other reads: an actor takes a unit, reads it and commits it to the store. The driver is told of
each unit only how many reads it had and what they cost. Ray Data holds the first stage back while the second has enough to do, so that the prompts of a few shards are
in memory, whatever the total.

Without Ray, ``read_here`` does the same in this process.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import polars as pl
import pyarrow as pa
import ray
import ray.data
import ray.exceptions
from ray.data.exceptions import ExecutionTimeoutError

from engine.errors import InputError, ReadError, WriteError
from engine.machine import cluster
from engine.machine.device import is_fatal
from engine.machine.pool import Pool, pool_options
from engine.machine.watch import OnEvent, PoolTotals, silent, watched
from engine.reading import readers, store
from engine.reading.execute import UnitResult, run_unit
from engine.reading.guard import read_guarded
from engine.reading.ledger import Attempts, start_ledger, tally_of
from engine.reading.plan import INPUTS, Unit, cut_units
from engine.reading.protocol import Reader, ReaderSpec
from engine.reading.reads import reads_table
from engine.sources.io.folders import Folder
from engine.tables import DOC_IDS, FAILURE, OUTPUT_TOKENS, PROMPT_TOKENS, QUERY_ID, READ_KEY

# CPUs of a task that plans, where actors take the others: a little, so that both fit on two CPUs.
_PLANNING_CPUS = 0.1
_MOST = 2**40
# Errors that say what a user can do; a worker's traceback would hide it.
TOLD = (InputError, WriteError, ReadError)


@dataclass(frozen=True)
class ShardPlan:
    """What is left to read of a shard.

    Attributes:
        reads: the plan, as ``plan.longest_first`` gives it; empty if everything is stored.
        reused: distinct reads that were found in the store.
        unit_size: the most that a unit holds, in the plan's sizes.
        span: the buckets of its queries (``store.add``).
    """

    reads: pl.DataFrame
    reused: int
    unit_size: int
    span: tuple[int, int]


class Planner(Protocol):
    """Plans a shard, on any worker."""

    def __call__(self, shard: int) -> ShardPlan: ...


class Failure(NamedTuple):
    """A read that could not be done: of which query, and why."""

    query_id: str
    reason: str


@dataclass(frozen=True)
class UnitDone:
    """What the driver is told of a unit.

    Attributes:
        shard: the shard's number.
        units: how many units the shard has; 0 if there is nothing to read, which a single row says.
        wanted: distinct reads of the whole shard.
        reused: those of them that were in the store.
        reads: reads of this unit.
        failures: reads that failed, by their keys; the others are in the store.
        prompt_tokens, output_tokens: of its reads.
        worker, seconds, stats: as in ``execute.UnitResult``.
    """

    shard: int
    units: int
    wanted: int
    reused: int
    reads: int = 0
    failures: dict[str, Failure] = field(default_factory=dict)
    prompt_tokens: int = 0
    output_tokens: int = 0
    worker: str = ""
    seconds: float = 0.0
    stats: dict[str, int] = field(default_factory=dict)


def read_here(
    shards: Iterable[int],
    planner: Planner,
    spec: ReaderSpec,
    place: Folder,
    *,
    host_class: type[Host],
) -> Iterator[UnitDone]:
    """Read shards with one reader in this process, in order; results are yielded as units end."""
    host = host_class(spec, place)
    for shard in shards:
        for row in _unit_rows(shard, planner(shard)):
            yield host.done(row)


def read_on_ray(
    shards: Sequence[int],
    planner: Planner,
    spec: ReaderSpec,
    place: Folder,
    *,
    pool: Pool,
    planning: int,
    host_class: type[Host],
    on_event: OnEvent = silent,
    totals: PoolTotals | None = None,
) -> Iterator[UnitDone]:
    """Read shards on Ray Data; results are yielded as units end, in any order.

    Ray must have been started.

    Args:
        shards: their numbers, in the order in which they are begun.
        planner: sent to every worker once.
        place: the read store.
        pool: the actors, as ``pool.decide`` gives them.
        planning: shards that are planned at a time at most.
        host_class: what the actors are.
        on_event, totals: as in ``pipeline.read_on_ray``.

    Raises:
        InputError, WriteError, ReadError: as raised on a worker.
        ReadError: Ray failed.
    """
    cluster.start_ray()
    # That a small evaluation has fewer shards than actors is no news.
    warnings.filterwarnings("ignore", module=r"ray\.data\._internal\.execution")
    context = ray.data.DataContext.get_current()
    before = context.target_max_block_size
    # One row, which is one unit, is one block and one task: blocks are cut as soon as they hold a byte.
    context.target_max_block_size = 1
    attempts = start_ledger()
    planned = ray.put(planner)
    try:
        results = (
            ray.data.from_items(
                [{"shard": shard} for shard in shards], override_num_blocks=len(shards)
            )
            .map_batches(
                _plan_batch,
                fn_kwargs={"planner": planned},
                batch_size=1,
                batch_format="pyarrow",
                num_cpus=1 if pool.needs.gpus else _PLANNING_CPUS,
                compute=ray.data.TaskPoolStrategy(size=min(planning, len(shards))),
            )
            .map_batches(
                host_class,
                fn_constructor_kwargs={"spec": spec, "place": place, "attempts": attempts},
                **_beside_tasks(pool_options(pool)),
            )
        )
        with watched(pool.needs, on_event, totals or PoolTotals(), lambda: tally_of(attempts)):
            for block in results.iter_batches(
                batch_size=None, batch_format="pyarrow", prefetch_batches=0
            ):
                for row in block["done"].to_pylist():
                    told = pickle.loads(row)
                    if isinstance(told, Exception):
                        raise told
                    yield told
    except (ray.exceptions.RayError, ExecutionTimeoutError) as error:
        raise ReadError(f"reading on Ray failed: {cluster.cause(error)}") from error
    finally:
        context.target_max_block_size = before
        with contextlib.suppress(Exception):
            ray.kill(attempts)


def _beside_tasks(pool: dict[str, Any]) -> dict[str, Any]:
    """The options of a pool that leaves some of the CPUs to the tasks that plan, and to those that judge.

    A pool that takes every CPU would wait for units that nobody has a CPU to plan.
    """
    cpus = pool["num_cpus"]
    return pool if pool["num_gpus"] else {**pool, "num_cpus": cpus - min(0.25, cpus / 4)}


# Units travel as one opaque value, so that no schema must be kept in step with the plan's.
_UNIT = pa.schema({"unit": pa.binary()})
_DONE = pa.schema({"done": pa.binary()})


@dataclass(frozen=True)
class _UnitRow:
    """A unit on its way to an actor."""

    shard: int
    units: int
    wanted: int
    reused: int
    number: int = 0
    offset: int = 0
    span: tuple[int, int] = (0, 0)
    reads: pa.Table | None = None


def _plan_batch(batch: pa.Table, planner: Any) -> Iterator[pa.Table]:
    """The stage that plans: from the number of a shard to its units."""
    plan: Planner = ray.get(planner)
    for shard in batch["shard"].to_pylist():
        try:
            for row in _unit_rows(shard, plan(shard)):
                yield pa.table({"unit": [pickle.dumps(row)]}, schema=_UNIT)
        except TOLD as error:
            yield pa.table({"unit": [pickle.dumps(error)]}, schema=_UNIT)


def _unit_rows(shard: int, plan: ShardPlan) -> Iterator[_UnitRow]:
    units = cut_units(plan.reads, plan.unit_size)
    wanted = plan.reused + plan.reads.height
    if not units:
        yield _UnitRow(shard, 0, wanted, plan.reused)
        return
    needed = plan.reads.select(READ_KEY, QUERY_ID, DOC_IDS, INPUTS).to_arrow()
    for unit in units:
        part = needed.slice(unit.offset, unit.length)
        yield _UnitRow(
            shard, len(units), wanted, plan.reused, unit.number, unit.offset, plan.span, part
        )


class Host:
    """Hosts a reader; reads units and commits them. The reader is loaded for the first unit.

    Attributes:
        spec: of the reader.
        place: the read store.
    """

    def __init__(self, spec: ReaderSpec, place: Folder, attempts: Any = None) -> None:
        self.spec, self.place = spec, place
        self._worker = f"process {os.getpid()}"
        self._loaded: Reader | None = None
        self._attempts: Attempts | None = None
        if attempts is not None:
            cluster.end_at_exit()
            self._attempts = Attempts(attempts)
            self._worker = f"node {ray.get_runtime_context().get_node_id()[:8]} {self._worker}"

    def __call__(self, batch: pa.Table) -> pa.Table:
        told: list[bytes] = []
        for content in batch["unit"].to_pylist():
            row = pickle.loads(content)
            if isinstance(row, Exception):
                told.append(content)
                continue
            try:
                told.append(pickle.dumps(self.done(row)))
            except TOLD as error:
                told.append(pickle.dumps(error))
            except Exception as error:
                if is_fatal(error):
                    # Ray retries a unit whose process died, on a fresh one; an exception would end the job.
                    os._exit(1)
                raise
        return pa.table({"done": told}, schema=_DONE)

    def done(self, row: _UnitRow) -> UnitDone:
        """Read and commit one unit."""
        if row.reads is None:
            return UnitDone(row.shard, row.units, row.wanted, row.reused)
        planned = pl.DataFrame(pl.from_arrow(row.reads))
        result = self._read(row, planned[INPUTS].to_list())
        reads = reads_table(planned, result.outputs)
        whole = reads.filter(pl.col(FAILURE).is_null()).drop(FAILURE)
        failed = reads.filter(pl.col(FAILURE).is_not_null())
        store.add(self.place, self.spec.fingerprint, whole, span=row.span)
        return UnitDone(
            shard=row.shard,
            units=row.units,
            wanted=row.wanted,
            reused=row.reused,
            reads=reads.height,
            failures={
                key: Failure(query_id, reason)
                for key, query_id, reason in failed.select(READ_KEY, QUERY_ID, FAILURE).iter_rows()
            },
            prompt_tokens=int(reads[PROMPT_TOKENS].sum()),
            output_tokens=int(reads[OUTPUT_TOKENS].sum()),
            worker=result.worker,
            seconds=result.seconds,
            stats=result.stats,
        )

    def _read(self, row: _UnitRow, inputs: Sequence[Sequence[str]]) -> UnitResult:
        if self._loaded is None:
            self._loaded = self.load(self.spec)
            if self._attempts is not None:
                self._attempts.started()
        # Numbers of their own in the whole job: a shard has fewer units, and fewer reads, than this.
        unit = Unit(row.shard * _MOST + row.number, row.shard * _MOST + row.offset, len(inputs))
        if self._attempts is None:
            return run_unit(self._loaded, unit, inputs, worker=self._worker)
        return read_guarded(
            self._loaded, unit, inputs, worker=self._worker, attempts=self._attempts
        )

    def load(self, spec: ReaderSpec) -> Reader:
        """The reader that this actor hosts."""
        return readers.load(spec)
