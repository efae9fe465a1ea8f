"""The pictures of an evaluation's page: their data, and drawing them on an empty figure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import polars as pl

from engine import tables
from engine.report import layout
from engine.report.findings import Findings
from engine.report.page.plotting import (
    COLOURS,
    FAINT,
    INK,
    MARKERS,
    Drawing,
    add_legend,
    draw_intervals,
    forest,
    name_rows,
)
from engine.statistics.runs import Interval
from engine.tables import ANNOTATOR, DOC_ID, LABEL, QUERY_ID, RUN, TAU, VALUE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_Bins = list[tuple[float, Interval]]
_MOST_RUNS, _MOST_SERIES = 20, 6
# Queries in the smallest group with a point: smaller groups have an interval from 0 to 1, or nearly.
_FEW = 5
# Groups of queries by the value of a measure.
_BINS = 5
_APART = (
    "Because the runs share queries, their differences are more precise than these intervals suggest: choose by the paired "
    "differences."
)


def drawings(findings: Findings) -> Iterator[Drawing]:
    """Every picture that the evaluation has figures for."""
    if findings.leads:
        yield _differences(findings)
    if findings.runs:
        yield _scores(findings)
    if any(findings.agreement(name) for name in findings.annotators):
        yield _correlations(findings)
    if binned := _all_binned(findings):
        yield _by_measure(findings, binned)
    ranked = by_rank(findings)
    if not ranked.is_empty():
        yield _by_rank(findings, ranked)
    if pairs := _pairs(findings):
        yield _of_annotators(findings.annotators[0], pairs)
    at_each_k = _at_each_k(findings)
    if at_each_k["k"].n_unique() > 1:
        yield _by_k(findings, at_each_k)


def _differences(findings: Findings) -> Drawing:
    best, choice = findings.best_run, findings.verdict
    shown = [run for run in findings.runs if run in findings.leads][: _MOST_RUNS - 1]
    leads = [findings.leads[run] for run in shown]
    ends = ("difference", "high", "low")
    rows = [(lead["over"], *(-lead[name] for name in ends)) for lead in leads]
    score = f"end-to-end score ({findings.metric})"
    if choice["annotator"]:
        score = f"{choice['annotator']} {choice['measure']}"
    level = "no intervals, since there are no resamples"
    if any(math.isfinite(lead["low"]) for lead in leads):
        together = f" that hold together for all {choice['pairs']} pairs of runs"
        level = f"{findings.confidence:.0%} intervals{together * (choice['pairs'] > 1)}"
    those = f"{choice['n']:,} queries that all runs have"
    if any(lead.get("n", choice["n"]) < choice["n"] for lead in leads):
        those = f"queries that both have, {choice['n']:,} at most"
    rest = len(findings.leads) - len(shown)
    more = f" The {len(shown)} best of {len(findings.leads)} other runs." if rest else ""
    return forest(
        "differences",
        f"Paired difference from {best}",
        f"Mean difference in the {score} over the {those}, with {level}. An "
        f"interval left of 0 (dashed): the run is worse than {best}; one that holds 0: the data do not tell.{more}",
        rows,
        f"difference in the {score}",
    )


def _scores(findings: Findings) -> Drawing:
    runs = findings.runs[:_MOST_RUNS]
    series = [(f"end to end ({findings.metric})", [findings.end_to_end(run) for run in runs])]
    for annotator, measure in list(findings.primary_measures.items())[: _MOST_SERIES - 1]:
        means = [findings.mean(run, annotator, measure) for run in runs]
        series.append((f"{annotator} {findings.named(measure, annotator)}", means))
    series = [(name, means) for name, means in series if any(means)]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for place, (name, means) in enumerate(series):
            offset = (place - (len(series) - 1) / 2) * 0.7 / len(series)
            rows = [(row + offset, mean) for row, mean in enumerate(means) if mean]
            points = [(row, mean.value, mean.low, mean.high) for row, mean in rows]
            draw_intervals(axes, points, place, name)
        name_rows(axes, runs)
        axes.set_xlim(left=min(0.0, axes.get_xlim()[0]))
        axes.set_xlabel("mean over queries")
        add_legend(figure, axes, len(series))

    numbers, known = {mean.n for _, means in series for mean in means if mean}, len(findings.runs)
    more = f" The {_MOST_RUNS} best of {known} runs." * (known > _MOST_RUNS)
    return Drawing(
        "scores",
        "End-to-end score and labels' scores, by run",
        f"Means over {'up to ' * (len(numbers) > 1)}{max(numbers):,} queries with {findings.confidence:.0%} intervals of each mean alone. "
        f"{_APART * (known > 1)}{more}",
        1.1 + 0.14 * len(series) + len(runs) * (0.22 + 0.11 * len(series)),
        draw,
    )


def _correlations(findings: Findings) -> Drawing:
    cells = [cell for name in findings.annotators if (cell := findings.agreement(name))]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for row, cell in enumerate(cells):
            low, high = cell[tables.TAU_MIN], cell[tables.TAU_MAX]
            if math.isfinite(low) and math.isfinite(high):
                label = "what these scores allow" if row == 0 else None
                axes.barh(row, high - low, left=low, height=0.5, color=FAINT, label=label, zorder=1)
            label = "Kendall's tau" if row == 0 else None
            point = (row, cell[TAU], cell[tables.low_of(TAU)], cell[tables.high_of(TAU)])
            draw_intervals(axes, [point], 0, label)
        axes.axvline(0, color=INK, linewidth=0.8)
        measures = ((cell[ANNOTATOR], cell[tables.MEASURE]) for cell in cells)
        name_rows(axes, [f"{name} {findings.named(measure, name)}" for name, measure in measures])
        axes.set_xlabel("Kendall's tau with the end-to-end score")
        add_legend(figure, axes, 2)

    methods = sorted({cell[tables.METHOD] for cell in cells} - {""})
    intervals = f", {' or '.join(layout.METHODS[name][1] for name in methods)}" if methods else ""
    return Drawing(
        "agreement",
        f"How far each kind of label agrees with the reader, run {findings.best_run}",
        f"Each annotator's primary measure against the end-to-end score, over {cells[0][tables.N]:,} queries; "
        f"{findings.confidence:.0%} intervals{intervals}. Bars: the least and the greatest tau that the scores, with "
        "their ties, allow.",
        1.2 + 0.42 * len(cells),
        draw,
    )


def _by_measure(findings: Findings, binned: Mapping[str, _Bins]) -> Drawing:
    run = findings.best_run
    places = [measure for bins in binned.values() for measure, _ in bins]
    # Points of several labels at one value stand side by side.
    beside = 0.012 * (max(places) - min(places))

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for place, (name, bins) in enumerate(binned.items()):
            aside = (place - (len(binned) - 1) / 2) * beside
            points = [(measure + aside, mean.value, mean.low, mean.high) for measure, mean in bins]
            label = f"{name} {findings.named(findings.primary_measures[name], name)}"
            draw_intervals(axes, points, place, label, joined=True)
        axes.set(xlabel="value of the measure", ylabel=f"end-to-end score ({findings.metric})")
        axes.set_ylim(bottom=0)
        add_legend(figure, axes, len(binned))

    return Drawing(
        "measures",
        f"End-to-end score by the value of the measure, run {run}",
        f"Queries of run {run} in up to {_BINS} groups by the measure, with the mean end-to-end score of each group "
        f"and its {findings.confidence:.0%} interval. A rising line means that the measure "
        f"separates answered from unanswered queries. Groups have "
        f"{_range([score.n for bins in binned.values() for _, score in bins])} queries; those of fewer than {_FEW} are "
        "left out.",
        3.4,
        draw,
    )


def _by_rank(findings: Findings, ranked: pl.DataFrame) -> Drawing:
    from matplotlib.ticker import MaxNLocator

    names = [name for name in findings.annotators if name in ranked["annotator"]][:_MOST_SERIES]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for place, name in enumerate(names):
            ranks, shares = ranked.filter(annotator=name).select("rank", "share")
            marker = MARKERS[place] if len(ranks) <= 60 else None
            style: Any = {"color": COLOURS[place], "markersize": 4.5, "linewidth": 1.5}
            axes.plot(ranks.to_numpy(), shares.to_numpy(), marker=marker, label=name, **style)
        axes.set(xlabel="rank in the list", ylabel="share labelled above 0", ylim=(0, None))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        add_legend(figure, axes, len(names))

    return Drawing(
        "ranks",
        f"Where in the list useful passages stand, run {findings.best_run}",
        f"At each rank, the share of {findings.best_run}'s passages whose label is above 0, over "
        f"{int(ranked['n'].max() or 0):,} queries.",  # type: ignore[arg-type]
        3.2,
        draw,
    )


def _of_annotators(first: str, pairs: Sequence[_Pair]) -> Drawing:
    other = pairs[0].other if len(pairs) == 1 else "the one named on the left"
    legends = ("both", f"{first} alone", f"{other} alone", "neither")
    hatches = ("", "//", "\\\\", "")
    colours = (COLOURS[2], COLOURS[0], COLOURS[1], FAINT)

    names = [f"{first} and {other}"] if len(pairs) == 1 else [pair.other for pair in pairs]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        left = [0.0] * len(pairs)
        for part, (legend, hatch, colour) in enumerate(zip(legends, hatches, colours, strict=True)):
            widths = [pair.shares[part] for pair in pairs]
            axes.barh(
                range(len(pairs)), widths, left=left, height=0.6, color=colour,
                hatch=hatch, edgecolor=INK, linewidth=0.4, label=legend,
            )  # fmt: skip
            left = [before + width for before, width in zip(left, widths, strict=True)]
        name_rows(axes, names)
        axes.set(xlim=(0, 1), xlabel="share of the listed passages")
        add_legend(figure, axes, 4)

    return Drawing(
        "annotators",
        f"Where {first} and other labels disagree",
        f"The share of {pairs[0].n:,} listed passages that {first} and another annotator both label above 0, one of them "
        "alone, or neither.",
        1.2 + 0.45 * len(pairs),
        draw,
    )


def _at_each_k(findings: Findings) -> pl.DataFrame:
    # The cutoff of the measure follows k, so the first row of a k has it.
    rows = findings.table("conditions")
    rows = rows.filter(pl.col("run").eq_missing(findings.best_run), pl.col("n") > 0)
    main = (pl.col(name) == pl.col(name).first() for name in ("reader", "augmentation"))
    rows = rows.filter(*main).unique(["annotator", "k"], keep="first", maintain_order=True)
    return rows.filter(pl.col(TAU).is_not_nan())


def _by_k(findings: Findings, primary: pl.DataFrame) -> Drawing:
    from matplotlib.ticker import MaxNLocator

    names = [name for name in findings.annotators if name in primary["annotator"]][:_MOST_SERIES]

    def draw(figure: Figure) -> None:
        axes = figure.add_subplot()
        for place, name in enumerate(names):
            at_each = primary.filter(annotator=name).sort("k")
            points = at_each.select("k", TAU, tables.low_of(TAU), tables.high_of(TAU)).rows()
            draw_intervals(axes, points, place, name, joined=True)
        axes.axhline(0, color=INK, linewidth=0.8)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set(xlabel="passages in the list (k)", ylabel="Kendall's tau, primary measure")
        add_legend(figure, axes, len(names))

    return Drawing(
        "cutoffs",
        f"Agreement with the reader by the length of the list, run {findings.best_run}",
        f"Each annotator's primary measure at each k, over {_range(primary['n'].to_list())} queries; "
        f"{findings.confidence:.0%} intervals.",
        3.4,
        draw,
    )


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


class _Pair(NamedTuple):
    """Two annotators on the same n passages: shares with labels above 0 by both, by one alone, and by neither."""

    other: str
    n: int
    shares: Sequence[float]


def by_rank(findings: Findings) -> pl.DataFrame:
    """``annotator``, ``rank``, and the ``share`` of the best run's ``n`` passages there whose label is above 0.

    Empty if the page has no passages.
    """
    if findings.sources is None or findings.complete_traces.is_empty():
        return pl.DataFrame()
    listed = findings.sources.runs.filter(pl.col(RUN).eq_missing(findings.best_run))
    labels = findings.complete_traces.select(QUERY_ID, DOC_ID, ANNOTATOR, LABEL)
    return (
        listed.join(labels, on=[QUERY_ID, DOC_ID])
        .group_by(ANNOTATOR, tables.RANK)
        .agg((pl.col(LABEL) > 0).mean().alias("share"), pl.len().alias("n"))
        .sort(ANNOTATOR, tables.RANK)
    )


def _pairs(findings: Findings) -> list[_Pair]:
    if findings.sources is None or len(findings.annotators) < 2:
        return []
    listed = findings.sources.runs.select(QUERY_ID, DOC_ID).unique()
    labels = listed.join(findings.complete_traces, on=[QUERY_ID, DOC_ID]).select(
        QUERY_ID, DOC_ID, ANNOTATOR, (pl.col(LABEL) > 0).alias("useful")
    )
    first, *others = findings.annotators
    own = labels.filter(annotator=first)
    pairs = []
    for second in others:
        both = own.join(labels.filter(annotator=second), on=[QUERY_ID, DOC_ID], suffix="_b")
        if not both.is_empty():
            a, b, n = both["useful"], both["useful_b"], both.height
            parts = (a & b, a & ~b, ~a & b, ~a & ~b)
            pairs.append(_Pair(second, n, [float(part.sum()) / n for part in parts]))
    return pairs


def _all_binned(findings: Findings) -> dict[str, _Bins]:
    """By annotator, the groups of at least ``_FEW`` queries, if there are two: a single point shows no relation."""
    names = [name for name in findings.annotators if findings.agreement(name)][:_MOST_SERIES]
    binned = {name: [b for b in _bins(findings, name) if b[1].n >= _FEW] for name in names}
    return {name: bins for name, bins in binned.items() if len(bins) > 1}


def _bins(findings: Findings, annotator: str) -> _Bins:
    """Groups of the best run's queries by primary measure, with its mean and the interval of the end-to-end score."""
    best = pl.col(RUN).eq_missing(findings.best_run)
    scores = findings.scores(annotator, findings.primary_measures[annotator]).filter(best)
    measures = scores.select(QUERY_ID, pl.col(VALUE).alias("measure"))
    whole = findings.downstream.filter(best).select(QUERY_ID, VALUE)
    paired = measures.join(whole, on=QUERY_ID).sort("measure")
    # Equal values share a bin, by the middle place among them.
    place = (pl.col("measure").rank("average") - 0.5) / pl.len()
    grouped = paired.with_columns((place * _BINS).floor().clip(0, _BINS - 1).alias("bin"))
    return [
        (float(group["measure"].mean()), interval)  # type: ignore[arg-type]
        for _, group in grouped.group_by("bin", maintain_order=True)
        if (interval := findings.interval(group)) is not None
    ]
