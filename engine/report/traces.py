"""Traces of agents in the results: tables beside the evaluation's, and the credit of steps by a second evaluation.

The evaluation itself knows runs alone. Here its labels and scores meet the steps (``tables.STEPS``) behind the runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import polars as pl

from engine import tables
from engine.evaluation.conclude import Evaluation
from engine.evaluation.evaluate import evaluate_shards
from engine.evaluation.jobs import Context
from engine.evaluation.settings import Settings, cut_for
from engine.inputs.files import EvaluationInputs
from engine.inputs.shards import InMemoryInputs, InputShards
from engine.labels import from_function
from engine.labels.registry import LabelSettings
from engine.machine.remote.api_settings import ApiSettings, is_api
from engine.messages.notes import Note, count_note
from engine.ranking.scores import RankingSettings
from engine.reading.reader_settings import RunningSettings
from engine.report.findings import Findings, costs_together
from engine.report.layout import calls_line
from engine.statistics import traces
from engine.statistics.comparison import Clusters, clusters_of
from engine.statistics.correlation import Bootstrap
from engine.tables import ANNOTATOR, DOC_ID, LABEL, QUERY_ID, RANK, RUN, VALUE

TABLES = ("trace_steps", "trace_questions", "trace_runs", "trace_credit")
_BOUNDS = ("max_cost", "max_hours", "price_per_hour")
_WITHOUT_WEIGHTS: dict[str, Any] = {"dtype": None, "engine": "auto", "trust_remote_code": False}
# For an evaluation of lists alone.
_NOTHING = from_function("nothing", lambda *passage: 0.0)
_UNLABELLED = "[passage|passages] of traces [has|have] no label: beyond `k`, or not needed"


def with_traces(result: Evaluation, steps: pl.DataFrame) -> Evaluation:
    """The evaluation with the tables of its traces (``TABLES``), but for their credit."""
    settings, shards, key = result.settings, result.shards, [RUN, QUERY_ID, ANNOTATOR]
    steps = steps.join(shards.queries(), on=QUERY_ID, how="semi", maintain_order="left")
    parts = result.parts.table("labels", shards.shards) if result.parts else [result.labels]
    pairs = traces.listed(steps).select(QUERY_ID, DOC_ID).unique()
    labels = pl.concat(
        part.drop_nulls(LABEL).join(pairs, on=[QUERY_ID, DOC_ID], how="semi") for part in parts
    )
    # Questions without a score by an annotator say nothing of its labels.
    scored = result.query_scores.join(steps, on=RUN, how="semi").select(key).unique()
    by_step = traces.trace_steps(steps, labels, settings.labels.names(), settings.ranking.k)
    by_step = by_step.join(scored, on=key, how="semi", maintain_order="left")
    by_question = traces.trace_questions(by_step, result.downstream)
    made = [by_step, by_question, traces.trace_runs(by_question, *_how(result))]
    beyond = pairs.height - labels.select(QUERY_ID, DOC_ID).n_unique()
    notes = (*result.notes, count_note("unlabelled_passages", beyond, _UNLABELLED))
    further = {**result.further, **dict(zip(TABLES, made, strict=False))}
    return replace(result, notes=notes, further=further)


def with_credit(result: Evaluation, steps: pl.DataFrame, context: Context) -> Evaluation:
    """The evaluation with ``trace_credit``, by a second evaluation of all lists in memory; its reads are noted.

    Raises:
        InputError, ReadError: as ``evaluate_shards``.
    """
    inputs, second, edits = edited(_together(result.shards), steps, result.settings)
    (evaluation,), jobs = evaluate_shards(InMemoryInputs(inputs), [second], context)
    credit = traces.trace_credit(steps, edits, evaluation.downstream, *_how(result))
    calls = calls_line(costs_together([job.costs for job in jobs]))
    text = f"for the credit of steps, lists were read whole, and without single steps: {calls}"
    further = {**result.further, TABLES[-1]: credit}
    return replace(result, notes=(*result.notes, Note("steps_left_out", 1, text)), further=further)


def _how(result: Evaluation) -> tuple[Bootstrap, Clusters]:
    bootstrap = result.settings.bootstrap
    return bootstrap.at_fixed_n, clusters_of(result.clusters, bootstrap.cluster)


def _together(shards: InputShards) -> EvaluationInputs:
    first, *others = every = [shards.read(shard.number) for shard in shards.shards]
    if not others:
        return first
    names = ("queries", "runs", "unread")
    tables = {name: pl.concat(getattr(one, name) for one in every) for name in names}
    corpus = pl.concat(one.corpus for one in every).unique(DOC_ID, maintain_order=True)
    return replace(first, corpus=corpus, **tables)


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
    reader, running, api, k = settings.reader, settings.running, settings.api, settings.ranking.k
    # Options of models that read nothing here, or of machines that read nothing, would be refused.
    if is_server := is_api(reader.reader):
        running = RunningSettings(failed_reads=running.failed_reads, reread=running.reread)
    else:
        api = ApiSettings(**{name: getattr(api, name) for name in _BOUNDS})
    if is_server or reader.own(reader.reader):
        reader, running = replace(reader, **_WITHOUT_WEIGHTS), replace(running, memory=0)
    settings = replace(
        settings,
        reader=replace(reader, end_to_end=True),
        labels=LabelSettings(annotators=(_NOTHING,)),
        ranking=RankingSettings(k=k, measures=f"P@{k}"),
        bootstrap=Bootstrap(resamples=0, seed=settings.bootstrap.seed),
        running=replace(running, lazy=False),
        api=api,
    )
    cut = cut_for(inputs, [settings])[0]
    rows = cut.runs.sort(RUN, QUERY_ID, RANK).filter(settings.is_given).select(cut.runs.columns)
    rows = rows.join(steps, on=RUN, how="semi", maintain_order="left")
    rows = rows.join(cut.unread, on=[RUN, QUERY_ID], how="anti", maintain_order="left")
    edits = traces.edits(rows, steps)
    runs = {f"{run} 0": rows.clear() for run in cut.run_names if run in set(steps[RUN])}
    runs |= traces.edited_runs(rows, edits)
    inputs = replace(cut, runs=pl.concat(runs.values()), names=tuple(runs), tables={}, cut_runs=())
    inputs = replace(inputs, unlabelled=cut.unlabelled.clear(), unread=cut.unread.clear())
    unread = inputs.lists().join(traces.to_read(rows, edits), on=[RUN, QUERY_ID], how="anti")
    return replace(inputs, unread=unread), settings, edits
