"""A study for people: correlations side by side for every condition, and across readers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl

from engine import tables
from engine.evaluation.study import Condition, Study, at_cutoff
from engine.labels.annotator import READER as READER_ROLE
from engine.messages.wording import number
from engine.ranking.kinds.base import Measure
from engine.ranking.measures import parse_measure, parse_measures
from engine.report import layout
from engine.report.findings import Findings, costs_of, texts_of
from engine.report.layout import Grid
from engine.tables import AUGMENTATION, LABELS_BY, MEASURE, METHOD, READER, RUN, TAU, VALUE, K, N

# Keys of the rows in a table of conditions, by the key of its columns.
_OTHERS = {K: (READER, AUGMENTATION), READER: (AUGMENTATION, K), AUGMENTATION: (READER, K)}
_LONGEST = 60


def study_grids(findings: Findings) -> list[Grid]:
    """Correlations of a study by condition (means, if no list was read whole), and eRAG's correlations across readers."""
    if len(findings.conditions) < 2:
        return []
    grids = [_by_condition(findings), _across_readers(findings), _stand_in(findings)]
    return [grid for grid in grids if grid.rows]


def study_lines(findings: Findings) -> list[str]:
    """Cost of the LLM calls of the whole study, and notes on it."""
    short, costs = _short(findings), findings.summary["study"]["costs"]
    reads = [
        f"LLM calls of the study, {one['role']} {short[one[READER]]} ({one[AUGMENTATION]}): {layout.calls_line(costs_of(one))}"
        for one in costs
        if one["wanted"]
    ]
    notes = [f"note: {text}" for text in texts_of(findings.study_notes)]
    return [*reads, *notes]


def summarize_study(study: Study, directories: dict[Condition, str]) -> dict[str, Any]:
    """The study for ``summary.json``: folders of the conditions' evaluations, figures, costs."""
    return {
        "conditions": [
            {**asdict(condition), "directory": directories[condition]}
            for condition in study.evaluations
        ],
        "costs": [
            {READER: reader, AUGMENTATION: augmentation, "role": role, **costs.described()}
            for (reader, augmentation, role), costs in study.costs.items()
        ],
        "seconds": study.seconds,
        "correlations": study.conditions.to_dicts(),
        "readers": study.readers.to_dicts(),
        "reader_comparisons": study.reader_comparisons.to_dicts(),
    }


def short_names(readers: Sequence[str]) -> dict[str, str]:
    """The last part of each reader's name; the full name if two readers share the last part."""
    last = {reader: Path(reader).name or reader for reader in readers}
    names = list(last.values())
    return {reader: name if names.count(name) == 1 else reader for reader, name in last.items()}


def directory_names(conditions: Sequence[Condition]) -> dict[Condition, str]:
    """A name for each condition, fit for a directory, from the fields in which conditions differ."""
    readers = list(dict.fromkeys(condition.reader for condition in conditions))
    last = {reader: Path(reader).name for reader in readers}
    varied = [len({getattr(c, name) for c in conditions}) > 1 for name in (READER, AUGMENTATION, K)]
    names: dict[Condition, str] = {}
    for condition in conditions:
        # Never hidden, never a way out of the folder, never too long for a file system.
        reader = "".join(c if c.isascii() and c.isalnum() else "_" for c in last[condition.reader])
        reader = reader[:_LONGEST].strip("_") or "reader"
        if list(last.values()).count(last[condition.reader]) > 1:
            reader += f"-{readers.index(condition.reader) + 1}"
        parts = [reader, condition.augmentation, f"k{condition.k}"]
        names[condition] = "-".join(part for part, some in zip(parts, varied, strict=True) if some)
    if len(set(names.values())) < len(names):  # readers that differ in a single character
        names = {condition: f"{i}-{name}" for i, (condition, name) in enumerate(names.items(), 1)}
    return names


def _short(findings: Findings) -> dict[str, str]:
    readers = [one.configuration[READER] for one in findings.conditions]
    return short_names(list(dict.fromkeys(readers)))


# Cells of a table by the names of their row, then by their column.
_Cells = defaultdict[tuple[str, ...], dict[Any, str]]


def _rows(cells: _Cells, columns: Sequence[object]) -> list[list[str]]:
    return [
        [*names, *(of_row.get(column, "") for column in columns)]
        for names, of_row in cells.items()
        if any(of_row.values())
    ]


