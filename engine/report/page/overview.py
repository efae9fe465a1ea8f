"""The top of a page: the answer, the runs, how far the annotators can be trusted, what it cost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath

from engine.messages.wording import cut
from engine.report import blind_spots, grids, header, verdict
from engine.report.findings import Findings, costs_together
from engine.report.layout import Grid, calls_line
from engine.report.page.content import Answer, sentence
from engine.report.page.slices import Slices, slices_grid
from engine.tables import MEASURE

# Letters of an output in a table.
_LONGEST_OUTPUT = 80


def answer(findings: Findings) -> Answer:
    """Which run to take, how sure that is, and what it cost to know."""
    summary = findings.summary
    said = verdict.said(summary) or [f"{findings.best_run}: an earlier version wrote no verdict"]
    # The first sentence says which; what follows it says by how much.
    headline, _, by = said[0].partition(". ")
    reasons = [*([by] if by else []), *said[1:]]
    costs = costs_together(findings.roles.values())
    facts = [("LLM calls", calls_line(costs) if costs.wanted else "none")]
    if date := (summary.get("audit") or {}).get("date"):
        # To the minute: 2026-11-23 08:34, in UTC.
        facts.append(("date", f"{date[:16].replace('T', ' ')} UTC"))
    return Answer(sentence(headline), reasons, facts, header.lines(summary))


def overview_grids(findings: Findings, made: Sequence[Slices] = ()) -> Iterator[Grid]:
    """The tables of the page, each with what its figures are of, where there are such figures."""
    yield _leaderboard(findings)
    if findings.primary_measures:
        yield _measures(findings)
    if made:
        yield slices_grid(findings, made)
    if findings.wholes and findings.annotators:
        yield _agreement(findings)
        yield from (
            g for g in (blind_spots.unseen(findings), blind_spots.by_place(findings)) if g.rows
        )
    if findings.summary.get("outputs"):
        yield _outputs(findings)
    costs = grids.costs(findings)
    if costs.rows:
        caption = (
            "LLM calls of this evaluation. Shared prefix: the share of prompt tokens that need no computation, since calls "
            "begin alike. Seconds (s) of calls that ran together are split by tokens (~)."
        )
        yield replace(costs, caption=caption)


def _leaderboard(findings: Findings) -> Grid:
    caption = (
        f"Means over queries with {findings.confidence:.0%} intervals of each mean (Clopper\N{EN DASH}Pearson for scores "
        "of 0 and 1, Gaffke for others)."
    )
    if findings.leads:
        caption += (
            f" The column \N{LEFT DOUBLE QUOTATION MARK}lead over {findings.best_run}\N{RIGHT DOUBLE QUOTATION MARK} is "
            "the paired difference from the best run, with simultaneous intervals. Use this column to choose."
        )
    for file in (findings.summary.get("audit") or {}).get("files", ()):
        if header := file.get("header"):
            said = cut(" \N{MIDDLE DOT} ".join(header), 8 * _LONGEST_OUTPUT)
            caption += f" {PurePath(file['path']).name} says of itself: {said}."
    return replace(grids.leaderboard(findings), caption=caption)


def _measures(findings: Findings) -> Grid:
    measures = list(dict.fromkeys(row[MEASURE] for row in findings.summary["means"]))
    rows = []
    for annotator in findings.primary_measures:
        for run in findings.runs:
            means = (findings.mean(run, annotator, measure) for measure in measures)
            rows.append([annotator, run, *map(grids.mean_cell, means)])
    caption = (
        f"Means over queries with {findings.confidence:.0%} intervals of each mean: every ranking measure of every run, "
        "with the labels of each annotator as relevance judgments. A dash: not defined on these labels."
    )
    heads = [findings.named(measure, *findings.primary_measures) for measure in measures]
    return Grid("measures", caption, ["labels of", "run", *heads], rows, names=2)


def _agreement(findings: Findings) -> Grid:
    grid = grids.agreement(findings)
    caption = (
        f"Correlation, over the queries of run {findings.best_run}, of each annotator's primary measure with the end-to-end "
        "score. 1: the measure orders the queries as the reader does; 0: it says nothing about the reader. "
        "\N{LEFT DOUBLE QUOTATION MARK}Share of max \N{GREEK SMALL LETTER TAU}\N{RIGHT DOUBLE QUOTATION MARK}: tau "
        "divided by the highest tau that these scores, with their ties, allow."
    )
    methods = f" I{grid.caption[1:]}." if grid.caption else ""  # begins with "intervals"
    return replace(grid, caption=caption + methods)


def _outputs(findings: Findings) -> Grid:
    outputs = findings.summary["outputs"]
    rows = [
        [cut(one["output"], _LONGEST_OUTPUT) or "(nothing)", f"{one['reads']:,}"] for one in outputs
    ]
    caption = "The commonest outputs of readers, each LLM call counted once."
    return Grid("outputs", caption, ["output", "LLM calls"], rows)


def notes(findings: Findings) -> list[str]:
    """What qualifies the figures, a sentence each."""
    return [sentence(text) for text in findings.notes]
