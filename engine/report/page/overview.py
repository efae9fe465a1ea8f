"""The top of a page: the answer, the runs, how far the annotators can be trusted, what it cost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from engine import tables
from engine.report import header
from engine.report.page.content import Answer, Grid, sentence
from engine.report.page.findings import Findings, Interval
from engine.tables import RHO, TAU, TAU_REACHED, high_of, low_of
from engine.wording import counted, number

MINUS = "\N{MINUS SIGN}"
_NOTHING = "\N{EM DASH}"
# Reads of one passage and of several, as ``summary.json`` names them.
_KINDS = {"single": "single passages", "whole": "whole lists"}


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
    headline = f"{run} scores {shown(score)} end to end ({findings.metric})"
    reasons = []
    if len(findings.runs) == 1:
        reasons.append(
            "This is one run, so that there is nothing to choose from; evaluate two or more together to compare them"
        )
    for name in findings.annotators[:1]:
        cell = findings.agreement(name)
        if cell is not None:
            reasons.append(
                f"Kendall's tau of {name} {cell[tables.MEASURE]} with the end-to-end score is {_of(cell, TAU)}"
            )
    return headline, reasons


def _facts(findings: Findings) -> list[tuple[str, str]]:
    facts = [("cost", _cost(findings))]
    date = (findings.summary.get("audit") or {}).get("date")
    if date:
        # To the minute: 2026-11-23 08:34, in UTC.
        facts.append(("date", f"{date[:16].replace('T', ' ')} UTC"))
    return facts


def _cost(findings: Findings) -> str:
    roles = list(_roles(findings))
    wanted = sum(costs["wanted"] for _, costs in roles)
    if not wanted:
        return "no read was needed"
    done, reused = (sum(costs[key] for _, costs in roles) for key in ("done", "reused"))
    seconds = sum(costs["seconds"] or 0 for _, costs in roles if costs["done"])
    text = f"{wanted:,} reads: {done:,} done now"
    if done and seconds:
        text += f" in {_duration(seconds)}"
    text += f", {reused:,} from the store"
    failed = sum(costs["failed"] for _, costs in roles)
    return text + (f", {failed:,} failed" if failed else "")


def _roles(findings: Findings) -> Iterator[tuple[str, dict[str, Any]]]:
    """The roles in which somebody read, with their costs."""
    yield "reader", findings.summary["reading"]
    for key, value in findings.summary.items():
        if (
            key != "reader"
            and isinstance(value, dict)
            and {"fingerprint", "reading"} <= value.keys()
        ):
            yield key, value["reading"]


def leaderboard(findings: Findings) -> Grid:
    """The runs, the best one first: end to end, by each annotator's primary measure, and what each lacks to the best."""
    measures = findings.primary_measures
    verdict = findings.summary["verdict"]
    leads = {lead["over"]: lead for lead in verdict["leads"]} if verdict else {}
    read = bool(findings.summary["end_to_end"])
    head = ["run", *([f"end to end ({findings.metric})"] if read else [])]
    head += [f"{annotator} {measure}" for annotator, measure in measures.items()]
    head += [f"to {verdict['best']}"] if leads else []
    head.append("queries")
    rows = []
    for run in findings.runs:
        whole = findings.end_to_end(run)
        means = [findings.mean(run, *of_annotator) for of_annotator in measures.items()]
        row = [run, *([shown(whole)] if read else []), *map(shown, means)]
        if leads:
            row.append(_lead(leads.get(run)))
        number = max((one.n for one in (whole, *means) if one is not None), default=0)
        rows.append([*row, f"{number:,}"])
    percent = f"{findings.confidence:.0%}"
    caption = (
        f"Means over queries with {percent} intervals of each mean by itself (Clopper and Pearson's for scores of "
        "0 and 1, Gaffke's for others)."
    )
    if leads:
        caption += (
            f" The column \N{LEFT DOUBLE QUOTATION MARK}to {verdict['best']}\N{RIGHT DOUBLE QUOTATION MARK} is the "
            "difference to the best run, paired by query, with intervals that hold for all runs together: decide by it."
        )
    return Grid("runs", caption, head, rows)


