"""The top of a page: the answer, the runs, the reliability of annotators, costs; groups of queries."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

import numpy as np
import polars as pl

from engine.messages.characters import words_within
from engine.messages.wording import counted, cut, number
from engine.report import grids, header, printed, study_report, verdict
from engine.report.findings import Findings, costs_together
from engine.report.layout import Answer, Grid, calls_line, sentence
from engine.report.page.render import Part
from engine.report.summary import conditions_of
from engine.tables import MEASURE, QUERY, QUERY_ID, RUN

_LONGEST_OUTPUT = 80
# Undecided runs are counted from this number on, and named below it.
_NAMED = 3
_COSTS = (
    "LLM calls of this evaluation. Shared prefix: the share of prompt tokens that need no computation, since calls begin "
    "alike."
)
WORDS = "words of the question"
# Limits: groups of a field, queries in the smallest group, and runs.
_MOST, _LEAST, _MOST_RUNS = 12, 5, 20
# A field with at most this many numbers has a group for each number; with more, a group for each quarter.
_MOST_NUMBERS = 4
_NUMBER, _DATE = re.compile(r"[-+]?\d+(\.\d+)?"), re.compile(r"\d{4}-\d\d(-\d\d.*)?")


@dataclass(frozen=True)
class Slices:
    """Groups of queries by a field: group names in order, and the place of each query's group among them."""

    field: str
    names: Sequence[str]
    places: Mapping[str, int]


def verdict_of(findings: Findings) -> list[str]:
    """The verdict: its first sentence, which names the run to choose, and lines on its certainty."""
    unknown = f"{findings.best_run}: an earlier version wrote no verdict"
    first, *others = findings.verdict.get("sentences", ()) or [unknown]
    headline, _, by = first.partition(". ")
    return [sentence(headline), *filter(None, [by]), *others]


def answer(findings: Findings) -> Answer:
    """The run to choose, the possible loss and the certainty of that choice, and the cost of the evaluation."""
    summary = findings.summary
    headline, *lines = verdict_of(findings)
    lost = verdict.loss(findings.verdict, findings.confidence)
    # The decision repeats the loss.
    reasons = filter(None, (line.replace(lost, "").strip() for line in lines))
    costs = costs_together(findings.roles.values())
    facts = [("LLM calls", calls_line(costs) if costs.wanted else "none")]
    if date := (summary.get("audit") or {}).get("date"):
        facts.append(("date", f"{date[:16].replace('T', ' ')} UTC"))  # to the minute
    about, decision = header.lines(summary), _decision(findings, lost)
    return Answer(headline, [*reasons], facts, about, decision=decision)


def _decision(findings: Findings, lost: str) -> str:
    """The possible loss by choosing the best run, or the least loss by choosing another; else the text ``lost``."""
    choice, leads = findings.verdict, findings.leads.values()
    if not leads or not all(math.isfinite(lead["low"]) for lead in leads):
        return lost
    score = findings.metric
    if annotator := choice["annotator"]:
        score = f"{annotator} {findings.named(choice['measure'], annotator)}"
    least, level = min(lead["low"] for lead in leads), f"{findings.confidence * 100:g}%"
    if all(lead["significant"] for lead in leads):
        if len(leads) > 1:
            return f"If you choose another run, you lose at least {least:.3f} in {score} ({level})."
        ((other, lead),) = findings.leads.items()
        figures = f"{lead['difference']:.3f} in {score} ({level} interval: {least:.3f} to {lead['high']:.3f})"
        return f"If you choose {other}, you lose about {figures}."
    own, most = map(number, (-least, choice.get("most_lost") or math.nan))
    if own == most or not lost:
        return lost
    best_loss = f"If you choose {choice['best']}, you lose at most {own} in {score} ({level})"
    others = choice["undecided"]
    other = " or ".join(others) if len(others) < _NAMED else f"one of the {len(others)} others"
    return f"{best_loss}; if you choose {other}, at most {most}."


