"""The reads of an evaluation: what its reader, and its judge, are given, and what they made of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import polars as pl

from engine.errors import ReadError
from engine.evaluation.inputs import EvaluationInputs
from engine.evaluation.settings import Settings
from engine.labels import judge, utility
from engine.reading.models.weights import resolve
from engine.reading.plan import wanted_reads
from engine.reading.prompting.prompts import Prompt
from engine.reading.prompting.template import ABSTAIN, JUDGE, styles
from engine.reading.protocol import ReaderSpec
from engine.reading.readers import specify
from engine.reading.reads import FAILURE, Executor, Progress, ReadingCosts, get_reads
from engine.tables import CONFIDENCE, DOC_ID, DOC_IDS, QUERY_ID, READ_KEY

# Who reads: the reader of whole lists, and of single passages where no other does (``erag``); the judge;
# and the reader of single passages once more, where it may decline.
Role = Literal["reader", "erag", "judge", "abstain"]


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
    failed: Mapping[str, str] | None = None,
) -> dict[Role, Reading]:
    """Have the reads that are asked of the reader, of the judge, or of others.

    All are found, and given their prompts, before any of them reads.

    Args:
        asked: ``query_id`` and ``doc_ids``, by who reads them.
        store: directory of the read store.
        on_progress: called with the distinct reads done and wanted, of all together.
        executor: does the reads instead of the readers (tests).
        failed: reads that are known to fail (``reads.get_reads``).

    Raises:
        InputError: a reader or a prompt that cannot be used.
        ReadError: reads failed and ``failed_reads`` is ``error``; or a reader wrote where it was to
            choose.
    """
    specified = specify_all(asked, settings)
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
            failed=failed,
        )
        _refuse_failures(reads, settings)
        _refuse_written(reads, spec)
        readings[role] = Reading(spec, prompt, wanted[role], reads, costs)
        before += costs.wanted
    return readings


def specify_all(roles: Iterable[Role], settings: Settings) -> dict[Role, tuple[ReaderSpec, Prompt]]:
    """The readers that are asked, with their prompts.

    Raises:
        InputError: one cannot be used.
    """
    return {role: _specify(role, settings) for role in roles}


def _shifted(on_progress: Progress, before: int, total: int) -> Progress:
    return lambda done, _: on_progress(before + done, total)


def _specify(role: Role, settings: Settings) -> tuple[ReaderSpec, Prompt]:
    alone = settings.erag_reader or settings.reader
    name, task, prompt = {
        "reader": (settings.reader, settings.task, settings.prompt),
        "erag": (alone, settings.task, settings.prompt),
        "judge": (settings.judge or settings.reader, JUDGE, settings.judge_prompt),
        "abstain": (alone, ABSTAIN, settings.abstain_prompt or _style(settings.prompt)),
    }[role]
    augmentation = settings.augmentation
    # One passage is the same prompt to a decoder-only reader, however whole lists are read.
    if task in (JUDGE, ABSTAIN) or (role == "erag" and resolve(name).architecture == "causal"):
        augmentation = "in-prompt"
    return specify(
        name,
        augmentation=augmentation,
        task=task,
        prompt=prompt,
        dtype=settings.dtype,
        memory=settings.memory,
        engine=settings.engine,
    )


def _style(prompt: str | None) -> str | None:
    """The style of the reader's own prompt, where one that lets it decline has the same."""
    return prompt if prompt in styles(ABSTAIN) else None


def ask(pairs: pl.DataFrame, lists: pl.DataFrame, settings: Settings) -> dict[Role, pl.DataFrame]:
    """What is asked of whom: ``query_id`` and ``doc_ids`` of each read, by who reads.

    The reads of single passages come first, in the order of ``pairs``; then those of whole lists.

    Args:
        pairs: ``query_id`` and ``doc_id`` of the passages that are labelled.
        lists: ``query_id`` and ``doc_ids`` of the lists that are read whole.
    """
    alone = pairs.select(QUERY_ID, pl.concat_list(DOC_ID).alias(DOC_IDS))
    single = alone if settings.reads_alone() else alone.clear()
    whole = lists.select(QUERY_ID, DOC_IDS) if settings.end_to_end else alone.clear()
    asked: dict[Role, pl.DataFrame] = {}
    if settings.erag_reader is None:
        asked["reader"] = pl.concat([single, whole])
    else:
        asked |= {"erag": single, "reader": whole}
    asked = {role: reads for role, reads in asked.items() if not reads.is_empty()}
    if judge.NAME in settings.annotators:
        asked["judge"] = alone
    if utility.NAME in settings.annotators:
        asked["abstain"] = alone
    return asked


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
