"""How the pictures of pages look: colours, markers, and what their drawings have in common."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which people with any kind of colour vision tell apart, each with a marker, so
# that colour is never the only sign. The page maps them to lighter ones on a dark ground.
INK, FAINT = "#1f2328", "#d1d9e0"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
# Letters of a name in a picture.
_LONGEST = 80
MARKERS = ("o", "s", "^", "D", "v", "P")


@dataclass(frozen=True)
class Drawing:
    """A picture to be drawn: as in ``figures.Picture``, and its size in inches.

    Attributes:
        draw: draws it on an empty figure.
    """

    name: str
    title: str
    caption: str
    height: float
    draw: Callable[[Any], None]
    width: float = 5.6


def draw_intervals(
    axes: Axes,
    values: Sequence[float],
    places: Sequence[float],
    bounds: Sequence[tuple[float, float]],
    series: int,
    label: str | None,
    *,
    upright: bool = False,
) -> None:
    """Points with intervals, across or, with ``upright``, along the vertical axis; NaN bounds are left out."""
    colour = COLOURS[series % len(COLOURS)]
    errors = [
        [
            0.0 if math.isnan(low) else max(0.0, value - low)
            for value, (low, _) in zip(values, bounds, strict=True)
        ],
        [
            0.0 if math.isnan(high) else max(0.0, high - value)
            for value, (_, high) in zip(values, bounds, strict=True)
        ],
    ]
    x, y = (places, values) if upright else (values, places)
    axes.errorbar(
        x,
        y,
        yerr=errors if upright else None,
        xerr=None if upright else errors,
        fmt=MARKERS[series % len(MARKERS)] + ("-" if upright else ""),
        color=colour,
        markersize=5.5,
        linewidth=1.4,
        capsize=2.5,
        label=label,
        zorder=3,
    )


def label_of(text: str) -> str:
    """A name as a picture can show it: in one line, without control characters, and cut."""
    shown = "".join(
        c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in " ".join(text.split())
    )
    return shown if len(shown) <= _LONGEST else f"{shown[: _LONGEST - 1]}…"


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Names of rows, the first one on top."""
    axes.set_yticks(range(len(names)), [label_of(name) for name in names])
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)


def add_legend(figure: Figure, axes: Axes, entries: int) -> None:
    """Say above the picture what each sign means, where there is more than one."""
    if entries > 1:
        handles, labels = axes.get_legend_handles_labels()
        shown = [label_of(label) for label in labels]
        figure.legend(handles, shown, loc="outside upper left", ncols=min(entries, 3))