def sections(findings: Findings, groups: Sequence[Slices] = ()) -> Iterator[Part]:
    """The sections of the page in order, each with its tables; sections without figures are left out.

    ``page.html.j2`` writes the bodies of ``runs``, ``trust``, ``conditions`` and ``queries``; in other sections tables and
    pictures follow each other.
    """
    measures = [_measures(findings)] if findings.primary_measures else []
    # The table of correlations has only means without correlations; ``measures`` has these with intervals.
    shown = {"unseen", "places", *(() if findings.is_read_whole else ("correlations",))}
    yield Part("runs", "Runs", "The runs", [_leaderboard(findings), *measures])
    if findings.wholes and findings.annotators:
        unseen = [g for g in (grids.unseen(findings), grids.by_place(findings)) if g.rows]
        title = "How far each kind of label can be trusted"
        yield Part("trust", "Labels", title, [_agreement(findings), *unseen])
    if conditions_of(findings.summary):
        title, varied = "The conditions of the study", study_report.study_grids(findings)
        yield Part("conditions", "Conditions", title, varied)
    if (by_group := slices_grid(findings, groups)).rows:
        label = "Scores by group of queries"
        yield Part("groups", "Groups", "Groups of queries", [by_group], label=label)
    yield Part("queries", "Queries", "Query by query")
    if findings.summary.get("outputs"):
        title, label = "What readers answered", "Commonest outputs"
        yield Part("outputs", "", title, [_outputs(findings)], label=label)
    costs = replace(grids.costs(findings), caption=_COSTS)
    if costs.rows:
        yield Part("cost", "Cost", "What it cost", [costs], label=costs.title)
    every = printed.full_grids(findings)
    if further := [grid for grid in every if grid.rows and grid.name not in shown]:
        yield Part("tables", "Tables", "Further tables", further)


def overview_grids(findings: Findings) -> list[Grid]:
    """The tables of the page, except for groups of queries."""
    return [grid for part in sections(findings) for grid in part.grids]


def _leaderboard(findings: Findings) -> Grid:
    methods = "Clopper\N{EN DASH}Pearson for scores of 0 and 1, Gaffke for others"
    caption = (
        f"Means over queries with {findings.confidence:.0%} intervals of each mean ({methods})."
    )
    if findings.leads:
        paired = f"the paired difference from {findings.best_run}, with simultaneous intervals"
        caption += f" The second column of figures is {paired}. Use it to choose."
    for file in (findings.summary.get("audit") or {}).get("files", ()):
        if comments := file.get("header"):
            text = cut(" \N{MIDDLE DOT} ".join(comments), 8 * _LONGEST_OUTPUT)
            caption += f" {PurePath(file['path']).name} says of itself: {text}."
    return replace(grids.leaderboard(findings), caption=caption)


def _measures(findings: Findings) -> Grid:
    measures = list(dict.fromkeys(row[MEASURE] for row in findings.summary["means"]))
    rows = []
    for annotator in findings.primary_measures:
        scored = [findings.scores(annotator, m).partition_by(RUN, as_dict=True) for m in measures]
        for run in findings.runs:
            means = (findings.interval(by_run.get((run,))) for by_run in scored)
            rows.append([annotator, run, *map(grids.mean_cell, means)])
    caption = (
        f"Means over queries with {findings.confidence:.0%} intervals of each mean: every ranking measure of every run, "
        "with the labels of each annotator as relevance judgments. A dash: not defined on these labels."
    )
    heads = [findings.named(measure, *findings.primary_measures) for measure in measures]
    return Grid("measures", caption, ["labels of", "run", *heads], rows, names=2)


def _agreement(findings: Findings) -> Grid:
    grid = grids.agreement(findings)
    caption = (
        f"Correlation, over the queries of run {findings.best_run}, of each annotator's primary measure with the end-to-end "
        "score. 1: the measure orders the queries as the reader does; 0: it says nothing about the reader. "
        "\N{LEFT DOUBLE QUOTATION MARK}Share of max \N{GREEK SMALL LETTER TAU}\N{RIGHT DOUBLE QUOTATION MARK}: tau "
        "divided by the highest tau that these scores, with their ties, allow."
    )
    methods = f" I{grid.caption[1:]}." if grid.caption else ""  # begins with "intervals"
    return replace(grid, caption=caption + methods)


def _outputs(findings: Findings) -> Grid:
    each = ((row["output"], row["reads"]) for row in findings.summary["outputs"])
    rows = [[cut(text, _LONGEST_OUTPUT) or "(nothing)", f"{reads:,}"] for text, reads in each]
    caption = "The commonest outputs of readers, each LLM call counted once."
    return Grid("outputs", caption, ["output", "LLM calls"], rows)


