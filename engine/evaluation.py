"""The evaluation: from queries, passages and runs to correlations, stage by stage.

Everything costly happens in one place (``get_reads``) and only for reads never done before.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import polars as pl

from engine import tables
from engine.errors import InputError, ReadError
from engine.labels import containment, erag, provenance
from engine.ranking.measures import Measure, parse_measures, undefined_on_graded
from engine.ranking.scores import Relevant, score_runs
from engine.reading.plan import wanted_reads
from engine.reading.prompts import Task
from engine.reading.protocol import Augmentation, Dtype, ReaderSpec
from engine.reading.readers import specify
from engine.reading.reads import FAILURE, Executor, Progress, ReadingCosts, get_reads
from engine.scoring.metrics import get_metric, score_outputs
from engine.sources.inputs import EvaluationInputs
from engine.statistics.table import correlations
from engine.tables import (
    ANNOTATOR,
    DOC_ID,
    DOC_IDS,
    LABEL,
    OUTPUT,
    PROVENANCE,
    QUERY_ID,
    RANK,
    RUN,
    TRUNCATED,
    VALUE,
    K,
)

ANNOTATORS = (erag.NAME, containment.NAME, provenance.NAME)
# Metrics whose values lie between 0 and 1, so that eRAG's labels are graded.
_GRADED_METRICS = frozenset({"f1", "rouge-l", "rouge-l-kilt"})


@dataclass(frozen=True)
class Settings:
    """What is evaluated and how; the command line's options are these.

    Attributes:
        reader: ``bundled``, a ``.gguf`` file, a directory, or a Hugging Face id in the local cache.
        augmentation: how the reader gets its passages.
        task: what it is asked to do; chooses the prompt.
        metric: the downstream metric.
        k: cutoff of the runs: so many passages are labelled.
        end_to_end_k: passages that the end-to-end reader is given; None means ``k``.
        measures: ranking measures, separated by spaces; empty means the usual ones at ``k``.
        annotators: who labels.
        relevant: what counts as judged (see ``engine.ranking.scores``); None means ``pool`` for
            several runs and ``list`` for one.
        end_to_end: whether to read whole lists too and correlate with the result.
        dtype: precision of the reader; None for the fastest here.
        memory: bytes per actor; 0 for the default.
        actors: None for as many as there is room for, 0 to read in this process.
        failed_reads: whether a read that could not be done is an error or counts as 0.
        resamples, confidence, seed: of the bootstrap.
    """

    reader: str = "bundled"
    augmentation: Augmentation = "in-prompt"
    task: Task = "short-answer"
    metric: str = "em"
    k: int = 10
    end_to_end_k: int | None = None
    measures: str = ""
    annotators: tuple[str, ...] = (erag.NAME,)
    relevant: Relevant | None = None
    end_to_end: bool = True
    dtype: Dtype | None = None
    memory: int = 0
    actors: int | None = None
    failed_reads: Literal["error", "zero"] = "error"
    resamples: int = 10_000
    confidence: float = 0.95
    seed: int = 0

    def parsed_measures(self) -> tuple[Measure, ...]:
        """The measures named, or the usual ones: those that take the labels as they come."""
        kinds = ["P", "nDCG", "Success"]
        if not self.has_graded_labels():
            kinds = ["P", "nDCG", "AP", "RR", "R", "Success"]
        return parse_measures(self.measures or " ".join(f"{kind}@{self.k}" for kind in kinds))

    def has_graded_labels(self) -> bool:
        """Whether some annotator's labels can lie between 0 and 1."""
        return erag.NAME in self.annotators and self.metric in _GRADED_METRICS


@dataclass(frozen=True)
class Counts:
    """What an evaluation met that a reader of its figures should know."""

    queries: int
    passages: int
    queries_without_results: dict[str, int]
    queries_without_provenance: int
    no_gold_article_listed: bool
    ignored_queries: int
    empty_passages: int
    truncated_reads: int


@dataclass(frozen=True)
class Evaluation:
    """All tables of an evaluation, and what they cost (see ``engine.tables``)."""

    labels: pl.DataFrame
    query_scores: pl.DataFrame
    downstream: pl.DataFrame
    correlations: pl.DataFrame
    reads: pl.DataFrame
    relevant: Relevant
    spec: ReaderSpec | None
    costs: ReadingCosts
    counts: Counts
    seconds: float


