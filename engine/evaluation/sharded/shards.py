"""Shards of an evaluation, made one after another from lists that are larger than memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from engine import tables
from engine.evaluation.sharded.cut_lists import BUCKET, CutLists
from engine.evaluation.sharded.files import ShardContent
from engine.evaluation.sharded.listed import Listed
from engine.evaluation.sharded.ranges import Range, halved
from engine.evaluation.sharded.run_parts import BEYOND, NUMBER, part_ranges
from engine.sources.queries.buckets import BUCKETS
from engine.tables import DOC_ID, QUERY_ID, RANK, RUN

_Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Material:
    """What shards are cut from.

    Attributes:
        lists: the lists of all runs.
        listed: which passages they list.
        queries: the queries table, of those evaluated, with titles matched.
        tables: what annotators need, of these queries, by the name of the input.
        unmatchable: ids of queries whose titles no listed passage has.
    """

    lists: CutLists
    listed: Listed
    queries: pl.DataFrame
    tables: Mapping[str, pl.DataFrame]
    unmatchable: frozenset[str]


@dataclass(frozen=True, eq=False)
class Piece:
    """A shard before it is written.

    Attributes:
        span: the buckets of its queries, [low, high).
        pairs: the distinct pairs of query and document.
        content: what it holds.
    """

    span: Range
    pairs: int
    content: ShardContent


def cut(material: Material, most: int) -> Iterator[Piece]:
    """Yield the shards in the order of their spans; a part of the lists is in memory at a time.

    Args:
        most: pairs of a shard, and its queries, at most (``ranges.halved``).
    """
    lists = material.lists
    buckets = lists.keys.buckets[: lists.keys.evaluated]
    pairs = np.zeros(BUCKETS, dtype=np.int64)
    for rows in lists:
        distinct = rows.select(BUCKET, NUMBER, DOC_ID).unique()
        pairs += np.bincount(distinct[BUCKET].to_numpy(), minlength=BUCKETS)
    spans = halved(pairs, np.bincount(buckets, minlength=BUCKETS), most)
    queries = _Sorted(material.queries, buckets)
    further = {
        name: _Sorted(table, _buckets(lists, table)) for name, table in material.tables.items()
    }
    rows_of = _Rows(lists)
    for span in spans:
        rows = material.listed.named(rows_of.within(span))
        named = lists.with_names(rows).sort(rows[RUN], QUERY_ID, RANK)
        beyond = set(rows.filter(BEYOND)[RUN])
        of_span = queries.within(span)
        content = ShardContent(
            queries=of_span,
            runs=named.select(list(tables.RUNS)),
            tables={name: table.within(span) for name, table in further.items()},
            cut_runs=tuple(name for number, name in enumerate(lists.names) if number in beyond),
            unmatchable=tuple(i for i in of_span[QUERY_ID] if i in material.unmatchable),
        )
        yield Piece(span, named.select(QUERY_ID, DOC_ID).n_unique(), content)


def _buckets(lists: CutLists, table: pl.DataFrame) -> _Numbers:
    numbers = table[QUERY_ID].cast(lists.keys.ids).to_physical()
    return lists.keys.buckets[numbers.to_numpy()]


class _Sorted:
    """A table in memory of which the rows of a range of buckets are found without looking at all."""

    def __init__(self, table: pl.DataFrame, buckets: _Numbers) -> None:
        self._order = np.argsort(buckets, kind="stable")
        self._buckets = buckets[self._order]
        self._table = table

    def within(self, span: Range) -> pl.DataFrame:
        """The rows in a range of buckets, in the order of the table."""
        start, end = np.searchsorted(self._buckets, span)
        return self._table[np.sort(self._order[start:end])]


class _Rows:
    """The rows of ranges of buckets, which come in ascending order."""

    def __init__(self, lists: CutLists) -> None:
        self._parts = enumerate(part_ranges(lists.parts.parts))
        self._lists = lists
        self._range = (0, 0)
        self._part: _Sorted | None = None

    def within(self, span: Range) -> pl.DataFrame:
        frames: list[pl.DataFrame] = []
        while True:
            if self._part is not None:
                frames.append(self._part.within(span))
            if span[1] <= self._range[1]:
                return pl.concat(frames)
            number, self._range = next(self._parts)
            rows = self._lists.read(number)
            self._part = _Sorted(rows, rows[BUCKET].to_numpy())
