"""Reading a unit on an actor, so that a read that kills its process cannot do so for ever."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from engine.machine.attempts import Attempt, new_attempt
from engine.reading.execute import UnitResult, run_unit
from engine.reading.ledger import Attempts
from engine.reading.plan import Unit
from engine.reading.protocol import Reader, ReadOutput

_WHOLE_ATTEMPTS = 2  # a third attempt goes read by read


def read_guarded(
    reader: Reader,
    unit: Unit,
    inputs: Sequence[Sequence[str]],
    *,
    worker: str,
    attempts: Attempts,
) -> UnitResult:
    """Read a unit; read by read, where processes have died in it twice.

    Args:
        unit: its number, and the numbers of its reads from ``offset`` on, are its own in the whole job.
        inputs: of its reads.
        worker: names this process.
    """
    attempt = new_attempt()
    if attempts.begin(unit.number, attempt) <= _WHOLE_ATTEMPTS:
        return run_unit(reader, unit, inputs, worker=worker)
    return _one_by_one(reader, unit, inputs, worker, attempts, attempt)


def _one_by_one(
    reader: Reader,
    unit: Unit,
    inputs: Sequence[Sequence[str]],
    worker: str,
    attempts: Attempts,
    attempt: Attempt,
) -> UnitResult:
    outputs: list[ReadOutput] = []
    seconds, computed, padded = 0.0, 0, 0
    for row, single in enumerate(inputs, start=unit.offset):
        if not attempts.enter(row, attempt):
            outputs.append(ReadOutput.failed("the reader's process died in this read"))
            continue
        result = run_unit(reader, Unit(unit.number, row, 1), [single], worker=worker)
        attempts.leave(row)
        outputs += result.outputs
        seconds += result.seconds
        computed += result.computed_tokens
        padded += result.padded_tokens
    return UnitResult(unit, outputs, worker, seconds, asdict(reader.stats), computed, padded)
