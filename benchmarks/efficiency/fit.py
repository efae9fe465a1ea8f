"""Joint results of the cells of ``benchmarks.efficiency``: ratios, exponents, and crossings of methods."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from benchmarks.efficiency.grid import METHODS, Cell, Method, Way, memory_cells
from benchmarks.efficiency.results import Results


class Times(NamedTuple):
    """A time cell: seconds a query (medians), and end-to-end's by eRAG's, in turn by pair of rounds.

    Attributes:
        cpu_ratio: ratio of CPU times, by medians; None on a GPU.
    """

    end_to_end: float
    erag: float
    ratios: tuple[float, ...]
    cpu_ratio: float | None

    @property
    def ratio(self) -> float:
        return median(self.ratios)


class Peaks(NamedTuple):
    """Bytes above the loaded model: of a list, of its k passages as a batch, and of a single passage.

    None if not measured.
    """

    end_to_end: int | None
    batch: int | None
    passage: int | None


class Point(NamedTuple):
    """A value, positive, at a number of passages and a length of passages in tokens."""

    k: int
    length: float
    value: float


class Exponents(NamedTuple):
    """Exponents a and b of ``value = c k^a d^b``, NaN if k or d did not vary; and the number of points."""

    k: float
    length: float
    points: int


def times_of(figures: Mapping[str, Any]) -> Times:
    """The times of a cell, from its figures."""
    end_to_end, erag = figures["seconds"]["end-to-end"], figures["seconds"]["erag"]
    busy = {method: median(own) for method, own in figures["cpu_seconds"].items()}
    return Times(
        median(end_to_end) / figures["queries"],
        median(erag) / figures["queries"],
        tuple(a / b for a, b in zip(end_to_end, erag, strict=True)),
        ratio(busy.get("end-to-end"), busy.get("erag")),
    )


def peaks_of(results: Results, cell: Cell) -> Peaks:
    """The peaks that belong to a time cell."""
    found = {name: results.figures(one) for name, one in memory_cells(cell).items()}
    rises = {name: max(own["peaks"]) if own else None for name, own in found.items()}
    return Peaks(rises["list"], rises["k passages"], rises["passage"])


class Fastest(NamedTuple):
    """The best figure of each method at a place, over all ways: name of the way and figure."""

    end_to_end: tuple[str, float]
    erag: tuple[str, float]


def measured(results: Results, like: Cell | None = None) -> list[tuple[Cell, Times, Peaks]]:
    """The finished time cells, or cells like ``like``, with their figures; T5-small, the paper's model, first."""

    def place(cell: Cell) -> tuple[object, ...]:
        kind = (cell.model != "t5-small", cell.model, cell.augmentation, cell.way)
        return *kind, cell.answer_tokens, cell.length, cell.k

    cells = [cell for cell in results.outcomes if cell.kind == "time"]
    if like is not None:
        cells = [cell for cell in cells if kind_of(cell) == kind_of(like)]
    return [
        (cell, times_of(figures), peaks_of(results, cell))
        for cell in sorted(cells, key=place)
        if (figures := results.figures(cell))
    ]


def fastest(results: Results) -> dict[Cell, Fastest]:
    """Seconds a query by method, for its fastest way; keys are cells without their way.

    Places with measurements of a single way are left out.
    """
    places: dict[Cell, list[tuple[str, Times]]] = {}
    for cell, times, _ in measured(results):
        places.setdefault(replace(cell, way="engine"), []).append((cell.way, times))
    return {
        place: Fastest(
            min(((way, own.end_to_end) for way, own in found), key=lambda one: one[1]),
            min(((way, own.erag) for way, own in found), key=lambda one: one[1]),
        )
        for place, found in places.items()
        if len(found) > 1
    }


class Beside(NamedTuple):
    """A method's seconds a query by the engine, and by the faster of ``generate``'s ways, with its name."""

    engine: float
    generate: float
    way: Way

    @property
    def ratio(self) -> float:
        return self.engine / self.generate


