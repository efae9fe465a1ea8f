"""Tables shared by terminal, page and notebook: runs, agreement, costs, and what labels of single passages miss."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import compress, product
from typing import Any

from rich.table import Table

from engine import tables
from engine.labels.annotator import READER
from engine.labels.registry import ANNOTATORS
from engine.messages.wording import counted, number, with_interval
from engine.reading.costs import SINGLE, WHOLE, KindCosts, ReadingCosts
from engine.report import layout
from engine.report.findings import Findings
from engine.report.layout import Grid
from engine.statistics import single_labels
from engine.statistics.runs import Interval
from engine.statistics.single_labels import RIGHT_CLOSED, RIGHT_UNSEEN, WRONG_DESPITE
from engine.tables import LOW, PLACE, RHO, VALUE, N

# Measures beside the end-to-end score on a screen: the first annotator's and a rival's; without that score, more.
_MEASURES, _MEASURES_ALONE = 2, 4
# Names of kinds of reads in the table of costs; any role but the reader's reads single passages.
_WHOLE_NAME = "end to end: lists"
# A share of the queries that is certainly larger than this is worth a line of advice.
_MATTERS = 0.05
_EVENTS = {
    WRONG_DESPITE: "lists are wrong though one of their passages alone gives a right answer: the others distract the reader",
    RIGHT_UNSEEN: "lists are right though no passage alone gives a right answer: labels of single passages miss what the "
    "reader combines or knows",
    RIGHT_CLOSED: "questions are answered right without any passage: labels above 0 there may show what the reader knows",
}
_HEADS = {
    WRONG_DESPITE: "list wrong, a passage right",
    RIGHT_UNSEEN: "list right, no passage right",
    RIGHT_CLOSED: "right without passages",
}
_BEST_TAU = (
    "Shares of the lists, by whether the reader answers right from the list and from any of its passages alone. Upper bound of "
    "\N{GREEK SMALL LETTER TAU}: the most that any function of a list's labels could reach on these queries."
)
_ORDER = "reverse the lists and evaluate again to see whether the reader uses only one end"
_APART = "Useful passages mostly stand first, and this reader encodes each passage separately."
_Row = Mapping[str, Any]
_NAMES = {SINGLE: "single passages", WHOLE: "lists"}
_TOKENS = ["prompt tokens", "shared prefix", "padding", "generated"]


def leaderboard(findings: Findings, most: int | None = None) -> Grid:
    """The runs, the best one first: their scores, and their distance to the best run.

    ``most``: number of runs that fit a screen, with means alone and few measures; None for all runs and the measures of
    all annotators, with the interval of each mean and the number of queries.
    """
    leads, best, numbers = findings.leads, findings.best_run, findings.numbers
    partial = most is None or any(n != findings.queries for n in numbers.values())
    measures = _measures(findings, most)
    head = [f"end to end {findings.metric}"] if findings.wholes else []
    head += [f"{name} {findings.named(measure, name)}" for name, measure in measures]
    head = ["run", *head, *(["n"] if partial else [])]
    # Differences stand beside the first score, which decides.
    decides = findings.metric if findings.wholes else (measures or [("", "")])[0][1]
    head[2:2] = [f"{decides} vs. {best}{layout.level(findings.bootstrap)}"] if leads else []
    listed = findings.runs[:most]
    listed += [best] if best is not None and best not in listed else []
    rows = []
    for run in listed:
        if most is None:
            whole = mean_cell(findings.end_to_end(run)) if findings.wholes else ""
            means = [mean_cell(findings.mean(run, *measure)) for measure in measures]
        else:
            whole = _mean(findings.wholes.get(run))
            means = [_mean(findings.means.get((run, *measure))) for measure in measures]
        row = [run, *([whole] if findings.wholes else []), *means]
        row[2:2] = [_behind(leads.get(run))] if leads else []
        rows.append(row + ([str(numbers.get(run, 0))] if partial else []))
    rest = len(findings.runs) - len(listed)
    return Grid("runs", "", head, rows + _more(rest, "run[|s]", head))


def _measures(findings: Findings, most: int | None) -> list[tuple[str, str]]:
    named = list(findings.primary_measures.items())
    if most is None:
        return named
    if not findings.wholes:
        return named[:_MEASURES_ALONE]
    # A screen omits them if each run has labels of its own.
    return [] if findings.configuration["relevant"] == "list" else named[:_MEASURES]


def mean_cell(mean: Interval | None) -> str:
    """A mean with its interval; empty for none."""
    return "" if mean is None else with_interval(mean.value, mean.low, mean.high)


def _mean(row: Mapping[str, Any] | None) -> str:
    return "" if row is None else number(row[VALUE])


def _behind(lead: Mapping[str, float] | None) -> str:
    if lead is None:
        return ""
    return with_interval(-lead["difference"], -lead["high"], -lead["low"], plus="+")


def _more(rest: int, what: str, head: Sequence[str]) -> list[list[str]]:
    return [[f"and {counted(rest, f'more {what}')}", *[""] * (len(head) - 1)]] if rest > 0 else []


def agreement(findings: Findings, most: int | None = None) -> Grid:
    """How well each annotator's primary measure agrees with the end-to-end score of the best run.

    ``most``: number of annotators that fit a screen; None for all, always with the number of queries.
    """
    level, cells = layout.level(findings.bootstrap.at_fixed_n), findings.primary_cells
    partial = most is None or any(cell[N] != findings.queries for cell in cells.values())
    head = ["annotator", "measure", f"{layout.KENDALL}{level}", f"{layout.SPEARMAN}{level}"]
    head += [layout.SHARE, *(["n"] if partial else [])]
    names = findings.annotators[:most]
    rows = []
    for name in names:
        cell = cells.get(name)
        reached = cell[tables.TAU_REACHED] if cell else None
        share = "" if reached is None or math.isnan(reached) else f"{number(100 * reached, 0)}%"
        row = [name, findings.named(findings.primary_measures.get(name, ""), name)]
        row += [layout.interval(cell, tables.TAU), layout.interval(cell, RHO), share]
        rows.append(row + ([str(cell[N]) if cell else ""] if partial else []))
    rows += _more(len(findings.annotators) - len(names), "annotator[|s]", head)
    caption = layout.methods_line(cells[name][tables.METHOD] for name in names if name in cells)
    run = f", run {findings.best_run}" * (len(findings.runs) > 1)
    title = f"Correlation with the end-to-end score{run}"
    return Grid("agreement", caption, head, rows, title=title)


def labelling(findings: Findings) -> tuple[str, str] | None:
    """The annotator whose labels are the reader's own outcomes, and the role that reads for it; None without one."""
    for known in ANNOTATORS.values():
        # The basis of labels is unknown for a user's annotator.
        is_used = known.name in findings.annotators or not findings.configuration["own_annotators"]
        if known.is_the_readers and is_used:
            role = known.role if known.role in findings.roles else READER
            return known.name, (role or READER).name
    return None


