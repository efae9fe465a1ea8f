"""A study as people read it: correlations side by side for every condition, and across readers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl
from rich.table import Table

from engine.evaluation import means
from engine.labels import erag
from engine.ranking.measures import Measure
from engine.reading.weights import parameters
from engine.report.layout import add_rows, interval, level, p_value, reads_line, table
from engine.settings import Settings
from engine.study import Condition, Study
from engine.tables import ANNOTATOR, AUGMENTATION, LABELS_BY, MEASURE, READER, RUN, VALUE, K, N


def shown(study: Study, settings: Settings) -> list[Table]:
    """The correlation with the end-to-end score under each condition; then eRAG's across readers."""
    tables = []
    if not study.conditions.is_empty():
        tables.append(_by_condition(study, settings))
    if not study.readers.is_empty():
        tables.append(_across_readers(study, settings))
    return tables


def lines(study: Study, settings: Settings) -> list[str]:
    """What the reads of the whole study cost, and whose labels could stand in for whose."""
    costs = [
        reads_line(
            f"study, {role} {short_names([r for r, _, _ in study.costs])[reader]} ({augmentation})",
            costs,
        )
        for (reader, augmentation, role), costs in study.costs.items()
        if costs.wanted
    ]
    first = [
        "note: at k = 1 the passage read alone is the whole list: there eRAG's labels are the end-to-end score"
    ]
    trivial = (
        any(condition.k == 1 for condition in study.settings)
        and erag.NAME in settings.annotators
        and settings.end_to_end
        and settings.erag_reader is None
    )
    return [*costs, *(first if trivial else []), *_stand_in(study, settings)]


def content(study: Study, directories: dict[Condition, str]) -> dict[str, Any]:
    """The study for ``summary.json``: where each condition's evaluation lies, figures, costs."""
    return {
        "conditions": [
            {**asdict(condition), "directory": directories[condition]}
            for condition in study.settings
        ],
        "costs": [
            {READER: reader, AUGMENTATION: augmentation, "role": role, **asdict(costs)}
            for (reader, augmentation, role), costs in study.costs.items()
        ],
        "correlations": study.conditions.to_dicts(),
        "readers": study.readers.to_dicts(),
        "reader_comparisons": study.reader_comparisons.to_dicts(),
    }


def short_names(readers: Sequence[str]) -> dict[str, str]:
    """The last part of each reader's name; the whole of it where that would stand for two."""
    last = {reader: Path(reader).name or reader for reader in readers}
    names = list(last.values())
    return {reader: name if names.count(name) == 1 else reader for reader, name in last.items()}


def directory_names(every: Sequence[Condition]) -> dict[Condition, str]:
    """A name for each condition that says what is different in it, fit for a directory."""
    readers = list(dict.fromkeys(condition.reader for condition in every))
    short = short_names(readers)
    varied = [len({getattr(c, name) for c in every}) > 1 for name in (READER, AUGMENTATION, K)]
    names: dict[Condition, str] = {}
    for condition in every:
        parts = [short[condition.reader], condition.augmentation, f"k{condition.k}"]
        name = "-".join(part for part, some in zip(parts, varied, strict=True) if some)
        names[condition] = "".join(c if c.isalnum() or c in "-._" else "_" for c in name)
    if len(set(names.values())) < len(names):  # paths that differ in a sign alone
        names = {condition: f"{i}-{name}" for i, (condition, name) in enumerate(names.items(), 1)}
    return names


def _columns(study: Study) -> tuple[str, list[Any]]:
    """What the columns of the table are: the first of k, reader and augmentation that varies."""
    for name in (K, READER, AUGMENTATION):
        values = list(dict.fromkeys(getattr(condition, name) for condition in study.settings))
        if len(values) > 1:
            return name, sorted(values) if name == K else values
    raise ValueError("a study of one condition")


