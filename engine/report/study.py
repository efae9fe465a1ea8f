"""A study as people read it: correlations side by side for every condition, and across readers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl
from rich.table import Table

from engine.evaluation.assess import Evaluation
from engine.evaluation.study import Condition, Study, at_cutoff
from engine.labels.annotator import READER as READER_ROLE
from engine.ranking.measures import UTILITY_KIND, Measure
from engine.report.layout import add_methods, add_rows, interval, level, p_value, reads_line, table
from engine.tables import (
    ANNOTATOR,
    AUGMENTATION,
    LABELS_BY,
    MEASURE,
    METHOD,
    READER,
    RUN,
    VALUE,
    K,
    N,
)
from engine.wording import with_interval

# What the rows of a table of conditions are by, where its columns are by another.
_OTHERS = {K: (READER, AUGMENTATION), READER: (AUGMENTATION, K), AUGMENTATION: (READER, K)}
# Characters of a reader's name in that of a directory.
_LONGEST = 60


def shown(study: Study) -> list[Table]:
    """Correlations (means, where nothing was read whole) by condition; then eRAG's across readers."""
    tables = [_by_condition(study)]
    if not study.readers.is_empty():
        tables.append(_across_readers(study))
    return tables


def lines(study: Study) -> list[str]:
    """What the reads of the whole study cost, what to mind, and whose labels could stand in for whose."""
    short = short_names([reader for reader, _, _ in study.costs])
    costs = [
        reads_line(f"study, {role} {short[reader]} ({augmentation})", costs)
        for (reader, augmentation, role), costs in study.costs.items()
        if costs.wanted
    ]
    notes = [f"note: {note.text}" for note in study.notes if note.is_shown]
    return [*costs, *notes, *_stand_in(study)]


def content(study: Study, directories: dict[Condition, str]) -> dict[str, Any]:
    """The study for ``summary.json``: where each condition's evaluation lies, figures, costs."""
    return {
        "conditions": [
            {**asdict(condition), "directory": directories[condition]}
            for condition in study.evaluations
        ],
        "costs": [
            {READER: reader, AUGMENTATION: augmentation, "role": role, **asdict(costs)}
            for (reader, augmentation, role), costs in study.costs.items()
        ],
        "seconds": study.seconds,
        "correlations": study.conditions.to_dicts(),
        "readers": study.readers.to_dicts(),
        "reader_comparisons": study.reader_comparisons.to_dicts(),
    }


def short_names(readers: Sequence[str]) -> dict[str, str]:
    """The last part of each reader's name; the whole of it where that would stand for two."""
    last = {reader: Path(reader).name or reader for reader in readers}
    names = list(last.values())
    return {reader: name if names.count(name) == 1 else reader for reader, name in last.items()}


def directory_names(conditions: Sequence[Condition]) -> dict[Condition, str]:
    """A name for each condition that says what is different in it, fit for a directory."""
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
    if len(set(names.values())) < len(names):  # readers that differ in a sign alone
        names = {condition: f"{i}-{name}" for i, (condition, name) in enumerate(names.items(), 1)}
    return names


def _columns(study: Study) -> tuple[str, list[Any]]:
    """What the columns of the table are: the first of k, reader and augmentation that varies."""
    for name in (K, READER, AUGMENTATION):
        values = list(dict.fromkeys(getattr(condition, name) for condition in study.evaluations))
        if len(values) > 1:
            return name, sorted(values) if name == K else values
    raise ValueError("a study of one condition")


def _by_condition(study: Study) -> Table:
    across, values = _columns(study)
    short = short_names(list(dict.fromkeys(c.reader for c in study.evaluations)))
    main = study.evaluations[study.main]
    settings = main.settings
    runs = main.query_scores[RUN].unique(maintain_order=True).sort().to_list()
    annotators = main.labels[ANNOTATOR].unique(maintain_order=True).to_list()
    groups = list(
        dict.fromkeys(tuple(_group(condition, across)) for condition in study.evaluations)
    )
    others = [
        name
        for place, name in enumerate(_OTHERS[across])
        if len({group[place] for group in groups}) > 1
    ]
    names = [*others, *([RUN] if len(runs) > 1 else []), "annotator", "measure"]
    headers = [
        f"k = {value}" if across == K else _sized(study, value, short.get(value, str(value)))
        for value in values
    ]
    title = f"Means of ranking measures, by {across}"
    if settings.reader.end_to_end:
        title = f"Kendall's tau with the end-to-end score, by {across}{level(settings.bootstrap)}"
    result = table(title, names, headers)
    rows = []
    k = settings.ranking.k
    for group, run in product(groups, runs):
        column = {
            getattr(condition, across): evaluation
            for condition, evaluation in study.evaluations.items()
            if tuple(_group(condition, across)) == group
        }
        head = [
            short.get(str(value), str(value))
            for name, value in zip(_OTHERS[across], group, strict=True)
            if name in others
        ]
        head += [run] if len(runs) > 1 else []
        if settings.reader.end_to_end:
            cells = [_end_to_end(column[value], run) if value in column else "" for value in values]
            rows.append(([*head, "(mean score)", settings.reader.metric_name], cells))
        for annotator, measure in product(annotators, settings.measures()):
            cells = [
                _cell(
                    column[value],
                    (run, annotator),
                    at_cutoff(measure, k, column[value].settings.ranking.k),
                )
                if value in column
                else ""
                for value in values
            ]
            if any(cells):
                follows = across == K and measure.cutoff == k
                shown = f"{replace(measure, cutoff=None)}@k" if follows else str(measure)
                rows.append(([*head, annotator, shown], cells))
    add_methods(
        result,
        {
            method
            for evaluation in study.evaluations.values()
            for method in evaluation.statistics.correlations[METHOD]
        },
    )
    add_rows(result, rows)
    return result