def beside_generate(results: Results, times: Iterable[Cell]) -> dict[Cell, dict[Method, Beside]]:
    """The engine beside ``generate`` in each place with both measurements, by the engine's cells.

    CPU seconds (on a GPU: wall-clock seconds), the least of the rounds: the ways are cells of their
    own, minutes apart, and other work on the machine can only add to their time.
    """
    places: dict[Cell, dict[Method, dict[Way, float]]] = {}
    for cell in times:
        if figures := results.figures(cell):
            place = places.setdefault(replace(cell, way="engine"), {m: {} for m in METHODS})
            for method, ways in place.items():
                rounds = figures["cpu_seconds"].get(method) or figures["seconds"][method]
                ways[cell.way] = min(rounds) / figures["queries"]
    found: dict[Cell, dict[Method, Beside]] = {}
    for cell, methods in places.items():
        for method, ways in methods.items():
            if "engine" in ways and len(ways) > 1:
                engine = ways.pop("engine")
                way = min(ways, key=ways.__getitem__)
                found.setdefault(cell, {})[method] = Beside(engine, ways[way], way)
    return found


def ratio(one: float | None, other: float | None) -> float | None:
    """Two figures' ratio; None if one is unknown, or the second is not above 0."""
    return one / other if one is not None and other is not None and other > 0 else None


def fit(points: Iterable[Point]) -> Exponents:
    """Exponents of k and of the passages' length by least squares of logarithms.

    Points whose value is not above 0 are left out. An exponent is NaN if all points have the same k,
    or length, or if the two cannot be separated.
    """
    kept = [point for point in points if point.value > 0]
    columns = [[math.log(point.k), math.log(point.length)] for point in kept]
    varied = [len({row[i] for row in columns}) > 1 for i in range(2)]
    own = [[1.0, *(row[i] for i in range(2) if varied[i])] for row in columns]
    if not any(varied) or np.linalg.matrix_rank(np.array(own)) < 1 + sum(varied):
        return Exponents(math.nan, math.nan, len(kept))
    solved = np.linalg.lstsq(np.array(own), np.log([point.value for point in kept]), rcond=None)[
        0
    ].tolist()[1:]
    found = [solved.pop(0) if known else math.nan for known in varied]
    return Exponents(found[0], found[1], len(kept))


def slope_at_the_end(points: Iterable[Point]) -> float:
    """The exponent of k between its two largest values, at the length with most points; NaN without two values."""
    kept = [point for point in points if point.value > 0]
    lengths = [point.length for point in kept]
    if not lengths:
        return math.nan
    most = max(lengths, key=lambda length: (lengths.count(length), length))
    last = sorted((point.k, point.value) for point in kept if point.length == most)[-2:]
    if len(last) < 2 or last[0][0] == last[1][0]:
        return math.nan
    (k, value), (larger, further) = last
    return math.log(further / value) / math.log(larger / k)


def seconds_by_place(results: Results, like: Cell, method: Method) -> list[Point]:
    """A method's seconds a query, of all cells that differ from one in k and length only."""
    return [
        Point(cell.k, cell.length, times.end_to_end if method == "end-to-end" else times.erag)
        for cell, times, _ in measured(results, like)
    ]


def peaks_by_place(results: Results, like: Cell, part: str) -> list[Point]:
    """A peak in bytes, by its name in ``Peaks``, of all cells that differ from one in k and length."""
    return [
        Point(cell.k, cell.length, float(getattr(peaks, part)))
        for cell, _, peaks in measured(results, like)
        if getattr(peaks, part) is not None
    ]


def kind_of(cell: Cell) -> Cell:
    """The common key of cells that differ only in k and length."""
    return replace(cell, k=0, length=0)


def crossing(ratios: Sequence[tuple[int, float]], along: str = "k") -> str:
    """The k, or length of passages, above which end-to-end takes longer than eRAG, in words.

    Args:
        ratios: k with end-to-end's time by eRAG's, for one length of passages; or the other way round.
        along: name of the first item of a pair.
    """
    ordered = sorted(ratios)
    above = [value > 1 for _, value in ordered]
    if not ordered:
        return "not measured"
    if all(above):
        return f"at every {along} from {ordered[0][0]} on"
    if not any(above):
        return f"at no {along} up to {ordered[-1][0]}"
    # The last place at which end-to-end is not slower: it always is from the next one on.
    last = max(i for i, slower in enumerate(above) if not slower)
    if last == len(above) - 1:
        return f"not at {along} = {ordered[-1][0]}, the largest"
    return f"from {along} between {ordered[last][0]} and {ordered[last + 1][0]} on"
