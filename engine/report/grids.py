"""The tables that a terminal, a page and a notebook show alike: the runs, agreement with the reader, costs of reads."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from engine.labels.annotator import READER
from engine.labels.registry import ANNOTATORS
from engine.messages.wording import counted, with_interval
from engine.reading.costs import SINGLE, WHOLE, KindCosts, ReadingCosts
from engine.report import layout
from engine.report.findings import Findings
from engine.report.layout import Grid
from engine.report.means import Interval
from engine.tables import METHOD, RHO, TAU, TAU_REACHED, VALUE, N

# Measures beside the end-to-end score on a screen: the first annotator's and a rival's; without that score, more.
_MEASURES, _MEASURES_ALONE = 2, 4
# Names of kinds of reads in the table of costs; any role but the reader's reads single passages.
_WHOLE_NAME = "end to end: whole lists"
_NAMES = {SINGLE: "single passages", WHOLE: "whole lists"}


def leaderboard(findings: Findings, most: int | None = None) -> Grid:
    """The runs, the best one first: their scores, and how far each is behind the one to choose.

    Args:
        most: how many a screen has room for, with means alone and few measures; None for all runs and the
            measures of all annotators, with the interval of each mean and the number of queries.
    """
    leads, best, numbers = findings.leads, findings.best_run, findings.numbers
    partial = most is None or any(n != findings.queries for n in numbers.values())
    measures = _measures(findings, most)
    head = ["run", *([f"end to end {findings.metric}"] if findings.wholes else [])]
    head += [f"{name} {findings.named(measure, name)}" for name, measure in measures]
    head += [f"lead over {best}{layout.level(findings.bootstrap)}"] if leads else []
    head += ["n"] if partial else []
    listed = findings.runs[:most]
    listed += [best] if best is not None and best not in listed else []
    rows = []
    for run in listed:
        if most is None:
            row = [run, *([mean_cell(findings.end_to_end(run))] if findings.wholes else [])]
            row += [mean_cell(findings.mean(run, *of_annotator)) for of_annotator in measures]
        else:
            row = [run, *([_mean(findings.wholes.get(run))] if findings.wholes else [])]
            row += [_mean(findings.means.get((run, *of_annotator))) for of_annotator in measures]
        row += [_less(leads.get(run))] if leads else []
        rows.append(row + ([str(numbers.get(run, 0))] if partial else []))
    rest = len(findings.runs) - len(listed)
    return Grid("runs", "", head, rows + _more(rest, "run[|s]", head))


def _measures(findings: Findings, most: int | None) -> list[tuple[str, str]]:
    named = list(findings.primary_measures.items())
    if most is None:
        return named
    if not findings.wholes:
        return named[:_MEASURES_ALONE]
    # On a screen, none where the labels of one run say nothing of another's.
    return [] if findings.configuration["relevant"] == "list" else named[:_MEASURES]


def mean_cell(mean: Interval | None) -> str:
    """A mean with its interval; empty for none."""
    return "" if mean is None else with_interval(mean.value, mean.low, mean.high)


def _mean(row: Mapping[str, Any] | None) -> str:
    return "" if row is None else f"{row[VALUE]:.3f}"


def _less(lead: Mapping[str, float] | None) -> str:
    """A lead of the best run over another, as the lead of that over the best."""
    if lead is None:
        return ""
    return with_interval(-lead["difference"], -lead["high"], -lead["low"], plus="+")


def _more(rest: int, what: str, head: Sequence[str]) -> list[list[str]]:
    return [[f"and {counted(rest, f'more {what}')}", *[""] * (len(head) - 1)]] if rest > 0 else []


def agreement(findings: Findings, most: int | None = None) -> Grid:
    """How well each annotator's primary measure agrees with the end-to-end score of the best run.

    A screen has room for so many annotators; None for all, with the number of queries in any case.
    """
    level, cells = layout.level(findings.bootstrap.of_fixed_n), findings.primary_cells
    partial = most is None or any(cell[N] != findings.queries for cell in cells.values())
    head = ["annotator", "measure", f"{layout.KENDALL}{level}", f"{layout.SPEARMAN}{level}"]
    head += [layout.SHARE, *(["n"] if partial else [])]
    names = findings.annotators[:most]
    rows = []
    for name in names:
        cell = cells.get(name)
        reached = cell[TAU_REACHED] if cell else None
        share = f"{reached:.0%}" if reached is not None and math.isfinite(reached) else ""
        row = [name, findings.named(findings.primary_measures.get(name, ""), name)]
        row += [layout.interval(cell, TAU), layout.interval(cell, RHO), share]
        rows.append(row + ([str(cell[N]) if cell else ""] if partial else []))
    rows += _more(len(findings.annotators) - len(names), "annotator[|s]", head)
    caption = layout.methods_line(cells[name][METHOD] for name in names if name in cells)
    several = len(findings.runs) > 1
    title = f"Agreement with the reader{f', run {findings.best_run}' if several else ''}"
    return Grid("agreement", caption, head, rows, title=title)


def labelling(findings: Findings) -> tuple[str, str] | None:
    """The annotator whose labels are the reader's own outcomes, and the role in which single passages are read for it.

    None where no labels can be these outcomes.
    """
    for known in ANNOTATORS.values():
        # Of a user's annotator, it is not known what its labels rest on.
        is_used = known.name in findings.annotators or not findings.configuration["own_annotators"]
        if known.is_the_readers and is_used:
            role = known.role if known.role in findings.roles else READER
            return known.name, (role or READER).name
    return None


def costs(findings: Findings, roles: Mapping[str, ReadingCosts] | None = None) -> Grid:
    """What the reads of each role and kind cost, a row each, and how much that is of eRAG's reads of single passages."""
    base, base_role = labelling(findings) or ("", None)
    if roles is None:
        roles = {role.name: costs for role, costs in findings.roles.items()}
    kinds = {
        (role, kind): costs.kinds[kind]
        for role, costs in roles.items()
        for kind in (SINGLE, WHOLE)
        if kind in costs.kinds
    }
    of_base = kinds.get((base_role, SINGLE)) if base_role else None
    padded = any(one.padded_tokens > one.computed_tokens for one in kinds.values())
    split = any(one.split_seconds for one in kinds.values())
    ratios = [_ratio(one, of_base) if of_base else "" for one in kinds.values()]
    compared = any(ratios)
    head = [
        "LLM calls",
        "new",
        "cached",
        "prompt tokens",
        "shared prefix",
        *(["padding"] if padded else []),
    ]
    head += ["generated", "LLM s (~ split by tokens)" if split else "LLM s", "wall s"]
    head += [f"relative to {base}"] if compared else []
    rows = []
    for ((role, kind), one), ratio in zip(kinds.items(), ratios, strict=True):
        named = base if role == base_role else role
        name = _WHOLE_NAME if (role, kind) == (READER.name, WHOLE) else f"{named}: {_NAMES[kind]}"
        rows.append([name, *_values(one, padded=padded), *([ratio] if compared else [])])
    return Grid("costs", "", head, rows, title="Cost of LLM calls")


