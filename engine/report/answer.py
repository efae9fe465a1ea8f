"""An evaluation's answer in at most 25 lines: which run, how sure that is, what it cost, where the rest is.

``printed`` has all tables and lines; this is what stands on the screen when the job has ended.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import polars as pl
from rich.table import Table

from engine import tables
from engine.evaluation.assess import PRIMARY_UNDEFINED, SHORT_LISTS, Evaluation
from engine.evaluation.study import Study
from engine.reading.costs import ReadingCosts, merge_kinds
from engine.report import costs, layout, printed, verdict
from engine.report.page.render import where_to_look
from engine.tables import ANNOTATOR, MEASURE, METHOD, NOTE, RUN, VALUE
from engine.wording import counted, with_interval

MOST_LINES = 25
# Rows of the leaderboard: the ten best, fewer where other lines need the room, but never fewer than three.
_MOST_RUNS, _FEWEST_RUNS = 10, 3
_MOST_ANNOTATORS = 8
# Measures beside the end-to-end score: the first annotator's and a rival's; without that score, more.
_MEASURES, _MEASURES_ALONE = 2, 4
# Notes that stand in the answer as they are; of others their codes.
_IN_FULL = (PRIMARY_UNDEFINED, SHORT_LISTS)


def shown(
    evaluation: Evaluation,
    out: str | Path,
    study: Study | None = None,
    header: Sequence[str] = (),
) -> list[Table | str]:
    """What to print, in order: tables and lines, together at most ``MOST_LINES`` lines.

    Args:
        out: where the results are, without credentials.
        study: of which ``evaluation`` is the first.
        header: what was measured (``header.lines``), which comes first.
    """
    end_to_end = not evaluation.downstream.is_empty()
    below: list[Table | str] = []
    if end_to_end:
        agreement, methods = _agreement(evaluation)
        below += ["", agreement, *methods, *_undefined(evaluation)]
    below += ["", *_of_study(study), *_costs(evaluation, study), *printed.asked_for(evaluation)]
    below += _notes(evaluation, study)
    below.append(f"results -> {out}; {where_to_look(out)} (`full` prints all tables and notes)")
    if not _runs(evaluation):
        return [*header, "no query has a score: failed reads leave all of them out", *below]
    if end_to_end and len(_runs(evaluation)) == 1:
        return [*header, *printed.end_to_end(evaluation), *below]
    above = [*header, *verdict.sentences(evaluation)]
    # A head, and a line for the runs that are left out.
    room = MOST_LINES - len(above) - sum(map(_height, below)) - 3
    if room < _FEWEST_RUNS:
        room += below.count("")
        below = [part for part in below if part != ""]
    rows = max(_FEWEST_RUNS, min(_MOST_RUNS, room))
    return [*above, *([""] if above else []), _leaderboard(evaluation, rows), *below]


def _runs(evaluation: Evaluation) -> list[str]:
    """The runs that have a score of any kind, by name."""
    return sorted({*evaluation.means[RUN], *evaluation.downstream[RUN]})


def _height(part: Table | str) -> int:
    return 1 if isinstance(part, str) else 1 + part.row_count


def _leaderboard(evaluation: Evaluation, rows: int) -> Table:
    """The best runs, the best one first: their scores, and what each lacks to the one to choose."""
    choice = evaluation.statistics.choice
    columns = _measures(evaluation)
    end_to_end = dict(evaluation.end_to_end.select(RUN, VALUE).iter_rows())
    means = {
        (run, annotator, measure): value
        for run, annotator, measure, value in evaluation.means.select(
            RUN, ANNOTATOR, MEASURE, VALUE
        ).iter_rows()
    }
    numbers = dict(
        (evaluation.end_to_end if end_to_end else evaluation.means)
        .group_by(RUN)
        .agg(pl.col(tables.N).max())
        .iter_rows()
    )
    partial = any(n != evaluation.queries for n in numbers.values())
    names = sorted(numbers, key=str)
    if end_to_end:
        names.sort(key=lambda run: -end_to_end.get(run, -math.inf))
    elif columns:
        names.sort(key=lambda run: -means.get((run, *columns[0]), -math.inf))
    leads = {} if choice is None else {lead.over: lead for lead in choice.leads}
    ahead = choice.best if choice is not None and leads else None
    listed = names[:rows]
    if ahead is not None and ahead not in listed:
        listed.append(ahead)
    level = layout.level(evaluation.settings.bootstrap)
    heads = [f"end to end {evaluation.settings.reader.metric_name}"] if end_to_end else []
    heads += [f"{annotator} {measure}" for annotator, measure in columns]
    heads += [f"lead over {ahead}{level}"] if ahead is not None else []
    result = layout.plain_table(["run"], heads + (["n"] if partial else []))
    for run in listed:
        values = [_value(end_to_end.get(run))] if end_to_end else []
        values += [_value(means.get((run, *column))) for column in columns]
        if ahead is not None:
            lead = leads.get(run)
            values.append("" if lead is None else _less(lead.difference, lead.low, lead.high))
        values += [str(numbers[run])] if partial else []
        layout.add_rows(result, [((run,), values)])
    if rest := len(names) - len(listed):
        layout.add_rows(
            result, [((f"and {counted(rest, 'more run[|s]')}",), [""] * len(result.columns[1:]))]
        )
    return result


def _measures(evaluation: Evaluation) -> list[tuple[str, str]]:
    """The measures of the leaderboard: of each annotator the primary one.

    None where the labels of one run say nothing of another's (``relevant`` is list), unless there is
    nothing else to show.
    """
    end_to_end = not evaluation.downstream.is_empty()
    if end_to_end and evaluation.relevant == "list":
        return []
    primary = evaluation.primary_measures
    named = [
        (name, primary[name]) for name in evaluation.settings.labels.names() if name in primary
    ]
    return named[: _MEASURES if end_to_end else _MEASURES_ALONE]


def _agreement(evaluation: Evaluation) -> tuple[Table, list[str]]:
    """How well each annotator's primary measure agrees with the end-to-end score of one run.

    And, where there are intervals, the line that says what the letters behind them mean.
    """
    choice = evaluation.statistics.choice
    correlations = evaluation.statistics.correlations
    run = choice.best if choice is not None else _runs(evaluation)[0]
    of_run = correlations.filter(pl.col(RUN) == run)
    several = len(_runs(evaluation)) > 1
    settings = evaluation.settings
    level = layout.level(settings.bootstrap)
    partial = any(n not in (0, evaluation.queries) for n in of_run[tables.N])
    heads = ["measure", f"Kendall's tau{level}", f"Spearman's rho{level}", "of possible tau"]
    result = layout.plain_table(
        [f"agreement with the reader{f' on {run}' if several else ''}"],
        heads + (["n"] if partial else []),
    )
    names = settings.labels.names()
    methods = []
    for name in names[:_MOST_ANNOTATORS]:
        primary = evaluation.primary_measures.get(name, "")
        cells = of_run.filter(
            pl.col(ANNOTATOR) == name, pl.col(MEASURE) == primary, pl.col(tables.N) > 0
        )
        if cells.is_empty():
            values = [primary, "undefined", "undefined", ""] + ([""] if partial else [])
            layout.add_rows(result, [((name,), values)])
            continue
        cell = cells.row(0, named=True)
        methods.append(cell[METHOD])
        values = [cell[MEASURE], layout.interval(cell, "tau"), layout.interval(cell, "rho")]
        reached = cell[tables.TAU_REACHED]
        share = "" if reached is None or math.isnan(reached) else f"{reached:.0%}"
        values += [share, *([str(cell[tables.N])] if partial else [])]
        layout.add_rows(result, [((name,), values)])
    if rest := len(names[_MOST_ANNOTATORS:]):
        more = counted(rest, "more annotator[|s]")
        layout.add_rows(result, [((f"and {more}",), [""] * len(result.columns[1:]))])
    line = layout.methods_line(methods).strip()
    return result, [line] if line else []


def _undefined(evaluation: Evaluation) -> list[str]:
    """How many correlations are undefined for the most frequent reason, and how many for others."""
    undefined = evaluation.statistics.correlations.filter(
        pl.col("tau").is_nan(), pl.col(NOTE) != "", pl.col(tables.N) > 0
    )
    if undefined.is_empty():
        return []
    reason, of_it = max(
        undefined.group_by(NOTE, maintain_order=True).len().iter_rows(), key=lambda row: int(row[1])
    )
    others = undefined.height - of_it
    more = f", {counted(others, 'more')} for other reasons" if others else ""
    return [f"{counted(of_it, 'correlation[|s]')} {reason}{more}"]


def _of_study(study: Study | None) -> list[str]:
    if study is None:
        return []
    conditions = counted(len(study.evaluations), "condition[|s]")
    return [f"a study of {conditions}; above is the first, conditions.parquet has all"]


def _costs(evaluation: Evaluation, study: Study | None) -> list[Table | str]:
    """What all reads cost together, and the reads of each kind."""
    if study is not None:
        asked: dict[str, list[ReadingCosts]] = {}
        for (_, _, role), of_one in study.costs.items():
            asked.setdefault(role, []).append(of_one)
        roles = {role: _together(of_role) for role, of_role in asked.items()}
    else:
        roles = {name: reading.costs for name, reading in evaluation.readings.items()}
    roles = {name: of_role for name, of_role in roles.items() if of_role.wanted}
    if not roles:
        return []
    line = layout.reads_line("reads", _together(list(roles.values())))
    table = costs.table(roles, costs.labelling(evaluation.settings))
    return [line] if table is None else [line, table]


def _together(of_several: Sequence[ReadingCosts]) -> ReadingCosts:
    workers = [peak for one in of_several for peak in one.workers.values()]
    return ReadingCosts(
        wanted=sum(one.wanted for one in of_several),
        reused=sum(one.reused for one in of_several),
        done=sum(one.done for one in of_several),
        failed=sum(one.failed for one in of_several),
        retried_requests=sum(one.retried_requests for one in of_several),
        seconds=sum(one.seconds for one in of_several if one.done),
        workers={"": max(workers)} if workers else {},
        kinds=merge_kinds(one.kinds for one in of_several),
    )


def _notes(evaluation: Evaluation, study: Study | None) -> list[str]:
    """Notes on what a reader of the answer must know, in full; then in a line what all others are about."""
    noted = [note for note in (*evaluation.notes, *(study.notes if study else ())) if note.is_shown]
    in_full = [f"note: {note.text}" for note in noted if note.code in _IN_FULL]
    codes = [note.code for note in noted if note.code not in _IN_FULL]
    about = list(dict.fromkeys(code.replace("_", " ") for code in codes))
    if others := len(printed.remarks(evaluation)):
        about.append(counted(others, "remark[|s] on cells"))
    return [*in_full, *([f"notes: {', '.join(about)}"] if about else [])]


def _value(mean: float | None) -> str:
    return "" if mean is None else f"{mean:.3f}"


def _less(difference: float, low: float, high: float) -> str:
    """A lead of the best run over this one, as the lead of this one over the best."""
    return with_interval(-difference, -high, -low, plus="+")