def agreement(findings: Findings) -> Grid:
    """How far the labels of each annotator can be trusted: correlations of its primary measure with the end-to-end score."""
    rows = []
    for name in findings.annotators:
        cell = findings.agreement(name)
        if cell is None:
            rows.append(
                [
                    name,
                    findings.primary_measures.get(name, _NOTHING),
                    "undefined",
                    "undefined",
                    _NOTHING,
                    _NOTHING,
                ]
            )
            continue
        reached = cell[TAU_REACHED]
        share = f"{reached:.0%}" if reached is not None and math.isfinite(reached) else _NOTHING
        rows.append(
            [
                name,
                cell[tables.MEASURE],
                _of(cell, TAU),
                _of(cell, RHO),
                share,
                f"{cell[tables.N]:,}",
            ]
        )
    caption = (
        f"Correlation, over the queries of {findings.best_run}, of each annotator's primary measure with the end-to-end "
        f"score; {findings.confidence:.0%} intervals. 1: the measure orders the queries as the reader does; 0: it says "
        "nothing of the reader. \N{LEFT DOUBLE QUOTATION MARK}Of possible\N{RIGHT DOUBLE QUOTATION MARK}: the share of "
        "the highest tau that these scores, with their ties, allow."
    )
    head = [
        "annotator",
        "measure",
        "Kendall\N{RIGHT SINGLE QUOTATION MARK}s tau",
        "Spearman\N{RIGHT SINGLE QUOTATION MARK}s rho",
        "of possible tau",
        "queries",
    ]
    return Grid("agreement", caption, head, rows, names=2)


def costs(findings: Findings) -> Grid:
    """What the reads of every kind cost."""
    rows = []
    for role, of_role in _roles(findings):
        for kind, name in _KINDS.items():
            one = (of_role.get("kinds") or {}).get(kind)
            if not one:
                continue
            shared = (
                1 - one["computed_tokens"] / one["prompt_tokens"] if one["prompt_tokens"] else 0
            )
            rows.append(
                [
                    f"{role.replace('_', ' ')}: {name}",
                    f"{one['done']:,}",
                    f"{one['reused']:,}",
                    f"{one['prompt_tokens']:,}",
                    f"{max(0.0, shared):.0%}" if one["done"] else _NOTHING,
                    f"{one['output_tokens']:,}",
                    f"{one['reader_seconds'] or 0:,.1f}",
                    f"{one['seconds'] or 0:,.1f}",
                ]
            )
    head = [
        "reads",
        "done",
        "from the store",
        "prompt tokens",
        "shared",
        "generated",
        "reader s",
        "wall s",
    ]
    caption = (
        "Reads of this evaluation. A list is read together with its first passage alone, and seconds are split by "
        f"tokens{_peak(findings)}. python -m benchmarks.efficiency measures time and memory of each kind by itself."
    )
    return Grid("costs", caption, head, rows)


def _peak(findings: Findings) -> str:
    """How much memory the actors took, of both kinds of reads and with the model."""
    # Summaries that were written earlier do not tell it.
    peaks = [peak for _, costs in _roles(findings) for peak in costs.get("workers", {}).values()]
    if not peaks:
        return ""
    return (
        f"; the actor that took most memory, the model included, had {max(peaks) / 2**20:,.0f} MiB"
    )


def notes(findings: Findings) -> list[str]:
    """What qualifies the figures, a sentence each."""
    return [
        sentence(note["text"]) for of_code in findings.summary["notes"].values() for note in of_code
    ]


def shown(mean: Interval | None) -> str:
    """A mean with its interval."""
    if mean is None:
        return _NOTHING
    if math.isnan(mean.low):
        return f"{mean.value:.3f}"
    return f"{mean.value:.3f} [{mean.low:.3f},\N{NO-BREAK SPACE}{mean.high:.3f}]"


def _lead(lead: dict[str, Any] | None) -> str:
    """The best run's lead over a run, as that run's distance to the best."""
    if lead is None:
        return _NOTHING
    names = ("difference", "high", "low")
    value, *bounds = (
        "" if lead[name] is None else number(-lead[name], plus="+", minus=MINUS) for name in names
    )
    return f"{value} [{bounds[0]},\N{NO-BREAK SPACE}{bounds[1]}]" if bounds[0] else value


def _of(cell: dict[str, Any], name: str) -> str:
    low, high = cell[low_of(name)], cell[high_of(name)]
    value = number(cell[name], 2, minus=MINUS)
    if math.isnan(low):
        return value
    return (
        f"{value} [{number(low, 2, minus=MINUS)},\N{NO-BREAK SPACE}{number(high, 2, minus=MINUS)}]"
    )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return counted(round(seconds), "second[|s]")
    if seconds < 5400:
        return counted(round(seconds / 60), "minute[|s]")
    return f"{seconds / 3600:.1f} hours"
