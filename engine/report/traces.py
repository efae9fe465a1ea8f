"""Traces of agents in the results: by step, by question and by run; and the credit of a step, by leaving it out.

A trace is the searches of an agent for one question. A passage is useful if its label is a ``SUCCESS``, as on the page.
The evaluation itself knows runs alone. Here its labels and scores meet the steps (``tables.STEPS``) behind the runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import polars as pl

from engine import tables
from engine.evaluation.conclude import Evaluation
from engine.evaluation.evaluate import evaluate_shards
from engine.evaluation.jobs import Context
from engine.evaluation.settings import Settings, cut_for
from engine.inputs.files import EvaluationInputs
from engine.inputs.shards import InMemoryInputs
from engine.labels import from_function
from engine.labels.registry import LabelSettings
from engine.messages.notes import Note, count_note
from engine.ranking.scores import RankingSettings
from engine.report.findings import Findings, costs_together
from engine.report.layout import calls_line
from engine.statistics import leads
from engine.statistics.comparison import Clusters, clusters_of, numbered
from engine.statistics.correlation import Bootstrap
from engine.statistics.runs import mean_interval
from engine.statistics.single_labels import SUCCESS
from engine.tables import ANNOTATOR, DOC_ID, LABEL, NEW, QUERY_ID, RANK, RUN, SCORE, STEP, VALUE

TABLES = ("trace_steps", "trace_questions", "trace_runs", "trace_credit")
# For an evaluation of lists alone.
_NOTHING = from_function("nothing", lambda *passage: 0.0)
_UNLABELLED = "[passage|passages] of traces [has|have] no label: beyond `k`, or not needed"
_QUESTION, _VARIANT, _NAME = [RUN, QUERY_ID], "variant", "name"


def listed(steps: pl.DataFrame) -> pl.DataFrame:
    """The passages of steps, each once a step, in order: null for a step without any."""
    rows = steps.rename({tables.DOC_IDS: DOC_ID}).explode(DOC_ID, empty_as_null=True)
    return rows.unique([*_QUESTION, STEP, DOC_ID], keep="first", maintain_order=True)


def trace_steps(
    steps: pl.DataFrame, labels: pl.DataFrame, annotators: Sequence[str], k: int
) -> pl.DataFrame:
    """The table ``trace_steps``: every step by every annotator, with RR and Success@k of its list.

    RR: the reciprocal rank of the list's first useful passage. Success@k: whether it is among the first ``k``.
    """
    passage, step = [*_QUESTION, DOC_ID], [*_QUESTION, STEP, tables.SEARCH, ANNOTATOR]
    is_listed, useful = pl.col(DOC_ID).is_not_null(), (pl.col(LABEL) >= SUCCESS).fill_null(False)
    rows = listed(steps).with_columns(
        (is_listed & (pl.col(STEP).min().over(passage) == pl.col(STEP))).alias(NEW),
        (pl.len().over(passage) == 1).alias(tables.NOT_AGAIN),
        pl.int_range(1, pl.len() + 1).over(*_QUESTION, STEP).alias(RANK),
    )
    rows = rows.join(
        pl.DataFrame({ANNOTATOR: annotators}), how="cross", maintain_order="left_right"
    )
    rows = rows.join(labels, on=[QUERY_ID, DOC_ID, ANNOTATOR], how="left", maintain_order="left")
    first = pl.col(STEP).filter(useful).min().over(*_QUESTION, ANNOTATOR) == pl.col(STEP)
    at = pl.col(RANK).filter(useful).min()
    by_step = rows.with_columns(first.alias(tables.FIRST_USEFUL)).group_by(
        step, maintain_order=True
    )
    counts = by_step.agg(
        pl.col(DOC_ID).drop_nulls().alias(tables.DOC_IDS),
        pl.col(DOC_ID).count().alias(tables.PASSAGES),
        pl.col(NEW).sum(),
        pl.col(LABEL).count().alias(tables.LABELLED),
        pl.col(LABEL).mean(),
        pl.col(LABEL).filter(NEW).mean().alias(tables.NEW_LABEL),
        (useful & pl.col(NEW)).sum().alias(tables.USEFUL),
        (useful & pl.col(tables.NOT_AGAIN)).sum().alias(tables.NOT_AGAIN),
        pl.col(tables.FIRST_USEFUL).any(),
        (1 / at).fill_null(0.0).alias("RR"),
        (at <= k).fill_null(False).cast(pl.Float64).alias(f"Success@{k}"),
    )
    schema = pl.Schema(tables.TRACE_STEPS)
    return counts.select(*schema, *counts.columns[-2:]).cast(schema)


def trace_questions(by_step: pl.DataFrame, downstream: pl.DataFrame) -> pl.DataFrame:
    """The table ``trace_questions``, from ``trace_steps`` and the scores of answers: of questions with a step."""
    by_question = by_step.group_by(*_QUESTION, ANNOTATOR, maintain_order=True).agg(
        pl.len().alias(tables.STEPS_TAKEN),
        pl.col(NEW).sum().alias(tables.PASSAGES),
        pl.col(STEP).filter(tables.FIRST_USEFUL).min().alias(tables.FIRST_USEFUL),
        pl.col(tables.USEFUL, tables.NOT_AGAIN).sum(),
    )
    answers = downstream.select(*_QUESTION, pl.col(VALUE).alias(SCORE))
    scored = by_question.join(answers, on=_QUESTION, how="left", maintain_order="left")
    schema = pl.Schema(tables.TRACE_QUESTIONS)
    return scored.select(list(schema)).cast(schema)


def trace_runs(questions: pl.DataFrame, bootstrap: Bootstrap, clusters: Clusters) -> pl.DataFrame:
    """The table ``trace_runs``: means over the questions of ``trace_questions``, with the intervals of all means.

    An interval of counts holds if no question has more than the largest count here. Bounds are NaN without resamples.
    """
    means = []
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
            means.append((*names, figure, mean.n, most * mean.value, *bounds))
    return pl.DataFrame(means, schema=tables.TRACE_RUNS, orient="row")


def sole_passages(runs: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """The listed passages that one step alone brought, and the steps' numbers by list: ``variant``."""
    sole = listed(steps).filter(pl.len().over(*_QUESTION, DOC_ID) == 1)
    sole = sole.join(runs, on=[*_QUESTION, DOC_ID], how="semi", maintain_order="left")
    number = pl.col(STEP).rank("dense").over(_QUESTION).cast(pl.Int64)
    return sole.with_columns(number.alias(_VARIANT))


