"""Pages of anything but an evaluation: an answer, and parts with tables, pictures and lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from engine.report.page import figures
from engine.report.page.content import Answer, Part
from engine.report.page.figures import Picture
from engine.report.page.plotting import Drawing
from engine.report.page.render import rendered, require_page, write_files
from engine.sources.io.files import write_text


@dataclass(frozen=True)
class Page:
    """A page, whose parts show the drawings by name; ``title`` is the window's, and notes are sentences."""

    title: str
    answer: Answer
    parts: Sequence[Part]
    drawings: Sequence[Drawing]
    notes: Sequence[str]
    settings: Mapping[str, object]


def write_plain(page: Page, folder: Path) -> None:
    """Write a page as ``report.html``, with its pictures and tables as files in ``report/``."""
    text, drawn = _rendered(page, single_file=False)
    grids = [grid for part in page.parts for grid in part.grids]
    write_files(text, drawn, grids, folder, single_file=False)


def write_single(page: Page, path: Path) -> None:
    """Write a page as one file."""
    write_text(_rendered(page, single_file=True)[0], path)


def _rendered(page: Page, *, single_file: bool) -> tuple[str, list[Picture]]:
    require_page()
    drawn = figures.pictures(page.drawings, with_png=not single_file)
    content = {one.name: getattr(page, one.name) for one in fields(page)}
    return rendered("plain.html.j2", drawn, single_file=single_file, **content), drawn
