"""Tables of agents' traces: by step, by question and by run; and the credit of a step, by leaving it out.

A trace is the searches of an agent for one question. A passage is useful if its label is a ``SUCCESS``, as on the page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import polars as pl

from engine import tables
from engine.statistics import leads
from engine.statistics.comparison import Clusters, numbered
from engine.statistics.correlation import Bootstrap
from engine.statistics.runs import mean_interval
from engine.statistics.single_labels import SUCCESS
from engine.tables import ANNOTATOR, DOC_ID, LABEL, NEW, QUERY_ID, RANK, RUN, SCORE, STEP, VALUE

_QUESTION, _VARIANT, _NAME = [RUN, QUERY_ID], "variant", "name"


def listed(steps: pl.DataFrame) -> pl.DataFrame:
    """The passages of steps, each once a step, in order: ``run``, ``query_id``, ``step``, ``doc_id``."""
    rows = steps.select(*_QUESTION, STEP, pl.col(tables.DOC_IDS).alias(DOC_ID)).explode(DOC_ID)
    return rows.drop_nulls(DOC_ID).unique(maintain_order=True)


def trace_steps(
    steps: pl.DataFrame, labels: pl.DataFrame, annotators: Sequence[str], k: int
) -> pl.DataFrame:
    """The table ``trace_steps``: every step by every annotator, with RR and Success@k of its list.

    RR: the reciprocal rank of the list's first useful passage. Success@k: whether it is among the first ``k``.
    """
    step, useful = [*_QUESTION, STEP], (pl.col(LABEL) >= SUCCESS).fill_null(False)
    of_passage, by_annotator = [*_QUESTION, DOC_ID], pl.DataFrame({ANNOTATOR: annotators})
    new, once = pl.col(STEP).min().over(of_passage) == pl.col(STEP), pl.len().over(of_passage) == 1
    rank = pl.int_range(1, pl.len() + 1).over(step)
    rows = listed(steps).with_columns(
        new.alias(NEW), once.alias(tables.NOT_AGAIN), rank.alias(RANK)
    )
    rows = rows.join(by_annotator, how="cross")
    rows = rows.join(labels, on=[QUERY_ID, DOC_ID, ANNOTATOR], how="left")
    first = pl.col(STEP).filter(useful).min().over(*_QUESTION, ANNOTATOR) == pl.col(STEP)
    at = pl.col(RANK).filter(useful).min()
    rows = rows.with_columns(first.alias(tables.FIRST_USEFUL))
    found = rows.group_by(*step, ANNOTATOR).agg(
        pl.len().alias(tables.PASSAGES),
        pl.col(NEW).sum(),
        pl.col(LABEL).count().alias(tables.LABELLED),
        pl.col(LABEL).mean(),
        pl.col(LABEL).filter(NEW).mean().alias(tables.NEW_LABEL),
        (useful & pl.col(NEW)).sum().alias(tables.USEFUL),
        (useful & pl.col(tables.NOT_AGAIN)).sum().alias(tables.NOT_AGAIN),
        pl.col(tables.FIRST_USEFUL).any(),
        (1 / at).alias("RR"),
        (at <= k).cast(pl.Float64).alias(f"Success@{k}"),
    )
    made = steps.join(by_annotator, how="cross", maintain_order="left_right")
    made = made.join(found, on=[*step, ANNOTATOR], how="left", maintain_order="left")
    made = made.with_columns(pl.exclude(*steps.columns, LABEL, tables.NEW_LABEL).fill_null(0))
    schema = pl.Schema(tables.TRACE_STEPS)
    return made.select(*schema, *found.columns[-2:]).cast(schema)


def trace_questions(by_step: pl.DataFrame, downstream: pl.DataFrame) -> pl.DataFrame:
    """The table ``trace_questions``, from ``trace_steps`` and the scores of answers: of questions with a step."""
    found = by_step.group_by(*_QUESTION, ANNOTATOR, maintain_order=True).agg(
        pl.len().alias(tables.STEPS_TAKEN),
        pl.col(NEW).sum().alias(tables.PASSAGES),
        pl.col(STEP).filter(tables.FIRST_USEFUL).min().alias(tables.FIRST_USEFUL),
        pl.col(tables.USEFUL, tables.NOT_AGAIN).sum(),
    )
    answers = downstream.select(*_QUESTION, pl.col(VALUE).alias(SCORE))
    found = found.join(answers, on=_QUESTION, how="left", maintain_order="left")
    schema = pl.Schema(tables.TRACE_QUESTIONS)
    return found.select(list(schema)).cast(schema)


def trace_runs(questions: pl.DataFrame, bootstrap: Bootstrap, clusters: Clusters) -> pl.DataFrame:
    """The table ``trace_runs``: means over the questions of ``trace_questions``, with the intervals of all means.

    An interval of counts holds if no question has more than the largest count here. Bounds are NaN without resamples.
    """
    made = []
    without = pl.col(tables.FIRST_USEFUL).is_null().alias(tables.WITHOUT_USEFUL)
    rows = questions.select(pl.exclude(tables.PASSAGES, SCORE), without, SCORE)
    for names, group in rows.group_by([RUN, ANNOTATOR], maintain_order=True):
        for figure in rows.columns[3:]:
            known = group.select(QUERY_ID, pl.col(figure).cast(pl.Float64)).drop_nulls()
            if known.is_empty():
                continue
            most, codes = max(1.0, *known[figure].top_k(1)), numbered(known[QUERY_ID], clusters)
            mean = mean_interval(known[figure] / most, bootstrap.confidence, codes)
            bounds = (most * mean.low, most * mean.high) if bootstrap.resamples else [math.nan] * 2
            made.append((*names, figure, mean.n, most * mean.value, *bounds))
    return pl.DataFrame(made, schema=tables.TRACE_RUNS, orient="row")


def edits(runs: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The listed passages that one step alone brought, as of ``listed``, and the steps' numbers by list: ``variant``."""
    sole = listed(steps).filter(pl.len().over(*_QUESTION, DOC_ID) == 1)
    sole = sole.join(runs, on=[*_QUESTION, DOC_ID], how="semi", maintain_order="left")
    number = pl.col(STEP).rank("dense").over(_QUESTION).cast(pl.Int64)
    return sole.with_columns(number.alias(_VARIANT))


