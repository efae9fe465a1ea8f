"""Make the pages of evaluations, ``report.html`` with the folder ``report`` beside it, from the evaluations' files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from engine.inputs.files import EvaluationInputs, cut_inputs
from engine.inputs.shards import InMemoryInputs
from engine.labels.registry import ANNOTATORS
from engine.messages.errors import InputError
from engine.messages.extras import missing
from engine.report import across_data_sets as across
from engine.report.across_data_sets import DataSetComparison
from engine.report.findings import Findings, read_findings
from engine.report.layout import typeset_grid
from engine.report.page import drawings, overview, queries, render
from engine.report.page.render import PageFiles
from engine.report.page_files import BESIDE
from engine.report.summary import SUMMARY, conditions_of
from engine.sources.io.files import write_text
from engine.sources.io.folders import Folder, folder_at
from engine.sources.io.locations import Location
from engine.sources.io.outputs import sole_writer

# Path of the main condition in the summary of a study.
_HERE = "."


def make_page(findings: Findings, out: Location) -> None:
    """Make the page of results that were just written, and the pages of a study's other conditions.

    The results are not read again. No page is made without the extra ``page``.

    Raises:
        WriteError: the disk is full, or the place cannot be written; the results are whole, and have no page.
    """
    if not missing("page"):
        each = [findings, *findings.conditions[1:]]
        conditions = dict(zip(_places(findings.summary), each, strict=True))
        _replace_pages(conditions, folder_at(out))


def make_page_of_all(
    data_sets: DataSetComparison, out: Location, settings: Mapping[str, object]
) -> None:
    """Make the page of data sets whose tables were just written; without the extra ``page`` there is none."""
    if missing("page"):
        return
    grids = map(typeset_grid, across.all_grids(data_sets))
    parts = [render.Part(grid.name, grid.name, grid.title, grids=[grid]) for grid in grids]
    missing_cells, title = across.missing_cells(data_sets), "Empty and undefined cells"
    parts.append(render.Part("empty", "empty cells", title, folded=missing_cells))
    answer, notes = across.answer(data_sets), across.notes(data_sets)
    page = render.Page("erag evaluate", answer, parts, [], notes, settings)
    render.replace_page(folder_at(out), partial(render.write_plain, page))


def remake(folder: Path, *, single_file: bool, passages: bool) -> PageFiles:
    """Make the page of an evaluation again, and the pages of a study's other conditions.

    ``passages``: whether to read the evaluation's inputs again and show the passages of queries.

    Raises:
        InputError: the folder holds no evaluation; an input is gone, or has changed since the evaluation.
    """
    render.require_page()
    findings = read_findings(folder, None)
    names = _places(findings.summary)
    conditions = {name: read_findings(folder / name, None) for name in names}
    # No file holds runs that an earlier version edited.
    again = not (findings.summary.get("shards") or findings.configuration.get("edits"))
    if passages and again:
        files = findings.files("make the page without `passages`")
        cutoffs = {name: int(own.configuration["k"]) for name, own in conditions.items()}
        inputs = InMemoryInputs.of_files(files, k=max(cutoffs.values())).inputs
        for name, own in conditions.items():
            sources = _unchanged(own, cut_inputs(inputs, cutoffs[name]))
            conditions[name] = replace(own, sources=sources)
    with sole_writer(folder):
        return _replace_pages(conditions, folder_at(folder), single_file=single_file)


def _places(summary: Mapping[str, Any]) -> list[str]:
    return [condition["directory"] for condition in conditions_of(summary)] or [_HERE]


def _replace_pages(
    conditions: Mapping[str, Findings], out: Folder, *, single_file: bool = False
) -> PageFiles:
    """Put the pages of conditions into their folders; the main page comes last, since it links to the others.

    Only the main page's pictures are drawn as PNG, too.
    """
    *others, main = sorted(conditions, key=lambda name: name == _HERE)
    write = partial(write_page, single_file=single_file)
    for name in others:
        render.replace_page(out / name, partial(write, conditions[name], with_png=False))
    return render.replace_page(out, partial(write, conditions[main]))


def write_page(
    findings: Findings, folder: Path, *, single_file: bool = False, with_png: bool = True
) -> PageFiles:
    """Write ``report.html`` into a folder, and ``report/`` with details, pictures and tables unless a ``single_file``."""
    render.require_page()
    slices = overview.slices(findings)
    sections = overview.sections(findings, slices)
    parts = [replace(part, grids=[*map(typeset_grid, part.grids)]) for part in sections]
    rows: list[queries.Row] = []
    inlined: list[str] = []
    names: list[str] = []
    for more, script in queries.parts(findings, slices):
        rows += more
        if script and single_file:
            inlined.append(render.as_it_is(script))
        elif script:
            names.append(f"queries-{len(names) + 1:04d}.js")
            write_text(script, folder / BESIDE / names[-1])
    scripts = ["page.js", *["traces.js"] * (not findings.table("trace_runs").is_empty())]
    content = queries.as_json(rows, findings, slices)
    data = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    runs = ", ".join([*findings.runs[:3], *["…"] * (len(findings.runs) > 3)])
    text, drawn = render.drawn_page(
        render.Page(
            title=f"{runs}: erag-engine" if runs else "erag-engine",
            answer=overview.answer(findings),
            parts=parts,
            drawings=list(drawings.drawings(findings)),
            notes=overview.notes(findings),
            settings=findings.configuration,
            with_png=with_png,
        ),
        single_file=single_file,
        template="page.html.j2",
        script=render.as_it_is("".join(map(render.source, scripts))),
        grids={grid.name: grid for part in parts for grid in part.grids},
        annotators={n: ANNOTATORS[n].meaning for n in findings.annotators if n in ANNOTATORS},
        conditions=conditions_of(findings.summary),
        with_passages=findings.sources is not None,
        data=render.as_it_is(queries.escaped(data)),
        inlined=inlined,
    )
    return render.write_files(text, drawn, parts, folder, single_file=single_file, also=names)


def _unchanged(findings: Findings, inputs: EvaluationInputs) -> EvaluationInputs:
    expected, path = findings.summary.get("audit") or {}, findings.folder / SUMMARY
    digests = expected.get("tables_sha256", {})
    for name, called in (("queries", "queries"), ("corpus", "passages"), ("runs", "runs")):
        if digests.get(name) != inputs.sha256[name]:
            problem = f"was made of other {called} than {findings.configuration[name]} has now"
            remedy = "evaluate again, or make the page without `passages`"
            raise InputError(problem, remedy, "results.inputs", path=path)
    return inputs
