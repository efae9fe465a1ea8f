"""Traces of agents in the results: by step, by question and by run; and the credit of a step, by leaving it out.

A passage is useful if its label is a ``SUCCESS``, as on the page. The evaluation itself knows runs alone. Here its labels
and scores meet the steps (``tables.STEPS``) behind the runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import polars as pl

from engine import tables
from engine.evaluation.conclude import Evaluation
from engine.evaluation.evaluate import evaluate_shards
from engine.evaluation.jobs import Context
from engine.evaluation.settings import Settings, cut_for
from engine.inputs.files import EvaluationInputs
from engine.inputs.shards import InMemoryInputs
from engine.labels import from_function
from engine.messages.notes import Note, count_note
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
_UNLABELLED = "[label|labels] of traces' passages [is|are] missing: beyond `k`, or not needed"
_QUESTION, _PASSAGE, _NAME = [RUN, QUERY_ID], [RUN, QUERY_ID, DOC_ID], "name"
Intervals = tuple[Bootstrap, Clusters]


def listed(steps: pl.DataFrame) -> pl.DataFrame:
    """The passages of steps, in order, and whether no other step has it; null for a step without any."""
    rows = steps.rename({tables.DOC_IDS: DOC_ID}).explode(DOC_ID, empty_as_null=True)
    return rows.with_columns((pl.len().over(_PASSAGE) == 1).alias(tables.NOT_AGAIN))


def trace_steps(
    steps: pl.DataFrame, labels: pl.DataFrame, annotators: Sequence[str], k: int
) -> pl.DataFrame:
    """The table ``trace_steps``: every step by every annotator, with RR and Success@k of its list.

    RR: the reciprocal rank of the list's first useful passage. Success@k: whether it is among the first ``k``.
    """
    is_new, useful = pl.col(STEP) == pl.col(STEP).min().over(_PASSAGE), pl.col(LABEL) >= SUCCESS
    rows = listed(steps).with_columns(is_new.alias(NEW))
    rows = rows.join(pl.DataFrame({ANNOTATOR: annotators}), how="cross", maintain_order="left")
    rows = rows.join(labels, on=[QUERY_ID, DOC_ID, ANNOTATOR], how="left", maintain_order="left")
    at = pl.int_range(1, pl.len() + 1).filter(useful).min()
    counts = rows.group_by(*_QUESTION, STEP, tables.SEARCH, ANNOTATOR, maintain_order=True).agg(
        pl.col(DOC_ID).drop_nulls().alias(tables.DOC_IDS),
        pl.col(DOC_ID).count().alias(tables.PASSAGES),
        pl.col(DOC_ID).filter(NEW).count().alias(NEW),
        pl.col(LABEL).count().alias(tables.LABELLED),
        pl.col(LABEL).mean(),
        pl.col(LABEL).filter(NEW).mean().alias(tables.NEW_LABEL),
        (useful & pl.col(NEW)).sum().alias(tables.USEFUL),
        (useful & pl.col(tables.NOT_AGAIN)).sum().alias(tables.NOT_AGAIN),
        (1 / at).fill_null(0.0).alias("RR"),
        (at <= k).fill_null(False).cast(pl.Float64).alias(f"Success@{k}"),
    )
    # The first useful passage of a question is new in its step.
    first = pl.col(STEP).filter(pl.col(tables.USEFUL) > 0).min().over(*_QUESTION, ANNOTATOR)
    counts = counts.with_columns(pl.col(STEP).eq_missing(first).alias(tables.FIRST_USEFUL))
    schema = pl.Schema(tables.TRACE_STEPS)
    return counts.select(*schema, "RR", f"Success@{k}").cast(schema)


def trace_questions(by_step: pl.DataFrame, downstream: pl.DataFrame) -> pl.DataFrame:
    """The table ``trace_questions``, from ``trace_steps`` and the scores of answers: of questions with a step."""
    by_question = by_step.group_by(*_QUESTION, ANNOTATOR, maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias(tables.STEPS_TAKEN),
        pl.col(NEW).sum().alias(tables.PASSAGES),
        pl.col(STEP).filter(tables.FIRST_USEFUL).min().alias(tables.FIRST_USEFUL),
        pl.col(tables.USEFUL, tables.NOT_AGAIN).sum(),
    )
    answers = downstream.select(*_QUESTION, pl.col(VALUE).alias(SCORE))
    return by_question.join(answers, on=_QUESTION, how="left", maintain_order="left")


def trace_runs(questions: pl.DataFrame, intervals: Intervals) -> pl.DataFrame:
    """The table ``trace_runs``: means over the questions of ``trace_questions``, with the intervals of all means.

    An interval of counts holds if no question has more than the largest count here. Bounds are NaN without resamples.
    """
    (bootstrap, clusters), means = intervals, []
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


def trace_credit(
    steps: pl.DataFrame, lists: pl.DataFrame, downstream: pl.DataFrame, intervals: Intervals
) -> pl.DataFrame:
    """The table ``trace_credit``: by run and step, the answers that turn wrong without the passages of this step alone.

    ``downstream``: scores of the ``lists``; those without one are left out. The mean loss has the interval of a paired
    difference of two runs (``leads.mean_differences``).
    """
    scores = lists.join(downstream, left_on=[_NAME, QUERY_ID], right_on=_QUESTION, how="left")
    scores = scores.with_columns(pl.col(VALUE).fill_null(math.nan))
    whole = scores.filter(pl.col(STEP) == 0).select(*_QUESTION, pl.col(VALUE).alias(SCORE))
    rows = steps.select(*_QUESTION, STEP).join(whole, on=_QUESTION)
    rows = rows.join(scores, on=[*_QUESTION, STEP], how="left")
    # A step that alone brought no passage has no list of its own: nothing changes without it.
    rows = rows.with_columns(pl.coalesce(VALUE, SCORE)).drop_nans().sort(RUN, STEP, QUERY_ID)
    (bootstrap, clusters), credit = intervals, []
    for names, own in rows.group_by(RUN, STEP, maintain_order=True):
        right, codes = own[SCORE] >= SUCCESS, numbered(own[QUERY_ID], clusters)
        turned = right & (own[VALUE] < SUCCESS)
        loss = leads.mean_differences(own.select(SCORE, VALUE).to_numpy().T, 1.0, bootstrap, codes)
        counts = own.height, right.sum(), turned.sum()
        credit.append((*names, *counts, *(float(column[0]) for column in loss[:3])))
    return pl.DataFrame(credit, schema=tables.TRACE_CREDIT, orient="row")


def with_traces(
    result: Evaluation, steps: pl.DataFrame, notes: Sequence[Note], context: Context | None = None
) -> Evaluation:
    """The evaluation with the notes on its traces and their tables (``TABLES``).

    With a ``context``, a second evaluation (``evaluate_shards``) of all lists in memory gives the credit of steps.
    """
    settings, shards = result.settings, result.shards
    how = settings.bootstrap.at_fixed_n, clusters_of(result.clusters, settings.bootstrap.cluster)
    steps = steps.join(shards.queries([QUERY_ID]), on=QUERY_ID, how="semi", maintain_order="left")
    parts = result.parts.table("labels", shards.shards) if result.parts else [result.labels]
    pairs, pair = listed(steps), [QUERY_ID, DOC_ID]
    labels = pl.concat(part.drop_nulls(LABEL).join(pairs, pair, "semi") for part in parts)
    by_step = trace_steps(steps, labels, settings.labels.names(), settings.ranking.k)
    # Questions without a score by an annotator say nothing of its labels.
    key = [RUN, QUERY_ID, ANNOTATOR]
    by_step = by_step.join(result.query_scores, on=key, how="semi", maintain_order="left")
    by_question = trace_questions(by_step, result.downstream)
    frames = [by_step, by_question, trace_runs(by_question, how)]
    lacking = int((by_step[tables.PASSAGES] - by_step[tables.LABELLED]).sum())
    notes = [*result.notes, *notes, count_note("unlabelled_passages", lacking, _UNLABELLED)]
    if context is not None:
        every = [shards.read(shard.number) for shard in shards.shards]
        names = ("queries", "runs", "unread", "corpus")
        whole = {name: pl.concat(getattr(shard, name) for shard in every) for name in names}
        whole["corpus"] = whole["corpus"].unique(DOC_ID, maintain_order=True)
        inputs, settings, lists = without_steps(replace(every[0], **whole), steps, settings)
        (evaluation,), jobs = evaluate_shards(InMemoryInputs(inputs), [settings], context)
        frames.append(trace_credit(steps, lists, evaluation.downstream, how))
        calls = calls_line(costs_together([job.costs for job in jobs]))
        text = f"for the credit of steps, lists were read whole, and without single steps: {calls}"
        notes.append(Note("steps_left_out", 1, text))
    further = {**result.further, **dict(zip(TABLES, frames, strict=False))}
    return replace(result, notes=tuple(notes), further=further)


def lines(findings: Findings) -> Iterator[str]:
    """At most two lines: by run, the steps until the first useful passage, and the questions without one."""
    whole = (name for name in findings.annotators if name not in findings.partly_labelled)
    runs, annotator = findings.table("trace_runs"), next(whole, "")
    for figure, form, what in (
        (tables.FIRST_USEFUL, ".2f", "steps until the first useful passage"),
        (tables.WITHOUT_USEFUL, ".0%", "questions in which no step brought one"),
    ):
        means = dict(runs.filter(annotator=annotator, figure=figure)[[RUN, VALUE]].iter_rows())
        named = [f"{run} {means[run]:{form}}" for run in findings.runs if run in means]
        yield from [f"{what} ({annotator}): {', '.join(named)}"] * bool(named)


def without_steps(
    inputs: EvaluationInputs, steps: pl.DataFrame, settings: Settings
) -> tuple[EvaluationInputs, Settings, pl.DataFrame]:
    """A second evaluation, of lists whole (step 0), and without the passages that a single step brought; its settings; and
    the lists, of what the reader may get: ``name``, the run of each, is its run and its step.
    """
    k, seed = settings.ranking.k, settings.bootstrap.seed
    of_lists = Settings.of(annotators=(_NOTHING,), k=k, measures=f"P@{k}", resamples=0, seed=seed)
    reader = replace(settings.reader, end_to_end=True)
    running = replace(settings.running, lazy=False)
    settings = replace(of_lists, reader=reader, running=running, api=settings.api)
    cut = cut_for(inputs, [settings])[0]
    rows = cut.runs.sort(RUN, QUERY_ID, RANK).filter(settings.is_given)
    rows = rows.join(steps, on=RUN, how="semi", maintain_order="left")
    rows = rows.join(cut.unread, on=_QUESTION, how="anti", maintain_order="left")
    sole = listed(steps).filter(tables.NOT_AGAIN).join(rows, on=_PASSAGE, how="semi")
    whole = rows.select(*_QUESTION, pl.lit(0, pl.Int64).alias(STEP))
    lists = pl.concat([whole, sole.select(whole.columns)]).unique()
    lists = lists.with_columns(pl.format("{} {}", RUN, STEP).alias(_NAME))
    runs = lists.join(rows, on=_QUESTION).join(sole, on=[*_PASSAGE, STEP], how="anti")
    runs = runs.with_columns(pl.col(_NAME).alias(RUN)).sort(RUN, QUERY_ID, RANK)[rows.columns]
    names, none = tuple(lists[_NAME].unique().sort()), cut.unread.clear()
    inputs = replace(cut, runs=runs, names=names, tables={}, cut_runs=(), unlabelled=none)
    unread = inputs.lists().join(lists, left_on=_QUESTION, right_on=[_NAME, QUERY_ID], how="anti")
    return replace(inputs, unread=unread), settings, lists
