"""Doing planned reads on Ray Data: actors that host the reader, units as the rows of a dataset.

One row is one unit, one block, one task. The plan travels once, through the object store; rows
carry only where in it their unit lies. Rows in flight therefore hold next to nothing, results come
back unit by unit, and the caller commits each as it arrives.

An actor that dies takes its unit with it. Ray starts another and hands the unit out again, forever if
the unit itself is the cause. The ledger counts attempts: a unit that comes a third time is read one
read at a time, and a read during which an actor died twice is reported as failed.
"""

from __future__ import annotations

import collections
import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import polars as pl
import pyarrow as pa
import ray
import ray.data
import ray.exceptions

from engine.errors import ReadError
from engine.machine import cluster
from engine.machine.device import is_fatal
from engine.reading import readers
from engine.reading.execute import UnitResult, run_unit
from engine.reading.plan import INPUTS, Unit
from engine.reading.protocol import Reader, ReaderSpec, ReaderStats, ReadOutput, field_types

_WHOLE_ATTEMPTS = 2  # a third attempt goes read by read
_STRIKES = 2  # deaths during a read before the read counts as their cause


class Ledger:
    """Counts how often units and reads were begun; lives as long as the driver."""

    def __init__(self) -> None:
        cluster.end_at_exit()
        self._begun: collections.Counter[int] = collections.Counter()
        self._strikes: collections.Counter[int] = collections.Counter()

    def begin(self, unit: int) -> int:
        """Record the beginning of a unit; returns how often it was begun so far."""
        self._begun[unit] += 1
        return self._begun[unit]

    def enter(self, row: int) -> bool:
        """Record the beginning of a single read; False if processes died in it too often."""
        self._strikes[row] += 1
        return self._strikes[row] <= _STRIKES

    def leave(self, row: int) -> None:
        del self._strikes[row]


class ReaderActor:
    """Hosts a reader; called by Ray Data with one unit at a time."""

    def __init__(self, spec: ReaderSpec, inputs: ray.ObjectRef, ledger: Any) -> None:
        cluster.end_at_exit()
        self._reader: Reader = readers.load(spec)
        # Arrow in shared memory: however long the plan, an actor copies only the unit it is at.
        self._inputs: pa.ChunkedArray = ray.get(inputs)
        self._ledger = ledger
        self._worker = f"node {ray.get_runtime_context().get_node_id()[:8]} process {os.getpid()}"

    def __call__(self, batch: pa.Table) -> pa.Table:
        (row,) = batch.to_pylist()
        unit = Unit(row["number"], row["offset"], row["length"])
        try:
            if ray.get(self._ledger.begin.remote(unit.number)) <= _WHOLE_ATTEMPTS:
                result = run_unit(self._reader, unit, self._texts(unit), worker=self._worker)
            else:
                result = self._one_by_one(unit)
        except Exception as error:
            if is_fatal(error):
                # Ray retries a unit whose process died, on a fresh one; an exception would end the job.
                os._exit(1)
            raise
        return pa.Table.from_pylist([asdict(result)], schema=_RESULT)

    def _texts(self, unit: Unit) -> list[list[str]]:
        return self._inputs.slice(unit.offset, unit.length).to_pylist()

    def _one_by_one(self, unit: Unit) -> UnitResult:
        outputs: list[ReadOutput] = []
        seconds = 0.0
        for row in range(unit.offset, unit.offset + unit.length):
            if not ray.get(self._ledger.enter.remote(row)):
                outputs.append(ReadOutput.failed("the reader's process died in this read"))
                continue
            single = Unit(unit.number, row, 1)
            result = run_unit(self._reader, single, self._texts(single), worker=self._worker)
            ray.get(self._ledger.leave.remote(row))
            outputs += result.outputs
            seconds += result.seconds
        return UnitResult(unit, outputs, self._worker, seconds, asdict(self._reader.stats))


_ARROW = {str: pa.string(), int: pa.int64(), bool: pa.bool_(), float: pa.float64()}


def _record(kind: type) -> pa.StructType:
    """The Arrow type of a dataclass's instances."""
    return pa.struct({name: _ARROW[of] for name, of in field_types(kind).items()})


# The columns of UnitResult.
_RESULT = pa.schema(
    {
        "unit": _record(Unit),
        "outputs": pa.list_(_record(ReadOutput)),
        "worker": pa.string(),
        "seconds": pa.float64(),
        "stats": _record(ReaderStats),
    }
)


def read_on_ray(
    plan: pl.DataFrame,
    units: Sequence[Unit],
    spec: ReaderSpec,
    *,
    actors: int,
    actor_class: type[ReaderActor] = ReaderActor,
) -> Iterator[UnitResult]:
    """Read the units of a plan on ``actors`` actors; results come as units end, in any order.

    Ray must have been started. Each actor takes one GPU where the cluster has GPUs, else an even
    share of the CPUs.

    Raises:
        InputError: more GPU actors than the cluster has GPUs.
    """
    hosting = cluster.pool_of(actors)
    ledger = ray.remote(num_cpus=0)(Ledger).remote()
    inputs = ray.put(plan.select(INPUTS).to_arrow().column(0))
    rows = [asdict(unit) for unit in units]
    results = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
        actor_class,
        fn_constructor_kwargs={"spec": spec, "inputs": inputs, "ledger": ledger},
        **hosting,
    )
    try:
        for block in results.iter_batches(batch_size=None, batch_format="pyarrow"):
            for row in block.to_pylist():
                yield UnitResult(
                    unit=Unit(**row["unit"]),
                    outputs=[ReadOutput(**output) for output in row["outputs"]],
                    worker=row["worker"],
                    seconds=row["seconds"],
                    stats=row["stats"],
                )
    except ray.exceptions.RayError as error:
        raise ReadError(f"reading on Ray failed: {cluster.cause(error)}") from error
    finally:
        with contextlib.suppress(Exception):
            ray.kill(ledger)
