"""Stream reads through Ray Data: tasks plan them, a pool of actors reads.

The rows of the dataset are shards, one for each reader that shares the actors. The first stage plans, a task per row:
from the number of the shard to its units, each its own block; in the second, an actor takes a unit. The ledger holds
the first stage back: per actor, at most four units are cut and not done, two before a pace is measured, and a planning
task has one shard. So actors and tasks bound the prompts in memory, whatever the total and the room in Ray's object
store; if an autoscaler may add nodes, a share of the store is the bound.
"""

from __future__ import annotations

import contextlib
import gc
import io
import os
import pickle
import tempfile
import threading
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from typing import Any

import polars as pl
import pyarrow as pa
import ray
import ray.data

from engine.machine import nodes, ray_internals
from engine.machine.attempts import Attempt, answer, ending_if_fatal, new_attempt, tally_of
from engine.machine.model_files import loading_turn
from engine.machine.pool import Pool, one_row_blocks, pool_options, reported
from engine.machine.remote.limits import limits_of
from engine.machine.watch import OnEvent, PoolTotals, Tally, log, silent, started_here, watched
from engine.messages.errors import BoundError, ReadError
from engine.reading.costs import UnitResult
from engine.reading.ledger import Attempts, planning_of, start_ledger
from engine.reading.local import USER_ERRORS, Local
from engine.reading.plan import INPUTS, SIZE, PaceOf, Plans, PlansInMemory, ReadPlan, Unit
from engine.reading.protocol import ENGINES, ReadOutput, StartingReader, start
from engine.tables import DOC_IDS, QUERY_ID, READ_KEY, give_back_freed_memory

# The range of numbers reserved in the whole job for a shard's units, and for its reads: above either count.
NUMBERS = 2**40
# CPUs of a planning task if actors take the others: a little, so that both fit on two CPUs.
_PLANNING_CPUS = 0.1
# Units and their results travel as opaque values: no schema has to follow their fields.
_UNIT = pa.schema({"unit": pa.binary()})
_DONE = pa.schema({"done": pa.binary()})
# Deaths of a process after which it is not restarted; Ray itself would restart it without end. Other processes may
# have taken the memory that a planning task lacked; a model takes as much the next time.
_PLANNING_DEATHS, _LOADING_DEATHS = 4, 3
_WHOLE_ATTEMPTS = 2  # at a unit; the next attempt goes read by read
# Simultaneous planning tasks: more than a thousand actors need, and fewer than the ledger answers at a time.
_PLANNED_AT_ONCE = 500
_AT_ONCE = 2  # units per actor: one is started, or committed, while the actor reads the other
_DIED = (
    "its process died in it again and again, perhaps for want of memory; what is finished is kept"
)


class OnRay:
    """Reads on Ray Data; Ray must be running (``backends.Backend``).

    Actors host the readers of ``local``, and commit their reads, or this process does if it holds the inputs.
    ``on_event`` is called with a line when nodes come or go, actors restart, or the pool waits.
    """

    alone, on_ray = False, True

    def __init__(
        self, local: Local, pool: Pool, on_event: OnEvent = silent, totals: PoolTotals | None = None
    ) -> None:
        self._local, self._pool = local, pool
        self._on_event, self._totals = on_event, totals or PoolTotals()
        self.actors, self.gpu = pool.foreseen, pool.needs.gpus > 0

    def read(self, plans: Plans) -> Iterator[UnitResult]:
        """Read shards; results are yielded as units end, in any order. Plans are sent to every worker once.

        Raises:
            InputError, WriteError, ReadError: as raised on a worker; a ReadError also if Ray failed.
            BoundError: the next units would pass a bound; units already begun are done.
        """
        local, pool, is_held = self._local, self._pool, isinstance(plans, PlansInMemory)
        limits, ended, refused, bound = limits_of(local.bounds), 0, False, ""
        if isinstance(plans, PlansInMemory):
            pool = pool.at_most(units := sum(len(list(plan.units())) for plan in plans.by_role))
        if not is_held or units:
            limits.require()
        give_back_freed_memory()  # of checks, for reading may take hours
        folder = tempfile.TemporaryDirectory(prefix="erag-units-")
        # Ray Data requests nodes by the paces of stages: planning that waits would look like the slow stage, and no
        # node would be requested. So only the object store bounds planning if an autoscaler may add nodes.
        grows = pool.most > pool.start if pool.most else nodes.promised() is not None
        ledger = start_ledger(f"{folder.name}/paces", waits=not grows)

        def tally() -> Tally | None:
            limits.see(min(pool.foreseen, sum(node.room(pool.needs) for node in nodes.alive())))
            return tally_of(ledger)

        try:
            with (
                folder,
                reported("reading", ReadError, pool.needs),
                watched(pool.needs, self._on_event, self._totals, tally),
            ):
                for block in _results(plans, local, pool, ledger):
                    for row in block["done"].to_pylist():
                        result = pickle.loads(row)
                        if isinstance(result, BoundError):
                            refused = True
                            continue
                        if isinstance(result, Exception):
                            raise result
                        if is_held:
                            result = local.commit(result)
                        ended += result.done > 0
                        limits.took.append(result.seconds)
                        yield result
                    bound = bound or limits.passed()
                    if bound and answer(ledger.close.remote(), 0) <= ended and refused:
                        break
                if refused:
                    limits.require(bound)
        finally:
            with contextlib.suppress(Exception):
                ray.kill(ledger)
            limits.see(0)


