"""The two plots of ``benchmarks.efficiency``: time against k, and memory against k, as SVG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.efficiency.fit import Point, peaks_by_place, seconds_by_place
from benchmarks.efficiency.grid import PAPER_LENGTH, Cell
from benchmarks.efficiency.results import Results

Line = tuple[str, list[Point]]


def draw(results: Results, *, time: Path, memory: Path) -> None:
    """Draw both plots, of passages of the paper's length, or else of that with most cells."""
    cells = [cell for cell in results.outcomes if cell.kind == "time" and results.figures(cell)]
    if not cells:
        return
    lengths = [cell.length for cell in cells]
    length = PAPER_LENGTH
    if length not in lengths:
        length = max(set(lengths), key=lambda one: (lengths.count(one), one))
    kinds: dict[tuple[str, str, str], Cell] = {}
    for cell in cells:
        kinds.setdefault((cell.model, cell.augmentation, cell.way), cell)
    pictures: list[tuple[Path, str, Callable[[Cell], list[Line]]]] = [
        (time, "seconds a query", lambda cell: _times(results, cell)),
        (memory, "MiB above the loaded model", lambda cell: _peaks(results, cell)),
    ]
    for path, label, lines in pictures:
        panels = [(" ".join(name), at(lines(cell), length)) for name, cell in kinds.items()]
        _draw(path, label, f"passages of {length} tokens", panels)


def at(lines: Sequence[Line], length: int) -> list[Line]:
    """The points of lines at one length of passages, by k; lines without any are left out."""
    cut = [
        (name, sorted(point for point in points if point.length == length))
        for name, points in lines
    ]
    return [(name, points) for name, points in cut if points]


def _times(results: Results, cell: Cell) -> list[Line]:
    return [
        ("end to end", seconds_by_place(results, cell, "end-to-end")),
        ("eRAG", seconds_by_place(results, cell, "erag")),
    ]


def _peaks(results: Results, cell: Cell) -> list[Line]:
    parts = {"end to end": "end_to_end", "eRAG, k passages": "batch", "eRAG, one": "passage"}
    return [
        (
            name,
            [
                point._replace(value=point.value / 2**20)
                for point in peaks_by_place(results, cell, part)
            ],
        )
        for name, part in parts.items()
    ]


def _draw(path: Path, label: str, title: str, panels: Sequence[tuple[str, Sequence[Line]]]) -> None:
    """A panel for each model and way, both axes logarithmic and shared."""
    from matplotlib.figure import Figure

    columns = min(3, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(4.2 * columns, 3.2 * rows), layout="constrained")
    axes: Any = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for place, axis in enumerate(axes.flat):
        if place >= len(panels):
            axis.set_visible(False)
            continue
        name, lines = panels[place]
        for line, points in lines:
            axis.plot(
                [point.k for point in points],
                [point.value for point in points],
                marker="o",
                label=line,
            )
        axis.set_title(name, fontsize=9)
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel("k")
        axis.set_ylabel(label)
        axis.grid(visible=True, which="major", linewidth=0.4)
        if lines:
            axis.legend(fontsize=7)
    figure.suptitle(title, fontsize=10)
    figure.savefig(path, format="svg", metadata={"Date": None})
