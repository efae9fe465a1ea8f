"""An evaluation's answer in at most 25 lines: which run, how sure that is, what it cost, where the rest is.

``printed`` has all tables and lines; this is what stands on the screen when the job has ended.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import polars as pl
from rich.table import Table

from engine.adaptive.queries import DECIDED, REACHED, STOPPED
from engine.evaluation.conclude import PRIMARY_UNDEFINED, SAMPLED_LISTS, SHORT_LISTS
from engine.evaluation.score import UNREAD
from engine.inputs.check import IDENTICAL
from engine.inputs.read import UNRANKED, WRITTEN_PASSAGES
from engine.messages.wording import counted
from engine.reading.notes import STORED
from engine.reading.outputs import OF_OUTPUTS
from engine.report import blind_spots, grids, header, layout, printed, verdict
from engine.report.findings import Findings, costs_of, costs_together
from engine.report.page.render import where_to_look
from engine.sources.queries.read import WRITTEN_LISTS
from engine.sources.runs.checks import RISING
from engine.tables import NOTE, TAU, N

MOST_LINES = 25
# Rows of the leaderboard: the ten best, fewer where other lines need the room, but never fewer than three.
_MOST_RUNS, _FEWEST_RUNS = 10, 3
_MOST_ANNOTATORS = 8
# Notes that stand in the answer as they are; of others their codes.
_OF_LISTS = (SHORT_LISTS, IDENTICAL, WRITTEN_LISTS, WRITTEN_PASSAGES, UNRANKED, RISING)
_OF_INPUTS = (PRIMARY_UNDEFINED, *_OF_LISTS)
_IN_FULL = (REACHED, SAMPLED_LISTS, UNREAD, STOPPED, DECIDED, *_OF_INPUTS, STORED, *OF_OUTPUTS)


def answer_parts(findings: Findings, out: str | Path) -> list[Table | str]:
    """What to print, in order: tables and lines, together at most ``MOST_LINES`` lines."""
    head = header.lines(findings.summary)
    below: list[Table | str] = []
    if findings.wholes:
        agreement = grids.agreement(findings, _MOST_ANNOTATORS)
        below += ["", layout.terminal_table(agreement, short=True)]
        below += [*filter(None, [agreement.caption]), *_undefined(findings)]
        below += blind_spots.advice(findings)
    below.append("")
    if findings.conditions:
        conditions = counted(len(findings.conditions), "condition[|s]")
        below.append(f"a study of {conditions}; above is the first, conditions.parquet has all")
    below += [*_costs(findings), *printed.asked_for(findings), *_notes(findings)]
    below.append(f"results -> {out}; {where_to_look(out)} (`full` prints all tables and notes)")
    above = [*head, *verdict.said(findings.summary)]
    if not findings.runs or (findings.wholes and len(findings.runs) == 1):
        return [*above, *below]
    # A head, and a line for the runs that are left out.
    taken = sum(1 if isinstance(part, str) else 1 + part.row_count for part in below)
    room = MOST_LINES - len(above) - taken - 3
    if room < _FEWEST_RUNS:
        room += below.count("")
        below = [part for part in below if part != ""]
    rows = max(_FEWEST_RUNS, min(_MOST_RUNS, room))
    board = layout.terminal_table(grids.leaderboard(findings, rows), short=True)
    return [*above, *([""] if above else []), board, *below]


def _undefined(findings: Findings) -> list[str]:
    cells = findings.correlations.filter(pl.col(TAU).is_nan(), pl.col(NOTE) != "", pl.col(N) > 0)
    if cells.is_empty():
        return []
    ((reason, of_it),) = Counter(cells[NOTE]).most_common(1)
    others = cells.height - of_it
    more = f", {counted(others, 'more')} for other reasons" if others else ""
    return [f"{counted(of_it, 'correlation[|s]')} {reason}{more}"]


def _costs(findings: Findings) -> list[Table | str]:
    """What all LLM calls cost together, of a study those of all conditions, and those of each kind."""
    found = [(role.name, costs) for role, costs in findings.roles.items()]
    if findings.conditions:
        found = [(one["role"], costs_of(one)) for one in findings.summary["study"]["costs"]]
    roles = {
        name: costs_together(costs for role, costs in found if role == name)
        for name in dict.fromkeys(name for name, costs in found if costs.wanted)
    }
    if not roles:
        return []
    line = f"LLM calls: {layout.calls_line(costs_together(roles.values()))}"
    table = grids.compared_costs(findings, roles)
    return [line] if table is None else [line, table]


def _notes(findings: Findings) -> list[str]:
    """Notes on what a reader of the answer must know, in full; then in a line what all others are about."""
    noted = findings.summary["notes"] | findings.study_notes
    in_full = [f"note: {note['text']}" for code in _IN_FULL for note in noted.get(code, ())]
    about = [code.replace("_", " ") for code in noted if code not in _IN_FULL]
    if others := len(printed.remarks(findings)):
        about.append(f"{others} on single figures")
    return [*in_full, *([f"notes: {', '.join(about)}"] if about else [])]
