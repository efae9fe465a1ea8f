"""Writing the page of an evaluation: ``report.html`` and the folder ``report`` beside it."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

from engine.report.findings import Findings
from engine.report.page import drawings, figures, overview, queries
from engine.report.page.content import typeset_grid
from engine.report.page.render import (
    BESIDE,
    PAGE,
    Written,
    as_it_is,
    pictures_and_tables,
    rendered,
    require_page,
    source,
    write_files,
)
from engine.sources.io.files import write_text


def write_page(findings: Findings, folder: Path, *, single_file: bool = False) -> Written:
    """Write the page into a folder.

    Args:
        findings: of the evaluation.
        folder: where ``report.html`` goes, and ``report/`` with details, pictures and tables.
        single_file: whether the page holds everything; else the details of queries are scripts beside it.

    Raises:
        InputError: the extra ``report`` is not installed.
        WriteError: the disk is full, or the place cannot be written.
    """
    require_page()
    grids = {grid.name: typeset_grid(grid) for grid in overview.overview_grids(findings)}
    drawn = figures.pictures(drawings.drawings(findings), with_png=not single_file)
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
    data = json.dumps(queries.as_json(rows, findings, left_out), ensure_ascii=False)
    page = rendered(
        "page.html.j2",
        drawn,
        title=_title(findings),
        answer=overview.answer(findings),
        notes=overview.notes(findings),
        files_note=_files_note(single_file=single_file),
        settings=findings.configuration,
        script=as_it_is(source("page.js")),
        leaderboard=grids["runs"],
        agreement=grids.get("agreement"),
        outputs=grids.get("outputs"),
        costs=grids.get("costs"),
        conditions=_conditions(findings),
        queries_note=_queries_note(findings),
        data=as_it_is(queries.escaped(data)),
        inlined=[as_it_is(script) for script in inlined],
    )
    beside = {} if single_file else dict(pictures_and_tables(drawn, list(grids.values())))
    return write_files(page, beside, folder, also=names)


def _title(findings: Findings) -> str:
    names = ", ".join(findings.runs[:3]) + (", …" if len(findings.runs) > 3 else "")
    return f"{names}: erag-engine" if names else "erag-engine"


def _queries_note(findings: Findings) -> str:
    if findings.sources is None:
        return (
            "This evaluation has no passages on its page; its tables hold every label and output."
        )
    found = "Queries in which the measure and the end-to-end score disagree most come first; open one to see its passages."
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
