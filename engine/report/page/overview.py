"""The top of a page: the answer, the runs, how far the annotators can be trusted, what it cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from engine.messages.wording import with_interval
from engine.report import grids, header
from engine.report.findings import Findings, costs_together
from engine.report.layout import Grid, reads_line
from engine.report.page.content import Answer, sentence, typeset
from engine.tables import MEASURE, TAU, high_of, low_of


def answer(findings: Findings) -> Answer:
    """Which run to take, how sure that is, and what it cost to know."""
    summary = findings.summary
    verdict = summary["verdict"]
    if verdict and verdict["sentences"]:
        first, *reasons = verdict["sentences"]
        # The first sentence says which; what follows it says by how much.
        headline, _, by = first.partition(". ")
        reasons = [*([by] if by else []), *reasons]
    else:
        headline, reasons = _of_one_run(findings)
    reasons = [sentence(reason) for reason in reasons]
    return Answer(sentence(headline), reasons, _facts(findings), header.lines(summary))


def _of_one_run(findings: Findings) -> tuple[str, list[str]]:
    run = findings.best_run
    if run is None:
        return "No query has a score: failed reads leave all of them out", []
    score = findings.end_to_end(run)
    if score is None:
        return f"{run} was scored by labels alone; nothing was read end to end", []
    figure = typeset(with_interval(score.value, score.low, score.high))
    headline = f"{run} scores {figure} end to end ({findings.metric})"
    reasons = []
    if len(findings.runs) == 1:
        reasons.append(
            "This is one run, so that there is nothing to choose from; evaluate two or more together to compare them"
        )
    for name in findings.annotators[:1]:
        cell = findings.agreement(name)
        if cell is not None:
            tau = typeset(with_interval(cell[TAU], cell[low_of(TAU)], cell[high_of(TAU)], 2))
            reasons.append(
                f"Kendall's tau of {name} {cell[MEASURE]} with the end-to-end score is {tau}"
            )
    return headline, reasons


def _facts(findings: Findings) -> list[tuple[str, str]]:
    costs = costs_together(findings.roles.values())
    facts = [("cost", reads_line(costs) if costs.wanted else "no read was needed")]
    date = (findings.summary.get("audit") or {}).get("date")
    if date:
        # To the minute: 2026-11-23 08:34, in UTC.
        facts.append(("date", f"{date[:16].replace('T', ' ')} UTC"))
    return facts


def overview_grids(findings: Findings) -> Iterator[Grid]:
    """The tables of the page, each with what its figures are of, where there are such figures."""
    yield _leaderboard(findings)
    if findings.wholes and findings.annotators:
        yield _agreement(findings)
    costs = grids.costs(findings)
    if costs.rows:
        caption = (
            "Reads of this evaluation. A list is read together with its first passage alone, and seconds are split by "
            "tokens. python -m benchmarks.efficiency measures time and memory of each kind by itself."
        )
        yield replace(costs, caption=caption)


def _leaderboard(findings: Findings) -> Grid:
    caption = (
        f"Means over queries with {findings.confidence:.0%} intervals of each mean by itself (Clopper and Pearson's for "
        "scores of 0 and 1, Gaffke's for others)."
    )
    if findings.leads:
        caption += (
            f" The column \N{LEFT DOUBLE QUOTATION MARK}lead over {findings.best_run}\N{RIGHT DOUBLE QUOTATION MARK} is "
            "the difference to the best run, paired by query, with intervals that hold for all runs together: decide by it."
        )
    return replace(grids.leaderboard(findings), caption=caption)


def _agreement(findings: Findings) -> Grid:
    grid = grids.agreement(findings)
    caption = (
        f"Correlation, over the queries of {findings.best_run}, of each annotator's primary measure with the end-to-end "
        "score. 1: the measure orders the queries as the reader does; 0: it says "
        "nothing of the reader. \N{LEFT DOUBLE QUOTATION MARK}Of possible\N{RIGHT DOUBLE QUOTATION MARK}: the share of "
        "the highest tau that these scores, with their ties, allow."
    )
    methods = f" I{grid.caption[1:]}." if grid.caption else ""  # begins with "intervals"
    return replace(grid, caption=caption + methods)


def notes(findings: Findings) -> list[str]:
    """What qualifies the figures, a sentence each."""
    return [sentence(text) for text in findings.notes]