def costs(findings: Findings, roles: Mapping[str, ReadingCosts] | None = None) -> Grid:
    """Cost of the reads by role and kind, a row each, and its ratio to the cost of eRAG's reads of single passages."""
    base, base_role = labelling(findings) or ("", "")
    if roles is None:
        roles = {role.name: costs for role, costs in findings.roles.items()}
    pairs = [key for key in product(roles, (SINGLE, WHOLE)) if key[1] in roles[key[0]].kinds]
    kinds = {(role, kind): roles[role].kinds[kind] for role, kind in pairs}
    single, each = kinds.get((base_role, SINGLE)), kinds.values()
    padded = any(costs.padded_tokens > costs.computed_tokens for costs in each)
    split = any(costs.split_seconds for costs in each)
    # Functions and some servers report no tokens.
    tokens = any(costs.prompt_tokens or not costs.done for costs in each)
    rows = []
    for (role, kind), own in kinds.items():
        title = base if role == base_role else role
        name = _WHOLE_NAME if (role, kind) == (READER.name, WHOLE) else f"{title}: {_NAMES[kind]}"
        rows.append([name, *_values(own), _ratio(own, single) if single else ""])
    compared = any(row[-1] for row in rows)
    shown = [True, True, True, tokens, tokens, padded and tokens, tokens, True, True, compared]
    seconds = ["LLM seconds", "wall seconds", f"LLM time vs. {base}"]
    head = ["LLM calls", "new", "cached", *_TOKENS, *seconds]
    head, *rows = [[*compress(cells, shown)] for cells in (head, *rows)]
    how = f" (~: split by {'tokens' if tokens else 'calls'})"
    return Grid("costs", "", head, rows, title=f"Cost of LLM calls{how * split}")


def _values(costs: KindCosts) -> list[str]:
    shared = 1 - costs.computed_tokens / costs.prompt_tokens if costs.prompt_tokens else 0.0
    padding = 1 - costs.computed_tokens / costs.padded_tokens if costs.padded_tokens else 0.0
    about = "~" if costs.split_seconds else ""
    return [
        f"{costs.done:,}",
        f"{costs.reused:,}",
        f"{costs.prompt_tokens:,}",
        f"{max(0.0, shared):.0%}" if costs.done else "",
        f"{padding:.0%}" if costs.done else "",
        f"{costs.output_tokens:,}",
        f"{about}{costs.reader_seconds:,.1f}",
        f"{about}{costs.seconds:,.1f}",
    ]


def _ratio(costs: KindCosts, base: KindCosts) -> str:
    """Reader seconds relative to eRAG's reads, if all these reads were done now, none from the store."""
    if costs.reused or base.reused or not (costs.reader_seconds and base.reader_seconds):
        return ""
    return f"{costs.reader_seconds / base.reader_seconds:.2f}"