def _group(condition: Condition, across: str) -> list[object]:
    """What a condition is beside what the columns are."""
    return [getattr(condition, name) for name in _OTHERS[across]]


def _end_to_end(evaluation: Evaluation, run: str) -> str:
    rows = evaluation.end_to_end.filter(pl.col(RUN) == run).to_dicts()
    if not rows:
        return "no queries"
    return f"{rows[0][VALUE]:.3f}{_over(rows[0][N], evaluation)}"


def _cell(evaluation: Evaluation, of: tuple[str, str], measure: Measure) -> str:
    """A correlation, or a mean, with the number of queries where it is not all; empty without a meaning."""
    run, annotator = of
    settings = evaluation.settings
    here = (pl.col(RUN) == run, pl.col(ANNOTATOR) == annotator, pl.col(MEASURE) == str(measure))
    if not settings.reader.end_to_end:
        means = evaluation.means.filter(*here).to_dicts()
        return f"{means[0][VALUE]:.3f}{_over(means[0][N], evaluation)}" if means else ""
    rows = evaluation.statistics.correlations.filter(*here).to_dicts()
    if rows and rows[0][N]:
        return interval(rows[0], "tau") + _over(rows[0][N], evaluation)
    undefined = (pl.col(ANNOTATOR) == annotator, pl.col(MEASURE) == str(measure))
    utilities = {a.name for a in settings.labels.listed() if a.scale(settings).utilities}
    fits = (annotator in utilities) == (measure.kind == UTILITY_KIND)
    return "no queries" if fits and evaluation.undefined.filter(*undefined).is_empty() else ""


def _over(n: int, evaluation: Evaluation) -> str:
    return "" if n == evaluation.queries else f" (n = {n})"


def _sized(study: Study, reader: str, name: str) -> str:
    """The name of a reader with its size."""
    for condition, evaluation in study.evaluations.items():
        if condition.reader == reader and (reading := evaluation.readings.get(READER_ROLE.name)):
            amount = reading.spec.parameters
            if not amount:  # a server's, of which nobody says
                return name
            size = f"{amount / 1e9:.1f}B" if amount >= 1e9 else f"{amount / 1e6:.0f}M"
            return f"{name} ({size})"
    return name


def _across_readers(study: Study) -> Table:
    """Labels by one reader, in rows, against the end-to-end score of each, in columns."""
    readers = list(dict.fromkeys(c.reader for c in study.evaluations))
    short = short_names(readers)
    # Where other things vary too, what is shown is as the study was first asked for.
    main = study.main
    level_ = level(study.evaluations[main].settings.bootstrap)
    correlations = study.readers.filter(
        (pl.col(AUGMENTATION) == main.augmentation) & (pl.col(K) == main.k)
    )
    runs = correlations[RUN].n_unique() > 1
    result = table(
        f"eRAG's labels by one reader, Kendall's tau with the end-to-end score of another{level_}",
        [*([RUN] if runs else []), "labels by", "measure"],
        [_sized(study, reader, short[reader]) for reader in readers],
    )
    cells: dict[tuple[str, ...], dict[str, str]] = {}
    for row in correlations.iter_rows(named=True):
        key = (*([row[RUN]] if runs else []), short[row[LABELS_BY]], row[MEASURE])
        evaluation = study.evaluations[Condition(row[READER], main.augmentation, main.k)]
        cells.setdefault(key, {})[row[READER]] = interval(row, "tau") + _over(row[N], evaluation)
    names = [short[reader] for reader in readers]
    rows = sorted(cells, key=lambda key: (key[:-2], names.index(key[-2])))
    add_methods(result, correlations[METHOD])
    add_rows(result, [(key, [cells[key].get(reader, "") for reader in readers]) for key in rows])
    return result


def _stand_in(study: Study) -> list[str]:
    """Whether labels of a cheaper reader could stand in, by the first measure: a line for each two."""
    sentences: list[str] = []
    short = short_names(list(dict.fromkeys(c.reader for c in study.evaluations)))
    main = study.main
    compared = study.reader_comparisons.filter(
        (pl.col(AUGMENTATION) == main.augmentation) & (pl.col(K) == main.k)
    )
    if compared.is_empty():
        return sentences
    # The first measure that eRAG's labels have.
    first = compared[MEASURE][0]
    compared = compared.filter(pl.col(MEASURE) == first)
    for row in compared.iter_rows(named=True):
        difference = row["tau_difference"]
        if math.isnan(difference):
            continue
        text = with_interval(difference, row["tau_low"], row["tau_high"], 2, plus="+")
        if not math.isnan(row["tau_p_holm"]):
            text += f", p {p_value(row['tau_p_holm'])} (Holm)"
        sentences.append(
            f"end-to-end score of {short[row[READER]]} on {row[RUN]}: its own labels less those of "
            f"{short[row['labels_by_b']]}, {first}: tau {text}"
        )
    return sentences
