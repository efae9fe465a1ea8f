"""Count the reads of a perturbed run, and how many of them its original shares."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import polars as pl

from engine.evaluation.inputs import EvaluationInputs
from engine.sources.runs.edits import PerturbedRun
from engine.tables import DOC_ID, DOC_IDS, QUERY_ID, RUN


@dataclass(frozen=True)
class PerturbedReads:
    """A perturbed run's reads against those of its original.

    Attributes:
        run, original: the names of both.
        edits, queries: the edits of queries that are evaluated, and of how many queries.
        passages, new_passages: passages that are read alone, and those of them that the original does
            not list; None where none are read.
        lists, new_lists: whole lists that are read, and those that are not the original's; likewise.
    """

    run: str
    original: str
    edits: int
    queries: int
    passages: int | None
    new_passages: int | None
    lists: int | None
    new_lists: int | None


def count_perturbed_reads(
    inputs: EvaluationInputs, lists: pl.DataFrame, *, alone: bool, whole: bool
) -> tuple[PerturbedReads, ...]:
    """The reads of every perturbed run, in the order of ``inputs.edited``.

    Args:
        inputs: what is evaluated.
        lists: ``run``, ``query_id``, ``doc_ids``: what is read as a whole.
        alone: whether passages are read alone.
        whole: whether whole lists are read.
    """
    evaluated = set(inputs.queries[QUERY_ID])
    return tuple(
        _count(
            edited,
            [edit.query_id for edit in edited.edits if edit.query_id in evaluated],
            inputs.runs if alone else None,
            lists if whole else None,
        )
        for edited in inputs.edited
    )


def merge_perturbed(parts: Sequence[tuple[PerturbedReads, ...]]) -> tuple[PerturbedReads, ...]:
    """The reads of every perturbed run over parts of the queries."""
    return tuple(functools.reduce(_both, of_run) for of_run in zip(*parts, strict=True))


def _both(one: PerturbedReads, other: PerturbedReads) -> PerturbedReads:
    """The counts of both, which have the same names; what is not read is counted in neither."""
    run, original, *counts = astuple(one)
    pairs = zip(counts, astuple(other)[2:], strict=True)
    sums: list[Any] = [None if a is None else a + b for a, b in pairs]
    return PerturbedReads(run, original, *sums)


def _count(
    edited: PerturbedRun,
    query_ids: list[str],
    runs: pl.DataFrame | None,
    lists: pl.DataFrame | None,
) -> PerturbedReads:
    def read(rows: pl.DataFrame | None, *identity: str) -> tuple[int | None, int | None]:
        """How many there are, and how many the original lacks."""
        if rows is None:
            return None, None
        both = (edited.name, edited.original)
        own, before = (rows.filter(pl.col(RUN) == name).select(identity) for name in both)
        return own.height, own.join(before, on=identity, how="anti").height

    passages, lists_read = read(runs, QUERY_ID, DOC_ID), read(lists, QUERY_ID, DOC_IDS)
    counts = len(query_ids), len(set(query_ids))
    return PerturbedReads(edited.name, edited.original, *counts, *passages, *lists_read)
