"""Inputs of an evaluation as shards of whole queries: one in memory if they fit, or many (``partition.Partition``)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import polars as pl

from engine.inputs.files import EvaluationInputs, InputFiles, cut_inputs
from engine.inputs.read import LoadedInputs, read_inputs
from engine.messages.notes import Note
from engine.sources.io.locations import Location
from engine.sources.queries.buckets import Range
from engine.tables import CLUSTER, DOC_ID, QUERY_ID, RUN


@dataclass(frozen=True)
class Shard:
    """The driver's record of a shard.

    Attributes:
        number: from 0; shards are in the order of their spans.
        queries: number of queries, with results or without.
        pairs: number of distinct pairs of query and document within the cutoff.
        span: the buckets of its queries (``sources.queries.buckets``), [low, high); None if they may be any.
        digest: digest over its contents and the whole corpus; empty for a shard in memory.
    """

    number: int
    queries: int
    pairs: int
    span: Range | None
    digest: str = ""


@dataclass(frozen=True)
class FirstQueries:
    """The queries of the first clusters in an order, up to number ``last``.

    Attributes:
        order: of all queries (``evaluation.reading_order``).
        stopped: by run, the number of its last cluster, if it stops earlier.
        labels: whether passages of the stopped runs are labelled all the same.
    """

    order: pl.DataFrame
    last: int
    stopped: tuple[tuple[str, int], ...] = ()
    labels: bool = True

    def among(self, queries: pl.DataFrame) -> pl.DataFrame:
        first = self.order.filter(pl.col(CLUSTER) <= self.last)
        return queries.join(first, on=QUERY_ID, how="semi", maintain_order="left")

    def of(self, inputs: EvaluationInputs) -> EvaluationInputs:
        """The inputs, restricted to the queries."""
        queries, names = self.among(inputs.queries), inputs.run_names

        def among(table: pl.DataFrame) -> pl.DataFrame:
            return table.join(queries, on=QUERY_ID, how="semi", maintain_order="left")

        unread = pl.DataFrame(self.stopped, {RUN: pl.String, "last": pl.Int64}, orient="row")
        unread = unread.join(among(self.order), how="cross")
        unread = unread.filter(pl.col(CLUSTER) > pl.col("last"))
        unread = unread.select(RUN, QUERY_ID)
        unlabelled = unread.clear() if self.labels else unread
        runs = among(inputs.runs).join(
            unlabelled, on=[RUN, QUERY_ID], how="anti", maintain_order="left"
        )
        corpus = inputs.corpus.join(runs, on=DOC_ID, how="semi", maintain_order="left")
        judged = {name: among(table) for name, table in inputs.tables.items()}
        part = replace(inputs, queries=queries, runs=runs, corpus=corpus, tables=judged)
        return replace(part, names=names, unread=unread, unlabelled=unlabelled, is_whole=False)


class InputShards(Protocol):
    """The inputs of an evaluation, for any process that gets them."""

    @property
    def shards(self) -> tuple[Shard, ...]:
        """All shards; every query evaluated is in one."""

    @property
    def runs(self) -> tuple[str, ...]:
        """The names of all runs, in order."""

    @property
    def queries_file(self) -> Location | None:
        """The file of the queries; None for tables without a file."""

    def read(self, number: int, *, passages: bool = True) -> EvaluationInputs:
        """The inputs of a shard, without clusters; the corpus is empty if ``passages`` is false."""

    @property
    def unmatchable(self) -> tuple[str, ...]:
        """At least the first of ``EvaluationInputs.unmatchable`` over all queries."""

    @property
    def tables(self) -> Collection[str]:
        """The names of the inputs of annotators."""

    @property
    def only(self) -> FirstQueries | None:
        """The queries that count; None for all."""

    def queries(self, columns: Collection[str] | None = None) -> pl.DataFrame:
        """All queries evaluated, in the order of their file, with their ``cluster``; ``columns``: the needed ones."""

    def within(self, k: int) -> tuple[int, tuple[Note, ...]]:
        """The number of listed passages that a cutoff leaves in all inputs, and notes that shards do not carry."""

    def first(self, queries: FirstQueries) -> InputShards:
        """The inputs of some queries alone, in as many shards."""


class InMemoryInputs:
    """Inputs in memory, as one shard."""

    def __init__(self, inputs: EvaluationInputs, only: FirstQueries | None = None) -> None:
        self.inputs, self.runs, self.tables = inputs, inputs.run_names, tuple(inputs.tables)
        self.only = only
        self.queries_file, self.unmatchable = inputs.queries_file, inputs.unmatchable

    @classmethod
    def of_files(
        cls, files: InputFiles, *, k: int, loaded: LoadedInputs | None = None
    ) -> InMemoryInputs:
        """Files that fit, read at a cutoff, as ``read_inputs`` reads them."""
        return cls(read_inputs(files, k=k, loaded=loaded))

    @cached_property
    def shards(self) -> tuple[Shard, ...]:
        pairs = self.inputs.runs.select(QUERY_ID, DOC_ID).n_unique()
        return (Shard(0, self.inputs.queries.height, pairs, None),)

    def read(self, number: int, *, passages: bool = True) -> EvaluationInputs:
        return self.inputs

    def queries(self, columns: Collection[str] | None = None) -> pl.DataFrame:
        return self.inputs.queries

    def within(self, k: int) -> tuple[int, tuple[Note, ...]]:
        return cut_inputs(self.inputs, k).corpus.height, ()

    def first(self, queries: FirstQueries) -> InMemoryInputs:
        return InMemoryInputs(queries.of(self.inputs), queries)
