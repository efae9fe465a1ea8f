"""A study for people: correlations side by side for every condition, and across readers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
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
    lines = []
    for row in (row for row in costs if row["wanted"]):
        about = f"{row['role']} {short[row[READER]]} ({row[AUGMENTATION]})"
        lines.append(f"LLM calls of the study, {about}: {layout.calls_line(costs_of(row))}")
    return [*lines, *(f"note: {text}" for text in texts_of(findings.study_notes))]


def summarize_study(study: Study, directories: dict[Condition, str]) -> dict[str, Any]:
    """The study for ``summary.json``: folders of the conditions' evaluations, figures, costs."""
    return {
        "conditions": [asdict(c) | {"directory": directories[c]} for c in study.evaluations],
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
    readers = dict.fromkeys(condition.configuration[READER] for condition in findings.conditions)
    return short_names(list(readers))


# Cells of a table by the names of their row, then by their column.
_Cells = defaultdict[tuple[str, ...], dict[Any, str]]


def _rows(cells: _Cells, columns: Sequence[object]) -> list[list[str]]:
    return [
        [*names, *(row.get(column, "") for column in columns)]
        for names, row in cells.items()
        if any(row.values())
    ]


def _by_condition(findings: Findings) -> Grid:
    conditions, runs = findings.conditions, sorted(findings.runs)
    settings = [condition.configuration for condition in conditions]
    varied = {n: [*dict.fromkeys(own[n] for own in settings)] for n in (K, READER, AUGMENTATION)}
    across = next(name for name, values in varied.items() if len(values) > 1)
    values = sorted(varied[K]) if across == K else varied[across]
    short, k, read = _short(findings), findings.configuration[K], findings.is_read_whole
    others = [name for name in _OTHERS[across] if len(varied[name]) > 1]
    names = [*others, *([RUN] if len(runs) > 1 else []), "annotator", "measure"]
    heads = [f"k = {value}" for value in values]
    if across != K:
        heads = [_sized(findings, value, short.get(value, value)) for value in values]
    measures = parse_measures(" ".join(findings.configuration["measures"]))
    cells = _Cells(dict)
    for own, run in product(conditions, runs):
        titles = [str(own.configuration[name]) for name in others]
        row = [short.get(name, name) for name in titles] + [run] * (len(runs) > 1)
        column = own.configuration[across]
        if read:
            text = _mean(own.wholes.get(run), own) or "no queries"
            cells[*row, "(mean score)", findings.metric][column] = text
        for annotator, measure in product(findings.annotators, measures):
            follows = across == K and measure.cutoff == k
            name = f"{replace(measure, cutoff=None)}@k" if follows else str(measure)
            there = at_cutoff(measure, k, own.configuration[K])
            name += own.named(str(there), annotator).removeprefix(str(there))
            cells[*row, annotator, name][column] = _cell(own, run, annotator, there)
    title = f"Means of ranking measures, by {across}"
    if read:
        title = f"{layout.KENDALL} with the end-to-end score, by {across}{layout.level(findings.bootstrap)}"
    methods = (method for own in conditions for method in own.correlations[METHOD])
    head, caption = [*names, *heads], layout.methods_line(methods)
    return Grid("conditions", caption, head, _rows(cells, values), len(names), title)


def _cell(findings: Findings, run: str, annotator: str, measure: Measure) -> str:
    name = str(measure)
    if not findings.is_read_whole:
        return _mean(findings.means.get((run, annotator, name)), findings)
    rows = findings.correlations.filter(run=run, annotator=annotator, measure=name).to_dicts()
    if rows and rows[0][N]:
        return layout.interval(rows[0], TAU) + _over(rows[0][N], findings)
    undefined = ((row[tables.ANNOTATOR], row[MEASURE]) for row in findings.summary["undefined"])
    primary = findings.primary_measures.get(annotator)
    utilities = primary is not None and parse_measure(primary).labels == "utilities"
    fits = utilities == (measure.labels == "utilities") and (annotator, name) not in undefined
    return "no queries" if fits else ""


def _mean(row: Mapping[str, Any] | None, findings: Findings) -> str:
    return f"{number(row[VALUE])}{_over(row[N], findings)}" if row else ""


def _over(n: int, findings: Findings) -> str:
    return "" if n == findings.queries else f" (n = {n})"


def _sized(findings: Findings, reader: str, name: str) -> str:
    own = (c for c in findings.conditions if c.configuration[READER] == reader)
    described = filter(None, (condition.summary[READER_ROLE.key] for condition in own))
    amount = next((content["parameters"] for content in described), None)
    if not amount:
        return name
    return f"{name} ({f'{amount / 1e9:.1f}B' if amount >= 1e9 else f'{amount / 1e6:.0f}M'})"


def _main(findings: Findings) -> dict[str, Any]:
    return {name: findings.configuration[name] for name in (AUGMENTATION, K)}


def _across_readers(findings: Findings) -> Grid:
    main, short = _main(findings), _short(findings)
    correlations = findings.table("readers").filter(**main)
    by_reader = {c.configuration[READER]: c for c in findings.conditions if _main(c) == main}
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
    short = _short(findings)
    compared = findings.table("reader_comparisons").filter(**_main(findings))
    runs = [RUN] if compared[RUN].n_unique() > 1 else []
    cells: list[list[str]] = []
    for row in compared.iter_rows(named=True):
        names = [short[row[READER]], short[row[tables.LABELS_BY_B]], row[MEASURE]]
        figures = [layout.interval(row, TAU, tables.difference_of(TAU), plus="+")]
        figures += [layout.p_value(row[tables.p_holm_of(TAU)]), str(row[N])]
        if not math.isnan(row[tables.difference_of(TAU)]):
            cells.append([*(row[name] for name in runs), *names, *figures])
    head = [*runs, "end-to-end score of", "minus labels by", "measure"]
    figures = [f"difference{layout.level(findings.bootstrap.at_fixed_n)}", "p (Holm)", N]
    title = f"{layout.KENDALL} of a reader's own labels with its end-to-end score, minus that of another's labels"
    caption = layout.methods_line(compared[METHOD])
    return Grid("substitutes", caption, [*head, *figures], cells, len(head), title)
