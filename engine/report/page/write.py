"""Writing the page of an evaluation: ``report.html`` and the folder ``report`` beside it."""

from __future__ import annotations

import json
from pathlib import Path

from engine.labels.registry import ANNOTATORS
from engine.report.findings import Findings
from engine.report.page import drawings, figures, overview, queries, render, slices
from engine.report.page.content import typeset_grid
from engine.report.page.render import Written, as_it_is, rendered, require_page, source, write_files
from engine.sources.io.files import write_text


def write_page(findings: Findings, folder: Path, *, single_file: bool = False) -> Written:
    """Write ``report.html`` into a folder, and ``report/`` with details, pictures and tables unless a ``single_file``."""
    require_page()
    made = slices.slices(findings)
    grids = {grid.name: typeset_grid(grid) for grid in overview.overview_grids(findings, made)}
    drawn = figures.pictures(drawings.drawings(findings), with_png=not single_file)
    rows: list[queries.Row] = []
    inlined: list[str] = []
    names: list[str] = []
    for part in queries.parts(findings, made):
        rows += part.rows
        if not part.script:
            continue
        if single_file:
            inlined.append(part.script)
        else:
            names.append(f"queries-{part.number:04d}.js")
            write_text(part.script, folder / render.BESIDE / names[-1])
    content = queries.as_json(rows, findings, made)
    data = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    page = rendered(
        "page.html.j2",
        drawn,
        single_file=single_file,
        settings=findings.configuration,
        runs=findings.runs,
        answer=overview.answer(findings),
        notes=overview.notes(findings),
        script=as_it_is(source("page.js")),
        grids=grids,
        annotators={
            name: ANNOTATORS[name].meaning for name in findings.annotators if name in ANNOTATORS
        },
        conditions=(findings.summary.get("study") or {"conditions": []})["conditions"],
        with_passages=findings.sources is not None,
        data=as_it_is(queries.escaped(data)),
        inlined=[as_it_is(script) for script in inlined],
    )
    return write_files(page, drawn, [*grids.values()], folder, single_file=single_file, also=names)