def check(settings: Settings) -> None:
    """Refuse settings that cannot work, before anything is read.

    Raises:
        InputError: an unknown name, a value out of range, or choices that exclude each other.
    """
    get_metric(settings.metric)
    for name in settings.annotators:
        if name not in ANNOTATORS:
            raise InputError(
                None, None, f"unknown annotator {name!r}", f"use {', '.join(ANNOTATORS)}"
            )
    if not settings.annotators:
        raise InputError(None, None, "no annotators", f"use some of {', '.join(ANNOTATORS)}")
    for option, value, least in (
        ("--k", settings.k, 1),
        ("--end-to-end-k", settings.end_to_end_k, 1),
        ("--actors", settings.actors, 0),
        ("--resamples", settings.resamples, 0),
        ("--seed", settings.seed, 0),
    ):
        if value is not None and value < least:
            raise InputError(None, None, f"{option} is {value}", f"use {least} or more")
    measures = settings.parsed_measures()
    if not 0 < settings.confidence < 1:
        raise InputError(
            None, None, f"--confidence is {settings.confidence}", "use a share such as 0.95"
        )
    if (settings.end_to_end_k or 0) > settings.k:
        raise InputError(
            None,
            None,
            f"--end-to-end-k {settings.end_to_end_k} exceeds --k {settings.k}",
            "the reader of the whole list gets at most the passages that are labelled",
        )
    if containment.NAME in settings.annotators and settings.task != "short-answer":
        raise InputError(
            None,
            None,
            f"containment has no meaning for the task {settings.task}: "
            "a passage need not contain such an answer",
            "leave containment out of --annotators",
        )
    if settings.has_graded_labels():
        for measure in undefined_on_graded(measures):
            raise InputError(
                None,
                None,
                f"{measure} is not defined on eRAG's graded labels under {settings.metric}",
                f"give a threshold, as in {Measure(measure.kind, measure.cutoff, rel=0.5)}",
            )


def evaluate(
    inputs: EvaluationInputs,
    settings: Settings,
    *,
    store: Path,
    on_progress: Progress = lambda done, total: None,
    executor: Executor | None = None,
) -> Evaluation:
    """Evaluate runs: label their passages, score them, and compare with the end-to-end score.

    Args:
        inputs: queries, passages and runs (``sources.inputs.read_inputs``).
        settings: what to do; checked here.
        store: directory of the read store.
        on_progress: called with the distinct reads done and wanted.
        executor: does the reads instead of the reader (tests).

    Raises:
        InputError: settings that do not fit, see ``check``.
        ReadError: reads failed and ``failed_reads`` is ``error``.
    """
    start = time.perf_counter()
    check(settings)
    queries, corpus, runs = inputs.queries, inputs.corpus, inputs.runs
    if provenance.NAME in settings.annotators and queries[PROVENANCE].list.len().sum() == 0:
        raise InputError(
            None, None, "no query has provenance", "leave provenance out of --annotators"
        )
    relevant: Relevant = settings.relevant or ("pool" if runs[RUN].n_unique() > 1 else "list")
    pairs = runs.select(QUERY_ID, DOC_ID).unique(maintain_order=True)
    lists = _whole_lists(runs, queries, settings.end_to_end_k or settings.k)

    labels: list[pl.DataFrame] = []
    downstream = tables.empty(tables.DOWNSTREAM)
    reads = tables.empty(tables.READS)
    spec: ReaderSpec | None = None
    costs = ReadingCosts()
    if settings.end_to_end or erag.NAME in settings.annotators:
        spec, prompt = specify(
            settings.reader,
            augmentation=settings.augmentation,
            task=settings.task,
            dtype=settings.dtype,
            memory=settings.memory,
        )
        alone = pairs.select(QUERY_ID, pl.concat_list(DOC_ID).alias(DOC_IDS))
        asked = [
            alone if erag.NAME in settings.annotators else alone.clear(),
            lists.select(QUERY_ID, DOC_IDS) if settings.end_to_end else alone.clear(),
        ]
        wanted = wanted_reads(
            pl.concat(asked), queries, corpus, prompt=prompt, fingerprint=spec.fingerprint
        )
        reads, costs = get_reads(
            wanted,
            spec,
            store,
            actors=settings.actors,
            on_progress=on_progress,
            executor=executor,
        )
        reads = _settle_failures(reads, settings)
        scored = score_outputs(reads, queries, settings.metric)  # rows in the order asked
        if erag.NAME in settings.annotators:
            labels.append(erag.label(scored.head(asked[0].height)))
        if settings.end_to_end:
            whole = scored.tail(lists.height)
            downstream = lists.select(RUN, QUERY_ID).with_columns(
                pl.lit(settings.end_to_end_k or settings.k, pl.Int64).alias(K),
                whole[OUTPUT],
                whole[VALUE],
            )
    if containment.NAME in settings.annotators:
        labels.append(containment.label(pairs, queries, corpus))
    if provenance.NAME in settings.annotators:
        labels.append(provenance.label(pairs, queries, corpus))
    all_labels = pl.concat(labels)
    query_scores = score_runs(
        runs, all_labels, queries[QUERY_ID].to_list(), settings.parsed_measures(), relevant=relevant
    )
    return Evaluation(
        labels=all_labels,
        query_scores=query_scores,
        downstream=downstream,
        correlations=correlations(
            query_scores,
            downstream,
            resamples=settings.resamples,
            confidence=settings.confidence,
            seed=settings.seed,
        ),
        reads=reads,
        relevant=relevant,
        spec=spec,
        costs=costs,
        counts=_counts(inputs, all_labels, reads),
        seconds=time.perf_counter() - start,
    )


