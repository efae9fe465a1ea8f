"""The page of ``benchmarks.efficiency``: its tables and plots, with what they come to."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from benchmarks.efficiency import plots
from benchmarks.efficiency.fit import times_of
from benchmarks.efficiency.grid import Cell
from benchmarks.efficiency.results import Results
from benchmarks.efficiency.table import LEFT_OUT, PAPER, Left, grids, grouped, left_out, timed
from engine.report.layout import Grid
from engine.report.page import figures
from engine.report.page.content import Answer, Fold, Part, sentence
from engine.report.page.plain import Page, page_text
from engine.sources.io.files import write_text

_SHORT = {
    "costs": "Costs",
    "fastest": "Fastest",
    "beside": "Engine and generate",
    "exponents": "Exponents",
    "crossings": "Crossing",
    "savings": "Savings",
}


def write(results: Results, left: Left, *, page: Path, time: Path, memory: Path) -> None:
    """Write the page, in one file, and its plots as SVG; plots only where there are figures.

    Args:
        results: what was measured.
        left: cells that were not run, with the reason.
        page, time, memory: the files.

    Raises:
        WriteError: the disk is full, or a file cannot be written.
    """
    drawn = figures.pictures(plots.drawings(results), with_png=False)
    for picture in drawn:
        write_text(picture.svg, {"time": time, "memory": memory}[picture.name])
    write_text(page_text(_page(results, left), drawn, single_file=True), page)


def _page(results: Results, left: Left) -> Page:
    parts = [
        Part(
            grid.name,
            _SHORT[grid.name],
            grid.title,
            grids=(_plain(grid),),
            pictures=("time", "memory") if grid.name == "costs" else (),
        )
        for grid in grids(results)
        if grid.rows
    ]
    missing = list(grouped(left_out(results, left)))
    folds = [Fold(f"{len(missing)} kinds of cells", missing)] if missing else []
    parts.append(
        Part("left", LEFT_OUT, LEFT_OUT, texts=() if missing else ("Nothing.",), folds=folds)
    )
    return Page(
        title="End-to-end evaluation against eRAG: erag-engine",
        answer=_answer(results),
        parts=parts,
        drawings=(),
        notes=(
            "Models with random weights say nothing about quality; time and memory depend on their sizes alone.",
            f"The paper (Salemi and Zamani, SIGIR 2024, Table 2): time {PAPER['time']}; memory of a query "
            f"{PAPER['memory of a query']} times, of a document {PAPER['memory of a document']} times.",
        ),
        settings=results.conditions,
    )


def _answer(results: Results) -> Answer:
    times = {
        cell: times_of(figures) for cell in timed(results) if (figures := results.figures(cell))
    }
    names = ("measured", "versions", "conditions")
    facts = list(zip(names, results.described(), strict=True))
    if not times:
        return Answer("No time was measured yet.", (), facts)
    slower = [cell for cell, time in times.items() if time.ratio > 1]
    ratios = sorted(time.ratio for time in times.values())
    headline = (
        f"End-to-end evaluation takes {ratios[0]:.2f} to {ratios[-1]:.2f} times as long as eRAG, on the same "
        f"queries with the same passages"
    )
    reasons = [f"It is slower in {len(slower)} of {len(times)} cells"]
    groups: dict[tuple[str, str, int], list[Cell]] = {}
    for cell in times:
        groups.setdefault((cell.model, cell.augmentation, cell.answer_tokens), []).append(cell)
    for (model, augmentation, answer), cells in groups.items():
        most = max(cell.k for cell in cells)
        own = sorted(times[cell].ratio for cell in cells if cell.k == most)
        reach = f"{own[0]:.2f}" if len(own) == 1 else f"{own[0]:.2f} to {own[-1]:.2f}"
        reasons.append(f"{model}, {augmentation}, answers of {answer}: {reach} at k = {most}")
    return Answer(sentence(headline), [sentence(reason) for reason in reasons], facts)


def _plain(grid: Grid) -> Grid:
    """A table without Markdown's bold."""
    rows = [[cell.replace("**", "") for cell in row] for row in grid.rows]
    return replace(grid, rows=rows, title="")
