"""Doing planned reads in this process; ``pipeline.execute`` does the same on Ray Data."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import polars as pl

from engine.machine.device import is_fatal
from engine.reading import readers
from engine.reading.plan import INPUTS, Unit
from engine.reading.protocol import Reader, ReaderSpec, ReadOutput


@dataclass(frozen=True)
class UnitResult:
    """The outputs of a unit's reads, in order, and what they cost.

    ``seconds`` is the reader's time on this unit; ``stats`` are its counters since it was loaded
    (see ``ReaderStats``); ``worker`` identifies the process.
    """

    unit: Unit
    outputs: list[ReadOutput]
    worker: str
    seconds: float
    stats: dict[str, int]


def execute(plan: pl.DataFrame, units: Sequence[Unit], spec: ReaderSpec) -> Iterator[UnitResult]:
    """Read the units of a plan with one reader in this process, in order."""
    reader = readers.load(spec)
    for unit in units:
        inputs = plan[INPUTS].slice(unit.offset, unit.length).to_list()
        yield run_unit(reader, unit, inputs, worker=f"process {os.getpid()}")


def run_unit(
    reader: Reader, unit: Unit, inputs: Sequence[Sequence[str]], *, worker: str
) -> UnitResult:
    """Read one unit; where the reader raises, read by read, so that one bad read fails alone."""
    start = time.perf_counter()
    try:
        outputs = reader.read(inputs)
    except Exception as error:
        if is_fatal(error):
            raise
        outputs = [_read_alone(reader, one) for one in inputs]
    seconds = time.perf_counter() - start
    return UnitResult(unit, outputs, worker, seconds, asdict(reader.stats))


def _read_alone(reader: Reader, inputs: Sequence[str]) -> ReadOutput:
    try:
        return reader.read([inputs])[0]
    except Exception as error:
        if is_fatal(error):
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        return ReadOutput.failed(reason)
