"""The reads of an evaluation: what its reader, and its judge, are given, and what they made of it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import polars as pl

from engine.errors import ReadError
from engine.reading.plan import wanted_reads
from engine.reading.prompts import Prompt
from engine.reading.protocol import ReaderSpec
from engine.reading.readers import specify
from engine.reading.reads import FAILURE, Executor, Progress, ReadingCosts, get_reads
from engine.settings import Settings
from engine.sources.inputs import EvaluationInputs
from engine.tables import CONFIDENCE, QUERY_ID, READ_KEY

Role = Literal["reader", "judge"]


@dataclass(frozen=True)
class Reading:
    """A reader with a prompt, what it read, and what that cost.

    Attributes:
        wanted: the reads asked for, as ``plan.wanted_reads`` gives them.
        reads: the reads table, one row per read asked for, in that order; further ``failure``.
    """

    spec: ReaderSpec
    prompt: Prompt
    wanted: pl.DataFrame
    reads: pl.DataFrame
    costs: ReadingCosts


def read_lists(
    asked: dict[Role, pl.DataFrame],
    inputs: EvaluationInputs,
    settings: Settings,
    *,
    store: Path,
    on_progress: Progress,
    executor: Executor | None,
) -> dict[Role, Reading]:
    """Have the reads that are asked of the reader, of the judge, or of both.

    Both are found, and given their prompts, before either reads.

    Args:
        asked: ``query_id`` and ``doc_ids``, by who reads them.
        store: directory of the read store.
        on_progress: called with the distinct reads done and wanted, of both together.
        executor: does the reads instead of the readers (tests).

    Raises:
        InputError: a reader or a prompt that cannot be used.
        ReadError: reads failed and ``failed_reads`` is ``error``; or a reader wrote where it was to
            choose.
    """
    specified = {role: _specify(role, settings) for role in asked}
    wanted = {
        role: wanted_reads(
            asked[role],
            inputs.queries,
            inputs.corpus,
            prompt=prompt,
            fingerprint=spec.fingerprint,
        )
        for role, (spec, prompt) in specified.items()
    }
    total = sum(frame[READ_KEY].n_unique() for frame in wanted.values())
    before = 0
    readings: dict[Role, Reading] = {}
    for role, (spec, prompt) in specified.items():
        reads, costs = get_reads(
            wanted[role],
            spec,
            store,
            actors=settings.actors,
            on_progress=_shifted(on_progress, before, total),
            executor=executor,
        )
        _refuse_failures(reads, settings)
        _refuse_written(reads, spec)
        readings[role] = Reading(spec, prompt, wanted[role], reads, costs)
        before += costs.wanted
    return readings


def _shifted(on_progress: Progress, before: int, total: int) -> Progress:
    return lambda done, _: on_progress(before + done, total)


def _specify(role: Role, settings: Settings) -> tuple[ReaderSpec, Prompt]:
    if role == "judge":
        return specify(
            settings.judge or settings.reader,
            augmentation="in-prompt",
            task="judge",
            prompt=settings.judge_prompt,
            dtype=settings.dtype,
            memory=settings.memory,
            engine=settings.engine,
        )
    return specify(
        settings.reader,
        augmentation=settings.augmentation,
        task=settings.task,
        prompt=settings.prompt,
        dtype=settings.dtype,
        memory=settings.memory,
        engine=settings.engine,
    )


def _refuse_failures(reads: pl.DataFrame, settings: Settings) -> None:
    failed = reads[FAILURE].is_not_null()
    if failed.any() and settings.failed_reads == "error":
        query_id, reason = reads.filter(failed).select(QUERY_ID, FAILURE).row(0)
        raise ReadError(
            f"{failed.sum()} of {reads.height} reads failed (query {query_id!r}: {reason}); "
            "the others are in the store; run again, count these as 0 with --failed-reads zero, "
            "or leave their queries out with --failed-reads skip"
        )


def _refuse_written(reads: pl.DataFrame, spec: ReaderSpec) -> None:
    """Without its probability, what was to be a choice would silently count as no (NaN: as yes)."""
    unsure = reads[CONFIDENCE].is_null() | reads[CONFIDENCE].is_nan().fill_null(False)
    written = reads[FAILURE].is_null() & unsure
    if spec.choices and written.any():
        raise ReadError(
            f"{written.sum()} of {reads.height} reads of {spec.name!r} are no choice between "
            f"{', '.join(map(repr, spec.choices))}: this reader does not choose"
        )


def queries_left_out(alone: pl.DataFrame, settings: Settings) -> list[str]:
    """The queries that ``--failed-reads skip`` leaves out: a read of a single passage failed."""
    if settings.failed_reads != "skip":
        return []
    failed = alone.filter(pl.col(FAILURE).is_not_null())
    return failed[QUERY_ID].unique(maintain_order=True).to_list()