def edited_runs(runs: pl.DataFrame, edited: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """``run``, ``query_id`` of lists whole and without a step, and their rows with ranks closed up.

    Variant 0 of a run is its lists, variant n its lists without the nth step of ``sole_passages`` that they have.
    """
    whole = runs.select(*_QUESTION, pl.lit(0, pl.Int64).alias(_VARIANT))
    lists = pl.concat([whole, edited.select(whole.columns)]).unique()
    rows = lists.join(runs, on=_QUESTION).join(edited, on=[*lists.columns, DOC_ID], how="anti")
    name, rank = pl.format("{} {}", RUN, _VARIANT), pl.int_range(1, pl.len() + 1).over(_QUESTION)
    rows = rows.with_columns(name.alias(RUN)).select(runs.columns).sort(RUN, QUERY_ID, RANK)
    return lists.select(name.alias(RUN), QUERY_ID), rows.with_columns(rank.alias(RANK))


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
    variant, credit = edited.select(*_QUESTION, STEP, _VARIANT).unique(), []
    rows = steps.select(*_QUESTION, STEP).join(variant, on=[*_QUESTION, STEP], how="left")
    for number, value in ((pl.lit(0), SCORE), (pl.col(_VARIANT).fill_null(0), VALUE)):
        scores = downstream.select(pl.col(RUN).alias(_NAME), QUERY_ID, pl.col(VALUE).alias(value))
        rows = rows.with_columns(pl.format("{} {}", RUN, number).alias(_NAME))
        rows = rows.join(scores, on=[_NAME, QUERY_ID], how="inner")
    right = pl.col(SCORE) >= SUCCESS
    counts = pl.len(), right.sum(), (right & (pl.col(VALUE) < SUCCESS)).sum().alias(_NAME)
    by_step = rows.sort(RUN, STEP, QUERY_ID).group_by(RUN, STEP, maintain_order=True)
    groups = by_step.agg(*counts, QUERY_ID, VALUE, pl.col(SCORE).alias(LABEL))
    for *counted, query_ids, without, whole in groups.iter_rows():
        values, codes = np.array([whole, without]), numbered(query_ids, clusters)
        loss = leads.mean_differences(values, 1.0, bootstrap, codes)
        credit.append((*counted, *(float(column[0]) for column in loss[:3])))
    return pl.DataFrame(credit, schema=tables.TRACE_CREDIT, orient="row")


def with_traces(result: Evaluation, steps: pl.DataFrame) -> Evaluation:
    """The evaluation with the tables of its traces (``TABLES``), but for their credit."""
    settings, shards = result.settings, result.shards
    steps = steps.join(shards.queries(), on=QUERY_ID, how="semi", maintain_order="left")
    parts = result.parts.table("labels", shards.shards) if result.parts else [result.labels]
    pairs = listed(steps).select(QUERY_ID, DOC_ID).drop_nulls().unique()
    labels = pl.concat(
        part.drop_nulls(LABEL).join(pairs, on=[QUERY_ID, DOC_ID], how="semi") for part in parts
    )
    by_step = trace_steps(steps, labels, settings.labels.names(), settings.ranking.k)
    # Questions without a score by an annotator say nothing of its labels.
    key = [RUN, QUERY_ID, ANNOTATOR]
    by_step = by_step.join(result.query_scores, on=key, how="semi", maintain_order="left")
    by_question = trace_questions(by_step, result.downstream)
    frames = [by_step, by_question, trace_runs(by_question, *_how(result))]
    beyond = pairs.height - labels.select(QUERY_ID, DOC_ID).n_unique()
    notes = (*result.notes, count_note("unlabelled_passages", beyond, _UNLABELLED))
    further = {**result.further, **dict(zip(TABLES, frames, strict=False))}
    return replace(result, notes=notes, further=further)


def with_credit(result: Evaluation, steps: pl.DataFrame, context: Context) -> Evaluation:
    """The evaluation with ``trace_credit``, by a second evaluation of all lists in memory; its reads are noted.

    Raises:
        InputError, ReadError: as ``evaluate_shards``.
    """
    every = [result.shards.read(shard.number) for shard in result.shards.shards]
    names = ("queries", "runs", "unread")
    whole = {name: pl.concat(getattr(shard, name) for shard in every) for name in names}
    corpus = pl.concat(shard.corpus for shard in every).unique(DOC_ID, maintain_order=True)
    inputs = replace(every[0], corpus=corpus, **whole)
    inputs, settings, edits = without_steps(inputs, steps, result.settings)
    (evaluation,), jobs = evaluate_shards(InMemoryInputs(inputs), [settings], context)
    credit = trace_credit(steps, edits, evaluation.downstream, *_how(result))
    calls = calls_line(costs_together([job.costs for job in jobs]))
    text = f"for the credit of steps, lists were read whole, and without single steps: {calls}"
    further = {**result.further, TABLES[-1]: credit}
    return replace(result, notes=(*result.notes, Note("steps_left_out", 1, text)), further=further)


def _how(result: Evaluation) -> tuple[Bootstrap, Clusters]:
    bootstrap = result.settings.bootstrap
    return bootstrap.at_fixed_n, clusters_of(result.clusters, bootstrap.cluster)


def lines(findings: Findings) -> Iterator[str]:
    """At most two lines: by run, the steps until the first useful passage, and the questions without one."""
    whole = (name for name in findings.annotators if name not in findings.partly_labelled)
    runs, annotator = findings.table("trace_runs"), next(whole, "")
    for figure, form, what in (
        (tables.FIRST_USEFUL, ".2f", "steps until the first useful passage"),
        (tables.WITHOUT_USEFUL, ".0%", "questions in which no step brought one"),
    ):
        rows = runs.filter(pl.col(ANNOTATOR) == annotator, pl.col(tables.FIGURE) == figure)
        means = dict(rows.select(RUN, VALUE).iter_rows())
        named = [f"{run} {means[run]:{form}}" for run in findings.runs if run in means]
        yield from [f"{what} ({annotator}): {', '.join(named)}"] * bool(named)


def without_steps(
    inputs: EvaluationInputs, steps: pl.DataFrame, settings: Settings
) -> tuple[EvaluationInputs, Settings, pl.DataFrame]:
    """A second evaluation, of lists whole and without single steps, its settings, and the edits (``sole_passages``).

    Lists have the passages that the reader may get.
    """
    k = settings.ranking.k
    settings = replace(
        settings,
        reader=replace(settings.reader, end_to_end=True),
        labels=LabelSettings(annotators=(_NOTHING,)),
        ranking=RankingSettings(k=k, measures=f"P@{k}"),
        bootstrap=Bootstrap(resamples=0, seed=settings.bootstrap.seed),
        running=replace(settings.running, lazy=False),
    )
    cut = cut_for(inputs, [settings])[0]
    rows = cut.runs.sort(RUN, QUERY_ID, RANK).filter(settings.is_given).select(cut.runs.columns)
    rows = rows.join(steps, on=RUN, how="semi", maintain_order="left")
    rows = rows.join(cut.unread, on=[RUN, QUERY_ID], how="anti", maintain_order="left")
    edits = sole_passages(rows, steps)
    lists, runs = edited_runs(rows, edits)
    names = (*(f"{run} 0" for run in cut.run_names if run in set(steps[RUN])), *lists[RUN].sort())
    inputs = replace(cut, runs=runs, names=tuple(dict.fromkeys(names)), tables={}, cut_runs=())
    inputs = replace(inputs, unlabelled=cut.unlabelled.clear(), unread=cut.unread.clear())
    unread = inputs.lists().join(lists, on=[RUN, QUERY_ID], how="anti")
    return replace(inputs, unread=unread), settings, edits
