"""The two plots of ``benchmarks.efficiency``: time against k, and memory against k."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from benchmarks.efficiency.fit import Point, measured, peaks_by_place, seconds_by_place
from benchmarks.efficiency.grid import PAPER_LENGTH, Cell
from benchmarks.efficiency.results import Results
from engine.report.page.plotting import COLOURS, MARKERS, Drawing

Line = tuple[str, list[Point]]
_COLUMNS = 3


def drawings(results: Results) -> list[Drawing]:
    """Both plots, for the paper's length of passages, or else the length with most cells; none without cells."""
    cells = [cell for cell, *_ in measured(results)]
    if not cells:
        return []
    lengths = [cell.length for cell in cells]
    length = PAPER_LENGTH
    if length not in lengths:
        length = max(set(lengths), key=lambda one: (lengths.count(one), one))
    kinds: dict[tuple[str, ...], Cell] = {}
    for cell in cells:
        name = (cell.model, cell.augmentation, cell.way, f"answers of {cell.answer_tokens}")
        kinds.setdefault(name, cell)
    times = [(" ".join(name), at(_times(results, cell), length)) for name, cell in kinds.items()]
    peaks = [(" ".join(name), at(_peaks(results, cell), length)) for name, cell in kinds.items()]
    return [
        _drawing("time", "Time against k", "seconds a query", length, times),
        _drawing("memory", "Memory against k", "MiB above the loaded model", length, peaks),
    ]


def at(lines: Sequence[Line], length: int) -> list[Line]:
    """The points of lines at one length of passages, by k; lines without points are left out."""
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


def _drawing(
    name: str, title: str, label: str, length: int, panels: Sequence[tuple[str, Sequence[Line]]]
) -> Drawing:
    """A panel for each model and way, both axes logarithmic and shared."""
    # A single k shows no trend, so it is plotted only if there is nothing else.
    courses = [panel for panel in panels if any(len(points) > 1 for _, points in panel[1])]
    panels = sorted(courses or panels, key=lambda panel: panel[0])
    columns = min(_COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    ks = sorted({point.k for _, lines in panels for _, points in lines for point in points})

    def draw(figure: Any) -> None:
        from matplotlib.ticker import NullFormatter

        axes: Any = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
        for place, axis in enumerate(axes.flat):
            if place >= len(panels):
                axis.set_visible(False)
                continue
            panel, lines = panels[place]
            for number, (line, points) in enumerate(lines):
                axis.plot(
                    [point.k for point in points],
                    [point.value for point in points],
                    color=COLOURS[number],
                    marker=MARKERS[number],
                    markersize=4.5,
                    label=line,
                )
            axis.set_title(panel, fontsize=9)
            axis.set_xscale("log")
            axis.set_yscale("log")
            # As numbers: powers of ten would need formulas, which these pictures do not render.
            axis.set_xticks(ks, [str(k) for k in ks])
            axis.yaxis.set_major_formatter("{x:g}")
            for each in (axis.xaxis, axis.yaxis):
                each.set_minor_formatter(NullFormatter())
            axis.set_xlabel("k")
            axis.set_ylabel(label)
            if lines:
                axis.legend(fontsize=7)

    caption = f"Passages of {length} tokens; medians of rounds; both axes logarithmic."
    return Drawing(name, title, caption, 3.0 * rows, draw, width=3.7 * columns)
