"""A study: the same evaluation under several conditions, that is readers, augmentations and cutoffs.

What the conditions share is read once: all cutoffs of a reader are read together, and the read store
serves what is left. Each condition is then an evaluation like any other.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import polars as pl

from engine import tables
from engine.errors import InputError
from engine.evaluation.evaluate import Evaluation, evaluate, lists_to_read, pairs_to_label
from engine.evaluation.inputs import EvaluationInputs, cut_inputs
from engine.evaluation.read import Role, ask, read_lists, specify_all
from engine.evaluation.settings import Settings
from engine.labels import erag
from engine.labels.function import Annotator
from engine.ranking.measures import Measure
from engine.reading.protocol import Augmentation
from engine.reading.reads import FAILURE, Executor, Progress, ReadingCosts
from engine.statistics.intervals import holm
from engine.statistics.table import analyse
from engine.tables import ANNOTATOR, AUGMENTATION, DOC_IDS, QUERY_ID, READ_KEY, READER, K


@dataclass(frozen=True)
class Condition:
    """One reader, one way to give it passages, one cutoff."""

    reader: str
    augmentation: Augmentation
    k: int


@dataclass(frozen=True)
class Study:
    """Evaluations under several conditions.

    Attributes:
        evaluations: by condition, the one asked about first.
        settings: of each.
        costs: of all reads, by the reader's name, how it got its passages, and its part.
        seconds: of the whole.
        conditions: the correlations of every condition (``tables.CONDITIONS``).
        readers, reader_comparisons: eRAG's labels by each reader against the end-to-end score of each
            (``tables.READERS``, ``tables.READER_COMPARISONS``); empty where there is but one.
    """

    evaluations: Mapping[Condition, Evaluation]
    settings: Mapping[Condition, Settings]
    costs: Mapping[tuple[str, Augmentation, Role], ReadingCosts]
    conditions: pl.DataFrame
    readers: pl.DataFrame
    reader_comparisons: pl.DataFrame
    seconds: float


def conditions(
    settings: Settings,
    *,
    readers: Sequence[str] = (),
    augmentations: Sequence[Augmentation] = (),
    cutoffs: Sequence[int] = (),
) -> dict[Condition, Settings]:
    """The settings under every combination of readers, augmentations and cutoffs.

    That of ``settings`` comes first. A measure's cutoff that is ``settings.k`` follows the condition's; others
    stay as they are.

    Args:
        readers, augmentations, cutoffs: none for that of ``settings``; else it must be among them.

    Raises:
        InputError: one is given twice, ``settings`` has another, or a measure looks further than the
            smallest cutoff.
    """
    given: list[tuple[str, Sequence[object], object]] = [
        ("--reader", readers, settings.reader),
        ("--augmentation", augmentations, settings.augmentation),
        ("--k-sweep", cutoffs, settings.k),
    ]
    for option, values, own in given:
        if len(set(values)) < len(values):
            raise InputError(None, None, f"{option} has a value twice", "give each once")
        if values and own not in values:
            listed = ",".join(map(str, values))
            raise InputError(
                None, None, f"--k {own} is not in {option} {listed}", "add it, or leave --k out"
            )
    if cutoffs and settings.end_to_end_k is not None:
        raise InputError(
            None,
            None,
            "--end-to-end-k beside --k-sweep, which reads lists of every k",
            "leave one of them out",
        )
    for measure in settings.parsed_measures():
        if cutoffs and measure.cutoff not in (None, settings.k) and measure.cutoff > min(cutoffs):
            raise InputError(
                None,
                None,
                f"{measure} looks further than the smallest k of --k-sweep, {min(cutoffs)}",
                f"use @{settings.k}, which follows k, or a smaller cutoff",
            )
    main = Condition(settings.reader, settings.augmentation, settings.k)
    every = {main: settings}
    for reader, augmentation, k in product(
        readers or [settings.reader],
        augmentations or [settings.augmentation],
        cutoffs or [settings.k],
    ):
        condition = Condition(reader, augmentation, k)
        measures = " ".join(str(at_cutoff(m, settings.k, k)) for m in settings.parsed_measures())
        every[condition] = replace(
            settings, reader=reader, augmentation=augmentation, k=k, measures=measures
        )
    return every


def at_cutoff(measure: Measure, k: int, other: int) -> Measure:
    """The measure at another cutoff, if its cutoff is ``k``."""
    return replace(measure, cutoff=other) if measure.cutoff == k else measure


def study(
    inputs: EvaluationInputs,
    every: Mapping[Condition, Settings],
    *,
    store: Path,
    own: Sequence[Annotator] = (),
    on_progress: Progress = lambda done, total: None,
    executor: Executor | None = None,
) -> Study:
    """Evaluate under every condition.

    Args:
        inputs: read at the largest cutoff.
        every: as ``conditions`` gives them.
        store, own, on_progress, executor: as in ``evaluation.evaluate``; progress is that of a reader.

    Raises:
        InputError, ReadError: as ``evaluation.evaluate``.
    """
    start = time.perf_counter()
    cut = {k: cut_inputs(inputs, k) for k in {condition.k for condition in every}}
    groups: dict[tuple[str, Augmentation], dict[Condition, Settings]] = {}
    for condition, settings in every.items():
        groups.setdefault((condition.reader, condition.augmentation), {})[condition] = settings
    asked = [_ask_all(cut, alike) for alike in groups.values()]
    for alike, roles in zip(groups.values(), asked, strict=True):
        # A reader that cannot be used is to be known before hours of another's reads.
        specify_all(roles, next(iter(alike.values())))
    costs: dict[tuple[str, Augmentation, Role], ReadingCosts] = {}
    failed: dict[str, str] = {}
    for alike, roles in zip(groups.values(), asked, strict=True):
        readings = read_lists(
            roles,
            inputs,
            next(iter(alike.values())),
            store=store,
            on_progress=on_progress,
            executor=executor,
            failed=failed,
        )
        for role, reading in readings.items():
            augmentation: Augmentation = "fid" if reading.prompt.fused else "in-prompt"
            # Readers in other roles serve several conditions, and read for the first.
            costs.setdefault((reading.spec.name, augmentation, role), reading.costs)
            lost = reading.reads.filter(pl.col(FAILURE).is_not_null())
            failed |= dict(lost.select(READ_KEY, FAILURE).iter_rows())
    evaluations = {
        condition: evaluate(
            cut[condition.k], settings, store=store, own=own, executor=executor, failed=failed
        )
        for condition, settings in every.items()
    }
    readers, comparisons = _across_readers(evaluations, every)
    return Study(
        evaluations,
        every,
        costs,
        pl.concat(
            _of(condition, evaluation.statistics.correlations, tables.CONDITIONS)
            for condition, evaluation in evaluations.items()
        ),
        readers,
        comparisons,
        time.perf_counter() - start,
    )


def _ask_all(
    cut: Mapping[int, EvaluationInputs], alike: Mapping[Condition, Settings]
) -> dict[Role, pl.DataFrame]:
    """What conditions of one reader ask together, each read once."""
    asked: dict[Role, list[pl.DataFrame]] = {}
    for condition, settings in alike.items():
        inputs = cut[condition.k]
        pairs, lists = pairs_to_label(inputs), lists_to_read(inputs, settings)
        for role, frame in ask(pairs, lists, settings).items():
            asked.setdefault(role, []).append(frame)
    return {
        role: pl.concat(frames).unique([QUERY_ID, DOC_IDS], maintain_order=True)
        for role, frames in asked.items()
    }


def _of(condition: Condition, frame: pl.DataFrame, schema: tables.Schema) -> pl.DataFrame:
    return frame.with_columns(
        pl.lit(condition.reader).alias(READER),
        pl.lit(condition.augmentation).alias(AUGMENTATION),
        pl.lit(condition.k, pl.Int64).alias(K),
    ).select(list(schema))


def _across_readers(
    evaluations: Mapping[Condition, Evaluation], every: Mapping[Condition, Settings]
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """eRAG's labels by each reader against the end-to-end score of each, under equal conditions."""
    correlations = [tables.empty(tables.READERS)]
    comparisons = [tables.empty(tables.READER_COMPARISONS)]
    for condition, evaluation in evaluations.items():
        peers = {
            other.reader: found.query_scores.filter(pl.col(ANNOTATOR) == erag.NAME)
            for other, found in evaluations.items()
            if (other.augmentation, other.k) == (condition.augmentation, condition.k)
        }
        settings = every[condition]
        # With a reader of their own for eRAG's labels, all conditions have the same.
        if len(peers) < 2 or settings.erag_reader or evaluation.downstream.is_empty():
            continue
        # Its own labels first: the others are compared with them.
        names = [condition.reader, *(name for name in peers if name != condition.reader)]
        scores = pl.concat(
            peers[name].with_columns(pl.lit(name).alias(ANNOTATOR)) for name in names
        )
        found = analyse(scores, evaluation.downstream, settings.bootstrap())
        correlations.append(
            _of(condition, found.correlations.rename({ANNOTATOR: tables.LABELS_BY}), tables.READERS)
        )
        own = (pl.col(ANNOTATOR) == condition.reader) & (pl.col(tables.RUN) == pl.col(tables.RUN_B))
        compared = found.comparisons.filter(own).rename(
            {ANNOTATOR: tables.LABELS_BY, tables.ANNOTATOR_B: tables.LABELS_BY_B}
        )
        compared = compared.with_columns(
            pl.Series(f"{name}_p_holm", holm(compared[f"{name}_p"].to_list()), dtype=pl.Float64)
            for name in ("tau", "rho")
        )
        comparisons.append(_of(condition, compared, tables.READER_COMPARISONS))
    return pl.concat(correlations), pl.concat(comparisons)
