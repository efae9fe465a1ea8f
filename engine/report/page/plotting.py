"""The pictures of pages: colours, markers, shared parts of drawings, and rendering by matplotlib."""

from __future__ import annotations

import io
import logging
import os
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from engine.machine.model_files import cache_directory
from engine.messages.wording import cut

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which people with any kind of colour vision tell apart, each with a marker, so
# that colour is never the only sign. The page maps them to lighter ones on a dark ground.
INK, FAINT = "#1f2328", "#d1d9e0"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
# Most letters of a name in a picture, and of a line beside a row.
_LONGEST, _LINE = 80, 28
# Points below, beside and above axes (a row of numbers and a name; halves of numbers), of space, and from line to line.
_BELOW, _BESIDE, _ABOVE, _SPACE, _LINE_HEIGHT = 35, 12, 8, 4, 10.5
MARKERS = ("o", "s", "^", "D", "v", "P")
# System fonts for scripts that DejaVu Sans lacks, fonts with Hangul included, whose glyphs the others lack.
_FURTHER_FONTS = re.compile(
    "CJK KR|Sans KR|Nanum|Malgun|SD Gothic|CJK|Source Han|Sans (JP|SC|TC)|WenQuanYi|Hei|Gothic|Droid Sans Fallback"
    "|Devanagari|Thai|Bengali|Arial Unicode|Unifont"
)
_INKED = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color")
_CLEAR = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "erag-engine",
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "font.family": ["DejaVu Sans"],
    "font.size": 9,
    **dict.fromkeys(_INKED, INK),
    **dict.fromkeys(_CLEAR, "none"),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "legend.frameon": False,
}


Points = Sequence[tuple[float, ...]]
Differences = Sequence[tuple[str, float, float, float]]


@dataclass(frozen=True)
class Drawing:
    """A picture to draw on an empty figure; its size in inches."""

    name: str
    title: str
    caption: str
    height: float
    draw: Callable[[Any], None]
    width: float = 5.6


@dataclass(frozen=True)
class Picture:
    """A picture in ``INK``, ``FAINT`` and ``COLOURS``; as PNG on white at 200 dots an inch, or empty if not asked for."""

    name: str
    title: str
    caption: str
    svg: str
    png: bytes = b""


def draw_intervals(
    axes: Axes, points: Points, series: int, label: str | None, *, joined: bool = False
) -> None:
    """Points (place, value, low, high), across, or upright and ``joined`` by a line; NaN bounds are left out."""
    colour, upright = COLOURS[series % len(COLOURS)], joined
    places, values, lows, highs = np.array(points, float).reshape(-1, 4).T
    errors = np.nan_to_num(np.maximum(0.0, [values - lows, highs - values]))
    x, y = (places, values) if upright else (values, places)
    marker, bars = MARKERS[series % len(MARKERS)], {"yerr" if upright else "xerr": errors}
    style: Any = {"fmt": marker, "color": colour, "markersize": 5.5, "linewidth": 1.4, **bars}
    axes.errorbar(x, y, capsize=2.5, label=label, zorder=3, **style)
    if upright:
        axes.plot(places, values, color=colour, linewidth=1.4)


def forest(
    name: str, title: str, caption: str, rows: Differences, axis: str, margin: float = 0
) -> Drawing:
    """A forest plot with marks at 0 and a loss of ``margin``: rows of a label, a difference and its bounds, or NaN."""

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        axes.axvline(0, color=INK, linewidth=1.2, linestyle="--", zorder=2)
        if margin:
            axes.axvline(-margin, color=INK, linewidth=1.2, linestyle=":", zorder=2)
        draw_intervals(axes, [(place, *row[1:]) for place, row in enumerate(rows)], 0, None)
        name_rows(axes, [label for label, *_ in rows])
        axes.set_xlabel(axis)
        axes.margins(x=0.08)

    lines = max((len(textwrap.wrap(label_of(label), _LINE)) for label, *_ in rows), default=1)
    return Drawing(name, title, caption, 1.0 + max(0.34, 0.17 * lines) * len(rows), draw)


def label_of(text: str) -> str:
    """A name for a picture: on a single line, without control characters, and cut."""
    line = cut(text, _LONGEST)
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)


def name_rows(axes: Axes, names: Sequence[str]) -> None:
    """Names of rows, the first one on top."""
    lines = [textwrap.fill(label_of(name), _LINE) for name in names]
    axes.set_yticks(range(len(names)), lines)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)


def add_legend(figure: Figure, axes: Axes, entries: int) -> None:
    """Add a legend above the picture if it has several signs."""
    if entries > 1:
        handles, labels = axes.get_legend_handles_labels()
        shown = [textwrap.fill(label_of(label), 2 * _LINE) for label in labels]
        longest = max(len(line) for label in shown for line in label.split("\n"))
        # About 16 letters are an inch, and a sign with its margins takes 7.
        columns = min(entries, 3, max(1, int(16 * figure.get_figwidth() / (longest + 7))))
        lines = max(label.count("\n") + 1 for label in shown)
        figure.legend(handles, shown, loc="upper left", ncols=columns)
        taken = (_ABOVE + -(-entries // columns) * (_SPACE + _LINE_HEIGHT * lines)) / 72
        figure.set_figheight(max(figure.get_figheight(), 2 * taken))  # half is for the axes
        figure.subplots_adjust(top=1 - taken / figure.get_figheight())


def pictures(drawings: Iterable[Drawing], *, with_png: bool) -> list[Picture]:
    """Draw pictures; as PNG, too, with ``with_png``."""
    # If the home directory is read-only, matplotlib would print a warning, and scan all fonts each time.
    os.environ.setdefault("MPLCONFIGDIR", str(cache_directory() / "matplotlib"))
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    import matplotlib
    from matplotlib import font_manager

    installed = sorted({font.name for font in font_manager.fontManager.ttflist})
    # A list of families: matplotlib would look for glyphs only in the first of a generic one.
    fonts = ["DejaVu Sans", *filter(_FURTHER_FONTS.search, installed)]
    drawn = []
    # Glyphs that no font has become boxes in the picture; a warning for each would help no user.
    with matplotlib.rc_context(_STYLE | {"font.family": fonts}), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for drawing in drawings:
            figure, vector, png = figure_of(drawing), io.StringIO(), io.BytesIO()
            figure.savefig(vector, format="svg", metadata={"Date": None, "Creator": None})
            # A browser without the font takes one of equal width. To look for that here, too, takes long.
            svg = vector.getvalue().replace("'DejaVu Sans'", "'DejaVu Sans', 'Verdana', sans-serif")
            if with_png:
                figure.savefig(png, format="png", facecolor="white", dpi=200)
            about = drawing.name, drawing.title, drawing.caption
            drawn.append(Picture(*about, svg, png.getvalue()))
    return drawn


def figure_of(drawing: Drawing) -> Figure:
    """The matplotlib figure of a picture, whose margins hold the names of rows, numbers and axes.

    A constrained layout would take as long as the drawing.
    """
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    width, height = drawing.width * 72, drawing.height * 72
    with matplotlib.rc_context(_STYLE | {"font.family": matplotlib.rcParams["font.family"]}):
        figure = Figure(figsize=(drawing.width, drawing.height))
        figure.subplots_adjust(0, _BELOW / height, 1 - _BESIDE / width, 1 - _ABOVE / height)
        drawing.draw(figure)
        renderer = FigureCanvasAgg(figure).get_renderer()
        for axes in figure.axes:
            if (named := axes.yaxis.get_tightbbox(renderer)) is not None:
                figure.subplots_adjust(left=_SPACE / width - named.x0 / figure.bbox.width)
    return figure