def _results(plans: Plans, local: Local, pool: Pool, ledger: Any) -> Iterator[pa.Table]:
    # No warning that a small evaluation has fewer shards than actors.
    warnings.filterwarnings("ignore", module=ray_internals.EXECUTION)
    # A shard is planned for each role, under a number that is unique in the whole job.
    roles = len(local.specs)
    rows = [
        {"shard": shard, "role": role, "number": shard * roles + role}
        for shard in plans.shards
        for role in range(roles)
    ]
    dataset = one_row_blocks(rows)
    # Blocks are cut at a byte: each unit is its own block, and so its own task. `repartition` would need tasks
    # with a whole CPU, and actors may leave none.
    dataset.context.target_max_block_size = 1
    # Thresholds are shares of busy slots, of which an actor has ``_AT_ONCE``: one busy slot makes a busy actor.
    scaling = dataset.context.autoscaling_config
    scaling.actor_pool_util_upscaling_threshold /= _AT_ONCE
    scaling.actor_pool_util_downscaling_threshold /= _AT_ONCE
    options = pool_options(pool, at_once=_AT_ONCE)
    # Leave some CPUs to planning tasks, whose units the pool waits for.
    if not pool.needs.gpus:
        options["num_cpus"] -= min(0.25, options["num_cpus"] / 4)
    # Ray Data fixes the number of simultaneous planning tasks, and a cluster may begin without any CPU. Beside actors
    # with GPUs a task has its own CPU, so CPUs bound the tasks; beside other actors it has a tenth.
    cpus = int(ray.cluster_resources().get("CPU", 1))
    planned_at_once = len(rows) if pool.needs.gpus else max(2, cpus, pool.most or 0)
    commits = not isinstance(plans, PlansInMemory)
    results = dataset.map_batches(
        _plan_batch,
        fn_kwargs={"plans": ray.put(plans), "ledger": ledger},
        batch_size=1,
        batch_format="pyarrow",
        num_cpus=1 if pool.needs.gpus else _PLANNING_CPUS,
        compute=ray.data.TaskPoolStrategy(size=min(planned_at_once, len(rows), _PLANNED_AT_ONCE)),
    ).map_batches(
        _Actor,
        fn_constructor_kwargs={"local": local, "ledger": ledger, "commits": commits},
        **options,
    )
    yield from ray_internals.blocks_of(results)


def _plan_batch(batch: pa.Table, plans: Any, ledger: Any) -> Iterator[pa.Table]:
    """Plan shards for readers; the ledger gives up shards whose processes die, which Ray would retry for ever."""
    attempts = Attempts(ledger)
    for row in batch.to_pylist():
        shard, role, number = row["shard"], row["role"], row["number"]
        planning = planning_of(number)
        try:
            attempts.hand_over(number * NUMBERS, role)
            if not attempts.enter(planning, new_attempt(), _PLANNING_DEATHS):
                raise ReadError(f"shard {shard} cannot be planned: {_DIED}")
            plan = _unpickled(plans)(shard, role)
            attempts.leave(planning)
            for unit in unit_rows(plan, number, attempts.hand_over):
                yield pa.table({"unit": [pickle.dumps(unit)]}, schema=_UNIT)
        except USER_ERRORS as error:
            yield pa.table({"unit": [pickle.dumps(error)]}, schema=_UNIT)


def _unpickled(sent: Any) -> Plans:
    """The plans; a ReadError if this node has other versions of their classes, which Ray Data would retry for ever."""
    try:
        plans: Plans = ray.get(sent)
    except ray.exceptions.RaySystemError as error:
        what = f"{type(error.client_exc).__name__}: {error.client_exc}"
        raise ReadError(f"a node cannot take what it is to plan ({what})") from error
    return plans


def unit_rows(
    plan: ReadPlan, number: int, pace_of: PaceOf
) -> Iterator[tuple[ReadPlan, Unit, int, bytes | None]]:
    """The units of a plan with this number in the whole job, at least one, cut lazily.

    A unit comes with the head of its plan, its size, and its reads as an Arrow stream, since pickling a slice would take
    the whole table along; None if there is nothing to read.
    """
    needed = plan.reads.select(READ_KEY, QUERY_ID, DOC_IDS, INPUTS)
    first, unit = number * NUMBERS, None
    for unit in plan.units(pace_of, number=first, offset=first):
        content, rows = io.BytesIO(), (unit.offset - first, unit.length)
        # Newer layouts of texts would be written with all texts of the sliced table.
        needed.slice(*rows).write_ipc_stream(content, compat_level=pl.CompatLevel.oldest())
        yield plan.head, unit, int(plan.reads[SIZE].slice(*rows).sum()), content.getvalue()
    if unit is None:
        yield plan.head, Unit(first, first, 0, plan.role), 0, None