def _whole_lists(runs: pl.DataFrame, queries: pl.DataFrame, k: int) -> pl.DataFrame:
    """``run``, ``query_id``, ``doc_ids``: the first k passages; no passages where a run lists none."""
    listed = (
        runs.filter(pl.col(RANK) <= k)
        .sort(RUN, QUERY_ID, RANK)
        .group_by(RUN, QUERY_ID, maintain_order=True)
        .agg(pl.col(DOC_ID).alias(DOC_IDS))
    )
    return (
        runs.select(RUN)
        .unique(maintain_order=True)
        .join(queries.select(QUERY_ID), how="cross", maintain_order="left_right")
        .join(listed, on=[RUN, QUERY_ID], how="left", maintain_order="left")
        .with_columns(pl.col(DOC_IDS).fill_null([]))
    )


def _settle_failures(reads: pl.DataFrame, settings: Settings) -> pl.DataFrame:
    failed = reads.filter(pl.col(FAILURE).is_not_null())
    if not failed.is_empty() and settings.failed_reads == "error":
        query_id, reason = failed.select(QUERY_ID, FAILURE).row(0)
        raise ReadError(
            f"{failed.height} of {reads.height} reads failed (query {query_id!r}: {reason}); "
            "the others are in the store; run again, or count these as 0 with --failed-reads zero"
        )
    # The output of a failed read is empty, which every metric scores 0.
    return reads.drop(FAILURE)


def _counts(inputs: EvaluationInputs, labels: pl.DataFrame, reads: pl.DataFrame) -> Counts:
    total = inputs.queries.height
    with_results = inputs.runs.group_by(RUN, maintain_order=True).agg(pl.col(QUERY_ID).n_unique())
    gold = labels.filter(pl.col(ANNOTATOR) == provenance.NAME)[LABEL]
    return Counts(
        queries=total,
        passages=inputs.corpus.height,
        queries_without_results={name: total - some for name, some in with_results.iter_rows()},
        queries_without_provenance=int((inputs.queries[PROVENANCE].list.len() == 0).sum()),
        no_gold_article_listed=gold.len() > 0 and gold.sum() == 0,
        ignored_queries=inputs.ignored_queries,
        empty_passages=inputs.empty_passages,
        truncated_reads=int(reads[TRUNCATED].sum()),
    )


def means(evaluation: Evaluation) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Means over all queries: of every (run, annotator, measure), and of every run's end-to-end score."""
    return (
        evaluation.query_scores.group_by(
            tables.RUN, tables.ANNOTATOR, tables.MEASURE, maintain_order=True
        ).agg(pl.col(VALUE).mean(), pl.len().alias(tables.N)),
        evaluation.downstream.group_by(RUN, K, maintain_order=True).agg(
            pl.col(VALUE).mean(), pl.len().alias(tables.N)
        ),
    )
