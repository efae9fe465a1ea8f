"""Evaluate under several conditions: readers, augmentations and cutoffs.

Each needed read is done once; each condition is then assessed like any evaluation.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import polars as pl

from engine import tables
from engine.evaluation.conclude import Evaluation
from engine.evaluation.evaluate import evaluate_shards
from engine.evaluation.jobs import Context, Job
from engine.evaluation.settings import Settings, Sweep, refuse_unfit
from engine.inputs.files import EvaluationInputs
from engine.inputs.shards import InMemoryInputs
from engine.labels.annotator import READER as READER_ROLE
from engine.messages.errors import InputError
from engine.messages.notes import Note, count_note
from engine.ranking.kinds.base import Measure
from engine.reading.costs import ReadingCosts
from engine.reading.outputs import damaged_files
from engine.reading.protocol import Augmentation
from engine.statistics.bounded import holm
from engine.statistics.comparison import clusters_of
from engine.statistics.table import analyse
from engine.tables import ANNOTATOR, AUGMENTATION, READER, RUN, RUN_B, K


@dataclass(frozen=True)
class Condition:
    """A reader, its augmentation, and a cutoff."""

    reader: str
    augmentation: Augmentation
    k: int


@dataclass(frozen=True, kw_only=True)
class Study:
    """Evaluations under several conditions.

    Attributes:
        evaluations: by condition, the main one first; each carries its settings.
        costs: costs of all reads, by the reader's name, its augmentation, and its role.
        conditions: the correlations of every condition (``tables.CONDITIONS``).
        readers, reader_comparisons: eRAG's labels by every reader against the end-to-end scores of every reader
            (``tables.READERS``, ``tables.READER_COMPARISONS``); empty if there is one reader.
    """

    evaluations: Mapping[Condition, Evaluation]
    costs: Mapping[tuple[str, Augmentation, str], ReadingCosts]
    conditions: pl.DataFrame
    readers: pl.DataFrame
    reader_comparisons: pl.DataFrame
    notes: tuple[Note, ...]
    seconds: float

    @property
    def main(self) -> Condition:
        """The first condition, that of the settings."""
        return next(iter(self.evaluations))


def vary(settings: Settings, sweep: Sweep) -> dict[Condition, Settings]:
    """The settings under every combination of readers, augmentations and cutoffs.

    The condition of ``settings`` comes first. A measure's cutoff equal to the settings' ``k`` follows the
    condition's ``k``; other cutoffs stay.

    Raises:
        InputError: ``settings`` has a value that the sweep lacks, a measure's cutoff exceeds the smallest ``k``,
            or a setting fits no reader.
    """
    reader, k = settings.reader, settings.ranking.k
    cutoffs = sweep.k_sweep
    if cutoffs and k not in cutoffs:
        swept = ",".join(map(str, cutoffs))
        problem = f"`k` {k} is not in `k_sweep` {swept}"
        raise InputError(problem, "add it, or leave `k` out", "settings.sweep")
    if cutoffs and reader.end_to_end_k is not None:
        problem = "`end_to_end_k` beside `k_sweep`, which reads lists of every k"
        raise InputError(problem, "leave one of them out", "settings.conflict")
    measures = settings.resolved.measures
    for measure in measures:
        if cutoffs and measure.cutoff not in (None, k) and measure.cutoff > min(cutoffs):
            problem = f"{measure} looks further than the smallest k of `k_sweep`, {min(cutoffs)}"
            remedy = f"use @{k}, which follows k, or a smaller cutoff"
            raise InputError(problem, remedy, "measure.deep")
    conditions = {Condition(reader.reader, reader.augmentation, k): settings}
    for name, augmentation, cutoff in product(
        sweep.readers or [reader.reader],
        sweep.augmentations or [reader.augmentation],
        cutoffs or [k],
    ):
        # Two measures become one if a measure's own cutoff is a swept k: P@1 and P@k at k = 1.
        named = " ".join(dict.fromkeys(str(at_cutoff(measure, k, cutoff)) for measure in measures))
        conditions[Condition(name, augmentation, cutoff)] = settings.but(
            reader=name, augmentation=augmentation, k=cutoff, measures=named
        )
    refuse_unfit(conditions.values())
    if len(conditions) > 1 and (name := settings.in_rounds):
        problem = f"`{name}` with several readers, augmentations or k"
        raise InputError(problem, "evaluate them one by one", "settings.study")
    return conditions


def at_cutoff(measure: Measure, k: int, other: int) -> Measure:
    """The measure at another cutoff, if its cutoff is ``k``."""
    return replace(measure, cutoff=other) if measure.cutoff == k else measure


def study(inputs: EvaluationInputs, conditions: Mapping[Condition, Settings], **how: Any) -> Study:
    """Evaluate inputs held in memory under several conditions; ``how``: the fields of ``Context``."""
    shards, settings = InMemoryInputs(inputs), list(conditions.values())
    return study_of(conditions, *evaluate_shards(shards, settings, Context(**how)))


def study_of(
    conditions: Mapping[Condition, Settings], results: Sequence[Evaluation], jobs: Sequence[Job]
) -> Study:
    """The study of evaluations under several conditions; ``jobs``: the jobs of all conditions with their costs."""
    start = time.perf_counter()
    evaluations = dict(zip(conditions, results, strict=True))
    readers, comparisons = _across_readers(evaluations)
    return Study(
        evaluations=evaluations,
        costs={
            (
                job.spec.name,
                "fid" if job.prompt.fused else "in-prompt",
                job.ask.role.name,
            ): job.costs
            for job in jobs
        },
        conditions=pl.concat(
            _of(condition, evaluation.statistics.correlations, tables.CONDITIONS)
            for condition, evaluation in evaluations.items()
        ),
        readers=readers,
        reader_comparisons=comparisons,
        notes=tuple(_notes(evaluations, jobs)),
        seconds=max(evaluation.seconds for evaluation in results) + time.perf_counter() - start,
    )


def _notes(evaluations: Mapping[Condition, Evaluation], readings: Sequence[Job]) -> Iterator[Note]:
    settings = next(iter(evaluations.values())).settings
    failed = sum(reading.costs.failed for reading in readings)
    yield count_note("failed_reads_of_study", failed, "LLM call[|s] of the study failed")
    yield damaged_files(reading.costs for reading in readings)
    if settings.reader.end_to_end is not True:
        return
    cutoffs = {condition.k for condition in evaluations}
    asks = settings.resolved.asks
    readers = (a.name for a in settings.resolved.listed if a.is_the_readers)
    if 1 in cutoffs and any(asks[name].role == READER_ROLE for name in readers):
        text = "at k = 1 the passage read alone is the whole list: there eRAG's labels are the end-to-end score"
        yield Note("labels_are_the_score", 1, text)
    if settings.reader.end_to_end_k is not None:
        return  # lists are cut there, whatever k is
    longest = max(evaluation.longest for evaluation in evaluations.values())
    beyond = sorted(k for k in cutoffs if k > longest)
    text = f"no list is longer than {longest}: k = {', '.join(map(str, beyond))} gives the same as k = {longest}"
    yield Note("cutoffs_beyond_lists", len(beyond), text)


def _of(condition: Condition, frame: pl.DataFrame, schema: tables.Schema) -> pl.DataFrame:
    return frame.with_columns(
        pl.lit(condition.reader).alias(READER),
        pl.lit(condition.augmentation).alias(AUGMENTATION),
        pl.lit(condition.k, pl.Int64).alias(K),
    ).select(list(schema))


def _across_readers(
    evaluations: Mapping[Condition, Evaluation],
) -> tuple[pl.DataFrame, pl.DataFrame]:
    correlations = [tables.empty(tables.READERS)]
    comparisons = [tables.empty(tables.READER_COMPARISONS)]
    for condition, evaluation in evaluations.items():
        scores = _scores_by_reader(condition, evaluations)
        if scores is None or evaluation.downstream.is_empty():
            continue
        statistics = analyse(
            scores,
            evaluation.downstream,
            evaluation.settings.bootstrap,
            clusters=clusters_of(evaluation.clusters, evaluation.settings.bootstrap.cluster),
        )
        correlated = statistics.correlations.rename({ANNOTATOR: tables.LABELS_BY})
        correlations.append(_of(condition, correlated, tables.READERS))
        own_labels = (pl.col(ANNOTATOR) == condition.reader) & (pl.col(RUN) == pl.col(RUN_B))
        compared = statistics.comparisons.filter(own_labels).rename(
            {ANNOTATOR: tables.LABELS_BY, tables.ANNOTATOR_B: tables.LABELS_BY_B}
        )
        compared = compared.with_columns(
            pl.Series(f"{name}_p_holm", holm(compared[f"{name}_p"].to_list()), dtype=pl.Float64)
            for name in ("tau", "rho")
        )
        comparisons.append(_of(condition, compared, tables.READER_COMPARISONS))
    return pl.concat(correlations), pl.concat(comparisons)


def _scores_by_reader(
    condition: Condition, evaluations: Mapping[Condition, Evaluation]
) -> pl.DataFrame | None:
    """Query scores of labels by reader, the condition's own reader first; None for a single reader."""
    settings = evaluations[condition].settings
    asks = settings.resolved.asks
    # If a separate reader makes these labels, it is the same in all conditions.
    names = [
        annotator.name
        for annotator in settings.resolved.listed
        if annotator.is_the_readers and asks[annotator.name].role == READER_ROLE
    ]
    peers = {
        other.reader: evaluation.query_scores
        for other, evaluation in evaluations.items()
        if (other.augmentation, other.k) == (condition.augmentation, condition.k)
    }
    if not names or len(peers) < 2:
        return None
    readers = [condition.reader, *(name for name in peers if name != condition.reader)]
    return pl.concat(
        peers[reader]
        .filter(pl.col(ANNOTATOR) == names[0])
        .with_columns(pl.lit(reader).alias(ANNOTATOR))
        for reader in readers
    )
