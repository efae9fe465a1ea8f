"""Measure a cell of ``benchmarks.efficiency`` in the calling process.

Times: both methods warm, in turn. Memory: the rise of the peak above the loaded model while a batch is
read: on a GPU by the allocator (allocated and reserved), on a CPU by the resident size (Linux).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoTokenizer
from transformers.utils import logging

from benchmarks._harness import Timing, in_turn
from benchmarks.efficiency import predict
from benchmarks.efficiency import savings as savings
from benchmarks.efficiency.generate import Generate
from benchmarks.efficiency.grid import SHAPES, WAYS, Cell, Conditions, Method
from benchmarks.efficiency.models import Sample, Subject, load, sample
from engine.machine import device
from engine.messages.errors import ReadError
from engine.reading.protocol import ReadOutput

Inputs = Sequence[Sequence[str]]
_COMPARED = 2  # queries of which all ways must give the same outputs


class Side(NamedTuple):
    """A way of reading, loaded; ``room`` is the memory of a batch beside the model, in bytes."""

    read: Callable[[Inputs], list[ReadOutput]]
    tokenizer: Any
    device: torch.device
    room: float


def measure(cell: Cell, conditions: Conditions, subject: Subject, folder: Path) -> dict[str, Any]:
    """The figures of a cell.

    Raises:
        ReadError: reads failed, or ways that must agree differ.
        InputError: the bundled data is too small for the cell.
    """
    logging.disable_progress_bar()
    torch.set_num_threads(conditions.threads)
    spec = replace(subject.spec, max_new_tokens=cell.answer_tokens)
    subject = subject._replace(spec=spec)
    if cell.kind == "check":
        return _check(cell, conditions, subject, folder)
    if cell.kind == "saving":
        return savings.measure(cell, conditions, subject, folder)
    side = _load(cell, subject)
    queries = predict.queries_of(cell, conditions)
    own = sample(cell, subject, folder, side.tokenizer, queries)
    if cell.kind == "time":
        return _times(cell, conditions, side, own)
    return _peaks(cell, conditions, side, own)


def _load(cell: Cell, subject: Subject) -> Side:
    spec = subject.spec
    if cell.way == "engine":
        reader: Any = load(spec)
        # It chooses its batches itself: it fits them to the budget, and has measured their memory.
        tokenizer = AutoTokenizer.from_pretrained(spec.path, trust_remote_code=False)
        return Side(reader.read, tokenizer, device.prepare(spec), 0.0)
    plain = Generate(spec, cell.way)
    plain.read([["warm"]])  # memory resident after a first run counts as held
    room = device.batch_memory(spec, plain.device, plain.weights())
    return Side(plain.read, plain.tokenizer, plain.device, room)


def rows_within(
    cell: Cell, conditions: Conditions, method: Method, *, room: float, most: int
) -> int:
    """Reads of the largest batch for ``generate``: by ``room`` bytes, and by ``most`` tokens as in the engine."""
    reads = predict.reads_of(cell, method)
    item = predict.item_bytes(conditions.dtype)
    one = predict.batch_bytes(SHAPES[cell.model], cell.way, reads, 1, item)
    two = predict.batch_bytes(SHAPES[cell.model], cell.way, reads, 2, item)
    by_memory = 1 + int(max(0.0, room - one) // max(1, two - one))
    return max(1, min(by_memory, most // (reads.texts * reads.tokens)))


def _in_batches(side: Side, inputs: Inputs, rows: int) -> list[ReadOutput]:
    """Read in batches of ``rows``, 0 for all in one call."""
    if not rows:
        return side.read(inputs)
    return [
        output
        for start in range(0, len(inputs), rows)
        for output in side.read(inputs[start : start + rows])
    ]


def _times(cell: Cell, conditions: Conditions, side: Side, own: Sample) -> dict[str, Any]:
    methods: dict[Method, Inputs] = {"end-to-end": own.lists, "erag": own.singles}
    rows = dict.fromkeys(methods, 0)
    if cell.way != "engine":
        most = device.max_batch_tokens(side.device)
        for method in methods:
            rows[method] = rows_within(cell, conditions, method, room=side.room, most=most)
    busy: dict[Method, list[float]] = {method: [] for method in methods}

    def read(method: Method) -> list[ReadOutput]:
        start = time.process_time()
        outputs = _in_batches(side, methods[method], rows[method])
        busy[method].append(time.process_time() - start)
        return outputs

    side.read([own.singles[-1]])
    timings = timed(
        {str(method): partial(read, method) for method in methods},
        conditions.rounds,
        enough=predict.enough(cell),
    )
    rounds = len(timings["erag"].seconds)
    on_cpu = side.device.type == "cpu"
    return {
        "queries": len(own.lists),
        "seconds": {method: timing.seconds for method, timing in timings.items()},
        # CPU time of all threads: on a shared machine, steadier than seconds. A GPU's work is not in it.
        "cpu_seconds": {m: own[-rounds:] for m, own in busy.items() if on_cpu},
        "tokens": {m: _tokens(timing.result) for m, timing in timings.items()},
        "output_tokens": {
            m: sum(output.output_tokens for output in timing.result)
            for m, timing in timings.items()
        },
        "batch": rows,
        "peak_of_process": device.peak_memory(side.device),
    }


def timed(
    sides: Mapping[str, Callable[[], Any]], rounds: int, *, enough: float
) -> dict[str, Timing]:
    """The rounds of a cell, after a warm-up: at most ``rounds``, and none beyond ``enough`` seconds.

    A first round as long as that counts: the cost of warming up is small beside it.
    """
    first = in_turn(sides, 1)
    took = sum(timing.seconds[0] for timing in first.values())
    further = predict.further_rounds(took, rounds, enough=enough)
    return in_turn(sides, further) if further else first


def _tokens(outputs: Iterable[ReadOutput]) -> int:
    """Tokens of the prompts; reads that failed or were cut are refused, since they cost less."""
    tokens = 0
    for output in outputs:
        if output.failure or output.truncated:
            raise ReadError(f"a read of the benchmark failed: {output.failure or 'it was cut'}")
        tokens += output.prompt_tokens
    return tokens


def _peaks(cell: Cell, conditions: Conditions, side: Side, own: Sample) -> dict[str, Any]:
    inputs = own.lists if cell.method == "end-to-end" else own.singles
    side.read([own.singles[-1]])  # warm
    outputs: list[ReadOutput] = []

    def read() -> None:
        outputs[:] = _in_batches(side, inputs[: cell.batch], cell.batch)

    gpu = side.device.type == "cuda"
    peaks: list[int] = []
    reserved: list[int] = []
    # The first is the peak of the cell: tables of positions are computed once and stay in memory.
    start = time.perf_counter()
    while len(peaks) < conditions.rounds and time.perf_counter() - start < predict.ENOUGH_PEAKS:
        if gpu:
            torch.cuda.empty_cache()  # as ``peak_above`` does at its begin
        held = torch.cuda.memory_reserved() if gpu else 0
        rise = device.peak_above(side.device, read)
        if rise is None:
            raise ReadError("the peak of a process is measured on Linux or a GPU only")
        peaks.append(rise)
        if gpu:
            reserved.append(torch.cuda.max_memory_reserved() - held)
    return {"peaks": peaks, "reserved": reserved, "tokens": _tokens(outputs)}


def _check(cell: Cell, conditions: Conditions, subject: Subject, folder: Path) -> dict[str, Any]:
    """Whether all ways give the same outputs in fp32, in which rounding changes none."""
    exact = subject._replace(spec=replace(subject.spec, dtype="float32", memory=0))
    outputs = {}
    for way in WAYS:
        side = _load(replace(cell, way=way), exact)
        own = sample(cell, exact, folder, side.tokenizer, _COMPARED)
        read = [*side.read(own.lists), *side.read(own.singles)]
        _tokens(read)
        outputs[way] = [(one.output, one.prompt_tokens, one.output_tokens) for one in read]
    first = outputs[WAYS[0]]
    unlike = {way: sum(a != b for a, b in zip(first, outputs[way], strict=True)) for way in WAYS}
    if any(unlike.values()):
        raise ReadError(f"ways give different outputs in fp32: {unlike} of {len(first)}")
    return {"reads": len(first), "different": len({output for output, _, _ in first})}