def edited_runs(runs: pl.DataFrame, edited: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Run rows by name, with ranks closed up: variant 0 of a run is its lists, variant n its lists without that step.

    A list without such a step stays as it is, and is not read again. ``edited``: as of ``edits``.
    """
    made = {}
    most = dict(edited.group_by(RUN).agg(pl.col(_VARIANT).max()).iter_rows())
    own = runs.join(edited.drop(STEP), on=[*_QUESTION, DOC_ID], how="left", maintain_order="left")
    for (run,), rows in own.sort(RUN, QUERY_ID, RANK).group_by([RUN], maintain_order=True):
        for variant in range(most.get(run, 0) + 1):
            name, rank = f"{run} {variant}", pl.int_range(1, pl.len() + 1).over(QUERY_ID)
            left = rows.filter(pl.col(_VARIANT).ne_missing(variant)).select(runs.columns)
            made[name] = left.with_columns(pl.lit(name).alias(RUN), rank.alias(RANK))
    return made


def to_read(runs: pl.DataFrame, edited: pl.DataFrame) -> pl.DataFrame:
    """``run`` and ``query_id`` of the lists of ``edited_runs`` that differ from others: whole, and without a step."""
    whole = runs.select(_QUESTION).unique().with_columns(pl.lit(0, pl.Int64).alias(_VARIANT))
    lists = pl.concat([whole, edited.select(*_QUESTION, _VARIANT).unique()])
    return lists.select(pl.format("{} {}", RUN, _VARIANT).alias(RUN), QUERY_ID)


def trace_credit(
    steps: pl.DataFrame,
    edited: pl.DataFrame,
    downstream: pl.DataFrame,
    bootstrap: Bootstrap,
    clusters: Clusters,
) -> pl.DataFrame:
    """The table ``trace_credit``: by run and step, the answers that turn wrong without the passages of this step alone.

    ``downstream``: scores of ``edited_runs``; lists without one are left out. The mean loss has the interval of a paired
    difference of two runs (``leads.mean_differences``).
    """
    variant, made = edited.select(*_QUESTION, STEP, _VARIANT).unique(), []
    rows = steps.select(*_QUESTION, STEP).join(variant, on=[*_QUESTION, STEP], how="left")
    for number, value in ((pl.lit(0), SCORE), (pl.col(_VARIANT).fill_null(0), VALUE)):
        scores = downstream.select(pl.col(RUN).alias(_NAME), QUERY_ID, pl.col(VALUE).alias(value))
        rows = rows.with_columns(pl.format("{} {}", RUN, number).alias(_NAME))
        rows = rows.join(scores, on=[_NAME, QUERY_ID], how="inner")
    right = pl.col(SCORE) >= SUCCESS
    counts = pl.len(), right.sum(), (right & (pl.col(VALUE) < SUCCESS)).sum().alias(_NAME)
    by_step = rows.sort(RUN, STEP, QUERY_ID).group_by(RUN, STEP, maintain_order=True)
    found = by_step.agg(*counts, QUERY_ID, VALUE, pl.col(SCORE).alias(LABEL))
    for *counted, query_ids, without, whole in found.iter_rows():
        values, codes = np.array([whole, without]), numbered(query_ids, clusters)
        loss = leads.mean_differences(values, 1.0, bootstrap, codes)
        made.append((*counted, *(float(column[0]) for column in loss[:3])))
    return pl.DataFrame(made, schema=tables.TRACE_CREDIT, orient="row")
