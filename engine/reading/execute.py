"""Do planned reads in this process; ``stream_on_ray`` does the same on Ray Data."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from weakref import WeakSet

import polars as pl

from engine import tables
from engine.machine.batching import MORE_MEMORY, lacked_memory
from engine.machine.device import is_fatal
from engine.messages.errors import InputError, ReadError
from engine.messages.wording import reason_of
from engine.reading.function_reader import FunctionReader
from engine.reading.plan import Unit
from engine.reading.protocol import Reader, ReaderSpec, ReadOutput, StartingReader, field_types
from engine.tables import DOC_IDS, FAILURE, QUERY_ID, READ_KEY

_COLUMN_TYPES = {str: pl.String(), int: pl.Int64(), bool: pl.Boolean(), float: pl.Float64()}
# A read's output as columns.
OUTPUT_COLUMNS: tables.Schema = {
    name: _COLUMN_TYPES[kind] for name, kind in field_types(ReadOutput).items()
}


@dataclass(frozen=True)
class UnitResult:
    """The outputs of a unit's reads, in order, and what they cost.

    ``seconds`` is the reader's time on this unit; ``stats`` are its counters since it was loaded
    (see ``ReaderStats``); ``worker`` identifies the process. ``computed_tokens`` and ``padded_tokens`` are those of
    this unit alone.
    """

    unit: Unit
    outputs: list[ReadOutput]
    worker: str
    seconds: float
    stats: dict[str, int]
    computed_tokens: int = 0
    padded_tokens: int = 0


# What does the units of a plan, by readers that share a model.
Run = Callable[[pl.DataFrame, Sequence[Unit], Sequence[ReaderSpec]], Iterator[UnitResult]]


def start(reader: Reader, inputs: Sequence[Sequence[str]]) -> Callable[[], list[ReadOutput]]:
    """Prepare reads, as far as the reader does that apart; what it raises is raised when they are done."""
    if isinstance(reader, StartingReader):
        with suppress(Exception):
            return reader.start(inputs)
    return partial(reader.read, inputs)


def run_unit(
    reader: Reader,
    unit: Unit,
    inputs: Sequence[Sequence[str]],
    *,
    worker: str,
    finish: Callable[[], list[ReadOutput]] | None = None,
) -> UnitResult:
    """Read one unit, whose reads ``finish`` does where they were started; where that raises, read by read, so
    that one bad read fails alone. Functions may pay for each prompt: where one raises, all of its call fail.

    Raises:
        ReadError: all reads of a reader's first unit (of a function, of its first two) fail alike, where the reader
            raises (so would those that follow) or lacks memory.
        InputError: raised by the reader.
    """
    start = time.perf_counter()
    computed, padded = reader.stats.prompt_tokens, reader.stats.padded_tokens
    ahead = reader.stats.nanoseconds_ahead
    try:
        outputs = finish() if finish else reader.read(inputs)
    except InputError:  # what a reader of the user's returns cannot be used: no other read would be
        raise
    except Exception as error:
        if is_fatal(error):
            raise
        if isinstance(reader, FunctionReader):
            reason = reason_of(error)
            if len(inputs) > 1:  # a function can tell which of its prompts failed
                reason += ", and its call failed as a whole: an error in the place of a text fails that read alone"
            outputs = [ReadOutput.failed(reason)] * len(inputs)
        else:
            outputs = [_read_alone(reader, one) for one in inputs]
        # One bad prompt may be why a function's first call failed, and not why two did.
        is_first = isinstance(reader, FunctionReader) and reader not in _FAILED
        _FAILED.add(reader)
        if reader not in _PROVEN and not is_first:
            refuse_alike(outputs)
    if reader not in _PROVEN:
        _refuse_short_of_memory(outputs)
    if any(output.failure is None for output in outputs):
        _PROVEN.add(reader)
    seconds = time.perf_counter() - start - (reader.stats.nanoseconds_ahead - ahead) / 1e9
    return UnitResult(
        unit,
        outputs,
        worker,
        seconds,
        asdict(reader.stats),
        reader.stats.prompt_tokens - computed,
        reader.stats.padded_tokens - padded,
    )


# Readers that have done a read, and those of which a call raised.
_PROVEN: WeakSet[Reader] = WeakSet()
_FAILED: WeakSet[Reader] = WeakSet()
# What reasons for one shortage differ in: sizes of what was asked for, of what was free, of prompts.
_SIZE = re.compile(r"\d[\d.,]*( [KMGT]?i?B\b)?")


def refuse_alike(outputs: Sequence[ReadOutput]) -> None:
    """Refuse to go on where all reads of a reader's first unit failed, for one reason."""
    reasons = {output.failure for output in outputs}
    if len(outputs) > 1 and len(reasons) == 1 and (reason := reasons.pop()) is not None:
        raise ReadError(f"the first {len(outputs)} LLM calls failed, all for one reason: {reason}")


def _refuse_short_of_memory(outputs: Sequence[ReadOutput]) -> None:
    """Refuse to go on where all reads of a reader's first unit failed for one shortage of memory. No other failure that is
    returned says so much: plans are longest first, and what fails for its length says nothing of shorter reads.
    """
    reasons = [output.failure for output in outputs if output.failure is not None]
    if len(outputs) < 2 or len(reasons) < len(outputs) or not all(map(lacked_memory, reasons)):
        return
    if len({_SIZE.sub("0", reason) for reason in reasons}) == 1:
        remedy = "" if MORE_MEMORY in reasons[0] else f"; {MORE_MEMORY}"
        raise ReadError(
            f"the first {len(outputs)} LLM calls failed, all for want of memory: {reasons[0]}{remedy}"
        )


def _read_alone(reader: Reader, inputs: Sequence[str]) -> ReadOutput:
    try:
        return reader.read([inputs])[0]
    except InputError:
        raise
    except Exception as error:
        if is_fatal(error):
            raise
        return ReadOutput.failed(reason_of(error))


def reads_table(planned: pl.DataFrame, outputs: Sequence[ReadOutput]) -> pl.DataFrame:
    """The reads table of planned reads and their outputs, with the column ``failure``."""
    # Taken by name, and not selected: units are many and small, and a selection is handed to a thread.
    reads = planned[[READ_KEY, QUERY_ID, DOC_IDS]].hstack(output_columns(outputs))
    return reads[[*tables.READS, FAILURE]]


def output_columns(outputs: Sequence[ReadOutput]) -> pl.DataFrame:
    """The outputs of reads as a table with the columns ``OUTPUT_COLUMNS``, one row each."""
    return pl.DataFrame(
        {name: [getattr(output, name) for output in outputs] for name in OUTPUT_COLUMNS},
        schema=OUTPUT_COLUMNS,
    )