def notes(findings: Findings) -> list[str]:
    """Notes that qualify the figures, a sentence each."""
    gone = bool(conditions_of(findings.summary)) and not findings.conditions
    lacking = ["the tables of the study are left out: not all of its conditions are in this folder"]
    return [sentence(text) for text in [*findings.notes, *lacking * gone]]


def slices(findings: Findings) -> list[Slices]:
    """The groups by every field that has between two groups and ``_MOST``.

    A group is about a quarter of the queries for more than ``_MOST_NUMBERS`` numbers, and a year for many dates. Empty
    without passages.
    """
    if findings.sources is None:
        return []
    fields: dict[str, dict[str, str]] = {}
    for query_id, text in findings.sources.queries.select(QUERY_ID, QUERY).iter_rows():
        further = findings.sources.fields.get(query_id, {})
        for name, value in {**further, WORDS: str(len(words_within(text)))}.items():
            fields.setdefault(name, {})[query_id] = value
    groupings = []
    for field, values in fields.items():
        groups = _groups_of(values)
        names = list(dict.fromkeys(name for _, name in sorted(groups.values())))
        if 2 <= len(names) <= _MOST:
            places = {query_id: names.index(name) for query_id, (_, name) in groups.items()}
            groupings.append(Slices(field, names, places))
    return groupings


def _groups_of(values: Mapping[str, str]) -> dict[str, tuple[float, str]]:
    distinct = set(values.values())
    if not all(map(_NUMBER.fullmatch, distinct)):
        is_date = len(distinct) > _MOST and all(map(_DATE.fullmatch, distinct))
        letters = 4 if is_date else None
        return {query_id: (0.0, value[:letters]) for query_id, value in values.items()}
    numbers = {query_id: float(value) for query_id, value in values.items()}
    if len(distinct) <= _MOST_NUMBERS:
        return {query_id: (number, values[query_id]) for query_id, number in numbers.items()}
    edges = np.quantile(list(numbers.values()), (0.25, 0.5, 0.75)).tolist()
    parts: dict[int, list[float]] = {}
    for value in numbers.values():
        parts.setdefault(bisect_right(edges, value), []).append(value)
    named = {}
    for part, own in parts.items():
        ends = dict.fromkeys((f"{min(own):g}", f"{max(own):g}"))
        named[part] = min(own), " to ".join(ends)
    return {query_id: named[bisect_right(edges, number)] for query_id, number in numbers.items()}


def slices_grid(findings: Findings, groupings: Sequence[Slices]) -> Grid:
    """Mean of the deciding score by run, with its interval, in each group of at least ``_LEAST`` queries.

    A field with fewer than two such groups has no row: there is nothing to compare.
    """
    runs, scores = findings.runs[:_MOST_RUNS], findings.downstream
    score = f"end-to-end score ({findings.metric})"
    if scores.is_empty():
        annotator, measure = findings.first_measure
        scores = findings.scores(annotator, measure)
        score = f"{annotator} {findings.named(measure, annotator)}"
    rows, small = [], 0
    for groups in groupings:
        places = pl.col(QUERY_ID).replace_strict(dict(groups.places), default=None)
        own = []
        for place, name in enumerate(groups.names):
            group = scores.filter(places == place)
            means = [findings.interval(group.filter(pl.col(RUN) == run)) for run in runs]
            n = max((mean.n for mean in means if mean), default=0)
            small += n < _LEAST
            if n >= _LEAST:
                own.append([groups.field, name, str(n), *map(grids.mean_cell, means)])
        rows += own if len(own) > 1 else []
    caption = (
        f"Mean {score} with {findings.confidence:.0%} intervals of each mean, over groups of queries by the fields of "
        f"their file that have at most {_MOST} values (numbers in quarters, dates by year) and by the length of the "
        "question. The intervals are not adjusted for the number of groups: take a difference for a hint."
    )
    if small:
        left_out = f"group[|s] of fewer than {_LEAST} queries [is|are] left out"
        caption += f" {counted(small, left_out)}, and fields with only one other group."
    return Grid("slices", caption, ["field", "value", "n", *runs], rows, names=2)
