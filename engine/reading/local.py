"""Do planned reads in this process, by a model, a function, or a user's program."""

from __future__ import annotations

import os
import re
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, replace

import polars as pl

from engine.machine.batching import MORE_MEMORY, lacked_memory
from engine.machine.device import is_fatal, refuse_other_versions
from engine.machine.remote.api_settings import ApiSettings
from engine.machine.remote.limits import limits_of
from engine.machine.watch import log
from engine.messages.errors import InputError, ReadError, WriteError
from engine.messages.wording import reason_of
from engine.reading import protocol, readers, store
from engine.reading.answers import rule_of, without_thought
from engine.reading.costs import UnitResult
from engine.reading.function_reader import FunctionReader
from engine.reading.identity import keep, records_of
from engine.reading.plan import INPUTS, Plans, ReadPlan, Unit
from engine.reading.protocol import Finish, LoopReader, Reader, ReaderSpec, ReadOutput, start
from engine.sources.io.folders import Folder
from engine.sources.io.parallel import ahead

# A user's program: takes planned reads, their units, and the reader that it replaces.
Executor = Callable[[pl.DataFrame, Sequence[Unit], ReaderSpec], Iterator[UnitResult]]
# Errors with a remedy for users, which a worker's traceback would hide.
USER_ERRORS = (InputError, WriteError, ReadError)


class Local:
    """Reads in this process; readers that share a model are loaded for their first units, and are roles by their place.

    ``places`` are stores by reader, None if its reads are not kept; ``bounds`` holds those of all reads of the driver.
    """

    actors, gpu, alone, on_ray, bounds_itself = 1, False, False, False, False

    def __init__(
        self,
        specs: Sequence[ReaderSpec],
        places: Sequence[Folder | None],
        bounds: ApiSettings | None = None,
        executor: Executor | None = None,
    ) -> None:
        self.specs, self.places, self.bounds = specs, places, bounds or ApiSettings()
        self.executor, self.worker = executor, f"process {os.getpid()}"
        self.readers: dict[int, Reader] = {}  # loaded readers by role
        self._versions = protocol.versions(specs)
        self._records: defaultdict[int, set[str]] = defaultdict(set)  # in the stores
        # Roles of readers that have done a read, and of readers that raised in a call.
        self.proven, self._failed = set[int](), set[int]()

    def load(self, spec: ReaderSpec) -> Reader:
        return readers.load(spec)

    def reader(self, role: int) -> Reader:
        if role not in self.readers:
            refuse_other_versions(self._versions, protocol.versions(self.specs), self.worker)
            spec, start = self.specs[role], time.perf_counter()
            log("load_started", reader=spec.name)
            reader = self.load(spec)
            if isinstance(reader, LoopReader):
                reader.prepare()
            self.readers[role] = reader
            log("load_ended", reader=spec.name, seconds=round(time.perf_counter() - start, 1))
        return self.readers[role]

    def read(self, plans: Plans) -> Iterator[UnitResult]:
        """As ``Backend.read``, in the order of the shards."""
        size, seconds = [0] * len(self.specs), [0.0] * len(self.specs)

        def pace_of(_: int, role: int) -> float | None:
            return size[role] / seconds[role] if seconds[role] else None

        for shard in plans.shards:
            by_role = [plans(shard, role) for role in range(len(self.specs))]
            units, offset = list[Unit](), 0
            for role, plan in enumerate(by_role):
                if plan.reads.is_empty():
                    yield UnitResult.without_reads(plan)
                units += plan.units(pace_of, number=len(units), offset=offset)
                offset += plan.reads.height
                size[role] += plan.size
            for result in self._read_units(by_role, units) if units else ():
                seconds[result.plan.role] += result.seconds
                yield result

    def _read_units(self, plans: Sequence[ReadPlan], units: Sequence[Unit]) -> Iterator[UnitResult]:
        """Read the units of a shard; no unit begins that would exceed a bound.

        A thread commits a unit during the next one, even if reading ends early.
        """
        limits, whole = limits_of(self.bounds), pl.concat([plan.reads for plan in plans])
        left, waiting = whole.height, deque[Future[UnitResult]]()
        # Requests and programs go on meanwhile by themselves.
        most_waiting = 0 if self.bounds_itself or self.executor else 1
        limits.see(1)
        if not self.bounds_itself:  # before a reader is loaded, or a program called
            limits.require()
        with ThreadPoolExecutor(1) as thread:
            try:
                for result in self.run(whole, units):
                    unit = result.unit
                    limits.took.append(result.seconds)
                    reads = whole.slice(unit.offset, unit.length)
                    planned = result.planned(plans[unit.reader], reads)
                    waiting.append(thread.submit(self.commit, planned))
                    if len(waiting) > most_waiting:
                        yield waiting.popleft().result()
                    left -= unit.length
                    if left and not self.bounds_itself:
                        limits.require()
            except Exception:  # after the earlier results
                yield from (future.result() for future in waiting)
                raise
            yield from (future.result() for future in waiting)
        if left:
            raise ReadError(f"{left} reads were lost on the way; run again")

    def run(self, plan: pl.DataFrame, units: Sequence[Unit]) -> Iterator[UnitResult]:
        """Read the units of a plan, of all readers, in order; the next unit starts during the current one."""
        if self.executor is not None:
            spec = self.specs[0]
            for result in self.executor(plan, units, spec):
                outputs = [without_thought(output, rule_of(spec)) for output in result.outputs]
                yield replace(result, outputs=outputs)
            return
        for role in {unit.reader for unit in units}:
            self.reader(role)  # in the thread that reads

        def started(unit: Unit) -> tuple[Unit, list[list[str]], Finish]:
            inputs = plan[INPUTS].slice(unit.offset, unit.length).to_list()
            return unit, inputs, start(self.reader(unit.reader), inputs)

        for unit_started in ahead(map(started, units)):
            yield self.read_unit(*unit_started)

    def read_unit(
        self, unit: Unit, inputs: Sequence[Sequence[str]], finish: Finish | None = None
    ) -> UnitResult:
        """Read a unit, by ``finish`` if it has started; after an error read by read, so that a bad read fails alone.

        All reads of a call fail if the reader is a function, which may pay for prompts. A ReadError if all reads of a
        reader's first unit (for a function, of its first two) fail alike.
        """
        role, reader, start = unit.reader, self.reader(unit.reader), time.perf_counter()
        before = replace(reader.stats)
        try:
            outputs = finish() if finish else reader.read(inputs)
        except Exception as error:
            reason, is_function = _reason_of(error), isinstance(reader, FunctionReader)
            if is_function:
                if len(inputs) > 1:  # a function can mark single failed prompts
                    reason += ", and its call failed as a whole: an error in the place of a text fails that read alone"
                outputs = [ReadOutput.failed(reason)] * len(inputs)
            else:
                outputs = [_read_alone(reader, texts) for texts in inputs]
            # A bad prompt may explain a function's first failed call, but not two.
            if role not in self.proven and (role in self._failed or not is_function):
                refuse_alike(outputs)
            self._failed.add(role)
        if role not in self.proven:
            refuse_alike(outputs, only_memory=True)
        if any(output.failure is None for output in outputs):
            self.proven.add(role)
        stats, seconds = reader.stats, time.perf_counter() - start
        seconds -= (stats.nanoseconds_ahead - before.nanoseconds_ahead) / 1e9
        computed = stats.prompt_tokens - before.prompt_tokens
        padded = stats.padded_tokens - before.padded_tokens
        return UnitResult(unit, outputs, self.worker, seconds, asdict(stats), computed, padded)

    def commit(self, result: UnitResult) -> UnitResult:
        """Store the outputs of a unit, if its reader has a store."""
        role = result.plan.role
        if result.reads is None or (place := self.places[role]) is None:
            return result
        spec = self.specs[role]
        for record in records_of(spec) - self._records[role] if result.reads.height else ():
            keep(place / spec.fingerprint, record)
            self._records[role].add(record)
        file = store.add(place, spec.fingerprint, result.reads, span=result.plan.span)
        return replace(result, file=file)