def _by_condition(study: Study, settings: Settings) -> Table:
    across, values = _columns(study)
    short = short_names(list(dict.fromkeys(c.reader for c in study.settings)))
    runs = study.conditions[RUN].n_unique() > 1
    others = [
        name
        for name in (READER, AUGMENTATION)
        if name != across and study.conditions[name].n_unique() > 1
    ]
    names = [*others, *([RUN] if runs else []), "annotator", "measure"]
    headers = [
        f"k = {value}" if across == K else _sized(study, value, short.get(value, str(value)))
        for value in values
    ]
    result = table(
        f"Kendall's tau with the end-to-end score, by {across}{level(settings)}", names, headers
    )
    cells: dict[tuple[str, ...], dict[Any, str]] = {}
    for condition, evaluation in study.evaluations.items():
        own = study.settings[condition]
        place = getattr(condition, across)
        key = [
            short[condition.reader] if name == READER else condition.augmentation for name in others
        ]
        _, end_to_end = means(evaluation)
        for row in end_to_end.iter_rows(named=True):
            head = (*key, *([row[RUN]] if runs else []))
            cells.setdefault((*head, "end-to-end", own.metric), {})[place] = f"{row[VALUE]:.3f}"
        for row in evaluation.statistics.correlations.iter_rows(named=True):
            head = (*key, *([row[RUN]] if runs else []))
            measure = _following(row[MEASURE], own, across)
            text = interval(row, "tau") if row[N] else ""
            cells.setdefault((*head, row[ANNOTATOR], measure), {})[place] = text
    order = {key: place for place, key in enumerate(cells)}
    heads = list(dict.fromkeys(key[:-2] for key in cells))
    rows = sorted(
        cells,
        key=lambda key: (heads.index(key[:-2]), _annotators(cells).index(key[-2]), order[key]),
    )
    add_rows(result, [(key, [cells[key].get(value, "") for value in values]) for key in rows])
    return result


def _sized(study: Study, reader: str, name: str) -> str:
    """The name of a reader with its size."""
    for condition, evaluation in study.evaluations.items():
        if condition.reader == reader and (reading := evaluation.readings.get("reader")):
            amount = parameters(Path(reading.spec.path))
            size = f"{amount / 1e9:.1f}B" if amount >= 1e9 else f"{amount / 1e6:.0f}M"
            return f"{name} ({size})"
    return name


def _annotators(cells: dict[tuple[str, ...], Any]) -> list[str]:
    return list(dict.fromkeys(key[-2] for key in cells))


def _following(measure: str, settings: Settings, across: str) -> str:
    """The measure's name, with k for a cutoff that follows it."""
    parsed = next(m for m in settings.parsed_measures() if str(m) == measure)
    if across == K and parsed.cutoff == settings.k:
        return f"{Measure(parsed.kind, None, parsed.rel, parsed.dcg)}@k"
    return measure


def _across_readers(study: Study, settings: Settings) -> Table:
    """Labels by one reader, in rows, against the end-to-end score of each, in columns."""
    readers = list(dict.fromkeys(c.reader for c in study.settings))
    short = short_names(readers)
    found = study.readers
    # Where other things vary too, what is shown is as the study was first asked for.
    main = next(iter(study.settings))
    found = found.filter((pl.col(AUGMENTATION) == main.augmentation) & (pl.col(K) == main.k))
    runs = found[RUN].n_unique() > 1
    result = table(
        f"eRAG's labels by one reader, Kendall's tau with the end-to-end score of another{level(settings)}",
        [*([RUN] if runs else []), "labels by", "measure"],
        [_sized(study, reader, short[reader]) for reader in readers],
    )
    cells: dict[tuple[str, ...], dict[str, str]] = {}
    for row in found.iter_rows(named=True):
        key = (*([row[RUN]] if runs else []), short[row[LABELS_BY]], row[MEASURE])
        cells.setdefault(key, {})[row[READER]] = interval(row, "tau")
    names = [short[reader] for reader in readers]
    rows = sorted(cells, key=lambda key: (key[:-2], names.index(key[-2])))
    add_rows(result, [(key, [cells[key].get(reader, "") for reader in readers]) for key in rows])
    return result


def _stand_in(study: Study, settings: Settings) -> list[str]:
    """Whether labels of a cheaper reader could stand in, by the first measure: a line for each two."""
    said = []
    short = short_names(list(dict.fromkeys(c.reader for c in study.settings)))
    main = next(iter(study.settings))
    first = str(settings.parsed_measures()[0])
    compared = study.reader_comparisons.filter(
        (pl.col(AUGMENTATION) == main.augmentation)
        & (pl.col(K) == main.k)
        & (pl.col(MEASURE) == first)
    )
    for row in compared.iter_rows(named=True):
        difference = row["tau_difference"]
        if math.isnan(difference):
            continue
        bounds = (
            ""
            if math.isnan(row["tau_low"])
            else f" [{row['tau_low']:+.2f}, {row['tau_high']:+.2f}], p {p_value(row['tau_p_holm'])} (Holm)"
        )
        said.append(
            f"end-to-end score of {short[row[READER]]} on {row[RUN]}: its own labels less those of "
            f"{short[row['labels_by_b']]}, {first}: tau {difference:+.2f}{bounds}"
        )
    return said
