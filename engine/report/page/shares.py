"""Figures that only a page shows: labels by rank, pairs of annotators, end-to-end scores by a measure's value."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import polars as pl

from engine.report.findings import Findings
from engine.report.means import Interval
from engine.tables import ANNOTATOR, DOC_ID, LABEL, QUERY_ID, RANK, RUN, VALUE

# Groups of queries by the value of a measure.
BINS = 5


class Pair(NamedTuple):
    """How the first annotator and another label the same n passages: the shares that are above 0 by both, by the first
    alone, by the other alone, and by neither.
    """

    other: str
    n: int
    shares: Sequence[float]


def by_rank(findings: Findings) -> pl.DataFrame:
    """Of the best run: by annotator and rank, the share of passages with a label above 0, and of how many.

    Columns ``annotator``, ``rank``, ``share``, ``n``; empty where the page has no passages.
    """
    if findings.sources is None or findings.complete_traces.is_empty():
        return pl.DataFrame()
    listed = findings.sources.runs.filter(pl.col(RUN).eq_missing(findings.best_run))
    labels = findings.complete_traces.select(QUERY_ID, DOC_ID, ANNOTATOR, LABEL)
    return (
        listed.join(labels, on=[QUERY_ID, DOC_ID])
        .group_by(ANNOTATOR, RANK)
        .agg((pl.col(LABEL) > 0).mean().alias("share"), pl.len().alias("n"))
        .sort(ANNOTATOR, RANK)
    )


def of_annotators(findings: Findings) -> list[Pair]:
    """The first annotator beside every other, over the listed passages that both of them label."""
    if findings.sources is None or len(findings.annotators) < 2:
        return []
    listed = findings.sources.runs.select(QUERY_ID, DOC_ID).unique()
    labels = listed.join(findings.complete_traces, on=[QUERY_ID, DOC_ID]).select(
        QUERY_ID, DOC_ID, ANNOTATOR, (pl.col(LABEL) > 0).alias("useful")
    )
    first, *others = findings.annotators
    own = labels.filter(pl.col(ANNOTATOR) == first).drop(ANNOTATOR)
    pairs = []
    for second in others:
        other = labels.filter(pl.col(ANNOTATOR) == second).drop(ANNOTATOR)
        both = own.join(other, on=[QUERY_ID, DOC_ID], suffix="_b")
        if not both.is_empty():
            a, b, n = both["useful"], both["useful_b"], both.height
            parts = (a & b, a & ~b, ~a & b, ~a & ~b)
            pairs.append(Pair(second, n, [float(part.sum()) / n for part in parts]))
    return pairs


def binned(findings: Findings, annotator: str) -> list[tuple[float, Interval]]:
    """The best run's queries in groups by the annotator's primary measure, equal values in one group.

    Of each group the mean of the measure, and the interval of the end-to-end score.
    """
    scores = findings.scores(annotator, findings.primary_measures[annotator])
    scores = scores.filter(pl.col(RUN).eq_missing(findings.best_run)).rename({VALUE: "measure"})
    whole = findings.downstream.filter(pl.col(RUN).eq_missing(findings.best_run))
    paired = scores.drop(RUN).join(whole.select(QUERY_ID, VALUE), on=QUERY_ID).sort("measure")
    # The place of the middle one of equal values decides for all of them.
    place = (pl.col("measure").rank("average") - 0.5) / pl.len()
    grouped = paired.with_columns((place * BINS).floor().clip(0, BINS - 1).alias("bin"))
    return [
        (float(group["measure"].mean()), interval)  # type: ignore[arg-type]
        for _, group in grouped.group_by("bin", maintain_order=True)
        if (interval := findings.interval(group)) is not None
    ]
