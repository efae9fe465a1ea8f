"""The page of ``benchmarks.efficiency``: the paper's figures beside ours first, then all tables and both plots."""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from pathlib import Path

from benchmarks.efficiency import plots
from benchmarks.efficiency.fit import measured
from benchmarks.efficiency.results import Results
from benchmarks.efficiency.table import BESIDE_PAPER, Left, grids, grouped, left_out
from engine.report.layout import Answer, Grid
from engine.report.page.render import Page, Part, drawn_page
from engine.sources.io.files import write_text

_NOTE = (
    "Time and memory depend on a model's sizes and on the lengths of prompts and answers, not on the values of its "
    "weights; random ones say nothing about quality."
)


def write(results: Results, left: Left, stem: Path) -> None:
    """Write the page, in one file (``.html``), and its plots beside it as SVG."""
    parts = []
    shown = [_plain(grid) for grid in grids(results) if grid.rows]
    for name, own in groupby(shown, lambda grid: grid.name.partition("-")[0]):
        tables = list(own)
        title = BESIDE_PAPER if name == "paper" else tables[0].title
        pictures = [name] if name in ("time", "memory") else []
        parts.append(Part(name, name.capitalize(), title, grids=tables, pictures=pictures))
    if missing := list(grouped(left_out(results, left))):
        title = f"Kinds of cells that were left out: {len(missing)}"
        parts.append(Part("left", "Left out", title, folded=missing))
    title = "End-to-end evaluation and eRAG: time and memory"
    page = Page(title, _answer(results), parts, plots.drawings(results), [_NOTE], {})
    text, drawn = drawn_page(page, single_file=True)
    for picture in drawn:
        write_text(picture.svg, stem.with_name(f"{stem.name}-{picture.name}.svg"))
    write_text(text, stem.with_name(f"{stem.name}.html"))


def _answer(results: Results) -> Answer:
    ratios = sorted(times.ratio for _, times, _ in measured(results))
    facts = list(zip(("measured", "versions", "conditions"), results.described(), strict=True))
    if not ratios:
        return Answer("No time has been measured yet.", (), facts)
    reach = " to ".join(dict.fromkeys(f"{ratio:.2f}" for ratio in (ratios[0], ratios[-1])))
    faster = sum(ratio > 1 for ratio in ratios)
    reason = f"Above 1 eRAG is faster: in {faster} of {len(ratios)} settings."
    return Answer(f"End-to-end evaluation takes {reach} times as long as eRAG.", [reason], facts)


def _plain(grid: Grid) -> Grid:
    """A table without Markdown's bold, and with a head that does not break at hyphens."""
    rows = [[cell.replace("**", "") for cell in row] for row in grid.rows]
    return replace(grid, rows=rows, head=[name.replace("-", "\u2011") for name in grid.head])
