"""How the pictures of pages look: colours, markers, and what their drawings have in common."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.messages.wording import cut

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which people with any kind of colour vision tell apart, each with a marker, so
# that colour is never the only sign. The page maps them to lighter ones on a dark ground.
INK, FAINT = "#1f2328", "#d1d9e0"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
# Letters of a name in a picture, and of a line of it beside a row.
_LONGEST, _LINE = 80, 28
MARKERS = ("o", "s", "^", "D", "v", "P")


@dataclass(frozen=True)
class Drawing:
    """A picture to be drawn on an empty figure; its size in inches."""

    name: str
    title: str
    caption: str
    height: float
    draw: Callable[[Any], None]
    width: float = 5.6


def draw_intervals(
    axes: Axes,
    points: Sequence[tuple[float, ...]],
    series: int,
    label: str | None,
    *,
    joined: Sequence[bool] = (),
) -> None:
    """Points (place, value, low, high), across or upright, where a line joins them that ``joined`` says.

    NaN bounds are left out.
    """
    colour, upright = COLOURS[series % len(COLOURS)], bool(joined)
    places, values, lows, highs = np.array(points, float).reshape(-1, 4).T
    errors = np.nan_to_num(np.maximum(0.0, [values - lows, highs - values]))
    x, y = (places, values) if upright else (values, places)
    axes.errorbar(
        x,
        y,
        yerr=errors if upright else None,
        xerr=None if upright else errors,
        fmt=MARKERS[series % len(MARKERS)],
        color=colour,
        markersize=5.5,
        linewidth=1.4,
        capsize=2.5,
        label=label,
        zorder=3,
    )
    if upright:
        axes.plot(places, np.where(joined, values, math.nan), color=colour, linewidth=1.4)


def forest(
    name: str,
    title: str,
    caption: str,
    rows: Sequence[tuple[str, float, float, float]],
    axis: str,
) -> Drawing:
    """A forest plot, 0 marked: rows of a label, a difference and the bounds of its interval, NaN for none."""

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.axvline(0, color=INK, linewidth=1.2, linestyle="--", zorder=2)
        draw_intervals(axes, [(place, *row[1:]) for place, row in enumerate(rows)], 0, None)
        name_rows(axes, [label for label, *_ in rows])
        axes.set_xlabel(axis)
        axes.margins(x=0.08)

    lines = max((len(textwrap.wrap(label_of(label), _LINE)) for label, *_ in rows), default=1)
    return Drawing(name, title, caption, 1.0 + max(0.34, 0.17 * lines) * len(rows), draw)


def label_of(text: str) -> str:
    """A name as a picture can show it: in one line, without control characters, and cut."""
    line = cut(text, _LONGEST)
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Names of rows, the first one on top."""
    lines = [textwrap.fill(label_of(name), _LINE) for name in names]
    axes.set_yticks(range(len(names)), lines)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)


def add_legend(figure: Figure, axes: Axes, entries: int) -> None:
    """Say above the picture what each sign means, where there is more than one."""
    if entries > 1:
        handles, labels = axes.get_legend_handles_labels()
        shown = [textwrap.fill(label_of(label), 2 * _LINE) for label in labels]
        longest = max(len(line) for label in shown for line in label.split("\n"))
        # About 16 letters are an inch, and a sign with its margins takes 7.
        columns = int(16 * figure.get_figwidth() / (longest + 7))
        figure.legend(
            handles, shown, loc="outside upper left", ncols=min(entries, 3, max(1, columns))
        )