def _values(costs: KindCosts, *, padded: bool) -> list[str]:
    shared = 1 - costs.computed_tokens / costs.prompt_tokens if costs.prompt_tokens else 0.0
    padding = 1 - costs.computed_tokens / costs.padded_tokens if costs.padded_tokens else 0.0
    about = "~" if costs.split_seconds else ""
    return [
        f"{costs.done:,}",
        f"{costs.reused:,}",
        f"{costs.prompt_tokens:,}",
        f"{max(0.0, shared):.0%}" if costs.done else "",
        *([f"{padding:.0%}" if costs.done else ""] if padded else []),
        f"{costs.output_tokens:,}",
        f"{about}{costs.reader_seconds:,.1f}",
        f"{about}{costs.seconds:,.1f}",
    ]


def _ratio(costs: KindCosts, base: KindCosts) -> str:
    """Reader seconds for those of eRAG's reads, where both were done now and none came from the store."""
    if costs.reused or base.reused or not (costs.reader_seconds and base.reader_seconds):
        return ""
    return f"{costs.reader_seconds / base.reader_seconds:.2f}"


def compared_costs(
    findings: Findings, roles: Mapping[str, ReadingCosts] | None = None, *, short: bool = True
) -> Table | None:
    """The same on a screen; None for one kind alone, and where every LLM call was cached."""
    grid = costs(findings, roles)
    if len(grid.rows) < 2 or all(new == "0" for _, new, *_ in grid.rows):
        return None
    return layout.terminal_table(grid, short=short)
