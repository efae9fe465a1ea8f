"""Where each label comes from: the output, answer, article or probability behind it."""

from __future__ import annotations

import functools

import polars as pl

from engine import tables
from engine.scoring.metrics import Metric, get_metric
from engine.tables import (
    ANSWER,
    ANSWERS,
    ARTICLE_ID,
    CONFIDENCE,
    DOC_ID,
    LABEL,
    METRIC,
    OUTPUT,
    QUERY_ID,
    READ_KEY,
)


def trace_erag(
    labels: pl.DataFrame, reads: pl.DataFrame, queries: pl.DataFrame, metric: str | Metric
) -> pl.DataFrame:
    """Traces of eRAG's labels: the read, its output, the metric, and the answer that gave the label.

    ``answer`` is the first whose value under the metric is the label; null where the label is 0, and where
    several answers were given to a metric of the user's, which need not be a maximum over them.

    Args:
        labels: eRAG's labels, in the order of ``reads``.
    """
    function = get_metric(metric)
    answers: dict[str, list[str]] = dict(queries.select(QUERY_ID, ANSWERS).iter_rows())

    @functools.cache
    def matched(query_id: str, output: str, label: float) -> str | None:
        if label <= 0 or (function.own and len(answers[query_id]) > 1):
            return None
        # The metric is a maximum over answers, so one of them alone gives the label.
        giving = (answer for answer in answers[query_id] if function(output, [answer]) == label)
        return next(giving, None)

    values = zip(labels[QUERY_ID], reads[OUTPUT], labels[LABEL], strict=True)
    return complete(
        labels.with_columns(
            reads[READ_KEY],
            reads[OUTPUT],
            pl.lit(function.name).alias(METRIC),
            pl.Series(ANSWER, [matched(*row) for row in values], dtype=pl.String),
        )
    )


def trace_judge(labels: pl.DataFrame, reads: pl.DataFrame) -> pl.DataFrame:
    """Traces of a judge's labels, in the order of its reads: the read and the probability; null if it failed."""
    return complete(labels.with_columns(reads[READ_KEY], reads[OUTPUT], reads[CONFIDENCE]))


def trace_utility(labels: pl.DataFrame, reads: pl.DataFrame, helpful: pl.DataFrame) -> pl.DataFrame:
    """Traces of utilities, in the order of the reads that could decline: these, and the traces of what says that passages help."""
    of_helpful = helpful.select(QUERY_ID, DOC_ID, OUTPUT, METRIC, ANSWER, ARTICLE_ID)
    return complete(
        labels.with_columns(reads[READ_KEY], reads[CONFIDENCE]).join(
            of_helpful, on=[QUERY_ID, DOC_ID], how="left", maintain_order="left"
        )
    )


def complete(traces: pl.DataFrame) -> pl.DataFrame:
    """The traces table, with nulls in the columns that say nothing of this annotator."""
    missing = [
        pl.lit(None, dtype=kind).alias(name)
        for name, kind in tables.TRACES.items()
        if name not in traces.columns
    ]
    return traces.with_columns(missing).select(list(tables.TRACES))
