"""Ranking measures per query, in Polars.

With binary labels every measure equals trec_eval's (through ir_measures). Graded labels are what
eRAG adds, and the paper's definitions hold for them: P is the mean label, Success the maximum, DCG
and nDCG take labels as gains; the others need a threshold (``AP(rel=0.5)``).

Definitions, for a list whose passage at rank i has label l_i, relevant if l_i >= rel (1 by default),
n passages in it, N relevant ones among the judged, and cutoff k (n where there is none):

- P@k: sum of l_i for i <= k, over k (over k also where the list is shorter)
- R@k: relevant among the first k, over N
- F1@k: harmonic mean of P@k and R@k
- AP@k: sum over relevant i <= k of P@i, over N
- RR@k: 1 / the first relevant rank if that is <= k, else 0
- Success@k: the largest l_i for i <= k
- DCG@k: sum over i <= k of l_i / log2(i + 1)   (Järvelin & Kekäläinen 2002, linear gain)
- nDCG@k: DCG@k over the DCG@k of the judged passages in their best order

What is judged is a choice (``relevant``): ``list``, the passages of the query's own list (eRAG's
reference: serves correlation within one run), or ``pool``, all passages that any of the compared
runs lists for the query (what comparing runs needs: a run is not excused for what it did not find).

A query without retrieved passages, or without relevant ones where N divides, scores 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import polars as pl

from engine import tables
from engine.errors import InputError
from engine.ranking.measures import GRADED_KINDS, Measure, undefined_on_graded
from engine.tables import ANNOTATOR, DOC_ID, LABEL, MEASURE, QUERY_ID, RANK, RUN, VALUE

Relevant = Literal["list", "pool"]

_JUDGED = "judged_labels"
_LISTED = "listed_labels"


def score_runs(
    runs: pl.DataFrame,
    labels: pl.DataFrame,
    query_ids: Sequence[str],
    measures: Sequence[Measure],
    *,
    relevant: Relevant,
) -> pl.DataFrame:
    """Score every (run, annotator, measure, query).

    Args:
        runs: the run table with ranks 1, 2, … per (run, query).
        labels: the labels table; a listed passage without a label counts as not relevant.
        query_ids: the queries of the evaluation: those missing from a run score 0.
        measures: what to compute.
        relevant: what counts as judged, see above.

    Returns:
        the query_scores table, with a row for every combination.

    Raises:
        InputError: a measure without threshold on graded labels that it does not take.
    """
    parts = [
        _score_annotator(runs, own, str(annotator), query_ids, measures, relevant)
        for (annotator,), own in labels.group_by([ANNOTATOR], maintain_order=True)
    ]
    return pl.concat(parts) if parts else tables.empty(tables.QUERY_SCORES)


def is_graded(labels: pl.Series) -> bool:
    """Whether some label is neither 0 nor 1."""
    return not labels.is_in([0.0, 1.0]).all()


def _score_annotator(
    runs: pl.DataFrame,
    labels: pl.DataFrame,
    annotator: str,
    query_ids: Sequence[str],
    measures: Sequence[Measure],
    relevant: Relevant,
) -> pl.DataFrame:
    if is_graded(labels[LABEL]) and (refused := undefined_on_graded(measures)):
        first = refused[0]
        advice = str(Measure(first.kind, first.cutoff, rel=0.5))
        raise InputError(
            None,
            None,
            f"{first} is not defined on the graded labels of {annotator!r}",
            f"give a threshold, as in {advice}, or use {', '.join(sorted(GRADED_KINDS))}",
        )
    listed = (
        runs.join(labels.select(QUERY_ID, DOC_ID, LABEL), on=[QUERY_ID, DOC_ID], how="left")
        .with_columns(pl.col(LABEL).fill_null(0.0))
        .sort(RUN, QUERY_ID, RANK)
        .group_by(RUN, QUERY_ID, maintain_order=True)
        .agg(pl.col(LABEL).alias(_LISTED))
    )
    if relevant == "list":
        judged = listed.with_columns(pl.col(_LISTED).alias(_JUDGED))
    else:
        pool = labels.group_by(QUERY_ID).agg(pl.col(LABEL).alias(_JUDGED))
        judged = listed.join(pool, on=QUERY_ID, how="left").with_columns(
            pl.col(_JUDGED).fill_null([])
        )
    judged = judged.with_columns(pl.col(_JUDGED).list.sort(descending=True))
    names = [str(measure) for measure in measures]
    wide = (
        pl.DataFrame({QUERY_ID: list(query_ids)}, schema={QUERY_ID: pl.String})
        .join(runs.select(RUN).unique(maintain_order=True), how="cross")
        .join(
            judged.select(RUN, QUERY_ID, *(_value(m).alias(str(m)) for m in measures)),
            on=[RUN, QUERY_ID],
            how="left",
            maintain_order="left",
        )
    )
    return (
        wide.unpivot(on=names, index=[RUN, QUERY_ID], variable_name=MEASURE, value_name=VALUE)
        .with_columns(pl.lit(annotator).alias(ANNOTATOR), pl.col(VALUE).fill_null(0.0))
        .select(list(tables.QUERY_SCORES))
    )


def _value(measure: Measure) -> pl.Expr:
    """The measure of each row, from its lists of labels (by rank) and of judged labels (best first)."""
    k = measure.cutoff
    threshold = measure.rel if measure.rel is not None else 1.0
    head = pl.col(_LISTED) if k is None else pl.col(_LISTED).list.head(k)
    element = pl.element()
    hits = head.list.eval((element >= threshold).cast(pl.Float64))
    depth = pl.lit(float(k)) if k is not None else pl.col(_LISTED).list.len().cast(pl.Float64)
    count = pl.col(_JUDGED).list.eval((element >= threshold).cast(pl.Float64)).list.sum()
    as_is = measure.rel is None and measure.kind in GRADED_KINDS
    gains = head if as_is else hits
    precision = _ratio(gains.list.sum(), depth)
    recall = _ratio(hits.list.sum(), count)
    rank = pl.int_range(1, pl.len() + 1)
    if measure.kind == "P":
        return precision
    if measure.kind == "R":
        return recall
    if measure.kind == "F1":
        return _ratio(2 * precision * recall, precision + recall)
    if measure.kind == "AP":
        at_hits = head.list.eval(
            (element >= threshold).cast(pl.Float64)
            * (element >= threshold).cast(pl.Float64).cum_sum()
            / rank
        )
        return _ratio(at_hits.list.sum(), count)
    if measure.kind == "RR":
        return (
            head.list.eval((element >= threshold).cast(pl.Float64) / rank).list.max().fill_null(0)
        )
    if measure.kind == "Success":
        return gains.list.max().fill_null(0.0)
    discounted = element / (rank + 1).cast(pl.Float64).log(2)
    dcg = head.list.eval(discounted).list.sum()
    if measure.kind == "DCG":
        return dcg
    best = pl.col(_JUDGED) if k is None else pl.col(_JUDGED).list.head(k)
    return _ratio(dcg, best.list.eval(discounted).list.sum())


def _ratio(numerator: pl.Expr, denominator: pl.Expr) -> pl.Expr:
    return pl.when(denominator > 0).then(numerator / denominator).otherwise(0.0)
