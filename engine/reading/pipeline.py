"""Doing planned reads on Ray Data: actors that host the reader, units as the rows of a dataset.

One row is one unit, one block, one task. The plan travels once, through the object store; rows
carry only where in it their unit lies. Rows in flight therefore hold next to nothing, results come
back unit by unit, and the caller commits each as it arrives.

An actor that dies takes its unit with it; Ray starts another and hands the unit out again, for ever
if the unit itself is what kills. The ledger counts attempts: a unit that comes a third time is read
one read at a time, and a read during which an actor died twice is reported as failed.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import logging
import os
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

import polars as pl
import pyarrow as pa
import ray
import ray.data
import ray.exceptions

from engine.errors import InputError, ReadError
from engine.reading import readers
from engine.reading.batching import machine_memory
from engine.reading.execute import UnitResult, is_fatal, run_unit
from engine.reading.plan import INPUTS, Unit
from engine.reading.protocol import Reader, ReaderSpec, ReadOutput

_WHOLE_ATTEMPTS = 2  # a third attempt goes read by read
_STRIKES = 2  # deaths during one read before it counts as its cause


def start_ray(plan_bytes: int = 0) -> None:
    """Connect to the cluster of ``RAY_ADDRESS``, else start Ray on this machine alone.

    A Ray that runs on the machine already is never joined by chance. Nothing is served: no
    dashboard, no usage reports.

    Args:
        plan_bytes: size of what will be put into the object store.
    """
    if ray.is_initialized():
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Else every pool prints a warning about its actors' arguments (ray issue 53727); they are held here.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    address = os.environ.get("RAY_ADDRESS") or "local"
    local: dict[str, Any] = {}
    if address == "local":
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")
        # Ray keeps 30% of the memory for its object store by default; the plan is all that is in it.
        local = {
            "include_dashboard": False,
            "object_store_memory": max(256 * 2**20, machine_memory() // 20, 2 * plan_bytes),
        }
    with _replayed_on_failure():
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **local)
    logging.getLogger("ray.data").setLevel(logging.ERROR)


@contextlib.contextmanager
def _replayed_on_failure() -> Iterator[None]:
    """Hold back what is written to standard error, and show it only if the block fails.

    Ray's native code announces the log level there, at a level that cannot be turned off.
    """
    sys.stderr.flush()
    original = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException:
            held.seek(0)
            os.write(original, held.read())
            raise
        finally:
            os.dup2(original, 2)
            os.close(original)


def stop_ray() -> None:
    ray.shutdown()


def has_gpus() -> bool:
    """Whether the cluster has GPUs."""
    return int(ray.cluster_resources().get("GPU", 0)) > 0


def default_actors(actor_bytes: int) -> int:
    """Actors that the cluster has room for: one a GPU; without GPUs one a CPU, as memory allows.

    Args:
        actor_bytes: main memory that one actor takes where there are no GPUs.
    """
    resources = ray.cluster_resources()
    if gpus := int(resources.get("GPU", 0)):
        return gpus
    by_memory = int((machine_memory() - 2 * 2**30) // actor_bytes)
    return max(1, min(int(resources.get("CPU", 1)), by_memory))


def end_at_exit() -> None:
    """Have this process end without Ray's native exit handlers, if it is an actor's.

    Ray 2.60's core worker can wait for itself for ever while it is taken down (seen once in some
    twenty runs: its publisher posts to the event loop that is being destroyed). The process then
    outlives its node with the model, and a GPU, in its hands. Everything of ours is committed by
    the driver, so nothing is lost by ending at once. Any other process has an exit status to keep.
    """
    if ray.is_initialized() and ray.get_runtime_context().get_actor_id() is not None:
        atexit.register(os._exit, 0)


class Ledger:
    """Counts how often units and reads were begun; lives as long as the driver."""

    def __init__(self) -> None:
        end_at_exit()
        self._begun: collections.Counter[int] = collections.Counter()
        self._strikes: collections.Counter[int] = collections.Counter()

    def begin(self, unit: int) -> int:
        """Note the beginning of a unit; how often it was begun so far."""
        self._begun[unit] += 1
        return self._begun[unit]

    def enter(self, row: int) -> bool:
        """Note the beginning of a read alone; False if processes died in it too often."""
        self._strikes[row] += 1
        return self._strikes[row] <= _STRIKES

    def leave(self, row: int) -> None:
        del self._strikes[row]


class ReaderActor:
    """Hosts a reader; called by Ray Data with one unit at a time."""

    def __init__(self, spec: ReaderSpec, inputs: ray.ObjectRef, ledger: Any) -> None:
        end_at_exit()
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
                outputs.append(
                    ReadOutput("", 0, 0, False, "the reader's process died in this read")
                )
                continue
            alone = Unit(unit.number, row, 1)
            one = run_unit(self._reader, alone, self._texts(alone), worker=self._worker)
            ray.get(self._ledger.leave.remote(row))
            outputs += one.outputs
            seconds += one.seconds
        return UnitResult(unit, outputs, self._worker, seconds, asdict(self._reader.stats))


_RESULT = pa.schema(
    {
        "unit": pa.struct({"number": pa.int64(), "offset": pa.int64(), "length": pa.int64()}),
        "outputs": pa.list_(
            pa.struct(
                {
                    "output": pa.string(),
                    "prompt_tokens": pa.int64(),
                    "output_tokens": pa.int64(),
                    "truncated": pa.bool_(),
                    "failure": pa.string(),
                    "confidence": pa.float64(),
                }
            )
        ),
        "worker": pa.string(),
        "seconds": pa.float64(),
        "stats": pa.struct(
            {
                "padded_tokens": pa.int64(),
                "prompt_tokens": pa.int64(),
                "memory_halvings": pa.int64(),
                "peak_memory": pa.int64(),
                "token_bytes": pa.int64(),
            }
        ),
    }
)


def execute(
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
    hosting = pool_of(actors)
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
        raise ReadError(f"reading on Ray failed: {cause(error)}") from error
    finally:
        with contextlib.suppress(Exception):
            ray.kill(ledger)


def pool_of(actors: int) -> dict[str, Any]:
    """The options of ``map_batches`` for a pool of actors that hold a model each, one row a task.

    Also sets this process's Ray Data to be quiet, to lose nothing, and to survive an actor that dies
    while it loads.

    Raises:
        InputError: more actors than the cluster has GPUs, where it has any.
    """
    gpus = int(ray.cluster_resources().get("GPU", 0))
    if gpus and actors > gpus:
        raise InputError(
            None, None, f"{actors} actors on {gpus} GPUs", "use at most one actor per GPU"
        )
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    context.max_errored_blocks = 0
    context.max_consecutive_actor_init_deaths = 2
    return {
        "batch_size": 1,
        "batch_format": "pyarrow",
        "compute": ray.data.ActorPoolStrategy(size=actors, max_tasks_in_flight_per_actor=2),
        "num_cpus": 0 if gpus else _cpus_per_actor(actors),
        "num_gpus": 1 if gpus else 0,
    }


def _cpus_per_actor(actors: int) -> float:
    """An even share of the cluster's CPUs that fits on its smallest node; Ray sets threads by it.

    A pool that takes every CPU leaves none for a dataset's own tasks; here those need none.
    """
    sizes = [node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]]
    share = sum(sizes) / actors
    return (
        max(1.0, float(min(share, min(size for size in sizes if size)) // 1))
        if share >= 1
        else share
    )


def cause(error: BaseException) -> str:
    """The last line of a remote traceback: what went wrong, without how Ray got there."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return next(
        (line for line in reversed(lines) if re.match(r"[\w.]*(Error|Exit)\b", line)), lines[-1]
    )
