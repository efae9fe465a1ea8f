"""The pictures of a page, drawn by matplotlib: as SVG that follows the page's colours, and as files for papers."""

from __future__ import annotations

import io
import logging
import os
import re
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from engine.machine.model_files import cache_directory
from engine.report.page.plotting import FAINT, INK, Drawing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Families with scripts that DejaVu Sans lacks, of which the system's are used; those with Hangul have a glyph where others lack one.
_FURTHER_FONTS = re.compile(
    "CJK KR|Sans KR|Nanum|Malgun|SD Gothic|CJK|Source Han|Sans (JP|SC|TC)|WenQuanYi|Hei|Gothic|Droid Sans Fallback"
    "|Devanagari|Thai|Bengali|Arial Unicode|Unifont"
)
_STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "erag-engine",
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "font.family": ["DejaVu Sans"],
    "font.sans-serif": ["DejaVu Sans", "Verdana"],  # each text of an SVG names them all
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": FAINT,
    "grid.linewidth": 0.8,
    "axes.grid": True,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}


@dataclass(frozen=True)
class Picture:
    """A picture in ``INK``, ``FAINT`` and ``COLOURS``; as PNG on white at 200 dots an inch, or empty if not asked for."""

    name: str
    title: str
    caption: str
    svg: str
    png: bytes = b""


def pictures(drawings: Iterable[Drawing], *, with_png: bool) -> list[Picture]:
    """Draw pictures; as PNG, too, with ``with_png``."""
    # Where the home directory cannot be written, matplotlib would say so, and look through all fonts each time.
    os.environ.setdefault("MPLCONFIGDIR", str(cache_directory() / "matplotlib"))
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    import matplotlib
    from matplotlib import font_manager

    installed = sorted({font.name for font in font_manager.fontManager.ttflist})
    # A list of families: of a generic one, matplotlib would look for glyphs in its first alone.
    fonts = ["DejaVu Sans", *filter(_FURTHER_FONTS.search, installed), "sans-serif"]
    drawn = []
    # Of a glyph that no font has, a box stands in the picture; nobody is helped by a line for each.
    with matplotlib.rc_context(_STYLE | {"font.family": fonts}), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for drawing in drawings:
            figure = figure_of(drawing)
            svg = _saved(figure, "svg", metadata={"Date": None, "Creator": None}).decode()
            # Both have one layout, which takes as long to find as to draw.
            figure.set_layout_engine(None)
            png = _saved(figure, "png", facecolor="white", dpi=200) if with_png else b""
            drawn.append(Picture(drawing.name, drawing.title, drawing.caption, svg, png))
    return drawn


def figure_of(drawing: Drawing) -> Figure:
    """A picture as matplotlib has it."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE | {"font.family": matplotlib.rcParams["font.family"]}):
        figure = Figure(figsize=(drawing.width, drawing.height), layout="constrained")
        drawing.draw(figure)
    return figure


def _saved(figure: Figure, kind: str, **options: Any) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, format=kind, **options)
    return content.getvalue()