# Messages about the same shortage differ in sizes: of requested memory, free memory and prompts.
_SIZE = re.compile(r"\d[\d.,]*( [KMGT]?i?B\b)?")


def refuse_alike(outputs: Sequence[ReadOutput], *, only_memory: bool = False) -> None:
    """Refuse to go on if all reads of a reader's first unit failed for the same reason.

    With ``only_memory``, only a shortage of memory counts: plans are longest first, and shorter reads may succeed.
    """
    reasons = [output.failure for output in outputs if output.failure is not None]
    if len(outputs) < 2 or len(reasons) < len(outputs):
        return
    alike = {_SIZE.sub("0", reason) for reason in reasons} if only_memory else {*reasons}
    if len(alike) > 1 or (only_memory and not all(map(lacked_memory, reasons))):
        return
    kind = "want of memory" if only_memory else "one reason"
    remedy = f"; {MORE_MEMORY}" if only_memory and MORE_MEMORY not in reasons[0] else ""
    problem = f"the first {len(outputs)} LLM calls failed, all for {kind}: {reasons[0]}{remedy}"
    raise ReadError(problem)


def _read_alone(reader: Reader, inputs: Sequence[str]) -> ReadOutput:
    try:
        return reader.read([inputs])[0]
    except Exception as error:
        return ReadOutput.failed(_reason_of(error))


def _reason_of(error: Exception) -> str:
    """The reason of a failed read; raises the error if other reads will fail, too, as a reader's InputError says."""
    if isinstance(error, InputError) or is_fatal(error):
        raise error
    return reason_of(error)
