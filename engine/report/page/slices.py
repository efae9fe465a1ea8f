"""Groups of queries by further fields of their file, and by the length of the question."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from engine.messages.characters import words_within
from engine.report.findings import Findings
from engine.report.grids import mean_cell
from engine.report.layout import Grid
from engine.tables import QUERY, QUERY_ID, RUN

WORDS = "words of the question"
# Groups of a field at most, queries of the smallest group that is shown, and runs at most.
_MOST, _LEAST, _MOST_RUNS = 12, 5, 20
_NUMBER, _DATE = re.compile(r"[-+]?\d+(\.\d+)?"), re.compile(r"\d{4}-\d\d(-\d\d.*)?")


@dataclass(frozen=True)
class Slices:
    """Groups of queries by a field: their names in order, and the place of each query's group among them."""

    field: str
    names: Sequence[str]
    places: Mapping[str, int]


def slices(findings: Findings) -> list[Slices]:
    """The groups by every field that makes at least two, and at most ``_MOST``.

    Of a field of more numbers, each group has about a quarter; of more dates, a year. None without passages.
    """
    if findings.sources is None:
        return []
    fields: dict[str, dict[str, str]] = {}
    for query_id, text in findings.sources.queries.select(QUERY_ID, QUERY).iter_rows():
        further = findings.sources.fields.get(query_id, {})
        for name, value in {**further, WORDS: str(len(words_within(text)))}.items():
            fields.setdefault(name, {})[query_id] = value
    made = []
    for field, values in fields.items():
        groups = _grouped(values)
        names = list(dict.fromkeys(name for _, name in sorted(groups.values())))
        if 2 <= len(names) <= _MOST:
            places = {query_id: names.index(name) for query_id, (_, name) in groups.items()}
            made.append(Slices(field, names, places))
    return made


def _grouped(values: Mapping[str, str]) -> dict[str, tuple[float, str]]:
    """Each query's group, with what it is ordered by before its name."""
    distinct = set(values.values())
    if not all(map(_NUMBER.fullmatch, distinct)):
        is_date = len(distinct) > _MOST and all(map(_DATE.fullmatch, distinct))
        return {one: (0.0, value[:4] if is_date else value) for one, value in values.items()}
    numbers = {query_id: float(value) for query_id, value in values.items()}
    if len(distinct) <= _MOST:
        return {query_id: (number, values[query_id]) for query_id, number in numbers.items()}
    edges = np.quantile(list(numbers.values()), (0.25, 0.5, 0.75)).tolist()
    parts: dict[int, list[float]] = {}
    for number in numbers.values():
        parts.setdefault(bisect_right(edges, number), []).append(number)
    named = {part: (min(of), f"{min(of):g} to {max(of):g}") for part, of in parts.items()}
    return {query_id: named[bisect_right(edges, number)] for query_id, number in numbers.items()}


def slices_grid(findings: Findings, made: Sequence[Slices]) -> Grid:
    """The mean score that decides of every run in each group of at least ``_LEAST`` queries, with its interval."""
    runs, scores = findings.runs[:_MOST_RUNS], findings.downstream
    score = f"end-to-end score ({findings.metric})"
    if scores.is_empty():
        annotator, measure = next(iter(findings.primary_measures.items()), ("", ""))
        scores = findings.scores(annotator, measure)
        score = f"{annotator} {findings.named(measure, annotator)}"
    rows, small = [], 0
    for one in made:
        place = pl.col(QUERY_ID).replace_strict(dict(one.places), default=None)
        for number, name in enumerate(one.names):
            group = scores.filter(place == number)
            means = [findings.interval(group.filter(pl.col(RUN) == run)) for run in runs]
            n = max((mean.n for mean in means if mean), default=0)
            small += n < _LEAST
            if n >= _LEAST:
                rows.append([one.field, name, str(n), *map(mean_cell, means)])
    caption = (
        f"Mean {score} with {findings.confidence:.0%} intervals of each mean, over groups of queries by the fields of "
        f"their file that have at most {_MOST} values (numbers in quarters, dates by year) and by the length of the "
        "question. The intervals are not adjusted for the number of groups: take a difference for a hint."
    )
    caption += f" Groups of fewer than {_LEAST} queries are left out: {small}." if small else ""
    return Grid("slices", caption, ["field", "value", "n", *runs], rows, names=2)
