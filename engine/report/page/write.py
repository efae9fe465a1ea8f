"""Writing the page of an evaluation: ``report.html`` and the folder ``report`` beside it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

from engine.report.page import drawings, exports, figures, overview, queries
from engine.report.page.figures import Picture
from engine.report.page.findings import Findings
from engine.sources.io.files import write_bytes, write_text
from engine.sources.io.folders import Folder

PAGE, BESIDE = "report.html", "report"
# Names every file beside the page, so that the next evaluation removes these and no others.
_LISTED = "report.json"
_NAMES = re.compile(r"(queries-\d{4,}\.js|(figures|tables)/[a-z]+\.(svg|png|md|tex|csv))")
_KINDS = {"md": exports.markdown, "tex": exports.latex, "csv": exports.comma_separated}


@dataclass(frozen=True)
class Written:
    """The files of a page: the page, those beside it, and how many bytes they have."""

    page: Path
    beside: tuple[Path, ...]
    size: int


def write_page(findings: Findings, folder: Path, *, single_file: bool = False) -> Written:
    """Write the page into a folder.

    Args:
        findings: of the evaluation.
        folder: where ``report.html`` goes, and ``report/`` with details, pictures and tables.
        single_file: whether the page holds everything; else the details of queries are scripts beside it.

    Raises:
        WriteError: the disk is full, or the place cannot be written.
    """
    grids = [overview.leaderboard(findings)]
    if findings.summary["end_to_end"] and findings.annotators:
        grids.append(overview.agreement(findings))
    costs = overview.costs(findings)
    grids += [costs] if costs.rows else []
    drawn = figures.pictures(findings, with_png=not single_file)
    beside = {} if single_file else dict(_pictures_and_tables(drawn, grids))
    rows: list[queries.Row] = []
    inlined: list[str] = []
    names: list[str] = []
    left_out = 0
    for part in queries.parts(findings):
        rows += part.rows
        left_out += part.left_out
        if not part.script:
            continue
        if single_file:
            inlined.append(part.script)
        else:
            names.append(f"queries-{part.number:04d}.js")
            write_text(part.script, folder / BESIDE / names[-1])
    for name, content in beside.items():
        write_bytes(content, folder / BESIDE / name)
    names += beside
    if names:
        write_text(json.dumps(sorted(names), indent=1) + "\n", folder / BESIDE / _LISTED)
    content = (
        _environment()
        .get_template("page.html.j2")
        .render(
            title=_title(findings),
            style=_as_it_is(_source("page.css")),
            script=_as_it_is(_source("page.js")),
            answer=overview.answer(findings),
            leaderboard=grids[0],
            agreement=next((grid for grid in grids if grid.name == "agreement"), None),
            costs=costs if costs.rows else None,
            notes=overview.notes(findings),
            pictures=_for_the_page(drawn),
            conditions=_conditions(findings),
            queries_note=_queries_note(findings),
            files_note=_files_note(single_file=single_file),
            settings=[(name, _value(value)) for name, value in findings.configuration.items()],
            data=_as_it_is(
                queries.escaped(
                    json.dumps(queries.as_json(rows, findings, left_out), ensure_ascii=False)
                )
            ),
            inlined=[_as_it_is(script) for script in inlined],
        )
    )
    write_text(content, folder / PAGE)
    written = tuple(folder / BESIDE / name for name in names)
    size = len(content.encode()) + sum(path.stat().st_size for path in written)
    return Written(folder / PAGE, written, size)


def page_files(folder: Folder) -> Iterator[str]:
    """The names, in the folder of results, of the files of an earlier page, and of its list of them.

    Files that the list does not name are the user's own, and not among them.

    Raises:
        InputError: the list cannot be read.
    """
    yield PAGE
    try:
        names = json.loads((folder / BESIDE).read(_LISTED).decode())
    except (OSError, ValueError, RecursionError):
        return
    yield f"{BESIDE}/{_LISTED}"
    for name in names if isinstance(names, list) else []:
        # Whoever may have changed the list: nothing elsewhere is removed for it.
        if isinstance(name, str) and _NAMES.fullmatch(name):
            yield f"{BESIDE}/{name}"


def _pictures_and_tables(
    drawn: list[Picture], grids: list[overview.Grid]
) -> Iterator[tuple[str, bytes]]:
    for picture in drawn:
        yield f"figures/{picture.name}.svg", picture.svg.encode()
        yield f"figures/{picture.name}.png", picture.png
    if drawn:
        yield "figures/captions.md", exports.markdown(figures.as_grid(drawn)).encode()
    for grid in grids:
        for suffix, written in _KINDS.items():
            yield f"tables/{grid.name}.{suffix}", written(grid).encode()


def _for_the_page(drawn: list[Picture]) -> dict[str, Any]:
    """The pictures by name, as markup that takes the page's colours."""
    colours = {drawings.INK: "currentColor", drawings.FAINT: "var(--line)"}
    colours |= {
        colour: f"var(--c{place})" for place, colour in enumerate(drawings.COLOURS, start=1)
    }
    found = {}
    for picture in drawn:
        # From the element on: a prolog has no place within a page. Names in it are matplotlib's to escape.
        svg = picture.svg[picture.svg.index("<svg") :]
        for colour, variable in colours.items():
            svg = svg.replace(colour, variable)
        found[picture.name] = {
            "title": picture.title,
            "caption": picture.caption,
            "svg": _as_it_is(svg),
        }
    return found


def _environment() -> Any:
    import jinja2

    return jinja2.Environment(
        loader=jinja2.FunctionLoader(_source),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
    )


def _source(name: str) -> str:
    return (resources.files(__package__) / "templates" / name).read_text(encoding="utf-8")


def _as_it_is(text: str) -> Any:
    """A text that is the page's own, or is escaped already."""
    from markupsafe import Markup

    return Markup(text)


def _title(findings: Findings) -> str:
    names = ", ".join(findings.runs[:3]) + (", …" if len(findings.runs) > 3 else "")
    return f"{names}: erag-engine" if names else "erag-engine"


def _queries_note(findings: Findings) -> str:
    if findings.sources is None:
        return "This evaluation has no passages on its page; its tables hold every label and read."
    found = "Those first in which the measure and the end-to-end score disagree most; open one to see its passages."
    return (
        found
        if findings.annotators and findings.summary["end_to_end"]
        else "Open one to see its passages."
    )


def _files_note(*, single_file: bool) -> str:
    if single_file:
        return "This page holds everything that it shows, and can be sent as it is."
    return (
        f"The folder {BESIDE}/ beside this page has the details of the queries, which the page loads, every picture as SVG "
        "and PNG (figures/), and every table as Markdown, LaTeX and CSV (tables/). The Parquet tables beside the page have all figures."
    )


def _conditions(findings: Findings) -> list[tuple[str, str]]:
    """The names of a study's other conditions, and where their pages are."""
    study = findings.summary.get("study") or {"conditions": []}
    return [
        (
            f"{one['reader']}, {one['augmentation']}, k = {one['k']}",
            f"{quote(one['directory'])}/{PAGE}",
        )
        for one in study["conditions"]
        if one["directory"] != "."
    ]


def _value(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "" if value is None else str(value)
