"""Doing planned reads on Ray Data: actors that host the reader, units as the rows of a dataset.

One row is one unit, one block, one task. The plan travels once, through the object store; rows
carry only where in it their unit lies. Rows in flight therefore hold next to nothing, results come
back unit by unit, and the caller commits each as it arrives.

An actor that dies takes its unit with it. Ray starts another and hands the unit out again, forever if
the unit itself is the cause. The ledger counts attempts: a unit that comes a third time is read one
read at a time, and a read during which an actor died twice is reported as failed.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import polars as pl
import pyarrow as pa
import ray
import ray.exceptions

from engine.errors import ReadError
from engine.machine import cluster
from engine.machine.device import is_fatal
from engine.machine.pool import Pool, map_rows, reported
from engine.machine.turns import loading_turn
from engine.machine.watch import OnEvent, PoolTotals, silent, watched
from engine.reading import readers
from engine.reading.execute import Asked, Loaded, UnitResult
from engine.reading.guard import read_guarded
from engine.reading.ledger import Attempts, start_ledger, tally_of
from engine.reading.plan import INPUTS, REFERENCES, Unit
from engine.reading.protocol import Reader, ReaderSpec, ReaderStats, ReadOutput, field_types


class ReaderActor:
    """Hosts readers that share a model; called by Ray Data with one unit at a time."""

    def __init__(self, specs: Sequence[ReaderSpec], inputs: ray.ObjectRef, ledger: Any) -> None:
        cluster.end_at_exit()
        self._loaded = Loaded(specs, self.load)
        with loading_turn(specs[0].weight_bytes):
            self._loaded[0]
        # Arrow in shared memory: however long the plan, an actor copies only the unit it is at.
        self._inputs: pa.Table = ray.get(inputs)
        self._attempts = Attempts(ledger)
        self._worker = f"node {ray.get_runtime_context().get_node_id()[:8]} process {os.getpid()}"
        self._attempts.started()

    def load(self, spec: ReaderSpec) -> Reader:
        """One of the readers that this actor hosts."""
        return readers.load(spec)

    def __call__(self, batch: pa.Table) -> pa.Table:
        (row,) = batch.to_pylist()
        unit = Unit(**row)
        try:
            result = read_guarded(
                self._loaded[unit.reader],
                unit,
                [Asked(**row) for row in self._inputs.slice(unit.offset, unit.length).to_pylist()],
                worker=self._worker,
                attempts=self._attempts,
            )
        except Exception as error:
            if is_fatal(error):
                # Ray retries a unit whose process died, on a fresh one; an exception would end the job.
                os._exit(1)
            raise
        return pa.Table.from_pylist([asdict(result)], schema=_RESULT)


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
        "computed_tokens": pa.int64(),
        "padded_tokens": pa.int64(),
    }
)


def read_on_ray(
    plan: pl.DataFrame,
    units: Sequence[Unit],
    specs: Sequence[ReaderSpec],
    *,
    pool: Pool,
    actor_class: type[ReaderActor] = ReaderActor,
    on_event: OnEvent = silent,
    totals: PoolTotals | None = None,
) -> Iterator[UnitResult]:
    """Read the units of a plan on a pool of actors; results come as units end, in any order.

    Ray must have been started.

    Args:
        plan: the reads, with ``inputs`` and ``references``.
        units: pieces of the plan.
        specs: the readers, which share a model: ``Unit.reader`` is the place of one.
        pool: the actors, as ``pool.decide`` gives them.
        actor_class: what hosts the reader.
        on_event: told one line when nodes come or go, actors restart, or the pool waits.
        totals: added up in place.

    Raises:
        ReadError: a unit cannot be done at all, or nothing has moved for hours.
    """
    ledger = start_ledger()
    inputs = ray.put(plan.select(INPUTS, REFERENCES).to_arrow())
    rows = [asdict(unit) for unit in units]
    arguments = {"specs": specs, "inputs": inputs, "ledger": ledger}
    try:
        with (
            reported("reading", ReadError, pool.needs),
            watched(pool.needs, on_event, totals or PoolTotals(), lambda: tally_of(ledger)),
        ):
            for row in map_rows(rows, actor_class, arguments, pool):
                yield UnitResult(
                    **row
                    | {
                        "unit": Unit(**row["unit"]),
                        "outputs": [ReadOutput(**output) for output in row["outputs"]],
                    }
                )
    finally:
        with contextlib.suppress(Exception):
            ray.kill(ledger)
