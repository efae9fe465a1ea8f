"""Printed output of an evaluation: the answer in at most 25 lines, or all tables and the lines around them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl
from rich.table import Table

from engine import tables
from engine.adaptive.queries import DECIDED, REACHED, STOPPED
from engine.evaluation.conclude import PRIMARY_UNDEFINED, SAMPLED_LISTS, SHORT_LISTS
from engine.evaluation.score import UNREAD
from engine.inputs.read import IDENTICAL, UNRANKED, WRITTEN_PASSAGES
from engine.labels.registry import ANNOTATORS
from engine.messages.wording import counted, number, with_interval
from engine.reading.outputs import OF_OUTPUTS, STORED
from engine.report import grids, header, layout, study_report, traces
from engine.report.findings import Findings, costs_of, costs_together
from engine.report.layout import Grid, terminal_table
from engine.report.page_files import where_to_look
from engine.sources.queries.read import WRITTEN_LISTS
from engine.sources.runs.read import RISING
from engine.tables import ANNOTATOR, DIFFERENCE, END_TO_END, MEASURE, NOTE, RUN, RUN_B, TAU, N

_BEST = (
    "* the annotator's highest tau, chosen after the fact on these data and therefore optimistic;\n"
    "the answer, the page and the verdict use the primary measure, which was chosen beforehand"
)
_SHARE = f"{layout.SHARE}: tau divided by the highest tau that tied scores allow"
_AMONG = "Correlations are over the queries of one run: they say nothing on the order of runs."
_AUC = "; AUC: of pairs of a right and a wrong query, the share that the measure orders so"
_LIMIT = f"limit: the highest tau (the lowest, if tau is negative) that ties in the scores allow; {layout.SHARE}: tau / limit"
_SOFT = "SPA: soft pairwise accuracy, agreement on how certain each difference is; "
_WINNERS = "same winner: pairs of runs for which measure and end-to-end score name the same winner"
# Two runs have one order: its agreement with the scores is printed in place of a coefficient.
_OF_TWO = {1: "same", 0: "tied", -1: "reversed"}
_ORDER = "order: same as by the end-to-end score, or reversed; of two runs, a random measure gives the same order half of the time"

MOST_LINES = 25
# Rows of the leaderboard: the ten best, fewer if other lines need the room, but at least three.
_MOST_RUNS, _FEWEST_RUNS = 10, 3
_MOST_ANNOTATORS = 8
# Notes that the answer prints in full; other notes appear by their codes.
_OF_LISTS = (SHORT_LISTS, IDENTICAL, WRITTEN_LISTS, WRITTEN_PASSAGES, UNRANKED, RISING)
_OF_INPUTS = (PRIMARY_UNDEFINED, *_OF_LISTS)
# Titles for other codes.
_TITLES = {
    "own_readers": "the reader is a function",
    "not_reproducible": "outputs of an API vary",
    "ignored_queries": "queries of the runs that the queries file lacks",
    "judged_other_queries": "judgments of queries that the queries file lacks",
    "judged_other_documents": "judgments of passages that the corpus lacks",
    "judgments_beyond_lists": "judgments of passages that no run lists",
    "tied_scores": "means that the order of ties changes",
    "unreachable_p": "too few resamples",
}
_IN_FULL = (REACHED, SAMPLED_LISTS, UNREAD, STOPPED, DECIDED, *_OF_INPUTS, STORED, *OF_OUTPUTS)


def answer_parts(findings: Findings, out: str | Path) -> list[Table | str]:
    """Parts to print, in order: tables and lines, together at most ``MOST_LINES`` lines."""
    below: list[Table | str] = []
    if findings.wholes:
        agreement = grids.agreement(findings, _MOST_ANNOTATORS)
        below += ["", terminal_table(agreement, short=True)]
        meanings = "; ".join(filter(None, [_SHARE, agreement.caption]))
        below += [f"{meanings}. {_AMONG}" if len(findings.runs) > 1 else meanings]
        below += _undefined(findings)
        below += grids.advice(findings)
    below.append("")
    if findings.conditions:
        study = f"study of {counted(len(findings.conditions), 'condition[|s]')}"
        below.append(f"{study}: above is the first; `full` and conditions.parquet have all")
    below += [*traces.lines(findings), *_costs(findings), *prices(findings), *_notes(findings)]
    below.append(f"results -> {out}; {where_to_look(out)} (`full` prints all tables and notes)")
    above = [*header.lines(findings.summary), *findings.verdict.get("sentences", ())]
    if not findings.runs or (findings.wholes and len(findings.runs) == 1):
        return [*above, *below]
    # A head, and a line for omitted runs.
    taken = sum(1 if isinstance(part, str) else 1 + part.row_count for part in below)
    room = MOST_LINES - len(above) - taken - 3
    if room < _FEWEST_RUNS:
        room += below.count("")
        below = [part for part in below if part != ""]
    rows = max(_FEWEST_RUNS, min(_MOST_RUNS, room))
    board = terminal_table(grids.leaderboard(findings, rows), short=True)
    return [*above, *([""] if above else []), board, *below]


def _undefined(findings: Findings) -> Iterator[str]:
    correlations = findings.correlations.filter(pl.col(N) > 0)
    cells = correlations.filter(pl.col(TAU).is_nan(), pl.col(NOTE) != "")
    for reason, most in Counter(cells[NOTE]).most_common(1):
        several = f"of {correlations.height} correlations (annotators × measures × runs) [is|are]"
        total, others = counted(cells.height, several), cells.height - most
        why = f"{most} ({reason.removeprefix('undefined: ')}), {others} for other reasons"
        each = f"undefined: {why}; `full` names them" if others else reason
        yield f"{total} {each}"


def _costs(findings: Findings) -> list[Table | str]:
    each = [(role.name, costs) for role, costs in findings.roles.items()]
    if findings.conditions:
        each = [(row["role"], costs_of(row)) for row in findings.summary["study"]["costs"]]
    roles = {
        name: costs_together(costs for role, costs in each if role == name)
        for name in dict.fromkeys(name for name, costs in each if costs.wanted)
    }
    if not roles:
        return []
    line = f"LLM calls: {layout.calls_line(costs_together(roles.values()))}"
    table = grids.compared_costs(findings, roles)
    return [line] if table is None else [line, table]


def _notes(findings: Findings) -> list[str]:
    noted = findings.summary["notes"] | findings.study_notes
    in_full = [f"note: {note['text']}" for code in _IN_FULL for note in noted.get(code, ())]
    about = [_TITLES.get(code, code.replace("_", " ")) for code in noted if code not in _IN_FULL]
    if others := len(remarks(findings)):
        about.append(counted(others, "reason[|s] why figures or intervals are missing"))
    return [*in_full, *([f"further notes (`full`): {'; '.join(about)}"] if about else [])]


def full_parts(findings: Findings, out: str | Path) -> list[Table | str]:
    """Parts to print, in order: the subject of the evaluation, all tables, all lines."""
    shown, lines = full_tables(findings), [*traces.lines(findings), *full_lines(findings)]
    if findings.conditions:
        shown += map(terminal_table, study_report.study_grids(findings))
        lines += study_report.study_lines(findings)
    above = [*header.lines(findings.summary), ""]
    return [*above, *shown, *lines, f"results -> {out}; {where_to_look(out)}"]


def full_tables(findings: Findings) -> list[Table]:
    """Every table of an evaluation for a terminal, and the cost of its LLM calls."""
    result = [terminal_table(grid) for grid in full_grids(findings)]
    costs = grids.compared_costs(findings, short=False)
    return result if costs is None else [*result, costs]


def full_grids(findings: Findings) -> list[Grid]:
    """The means and correlations, and the comparisons if there are several annotators or runs.

    Comparisons are with the first annotator and the first run; the files hold all of them.
    """
    comparisons, same_run = findings.table("comparisons"), pl.col(RUN) == pl.col(RUN_B)
    annotators = comparisons.filter(same_run, annotator=findings.annotators[0])
    systems = comparisons.filter(pl.col(ANNOTATOR) == pl.col(tables.ANNOTATOR_B))
    first_run = systems.filter(pl.col(RUN) == pl.col(RUN).first())
    shown = [
        _means_and_correlations(findings),
        _reach(findings),
        grids.unseen(findings),
        grids.by_place(findings),
        _differences(annotators, findings),
        _differences(first_run, findings, among_runs=True),
        _means_of_runs(findings),
        _order_of_runs(findings),
        *_further(findings),
    ]
    return [grid for grid in shown if grid.rows or grid is shown[0]]


def _further(findings: Findings) -> Iterator[Grid]:
    for name in findings.annotators:
        further = ANNOTATORS[name].further_tables if name in ANNOTATORS else ()
        for table in further:
            frame = findings.table(table.name, table.schema)
            if table.display is not None and not frame.is_empty():
                display = table.display(frame, layout.level(findings.bootstrap))
                rows = [[*names, *values] for names, values in display.rows]
                head = [*display.names, *display.values]
                yield Grid(table.name, "", head, rows, len(display.names), display.title)


def _means_and_correlations(findings: Findings) -> Grid:
    means, level = findings.means, layout.level(findings.bootstrap)
    correlations = findings.correlations.iter_rows(named=True)
    cells = {(row[RUN], row[ANNOTATOR], row[MEASURE]): row for row in correlations}
    runs = sorted({run for run, _, _ in means})
    several, read = len(runs) > 1, findings.is_read_whole
    # If some figures are not over all queries, every figure has its number of queries.
    counts = {row[N] for row in (*means.values(), *cells.values())}
    partial = ["n"] if counts - {0, findings.queries} else []
    title = "Means of ranking measures over queries"
    head = [*(["run"] if several else []), "annotator", "measure", "mean", *partial]
    if read:
        title = "Agreement of ranking measures with the end-to-end score, over queries"
        head += [f"{layout.KENDALL}{level}", f"{layout.SPEARMAN}{level}", *partial]
    empty = {(row[ANNOTATOR], row[MEASURE]) for row in findings.summary["undefined"]}
    rows, starred = [], False
    for key in product(runs, findings.annotators, findings.configuration["measures"]):
        row, cell = means.get(key), cells.get(key)
        if row is None and key[1:] not in empty:
            continue
        # A measure is not the best of equal ones.
        taus = (other[TAU] for place, other in cells.items() if place[:2] == key[:2])
        rivals = {tau for tau in taus if not math.isnan(tau)}
        best = " *" if len(rivals) > 1 and cell and cell[tables.BEST] else ""
        starred = starred or bool(best)
        names = [*(key if several else key[1:])]
        names[-1] = findings.named(key[2], key[1]) + best
        values = [""] * (len(head) - len(names))  # of cells that have no meaning; the notes say why
        if row is not None:
            values = [number(row[tables.VALUE]), *(str(row[N]) for _ in partial)]
            if read:
                values += [layout.interval(cell, name) for name in (TAU, tables.RHO)]
                values += [str(cell[N] if cell else 0) for _ in partial]
        rows.append([*names, *values])
    methods = layout.methods_line(cell[tables.METHOD] for cell in cells.values())
    caption = ";\n".join(line for line in (methods, _BEST if starred else "") if line)
    return Grid("correlations", caption, head, rows, 3 if several else 2, title)


def _reach(findings: Findings) -> Grid:
    cells = findings.correlations
    primary = pl.col(ANNOTATOR).replace_strict(findings.primary_measures, default=None)
    shown = cells.filter(pl.col(MEASURE) == primary, pl.col(TAU).is_not_nan())
    binary = ["AUC"] if shown[tables.AUC].is_not_nan().any() else []
    partial = ["n"] if {*cells[N]} - {0, findings.queries} else []
    several = ["run"] if cells[RUN].n_unique() > 1 else []
    head = [*several, "annotator", "measure", *binary]
    head += [layout.KENDALL, "limit", layout.SHARE, *partial]
    rows = []
    for row in _in_order(shown, [RUN, ANNOTATOR], findings).iter_rows(named=True):
        limit = row[tables.TAU_MAX] if row[TAU] >= 0 else row[tables.TAU_MIN]
        figures = [row[tables.AUC]] if binary else []
        figures += [row[TAU], limit, abs(row[tables.TAU_REACHED])]
        measure = findings.named(row[MEASURE], row[ANNOTATOR])
        names = [*(row[RUN] for _ in several), row[ANNOTATOR], measure]
        values = ["" if math.isnan(value) else number(value, 2) for value in figures]
        rows.append([*names, *values, *(str(row[N]) for _ in partial)])
    title = "How far ties let tau reach, by each annotator's primary measure"
    return Grid("reach", _LIMIT + _AUC * len(binary), head, rows, len(several) + 2, title)


def _in_order(frame: pl.DataFrame, by: Sequence[str], findings: Findings) -> pl.DataFrame:
    order = pl.Enum(findings.annotators)
    columns = [pl.col(name).cast(order) if ANNOTATOR in name else pl.col(name) for name in by]
    return frame.sort(columns, maintain_order=True)


def _differences(
    comparisons: pl.DataFrame, findings: Findings, *, among_runs: bool = False
) -> Grid:
    """Differences of tau to the first annotator, or run, a row each if defined; p if there are intervals."""
    difference = tables.difference_of(TAU)
    if not comparisons[difference].is_not_nan().any():
        return Grid(difference, "", [], [])
    first, second, other, family = ANNOTATOR, tables.ANNOTATOR_B, RUN, comparisons
    if among_runs:
        first, second, other = RUN, RUN_B, ANNOTATOR
        # The first run's rows represent all runs, which are corrected together, as its rivals are.
        family = findings.table("comparisons").filter(pl.col(RUN) != pl.col(RUN_B))
    tests = family.filter(pl.col("tau_p").is_not_nan()).height
    keys = [second, *([other] if comparisons[other].n_unique() > 1 else []), MEASURE]
    partial = ["n"] if (comparisons[N] != findings.queries).any() else []
    level = layout.level(findings.bootstrap.at_fixed_n)
    head = [*(key.removesuffix("_b") for key in keys), f"difference{level}"]
    head += [f"p (Holm, {counted(tests, 'test[|s]')})"] if tests else []
    rows = []
    for row in _in_order(comparisons, keys[:-1], findings).iter_rows(named=True):
        other = f" ({row[tables.MEASURE_B]})" if row[tables.MEASURE_B] != row[MEASURE] else ""
        row[MEASURE] = findings.named(row[MEASURE], row[ANNOTATOR], row[tables.ANNOTATOR_B]) + other
        values = [layout.interval(row, TAU, difference, plus="+")]
        values += [layout.p_value(row["tau_p_holm"])] if tests else []
        rows.append([*(row[key] for key in keys), *values, *(str(row[N]) for _ in partial)])
    title = f"{layout.KENDALL} of {comparisons[first][0]}, minus that of:"
    caption = layout.methods_line(comparisons[tables.METHOD])
    name = "differences-of-runs" if among_runs else "differences"
    return Grid(name, caption, [*head, *partial], rows, len(keys), title)


def _means_of_runs(findings: Findings) -> Grid:
    pairs, bootstrap = findings.table("run_pairs"), findings.bootstrap
    pairs = pairs.filter(pl.col(RUN) == pl.col(RUN).first())
    primary, read = findings.primary_measures.items(), bool(findings.wholes)
    differences: list[tuple[list[str], dict[str, Any], str]] = []
    for (run_b,), pair in pairs.group_by([RUN_B], maintain_order=True):
        if read:
            row = pair.row(0, named=True)
            row[N] = row[tables.END_TO_END_N]
            differences.append(([str(run_b), f"end to end {findings.metric}"], row, END_TO_END))
        for row in pair.iter_rows(named=True):
            names = [row[ANNOTATOR], findings.named(row[MEASURE], row[ANNOTATOR])]
            if not read or (row[ANNOTATOR], row[MEASURE]) in primary:
                # A single column beside end-to-end scores: with two, every row would stand apart.
                names = [" ".join(names)] if read else names
                differences.append(([str(run_b), *names], row, DIFFERENCE))
    if not differences:
        return Grid("means", "", [], [])
    partial = ["n"] if {row[N] for _, row, _ in differences} - {findings.queries} else []
    tested = ["p"] if bootstrap.resamples else []
    names = ["run", "score"] if read else ["run", "annotator", "measure"]
    head = [*names, f"difference{layout.level(bootstrap)}", *tested, *partial]
    rows = []
    for named, row, score in differences:
        value = tables.difference_of(END_TO_END) if score == END_TO_END else DIFFERENCE
        low, high = row[tables.low_of(score)], row[tables.high_of(score)]
        values = [with_interval(-row[value], -high, -low, plus="+")]  # as the leaderboard has it
        values += [layout.p_value(row[f"{score}_p"]) for _ in tested]
        rows.append([*named, *values, *(str(row[N]) for _ in partial)])
    caption = layout.adjusted(pairs[tables.PAIRS][0], bootstrap)
    return Grid("means", caption, head, rows, len(names), f"Means minus those of {pairs[RUN][0]}")


def _order_of_runs(findings: Findings) -> Grid:
    systems, run_pairs = findings.table("systems"), findings.table("run_pairs")
    partial = ["n"] if (systems[N] != findings.queries).any() else []
    runs = max(systems["runs"], default=0)
    resampled = findings.bootstrap.at_fixed_n.resamples > 0 and runs != 2
    rows = []
    for row in systems.iter_rows(named=True):
        pairs = run_pairs.filter(annotator=row[ANNOTATOR], measure=row[MEASURE])
        winners = pairs[DIFFERENCE].sign() * pairs[tables.difference_of(END_TO_END)].sign()
        tied = (winners == 0).sum()
        agreed = f"{(winners > 0).sum()} of {pairs.height}" + (f" ({tied} tied)" if tied else "")
        agreed = _OF_TWO.get(winners[0], "") if runs == 2 else agreed
        soft = row[tables.SOFT_ACCURACY]
        values = [*(["" if math.isnan(soft) else f"{soft:.2f}"] if resampled else []), agreed]
        names = [row[ANNOTATOR], findings.named(row[MEASURE], row[ANNOTATOR])]
        rows.append([*names, *values, *(str(row[N]) for _ in partial)])
    caption = f"{_SOFT}{_WINNERS}" if resampled else _ORDER if runs == 2 else _WINNERS
    agreement = ["SPA", "same winner"] if resampled else [caption.partition(":")[0]]
    head = ["annotator", "measure", *agreement, *partial]
    title = f"Order of the {runs} runs, by measure and by end-to-end score"
    return Grid("systems", caption, head, rows, 2, title)


def full_lines(findings: Findings) -> list[str]:
    """The lines below the tables: scores, reads, everything that deserves a warning, the verdict."""
    return [
        *end_to_end(findings),
        *_readers(findings),
        *prices(findings),
        *(f"note: {text}" for text in findings.notes),
        *(f"note: {remark}" for remark in remarks(findings)),
        *(f"verdict: {sentence}" for sentence in findings.verdict.get("sentences", ())),
    ]


def remarks(findings: Findings) -> list[str]:
    """Reasons for cells that are empty, undefined, or without an interval or a p-value; each reason once."""
    correlations = findings.correlations.filter(pl.col(N) > 0)
    several = "{run} " if correlations[RUN].n_unique() > 1 else ""
    return [
        *_empty_cells(findings.summary["undefined"]),
        *_cell_notes(correlations, several + "{annotator} {measure}"),
        *_untested(findings.table("comparisons")),
    ]


def end_to_end(findings: Findings) -> Iterator[str]:
    """The end-to-end score of every run."""
    for run, row in findings.wholes.items():
        over = f" over {counted(row[N], '[query|queries]')}" if row[N] != findings.queries else ""
        how = f"{findings.metric}, {counted(row[tables.K], 'passage[|s]')}"
        yield f"end-to-end score of {run} ({how}): {number(row[tables.VALUE])}{over}"


def _readers(findings: Findings) -> Iterator[str]:
    reader, ends = findings.configuration["reader"], findings.configuration["end_to_end"]
    whole = f", {reader} reads lists" if ends is True else ""
    others = [findings.summary[role.key]["name"] for role in findings.roles if role.is_readers]
    for other in dict.fromkeys(others):
        if other != reader:
            yield f"{other} reads single passages{whole}"
    for role, costs in findings.roles.items():
        if costs.wanted:
            title = f" of {role.title}" if role.title else ""
            yield f"LLM calls{title}: {layout.calls_line(costs)}"


def _empty_cells(undefined: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    cells: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in undefined:
        cells.setdefault((row[ANNOTATOR], row[NOTE].split(",")[0]), []).append(row)
    for (annotator, _), rows in cells.items():
        measures = ", ".join(row[MEASURE] for row in rows)
        yield f"{measures} of {annotator}: {rows[0][tables.NOTE]}"


def _untested(comparisons: pl.DataFrame) -> list[str]:
    is_untested = pl.col("tau_difference").is_not_nan() & pl.col("tau_low").is_nan()
    untested = comparisons.filter(is_untested, pl.col(NOTE) != "")
    among_runs = pl.col(RUN) != pl.col(RUN_B)
    annotators = untested.filter(~among_runs)
    several = "{run} " if annotators[RUN].n_unique() > 1 else ""
    return [
        *_cell_notes(annotators, several + "{annotator} minus {annotator_b} {measure}"),
        *_cell_notes(untested.filter(among_runs), "{annotator} {measure}, {run} minus {run_b}"),
    ]


def _cell_notes(statistics: pl.DataFrame, names: str) -> list[str]:
    cells: dict[str, list[str]] = {}
    for row in statistics.filter(pl.col("note") != "").iter_rows(named=True):
        cells.setdefault(row["note"], []).append(names.format_map(row))
    more = {note: f" and {len(named) - 3} more" * (len(named) > 3) for note, named in cells.items()}
    return [f"{', '.join(named[:3])}{more[note]}: {note}" for note, named in cells.items()]


def prices(findings: Findings) -> Iterator[str]:
    """Token costs of the reads done now; empty without prices or without a server."""
    each = [(findings.summary[role.key] or {}, costs) for role, costs in findings.roles.items()]
    served = [(r["api"], costs) for r, costs in each if r.get("api") and not r.get("executor")]
    prices = [api["cost"] for api, _ in served]
    prompt = sum(costs.prompt_tokens for _, costs in served)
    output = sum(costs.output_tokens for _, costs in served)
    if None not in prices and prompt + output:
        price = sum(prices)
        yield f"price of the tokens: {price:.4g} ({prompt:,} of prompts, {output:,} of answers)"