def compared_costs(
    findings: Findings, roles: Mapping[str, ReadingCosts] | None = None, *, short: bool = True
) -> Table | None:
    """The costs for a screen; None for a single kind, or if every LLM call was cached."""
    grid = costs(findings, roles)
    if len(grid.rows) < 2 or all(new == "0" for _, new, *_ in grid.rows):
        return None
    return layout.terminal_table(grid, short=short)


def advice(findings: Findings) -> list[str]:
    """Facts about the best run that users of the labels must know, a line each; empty if labels miss few lists."""
    figures, facts = _unseen_figures(findings, findings.best_run), []
    for figure, words in _EVENTS.items():
        row = figures.get(figure)
        if row and (row[VALUE] if math.isnan(row[LOW]) else row[LOW]) > _MATTERS:
            facts.append(f"{round(row[VALUE] * row[N])} of {row[N]} {words} (share {_share(row)})")
    where, decides = _where(findings)
    return [*facts, f"{where}; {_ORDER}"] if decides else facts


def unseen(findings: Findings) -> Grid:
    """For every run: the number of lists that single labels miss, and the bound for any function of the labels."""
    by_run = {run: known for run in findings.runs if (known := _unseen_figures(findings, run))}
    shown = [name for name in _HEADS if any(name in figures for figures in by_run.values())]
    rows, notes = [], [_BEST_TAU]
    for run, figures in by_run.items():
        row = figures.get(single_labels.CEILING)
        best = number(row[VALUE], 2) if row and not math.isnan(row[VALUE]) else "undefined"
        if best == "undefined":
            notes.append(f"{run}: {row[tables.NOTE] if row else 'undefined without erag labels'}.")
        shares = [_share(figures[name]) if name in figures else "" for name in shown]
        rows.append([run, *shares, best, str(next(iter(figures.values()))[N])])
    level = layout.level(findings.bootstrap.at_fixed_n)
    heads = [f"{_HEADS[name]}{level}" for name in shown]
    head = ["run", *heads, "upper bound of \N{GREEK SMALL LETTER TAU}", "n"]
    return Grid("unseen", " ".join(notes), head, rows, title="What labels of single passages miss")


def by_place(findings: Findings) -> Grid:
    """For the best run: agreement of the label at each place with the list's score."""
    rows, places = [], _places(findings)
    for row in places:
        rho = row[tables.NOTE] if math.isnan(row[RHO]) else layout.interval(row, RHO)
        rows.append([str(row[PLACE]), number(row[tables.LABEL], 3), rho, str(row[N])])
    where, _ = _where(findings)
    if where:
        where += f". {_APART if _prompt(findings)['fused'] else f'{_ORDER.capitalize()}.'}"
    methods = layout.methods_line(row[tables.METHOD] for row in places).capitalize()
    caption = f"{where} {methods}{'.' * bool(methods)}".strip()
    level = layout.level(findings.bootstrap.at_fixed_n)
    head = ["place", "mean label", f"{layout.SPEARMAN}{level}", "n"]
    title = f"Agreement of the label at each place with the list's score, run {findings.best_run}"
    return Grid("places", caption, head, rows, title=title)


def _unseen_figures(findings: Findings, run: str | None) -> dict[str, _Row]:
    rows = findings.table("unseen").iter_rows(named=True)
    return {row[tables.FIGURE]: row for row in rows if row[tables.RUN] == run}


def _share(row: _Row) -> str:
    return with_interval(row[VALUE], row[LOW], row[tables.HIGH], 2)


def _places(findings: Findings) -> list[_Row]:
    rows = findings.table("by_place").iter_rows(named=True)
    return [row for row in rows if row[tables.RUN] == findings.best_run]


def _prompt(findings: Findings) -> _Row:
    return (findings.summary.get("reader") or {}).get("prompt_parts") or {"fused": True}


def _where(findings: Findings) -> tuple[str, bool]:
    """The place whose label agrees best, in words, and whether it is an end of the prompt and beats all others."""
    places, prompt = _places(findings), _prompt(findings)
    ranked = sorted((row for row in places if not math.isnan(row[RHO])), key=lambda r: -r[RHO])
    if len(ranked) < 2:
        return "", False
    best, second = ranked[:2]
    first, last = ("last", "first") if prompt.get("best_last") else ("first", "last")
    ends = {1: first, places[-1][PLACE]: last}
    end = "" if prompt["fused"] else ends.get(best[PLACE], "")
    rhos = f"rho {number(best[RHO], 2)}; next, passage {second[PLACE]}: {number(second[RHO], 2)}"
    named = f"passage {best[PLACE]}{f' ({end} in the prompt)' if end else ''}"
    if all(row["rho_high"] < best["rho_low"] for row in ranked[1:]):
        return f"The label of {named} agrees best with the list's score ({rhos})", bool(end)
    return f"No place's label agrees clearly best with the list's score: {named} has {rhos}", False
