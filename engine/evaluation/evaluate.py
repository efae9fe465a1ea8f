"""The evaluation: from queries, passages and runs to correlations, stage by stage.

Everything costly happens in one place (``get_reads``) and only for reads never done before.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from engine import tables
from engine.evaluation.digest import inputs_sha256
from engine.evaluation.edited import EditedReads, count_edited_reads
from engine.evaluation.inputs import EvaluationInputs
from engine.evaluation.label import label_by_reading, label_without_reading, refuse_without_inputs
from engine.evaluation.read import Reading, Role, ask, read_lists
from engine.evaluation.settings import Settings, check, refuse_without_measure
from engine.labels import containment, dual, judge, preference, provenance, utility
from engine.labels.function import Annotator
from engine.ranking.kernel import is_real_valued
from engine.ranking.measures import UTILITY_KIND, comparable
from engine.ranking.scores import Relevant, refuse_missing_results, score_runs
from engine.ranking.udcg import score_utility
from engine.reading.certify import Certificate, certify
from engine.reading.reads import FAILURE, Executor, Progress
from engine.scoring.metrics import score_outputs
from engine.statistics.dual import dual_table
from engine.statistics.table import Statistics, analyse
from engine.tables import (
    ANNOTATOR,
    DOC_ID,
    DOC_IDS,
    LABEL,
    MEASURE,
    NOTE,
    OUTPUT,
    PROVENANCE,
    QUERY_ID,
    RANK,
    RUN,
    TRUNCATED,
    VALUE,
    K,
)


@dataclass(frozen=True)
class Counts:
    """What an evaluation met that a reader of its figures should know."""

    queries: int
    passages: int
    queries_without_results: dict[str, int]
    queries_without_provenance: int
    queries_without_judgments: int
    judgments_beyond_lists: int
    queries_without_preferences: int
    preferences_beyond_lists: int
    real_valued_annotators: tuple[str, ...]
    cut_runs: tuple[str, ...]
    skipped_queries: int
    no_gold_article_listed: bool
    ignored_queries: int
    empty_passages: int
    unanswerable_queries: int
    skipped_records: int
    truncated_reads: int
    queries_running_on: int


@dataclass(frozen=True)
class Evaluation:
    """All tables of an evaluation, and what they cost (see ``engine.tables``).

    Attributes:
        undefined: the cells that have no meaning, and why (``tables.UNDEFINED``).
        readings: what was read, by who read it (``engine.evaluation.read.Role``).
        traces: what is behind every label.
        dual, dual_labels: of the annotator ``dual``; empty without it.
        preference_labels: of the annotator ``preference``; empty without it.
        certificates: by who read, where certificates were asked for.
        edited: what the edited runs cost, where there are such.
    """

    labels: pl.DataFrame
    query_scores: pl.DataFrame
    downstream: pl.DataFrame
    statistics: Statistics
    reads: pl.DataFrame
    undefined: pl.DataFrame
    relevant: Relevant
    readings: Mapping[Role, Reading]
    counts: Counts
    seconds: float
    traces: pl.DataFrame
    dual: pl.DataFrame
    dual_labels: pl.DataFrame
    preference_labels: pl.DataFrame
    certificates: Mapping[Role, Certificate] = field(default_factory=dict)
    edited: tuple[EditedReads, ...] = ()


def evaluate(
    inputs: EvaluationInputs,
    settings: Settings,
    *,
    store: Path,
    own: Sequence[Annotator] = (),
    on_progress: Progress = lambda done, total: None,
    executor: Executor | None = None,
    failed: Mapping[str, str] | None = None,
) -> Evaluation:
    """Evaluate runs: label their passages, score them, and compare with the end-to-end score.

    Args:
        inputs: queries, passages and runs (``sources.inputs.read_inputs``).
        settings: what to do; checked here.
        store: directory of the read store.
        own: annotators of one's own (``engine.labels.from_function``), beside those of the settings.
        on_progress: called with the distinct reads done and wanted.
        executor: does the reads instead of the reader (tests).
        failed: reads that are known to fail, by key, with the reason; they are not tried.

    Raises:
        InputError: settings that do not fit, see ``check``; a label that is out of range.
        ReadError: reads failed and ``failed_reads`` is ``error``.
    """
    start = time.perf_counter()
    check(settings, [annotator.name for annotator in own])
    queries, runs = inputs.queries, inputs.runs
    refuse_without_inputs(inputs, settings, own)
    query_ids = queries[QUERY_ID].to_list()
    if settings.missing == "error":
        refuse_missing_results(runs, query_ids)
    relevant = settings.judged(runs[RUN].n_unique(), alone=not own)
    pairs, lists = pairs_to_label(inputs), lists_to_read(inputs, settings)

    measures = settings.parsed_measures()
    undefined: list[dict[str, str]] = []

    def score(name: str, labels: pl.DataFrame) -> pl.DataFrame:
        """Scores by the measures that the labels of ``name`` have; the others are noted."""
        counted = labels.filter(pl.col(LABEL) >= 0)[LABEL].to_numpy()
        reasons = [
            settings.why_undefined(measure, name, real_valued=is_real_valued(counted))
            for measure in measures
        ]
        undefined.extend(
            {ANNOTATOR: name, MEASURE: str(measure), NOTE: why}
            for measure, why in zip(measures, reasons, strict=True)
            # Utilities and other labels have no measure in common: that is no cell, empty or not.
            if why and name != utility.NAME and measure.kind != UTILITY_KIND
        )
        refuse_without_measure(name, reasons)
        defined = [measure for measure, why in zip(measures, reasons, strict=True) if not why]
        if name == utility.NAME:
            return score_utility(runs, labels, query_ids, defined, missing=settings.missing)
        return score_runs(
            runs, labels, query_ids, defined, relevant=relevant, missing=settings.missing
        )

    # What needs no reading comes first: labels that cannot be scored are refused before it.
    names = [*settings.annotators, *(annotator.name for annotator in own)]
    without_reading = label_without_reading(inputs, pairs, settings, own)
    labels, behind = without_reading.labels, without_reading.traces
    scores = {name: score(name, table) for name, table in labels.items()}
    score_runs(
        runs,
        tables.empty(tables.LABELS),
        query_ids,
        [measure for measure in measures if measure.kind != UTILITY_KIND],
        relevant=relevant,
        missing=settings.missing,
    )
    readings = read_lists(
        ask(pairs, lists, settings),
        inputs,
        settings,
        store=store,
        on_progress=on_progress,
        executor=executor,
        failed=failed,
    )
    certificates = {
        role: _certify(role, reading, inputs, settings, executor)
        for role, reading in readings.items()
        if settings.certify
    }
    by_reading, traced, left_out = label_by_reading(readings, inputs, pairs, settings)
    for name in by_reading:
        if name in names:
            labels[name], behind[name] = by_reading[name], traced[name]
            scores[name] = score(name, labels[name]).filter(~pl.col(QUERY_ID).is_in(left_out[name]))
    downstream = tables.empty(tables.DOWNSTREAM)
    if settings.end_to_end:
        whole = readings["reader"].reads.tail(lists.height)
        downstream = _downstream(
            lists, score_outputs(whole, inputs.queries, settings.metric), settings
        )
    all_labels = pl.concat([labels[name] for name in names])
    query_scores = pl.concat([scores[name] for name in names])
    all_reads = pl.concat(
        [tables.empty(tables.READS), *(r.reads.drop(FAILURE) for r in readings.values())]
    )
    skipped = {query_id for name in names for query_id in left_out.get(name, [])}
    no_meaning = pl.DataFrame(undefined, schema=tables.UNDEFINED)
    return Evaluation(
        labels=all_labels,
        query_scores=query_scores,
        downstream=downstream,
        statistics=analyse(
            query_scores,
            downstream,
            settings.bootstrap(),
            undefined=no_meaning,
            never_chosen=[edited.name for edited in inputs.edited],
            comparable=comparable,
        ),
        undefined=no_meaning,
        reads=all_reads,
        relevant=relevant,
        readings=readings,
        counts=_counts(inputs, all_labels, all_reads, len(skipped)),
        seconds=time.perf_counter() - start,
        traces=pl.concat([behind[name] for name in names]),
        dual=_dual(runs, without_reading.dual_labels, query_ids, settings),
        dual_labels=without_reading.dual_labels,
        preference_labels=without_reading.preference_labels,
        certificates=certificates,
        edited=count_edited_reads(
            inputs,
            lists,
            alone=settings.reads_alone()
            or not {judge.NAME, utility.NAME}.isdisjoint(settings.annotators),
            whole=settings.end_to_end,
        ),
    )


def _certify(
    role: Role,
    reading: Reading,
    inputs: EvaluationInputs,
    settings: Settings,
    executor: Executor | None,
) -> Certificate:
    def score(reads: pl.DataFrame) -> pl.Series:
        if role == "judge":
            return judge.label(reads, settings.judge_labels)[LABEL]
        if role == "abstain":
            return utility.weigh(reads)
        return score_outputs(reads, inputs.queries, settings.metric)[VALUE]

    return certify(
        reading.wanted,
        reading.reads,
        reading.spec,
        sample=settings.certify,
        seed=settings.seed,
        score=score,
        sha256={"prompt": reading.prompt.digest, **inputs_sha256(inputs)},
        actors=settings.actors,
        executor=executor,
    )


def _downstream(lists: pl.DataFrame, scored: pl.DataFrame, settings: Settings) -> pl.DataFrame:
    """The downstream table of whole lists, less those that ``--failed-reads skip`` leaves out."""
    scores = lists.select(RUN, QUERY_ID).with_columns(
        pl.lit(settings.end_to_end_k or settings.k, pl.Int64).alias(K),
        scored[OUTPUT],
        scored[VALUE],
    )
    return scores.filter(scored[FAILURE].is_null()) if settings.failed_reads == "skip" else scores


def _dual(
    runs: pl.DataFrame, both: pl.DataFrame, query_ids: Sequence[str], settings: Settings
) -> pl.DataFrame:
    if dual.NAME not in settings.annotators:
        return tables.empty(tables.DUAL)
    return dual_table(
        runs,
        both,
        query_ids,
        sorted({1, settings.k}),
        settings.bootstrap(),
        skip_missing=settings.missing == "skip",
    )


def pairs_to_label(inputs: EvaluationInputs) -> pl.DataFrame:
    """``query_id`` and ``doc_id`` of every passage that some run lists."""
    return inputs.runs.select(QUERY_ID, DOC_ID).unique(maintain_order=True)


def lists_to_read(inputs: EvaluationInputs, settings: Settings) -> pl.DataFrame:
    """``run``, ``query_id``, ``doc_ids``: the passages that the reader of whole lists is given.

    No passages where a run lists none, unless ``missing`` leaves these queries out.
    """
    runs, queries = inputs.runs, inputs.queries
    listed = (
        runs.filter(pl.col(RANK) <= (settings.end_to_end_k or settings.k))
        .sort(RUN, QUERY_ID, RANK)
        .group_by(RUN, QUERY_ID, maintain_order=True)
        .agg(pl.col(DOC_ID).alias(DOC_IDS))
    )
    lists = (
        runs.select(RUN)
        .unique(maintain_order=True)
        .join(queries.select(QUERY_ID), how="cross", maintain_order="left_right")
        .join(listed, on=[RUN, QUERY_ID], how="left", maintain_order="left")
        .with_columns(pl.col(DOC_IDS).fill_null([]))
    )
    return lists.filter(pl.col(DOC_IDS).list.len() > 0) if settings.missing == "skip" else lists


def _counts(
    inputs: EvaluationInputs, labels: pl.DataFrame, reads: pl.DataFrame, skipped: int
) -> Counts:
    total = inputs.queries.height
    with_results = inputs.runs.group_by(RUN, maintain_order=True).agg(pl.col(QUERY_ID).n_unique())
    judged = None if inputs.qrels is None else inputs.qrels[QUERY_ID]
    preferred = labels.filter(pl.col(ANNOTATOR) == preference.NAME)
    gold = labels.filter(pl.col(ANNOTATOR) == provenance.NAME)[LABEL]
    return Counts(
        queries=total,
        passages=inputs.corpus.height,
        queries_without_results={name: total - some for name, some in with_results.iter_rows()},
        queries_without_provenance=int((inputs.queries[PROVENANCE].list.len() == 0).sum()),
        queries_without_judgments=0 if judged is None else total - judged.n_unique(),
        judgments_beyond_lists=0
        if inputs.qrels is None
        else inputs.qrels.join(inputs.runs, on=[QUERY_ID, DOC_ID], how="anti").height,
        queries_without_preferences=0
        if preferred.is_empty()
        else total - preferred[QUERY_ID].n_unique(),
        preferences_beyond_lists=preferred.join(
            inputs.runs, on=[QUERY_ID, DOC_ID], how="anti"
        ).height,
        real_valued_annotators=tuple(
            str(name)
            for (name,), own in labels.group_by([ANNOTATOR], maintain_order=True)
            if name != utility.NAME and is_real_valued(own[LABEL].to_numpy())
        ),
        cut_runs=inputs.cut_runs,
        skipped_queries=skipped,
        no_gold_article_listed=gold.len() > 0 and gold.sum() == 0,
        ignored_queries=inputs.ignored_queries,
        empty_passages=inputs.empty_passages,
        unanswerable_queries=inputs.unanswerable_queries,
        skipped_records=inputs.skipped_records,
        truncated_reads=int(reads[TRUNCATED].sum()),
        queries_running_on=containment.count_running_on(inputs.queries),
    )


def means(evaluation: Evaluation) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Means over queries, and over how many: of every (run, annotator, measure), of every run's end-to-end score."""
    return (
        evaluation.query_scores.group_by(
            tables.RUN, tables.ANNOTATOR, tables.MEASURE, maintain_order=True
        ).agg(pl.col(VALUE).mean(), pl.len().alias(tables.N)),
        evaluation.downstream.group_by(RUN, K, maintain_order=True).agg(
            pl.col(VALUE).mean(), pl.len().alias(tables.N)
        ),
    )