class _Actor:
    """Hosts readers. Ray Data calls it with units in two threads, which start a unit while the previous unit is read,
    and commit it while the next is read. A third thread loads and reads.
    """

    def __init__(self, local: Local, ledger: Any, *, commits: bool) -> None:
        ray_internals.end_at_exit()
        self._local, self._attempts, self._commits = local, Attempts(ledger), commits
        self._reading = ThreadPoolExecutor(1)
        # The lock keeps the order of units; the count is of waiting units, which begin only in their turn.
        self._order, self._in_turn = threading.Lock(), 0
        node = ray.get_runtime_context().get_node_id()[:8]
        local.worker = f"node {node} process {os.getpid()}"
        self._attempts.ledger.joined.remote(local.worker)

    def __call__(self, batch: pa.Table) -> pa.Table:
        results = [self._handle(content) for content in batch["unit"].to_pylist()]
        return pa.table({"done": results}, schema=_DONE)

    def _handle(self, content: bytes) -> bytes:
        row = pickle.loads(content)
        if isinstance(row, Exception):
            return content
        plan, unit, size, reads = row
        with ending_if_fatal():
            try:
                result = UnitResult.without_reads(plan)
                if reads is not None:
                    if unit.reader not in self._local.readers:
                        with ending_if_fatal(self._attempts.ledger):
                            self._reading.submit(self._load, unit.reader).result()
                    result = self._result(plan, unit, pl.read_ipc_stream(io.BytesIO(reads)))
            except USER_ERRORS as error:
                log("unit_failed", unit=unit.number, error=error)
                return pickle.dumps(error)
        worker, ended = self._local.worker, self._attempts.ledger.ended
        ended.remote(unit.number, unit.reader, size, result.seconds, worker)
        return pickle.dumps(result)

    def _result(self, plan: ReadPlan, unit: Unit, reads: pl.DataFrame) -> UnitResult:
        result = self._read(unit, reads[INPUTS].to_list()).planned(plan, reads)
        if self._commits:  # the driver finds the outputs in the store
            result = replace(self._local.commit(result), reads=None)
        return replace(result, outputs=())

    def _load(self, role: int) -> None:
        if self._local.readers:  # the model, too
            self._local.reader(role)
            return
        # A restarted actor keeps its id.
        actor = int(ray.get_runtime_context().get_actor_id(), 16)
        if not self._attempts.enter(actor, new_attempt(), _LOADING_DEATHS):
            raise ReadError(f"the reader cannot be loaded: {_DIED}")
        spec = self._local.specs[role]
        try:
            with loading_turn(spec.weight_bytes, always=ENGINES[spec.engine].loads_alone):
                self._local.reader(role)
        finally:
            self._attempts.leave(actor)  # the process is alive
        gc.freeze()  # loaded objects stay: no need to scan them again and again
        self._attempts.ledger.started.remote(started_here())

    def _read(self, unit: Unit, inputs: Sequence[Sequence[str]]) -> UnitResult:
        """Start a unit, and read it in its turn. It counts as begun once its reads begin; no other unit goes read by
        read meanwhile: a death would count for reads of both.
        """
        attempt, begun, finish = new_attempt(), 0, None
        reader = self._local.reader(unit.reader)
        begins = isinstance(reader, StartingReader) and reader.reads_ahead
        with self._order:
            if begins and not self._in_turn:
                begun = self._attempts.begin(unit.number, attempt)
            if bool(begun) == begins and begun <= _WHOLE_ATTEMPTS:
                finish = start(reader, inputs)
            waits = begins and finish is None
            self._in_turn += waits

            def turn() -> UnitResult:
                if (begun or self._attempts.begin(unit.number, attempt)) <= _WHOLE_ATTEMPTS:
                    return self._local.read_unit(unit, inputs, finish)
                return self._read_alone(unit, inputs, attempt)

            result = self._reading.submit(turn)
        try:
            return result.result()
        finally:
            if waits:
                with self._order:
                    self._in_turn -= 1

    def _read_alone(
        self, unit: Unit, inputs: Sequence[Sequence[str]], attempt: Attempt
    ) -> UnitResult:
        """Read a unit read by read after two deaths of processes, so that deaths end."""
        worker, parts = self._local.worker, list[UnitResult]()
        for row, single in enumerate(inputs, start=unit.offset):
            alone = Unit(unit.number, row, 1, unit.reader)
            if self._attempts.enter(row, attempt):
                parts.append(self._local.read_unit(alone, [single]))
                self._attempts.leave(row)
            else:
                died = ReadOutput.failed("the reader's process died in this call")
                parts.append(UnitResult(alone, [died], worker, 0.0, {}))
        outputs = [output for part in parts for output in part.outputs]
        seconds, stats = sum(part.seconds for part in parts), self._local.readers[unit.reader].stats
        computed = sum(part.computed_tokens for part in parts)
        padded = sum(part.padded_tokens for part in parts)
        return UnitResult(unit, outputs, worker, seconds, asdict(stats), computed, padded)
