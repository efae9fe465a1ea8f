"""Predict a cell of ``benchmarks.efficiency``: tokens, peak memory and seconds, from sizes alone.

Predictions decide the cells to run and their batches; no result comes from them. Peaks count the memory in use at
the widest point of a layer. The number of copies of the attention's scores that a way keeps at once comes
from its code, and the predictions of small cells are compared with their measurements in the JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import NamedTuple

from benchmarks.efficiency.changes import ways
from benchmarks.efficiency.grid import (
    PAPER_K,
    SHAPES,
    Cell,
    Conditions,
    Method,
    Shape,
    Way,
    paper_length,
)
from engine.machine.device import PROCESS_MEMORY, Dtype, weight_bytes

# Tokens that the engine's readers take at once on a CPU: of an encoder, of a decoder-only model.
_CHUNKS = {"encoder-decoder": 2048, "causal": 1024}
# Scores that an encoder's attention computes at once there (``t5_attention.SCORES``).
SCORES = 2**22
# Seconds that a process takes before and after its reads, and operations per second of a core by the bytes
# of a value: only the first predictions rest on them, later ones on finished cells.
_START, _RATE = 4.0, {2: 9e10, 4: 4e10}
# Bytes per second at which scores of attention that is not fused go through memory, once for each copy.
_SCORES_RATE = 4e9


# Queries of an evaluation whose savings are measured, by readers that read.
_QUERIES_OF_READERS = {"bundled": 2, "bundled-fid": 8}
# Seconds after which a cell begins no further round: long rounds vary less than short ones, and the paper's
# setting is worth more. Peaks vary less still, and the first one counts.
_ENOUGH, _ENOUGH_OF_PAPER, ENOUGH_PEAKS = 40.0, 100.0, 5.0


class Reads(NamedTuple):
    """The shape of a method's reads: number of texts, tokens per text, and tokens of the answer."""

    texts: int
    tokens: int
    written: int = 0


def reads_of(cell: Cell, method: Method) -> Reads:
    """One list, or one passage."""
    shape = SHAPES[cell.model]
    passage = cell.length + shape.passage
    if method == "erag":
        return Reads(1, shape.template + passage, cell.answer_tokens)
    if cell.augmentation == "fid":
        return Reads(cell.k, shape.template + passage, cell.answer_tokens)
    return Reads(1, shape.template + cell.k * passage, cell.answer_tokens)


