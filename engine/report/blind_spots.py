"""What labels of single passages cannot see, in words and as tables: lists that they miss, and where passages stand."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from engine.messages.wording import number, with_interval
from engine.report import layout
from engine.report.findings import Findings
from engine.report.layout import Grid
from engine.statistics import single_labels
from engine.statistics.single_labels import RIGHT_CLOSED, RIGHT_UNSEEN, WRONG_DESPITE
from engine.tables import FIGURE, HIGH, LABEL, LOW, METHOD, NOTE, PLACE, RHO, RUN, VALUE, N

# A share of the queries that is certainly larger than this is worth a line of advice.
_MATTERS = 0.05
_EVENTS = {
    WRONG_DESPITE: "lists are wrong though one of their passages alone gives a right answer: the others distract the reader",
    RIGHT_UNSEEN: "lists are right though no passage alone gives a right answer: labels of single passages miss what the "
    "reader puts together or knows",
    RIGHT_CLOSED: "questions are answered right without any passage: labels above 0 there may show what the reader knows",
}
_HEADS = {
    WRONG_DESPITE: "wrong though a label is right",
    RIGHT_UNSEEN: "right though no label is",
    RIGHT_CLOSED: "right without a passage",
}
_BEST_TAU = (
    "Shares of the lists, against the reader's labels of their passages one by one. Best tau: of any function of these labels, "
    "fitted to these queries, and so an upper bound."
)
_ORDER = "the same lists in the other order show"
_APART = "Useful passages mostly stand first, and this reader encodes each passage by itself."
Row = Mapping[str, Any]


def advice(findings: Findings) -> list[str]:
    """What a user of the labels must know of the best run, in a line each: nothing where little is missed."""
    rows, said = _of_run(findings, findings.best_run), []
    for figure, words in _EVENTS.items():
        row = rows.get(figure)
        if row and (row[VALUE] if math.isnan(row[LOW]) else row[LOW]) > _MATTERS:
            said.append(f"{round(row[VALUE] * row[N])} of {row[N]} {words} ({_share(row)})")
    where, decides = _where(findings)
    return [*said, f"{where}: the reader may read that end alone, {_ORDER}"] if decides else said


def unseen(findings: Findings) -> Grid:
    """Of every run: how many lists single labels miss, and the most that any function of the labels could say."""
    of_runs = {run: of for run in findings.runs if (of := _of_run(findings, run))}
    shown = {
        name: head for name, head in _HEADS.items() if any(name in one for one in of_runs.values())
    }
    rows, notes = [], [_BEST_TAU]
    for run, of_run in of_runs.items():
        row = of_run.get(single_labels.CEILING)
        known = row is not None and not math.isnan(row[VALUE])
        why = row[NOTE] if row else "undefined without labels of erag"
        notes += [] if known else [f"{run}: {why}."]
        shares = [_share(of_run[name]) if name in of_run else "" for name in shown]
        best = number(row[VALUE], 2) if row and known else "undefined"
        n = next(iter(of_run.values()))[N]
        rows.append([run, *shares, best, str(n)])
    level = layout.level(findings.bootstrap.of_fixed_n)
    heads = [f"{head}{level}" for head in shown.values()]
    head = ["run", *heads, f"best {layout.KENDALL}", "n"]
    return Grid("unseen", " ".join(notes), head, rows, title="What single labels cannot see")


def by_place(findings: Findings) -> Grid:
    """Of the best run: how the label of the passage at each place agrees with the list's score."""
    rows, places = [], _places(findings)
    for row in places:
        rho = row[NOTE] if math.isnan(row[RHO]) else layout.interval(row, RHO)
        rows.append([str(row[PLACE]), number(row[LABEL], 3), rho, str(row[N])])
    where, _ = _where(findings)
    if where:
        reads = f"Whether the reader reads one end alone, {_ORDER}."
        where = f"{where[0].upper()}{where[1:]}. {_APART if _prompt(findings)['fused'] else reads}"
    methods = layout.methods_line(row[METHOD] for row in places).capitalize()
    caption = f"{where} {methods}{'.' * bool(methods)}".strip()
    level = layout.level(findings.bootstrap.of_fixed_n)
    head = ["place", "mean label", f"{layout.SPEARMAN}{level}", "n"]
    title = f"Labels by their place against the list's score, run {findings.best_run}"
    return Grid("places", caption, head, rows, title=title)


def _of_run(findings: Findings, run: str | None) -> dict[str, Row]:
    rows = findings.table("unseen").iter_rows(named=True)
    return {row[FIGURE]: row for row in rows if row[RUN] == run}


def _share(row: Row) -> str:
    return with_interval(row[VALUE], row[LOW], row[HIGH], 2)


def _places(findings: Findings) -> list[Row]:
    rows = findings.table("by_place").iter_rows(named=True)
    return [row for row in rows if row[RUN] == findings.best_run]


def _prompt(findings: Findings) -> Row:
    """How the reader gets its passages; as each by itself where nothing says it."""
    return (findings.summary.get("reader") or {}).get("prompt_parts") or {"fused": True}


def _where(findings: Findings) -> tuple[str, bool]:
    """Which place's label agrees best, in words, and whether that is an end of the prompt, better than every other."""
    places, prompt = _places(findings), _prompt(findings)
    ranked = sorted((row for row in places if not math.isnan(row[RHO])), key=lambda r: -r[RHO])
    if len(ranked) < 2:
        return "", False
    best, second = ranked[:2]
    ends = {1: "first", places[-1][PLACE]: "last"}
    if prompt.get("best_last"):
        ends = {1: "last", places[-1][PLACE]: "first"}
    end = "" if prompt["fused"] else ends.get(best[PLACE], "")
    named = f"passage {best[PLACE]}{f', which stands {end} in the prompt,' if end else ''}"
    rhos = f"rho {number(best[RHO], 2)}; the next is that of passage {second[PLACE]}, {number(second[RHO], 2)}"
    if all(row["rho_high"] < best["rho_low"] for row in ranked[1:]):
        return f"the label of {named} agrees best with the list's score ({rhos})", bool(end)
    what = f"no place's label agrees clearly better than the others (that of {named} has {rhos})"
    return what, False