def _by_condition(findings: Findings) -> Grid:
    conditions, runs = findings.conditions, sorted(findings.runs)
    varied = {
        name: list(dict.fromkeys(one.configuration[name] for one in conditions))
        for name in (K, READER, AUGMENTATION)
    }
    across = next(name for name, values in varied.items() if len(values) > 1)
    values = sorted(varied[K]) if across == K else varied[across]
    short, k, read = _short(findings), findings.configuration[K], findings.is_read_whole
    others = [name for name in _OTHERS[across] if len(varied[name]) > 1]
    names = [*others, *([RUN] if len(runs) > 1 else []), "annotator", "measure"]
    heads = [
        f"k = {value}" if across == K else _sized(findings, value, short.get(value, str(value)))
        for value in values
    ]
    measures = parse_measures(" ".join(findings.configuration["measures"]))
    cells = _Cells(dict)
    for one, run in product(conditions, runs):
        of_condition = [str(one.configuration[name]) for name in others]
        row = [short.get(name, name) for name in of_condition] + [run] * (len(runs) > 1)
        column = one.configuration[across]
        if read:
            mean = one.wholes.get(run)
            text = f"{number(mean[VALUE])}{_over(mean[N], one)}" if mean else "no queries"
            cells[*row, "(mean score)", findings.metric][column] = text
        for annotator, measure in product(findings.annotators, measures):
            follows = across == K and measure.cutoff == k
            name = f"{replace(measure, cutoff=None)}@k" if follows else str(measure)
            there = at_cutoff(measure, k, one.configuration[K])
            name += one.named(str(there), annotator).removeprefix(str(there))
            cells[*row, annotator, name][column] = _cell(one, run, annotator, there)
    title = f"Means of ranking measures, by {across}"
    if read:
        title = f"{layout.KENDALL} with the end-to-end score, by {across}{layout.level(findings.bootstrap)}"
    methods = (method for one in conditions for method in one.correlations[METHOD])
    head, caption = [*names, *heads], layout.methods_line(methods)
    return Grid("conditions", caption, head, _rows(cells, values), len(names), title)


def _cell(findings: Findings, run: str, annotator: str, measure: Measure) -> str:
    name = str(measure)
    if not findings.is_read_whole:
        mean = findings.means.get((run, annotator, name))
        return f"{number(mean[VALUE])}{_over(mean[N], findings)}" if mean else ""
    rows = findings.correlations.filter(run=run, annotator=annotator, measure=name).to_dicts()
    if rows and rows[0][N]:
        return layout.interval(rows[0], TAU) + _over(rows[0][N], findings)
    if any(
        (row[tables.ANNOTATOR], row[MEASURE]) == (annotator, name)
        for row in findings.summary["undefined"]
    ):
        return ""
    primary = findings.primary_measures.get(annotator)
    utilities = primary is not None and parse_measure(primary).labels == "utilities"
    return "no queries" if utilities == (measure.labels == "utilities") else ""


def _over(n: int, findings: Findings) -> str:
    return "" if n == findings.queries else f" (n = {n})"


def _sized(findings: Findings, reader: str, name: str) -> str:
    described = (
        one.summary[READER_ROLE.key]
        for one in findings.conditions
        if one.configuration[READER] == reader
    )
    amount = next((one["parameters"] for one in described if one), None)
    if not amount:
        return name
    return f"{name} ({f'{amount / 1e9:.1f}B' if amount >= 1e9 else f'{amount / 1e6:.0f}M'})"


def _as_asked(findings: Findings, name: str) -> pl.DataFrame:
    here = [pl.col(column) == findings.configuration[column] for column in (AUGMENTATION, K)]
    return findings.table(name).filter(*here)


def _across_readers(findings: Findings) -> Grid:
    correlations, short = _as_asked(findings, "readers"), _short(findings)
    asked = [findings.configuration[name] for name in (AUGMENTATION, K)]
    by_reader = {
        one.configuration[READER]: one
        for one in findings.conditions
        if [one.configuration[name] for name in (AUGMENTATION, K)] == asked
    }
    runs = [RUN] if correlations[RUN].n_unique() > 1 else []
    order = {reader: place for place, reader in enumerate(short)}
    by = [*map(pl.col, runs), pl.col(LABELS_BY).replace_strict(order, default=None)]
    cells = _Cells(dict)
    for row in correlations.sort(by, maintain_order=True).iter_rows(named=True):
        names = (*(row[name] for name in runs), short[row[LABELS_BY]], row[MEASURE])
        text = layout.interval(row, TAU) + _over(row[N], by_reader[row[READER]])
        cells[names][row[READER]] = text
    head = [*runs, "labels by", "measure"]
    heads = [_sized(findings, reader, name) for reader, name in short.items()]
    title = f"eRAG's labels by one reader, {layout.KENDALL} with the end-to-end score of another"
    title += layout.level(findings.bootstrap)
    rows, caption = _rows(cells, list(short)), layout.methods_line(correlations[METHOD])
    return Grid("readers", caption, [*head, *heads], rows, len(head), title)


def _stand_in(findings: Findings) -> Grid:
    """The loss of correlation if another reader's labels predict a reader's score, in place of its own labels."""
    short, compared = _short(findings), _as_asked(findings, "reader_comparisons")
    runs = [RUN] if compared[RUN].n_unique() > 1 else []
    cells: list[list[str]] = []
    for row in compared.iter_rows(named=True):
        names = [short[row[READER]], short[row[tables.LABELS_BY_B]], row[MEASURE]]
        figures = [layout.interval(row, TAU, tables.difference_of(TAU), plus="+")]
        figures += [layout.p_value(row[tables.p_holm_of(TAU)]), str(row[N])]
        if not math.isnan(row[tables.difference_of(TAU)]):
            cells.append([*(row[name] for name in runs), *names, *figures])
    head = [*runs, "end-to-end score of", "minus labels by", "measure"]
    figures = [f"difference{layout.level(findings.bootstrap.of_fixed_n)}", "p (Holm)", N]
    title = f"{layout.KENDALL} of a reader's own labels with its end-to-end score, minus that of another's labels"
    caption = layout.methods_line(compared[METHOD])
    return Grid("substitutes", caption, [*head, *figures], cells, len(head), title)
