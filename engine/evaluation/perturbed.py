"""Count the reads of a perturbed run, and how many of them its original shares."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

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
    def both(a: int | None, b: int | None) -> int | None:
        return None if a is None or b is None else a + b

    return PerturbedReads(
        run=one.run,
        original=one.original,
        edits=one.edits + other.edits,
        queries=one.queries + other.queries,
        passages=both(one.passages, other.passages),
        new_passages=both(one.new_passages, other.new_passages),
        lists=both(one.lists, other.lists),
        new_lists=both(one.new_lists, other.new_lists),
    )


def _count(
    edited: PerturbedRun,
    query_ids: list[str],
    runs: pl.DataFrame | None,
    lists: pl.DataFrame | None,
) -> PerturbedReads:
    passages = new_passages = whole = new_whole = None
    if runs is not None:
        pairs = runs.filter(pl.col(RUN) == edited.name).select(QUERY_ID, DOC_ID)
        before = runs.filter(pl.col(RUN) == edited.original).select(QUERY_ID, DOC_ID)
        passages = pairs.height
        new_passages = pairs.join(before, on=[QUERY_ID, DOC_ID], how="anti").height
    if lists is not None:
        edited_lists, original_lists = (
            dict(lists.filter(pl.col(RUN) == name).select(QUERY_ID, DOC_IDS).iter_rows())
            for name in (edited.name, edited.original)
        )
        whole = len(edited_lists)
        new_whole = sum(
            original_lists.get(query_id) != doc_ids for query_id, doc_ids in edited_lists.items()
        )
    return PerturbedReads(
        run=edited.name,
        original=edited.original,
        edits=len(query_ids),
        queries=len(set(query_ids)),
        passages=passages,
        new_passages=new_passages,
        lists=whole,
        new_lists=new_whole,
    )
