"""Pages of anything but an evaluation: an answer, and parts with tables, pictures and lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from engine.report.page import figures
from engine.report.page.content import Answer, Part
from engine.report.page.figures import Picture
from engine.report.page.plotting import Drawing
from engine.report.page.render import (
    BESIDE,
    Written,
    pictures_and_tables,
    rendered,
    require_page,
    write_files,
)


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
    """Write a page into a folder, as ``report.html``.

    Args:
        page: what it shows.
        folder: where it goes.
        single_file: whether there is nothing beside it; else ``report/`` has its pictures and tables as files.

    Raises:
        InputError: the extra ``report`` is not installed.
        WriteError: the disk is full, or the place cannot be written.
    """
    require_page()
    drawn = figures.pictures(page.drawings, with_png=not single_file)
    grids = [grid for part in page.parts for grid in part.grids]
    beside = {} if single_file else dict(pictures_and_tables(drawn, grids))
    return write_files(page_text(page, drawn, single_file=single_file), beside, folder)


def page_text(page: Page, drawn: Sequence[Picture], *, single_file: bool) -> str:
    """A page as HTML, with pictures that were drawn before."""
    return rendered(
        "plain.html.j2",
        drawn,
        title=page.title,
        answer=page.answer,
        notes=page.notes,
        files_note=_files_note(single_file=single_file),
        settings=page.settings,
        parts=page.parts,
    )


def _files_note(*, single_file: bool) -> str:
    if single_file:
        return "This page holds everything that it shows, and can be sent as it is."
    return (
        f"The folder {BESIDE}/ beside this page has every picture as SVG and PNG (figures/), and every table as "
        "Markdown, LaTeX and CSV (tables/)."
    )
