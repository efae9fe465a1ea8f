"""Pages of anything but an evaluation: an answer, and parts with tables, pictures and lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from engine.report.page import figures
from engine.report.page.content import Answer, Part
from engine.report.page.figures import Picture
from engine.report.page.plotting import Drawing
from engine.report.page.render import Written, rendered, require_page, write_files
from engine.sources.io.files import write_text


@dataclass(frozen=True)
class Page:
    """A page.

    Attributes:
        title: of the window.
        answer: what it begins with.
        parts: in their order; they show the drawings by name.
        drawings: its pictures.
        notes: what qualifies the figures, a sentence each.
        settings: what was asked for, by name.
    """

    title: str
    answer: Answer
    parts: Sequence[Part]
    drawings: Sequence[Drawing]
    notes: Sequence[str]
    settings: Mapping[str, object]


def write_plain(page: Page, folder: Path, *, single_file: bool = False) -> Written:
    """Write a page as ``report.html``, with its pictures and tables as files in ``report/`` unless a ``single_file``."""
    require_page()
    drawn = figures.pictures(page.drawings, with_png=not single_file)
    grids = [grid for part in page.parts for grid in part.grids]
    text = page_text(page, drawn, single_file=single_file)
    return write_files(text, drawn, grids, folder, single_file=single_file)


def write_single(page: Page, path: Path) -> None:
    """Write a page as one file."""
    require_page()
    drawn = figures.pictures(page.drawings, with_png=False)
    write_text(page_text(page, drawn, single_file=True), path)


def page_text(page: Page, drawn: Sequence[Picture], *, single_file: bool) -> str:
    """A page as HTML, with pictures that were drawn before."""
    content = {one.name: getattr(page, one.name) for one in fields(page)}
    return rendered("plain.html.j2", drawn, single_file=single_file, **content)
