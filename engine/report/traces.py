"""Traces of agents in the results: tables beside the evaluation's, and the credit of steps by a second evaluation.

The evaluation itself knows runs alone. Here its labels and scores meet the steps (``tables.STEPS``) behind the runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import polars as pl

from engine import tables
from engine.evaluation.conclude import Evaluation
from engine.evaluation.evaluate import evaluate_shards
from engine.evaluation.jobs import Context
from engine.evaluation.settings import Settings
from engine.inputs.files import EvaluationInputs, cut_inputs
from engine.inputs.shards import InMemoryInputs
from engine.labels import from_function
from engine.labels.registry import LabelSettings
from engine.messages.notes import Note, count_note
from engine.ranking.scores import RankingSettings
from engine.report.findings import Findings, costs_together
from engine.report.layout import calls_line
from engine.statistics import traces
from engine.statistics.comparison import clusters_of
from engine.statistics.correlation import Bootstrap
from engine.tables import ANNOTATOR, DOC_ID, LABEL, QUERY_ID, RANK, RUN, VALUE

TABLES = ("trace_steps", "trace_questions", "trace_runs", "trace_credit")
# For an evaluation of lists alone.
_NOTHING = from_function("nothing", lambda *passage: 0.0)
_UNLABELLED = "[passage|passages] of traces [has|have] no label: beyond `k`, or not needed"


def with_traces(
    result: Evaluation, steps: pl.DataFrame, context: Context | None = None
) -> Evaluation:
    """The evaluation with the tables of its traces (``TABLES``); with ``trace_credit`` if there is a context.

    Credit takes a second evaluation, one shard after the other; its reads are noted.
    """
    settings, shards = result.settings, result.shards
    how = settings.bootstrap.of_fixed_n, clusters_of(result.clusters, settings.bootstrap.cluster)
    steps = steps.join(shards.queries(), on=QUERY_ID, how="semi", maintain_order="left")
    parts = result.parts.table("labels", shards.shards) if result.parts else [result.labels]
    pairs = traces.listed(steps).select(QUERY_ID, DOC_ID).unique()
    labels = pl.concat(
        part.drop_nulls(LABEL).join(pairs, on=[QUERY_ID, DOC_ID], how="semi") for part in parts
    )
    by_step = traces.trace_steps(steps, labels, settings.labels.names(), settings.ranking.k)
    by_question = traces.trace_questions(by_step, result.downstream)
    made = [by_step, by_question, traces.trace_runs(by_question, *how)]
    beyond = pairs.height - labels.select(QUERY_ID, DOC_ID).n_unique()
    notes = (*result.notes, count_note("unlabelled_passages", beyond, _UNLABELLED))
    if context is not None:
        edits, read, costs = [], [], []
        for shard in shards.shards:
            inputs, second, edit = edited(shards.read(shard.number), steps, settings)
            (evaluation,), jobs = evaluate_shards(InMemoryInputs(inputs), [second], context)
            edits.append(edit)
            read.append(evaluation.downstream)
            costs += [job.costs for job in jobs]
        made.append(traces.trace_credit(steps, pl.concat(edits), pl.concat(read), *how))
        calls = calls_line(costs_together(costs))
        text = f"for the credit of steps, lists were read whole, and without single steps: {calls}"
        notes = (*notes, Note("steps_left_out", 1, text))
    further = {**result.further, **dict(zip(TABLES, made, strict=False))}
    return replace(result, notes=notes, further=further)


def lines(findings: Findings) -> Iterator[str]:
    """At most two lines: by run, the steps until the first useful passage, and the questions without one."""
    names = (one for one in findings.annotators if one not in findings.partly_labelled)
    runs, annotator = findings.table("trace_runs"), next(names, "")
    for figure, form, what in (
        (tables.FIRST_USEFUL, ".2f", "steps until the first useful passage"),
        (tables.WITHOUT_USEFUL, ".0%", "questions in which no step brought one"),
    ):
        rows = runs.filter(pl.col(ANNOTATOR) == annotator, pl.col(tables.FIGURE) == figure)
        means = dict(rows.select(RUN, VALUE).iter_rows())
        named = [f"{run} {means[run]:{form}}" for run in findings.runs if run in means]
        yield from [f"{what} ({annotator}): {', '.join(named)}"] * bool(named)


def edited(
    inputs: EvaluationInputs, steps: pl.DataFrame, settings: Settings
) -> tuple[EvaluationInputs, Settings, pl.DataFrame]:
    """A second evaluation, of lists whole and without single steps, its settings, and the edits (``traces.edits``).

    Lists have the passages that the reader may get.
    """
    cut = cut_inputs(inputs, k := settings.ranking.k)
    rows = cut.runs.filter(pl.col(RANK) <= settings.longest_list)
    rows = rows.join(steps, on=RUN, how="semi", maintain_order="left")
    edits = traces.edits(rows, steps)
    runs = {f"{run} 0": rows.clear() for run in cut.run_names if run in set(steps[RUN])}
    runs |= traces.edited_runs(rows, edits)
    inputs = replace(cut, runs=pl.concat(runs.values()), names=tuple(runs), tables={}, cut_runs=())
    settings = replace(
        settings,
        reader=replace(settings.reader, end_to_end=True),
        labels=LabelSettings(annotators=(_NOTHING,)),
        ranking=RankingSettings(k=k, measures=f"P@{k}"),
        bootstrap=Bootstrap(resamples=0, seed=settings.bootstrap.seed),
        running=replace(settings.running, lazy=False),
    )
    return inputs, settings, edits