def queries_of(cell: Cell, conditions: Conditions) -> int:
    """Queries whose lists are read in a round: 1 to 32, by the conditions' tokens of passages.

    Savings with trained readers have fewer.
    """
    if cell.kind == "saving" and SHAPES[cell.model].reads:
        return _QUERIES_OF_READERS[cell.model]
    if cell.kind not in ("time", "saving"):
        return 1
    return max(1, min(32, conditions.tokens // (cell.k * cell.length)))


def enough(cell: Cell) -> float:
    """Seconds of rounds after which a cell begins no further one."""
    papers = cell.k == PAPER_K and cell.length == paper_length(SHAPES[cell.model])
    return _ENOUGH_OF_PAPER if papers else _ENOUGH


def further_rounds(seconds: float, rounds: int, *, enough: float) -> int:
    """Rounds after the first one, which took ``seconds`` and warmed up; 0 if that is enough."""
    return 0 if seconds > enough else max(1, min(rounds, int(enough // seconds)))


def too_long(cell: Cell) -> int:
    """Tokens of a cell's longest read beyond the model's positions; 0 if it fits."""
    shape = SHAPES[cell.model]
    if not shape.positions:
        return 0
    needed = reads_of(cell, cell.method or "end-to-end").tokens + cell.answer_tokens
    return max(0, needed - shape.positions)


def peak(cell: Cell, conditions: Conditions) -> int:
    """Expected peak of a cell's process in bytes: itself, the model, and a batch.

    Batches that fill the budget are cut to fit it, so that one read counts.
    """
    shape = SHAPES[cell.model]
    held = PROCESS_MEMORY + weight_bytes(shape.parameters, conditions.dtype)
    methods: list[Method] = [cell.method] if cell.method else ["end-to-end", "erag"]
    item = item_bytes(conditions.dtype)
    return held + max(
        batch_bytes(shape, cell.way, reads_of(cell, method), max(1, cell.batch), item)
        for method in methods
    )


def item_bytes(dtype: Dtype) -> int:
    """Bytes of a value in a precision."""
    return 4 if dtype == "float32" else 2


def batch_bytes(shape: Shape, way: Way, reads: Reads, rows: int, item: int) -> int:
    """Bytes of a batch of ``rows`` reads beside the model; ``item``: bytes of a value."""
    causal = shape.architecture == "causal"
    texts, length = rows * reads.texts, reads.tokens
    tokens = texts * length
    square = shape.heads * length**2
    engine = way == "engine"
    # Tokens that run at once: all of a batch, or a chunk (at least a text, in an encoder).
    chunk = tokens
    if engine:
        chunk = min(
            tokens, _CHUNKS["causal"] if causal else max(_CHUNKS["encoder-decoder"], length)
        )
    # States in and out with a copy in fp32, queries, keys, values and their mixture, the feed-forward
    # layer's parts.
    wide = (3 * item + 8) * shape.hidden + item * max(
        2 * (shape.inner + shape.key_inner), (shape.gates + 1) * shape.feed_forward
    )
    kept = 2 * shape.layers * shape.key_inner * item
    # Scores: the engine's readers attend text by text, some queries at a time; fused attention keeps the
    # bias and its summands; attention that is not fused keeps the scores before and after each of its
    # operations.
    if engine:
        scores = shape.heads * 64 * length * 12 if causal else min(square, SCORES) * (2 * item + 8)
    elif way == "generate-sdpa":
        scores = texts * length**2 * item if causal else square * item * (1 + texts)
    else:
        scores = square * (texts * (8 + item) if causal else item * (1 + 3 * texts))
    # Keys and values of a chunk are copied into the cache of all tokens; in decoder-only models they are copied as
    # they grow.
    states = kept * (tokens + chunk if engine else tokens * (1 + causal))
    states += 2 * kept * rows * reads.written  # and copied as answers grow, or end
    logits = rows * shape.vocabulary * (item + 8)
    in_layers = chunk * wide + scores + states + logits
    # T5's table of positions is computed from integer distances, several times as wide.
    table = 0 if causal or engine else 48 * length**2 + 2 * square * item
    return int(max(in_layers, table))


def work(cell: Cell, conditions: Conditions) -> float:
    """Seconds of a cell at the assumed rates; ``Pace`` corrects them by finished cells."""
    shape = SHAPES[cell.model]
    item = item_bytes(conditions.dtype)
    queries = queries_of(cell, conditions)
    methods: list[Method] = [cell.method] if cell.method else ["end-to-end", "erag"]
    seconds = 0.0
    for method in methods:
        reads = queries * (cell.k if method == "erag" else 1)
        if cell.kind == "memory":
            reads = cell.batch
        seconds += reads * _read_seconds(shape, cell.way, reads_of(cell, method), conditions, item)
    if cell.kind == "time":
        return _START + seconds * (
            1 + further_rounds(seconds, conditions.rounds, enough=enough(cell))
        )
    if cell.kind == "memory":
        return _START + seconds * min(conditions.rounds, 1 + int(ENOUGH_PEAKS // seconds))
    if cell.kind == "saving":
        sides = len(ways(cell.change))
        further = further_rounds(sides * seconds, conditions.rounds, enough=enough(cell))
        return _START + sides * seconds * (1 + further)
    return _START + seconds * (conditions.rounds + 1)


def _read_seconds(shape: Shape, way: Way, reads: Reads, conditions: Conditions, item: int) -> float:
    tokens = reads.texts * reads.tokens
    cross = 2 * shape.hidden * shape.inner * (shape.architecture != "causal")
    weights = shape.layers * (shape.layer_weights + cross)
    pairs = reads.texts * reads.tokens**2 * shape.layers
    written = reads.written * (2 * shape.parameters + 4 * tokens * shape.key_inner)
    rate = _RATE[item] * max(1, conditions.threads)
    seconds = (2 * tokens * weights + 4 * pairs * shape.inner + written) / rate
    if way != "generate-sdpa":
        seconds += pairs * shape.heads * 4 * item / _SCORES_RATE
    return seconds


class Pace:
    """The ratio of cells' seconds to predicted seconds, from finished cells.

    Args:
        done: seconds of cells, processes included.
    """

    def __init__(self, done: Mapping[Cell, float], conditions: Conditions) -> None:
        self._conditions = conditions
        self._ratios: dict[tuple[str, ...], list[float]] = {}
        for cell, seconds in done.items():
            if cell.model in SHAPES:  # else the model is not part of this run
                self.add(cell, seconds)

    def add(self, cell: Cell, seconds: float) -> None:
        """Add a finished cell."""
        for group in _groups(cell):
            ratio = seconds / work(cell, self._conditions)
            self._ratios.setdefault(group, []).append(ratio)

    def seconds(self, cell: Cell) -> float:
        """Expected seconds of a cell: by similar cells, or by all."""
        known = next((self._ratios[g] for g in _groups(cell) if g in self._ratios), [1.0])
        return work(cell, self._conditions) * median(known[-9:])


def _groups(cell: Cell) -> list[tuple[str, ...]]:
    """Groups for comparison with a cell: from the most alike to all."""
    own = (cell.kind, cell.model, cell.augmentation, cell.way, str(cell.answer_tokens))
    return [own, own[:4], own[:2], own[:1], ()]
