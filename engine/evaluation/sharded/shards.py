"""Shards of an evaluation, made one after another from lists that are larger than memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from engine import tables
from engine.evaluation.sharded.cut_lists import BEYOND, BUCKET, NUMBER, CutLists, part_ranges
from engine.evaluation.sharded.files import ShardContent
from engine.evaluation.sharded.listed import Listed
from engine.evaluation.sharded.ranges import Range, halved
from engine.notes import Note
from engine.sources.io.ahead import mapped
from engine.sources.queries.buckets import BUCKETS
from engine.tables import DOC_ID, QUERY_ID, RANK, RUN

_PLACE = "_place"
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
        clustered: the note on clusters.
    """

    lists: CutLists
    listed: Listed
    queries: pl.DataFrame
    tables: Mapping[str, pl.DataFrame]
    unmatchable: frozenset[str]
    clustered: Note


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


class Cutter:
    """Cuts lists into shards in the order of their spans; a part of the lists is in memory at a time.

    Args:
        material: what is cut.
        most: pairs of a shard, and its queries, at most (``ranges.halved``).
    """

    def __init__(self, material: Material, most: int) -> None:
        lists = material.lists
        buckets = lists.keys.buckets[: lists.keys.evaluated]
        pairs = np.zeros(BUCKETS, dtype=np.int64)
        for of_part in mapped(lambda part: _pairs_of(lists, part), range(lists.parts)):
            pairs += of_part
        self._spans = halved(pairs, np.bincount(buckets, minlength=BUCKETS), most)
        self._material = material
        self._queries = _Sorted(material.queries, buckets)
        self._further = {
            name: _Sorted(table, _buckets(lists, table)) for name, table in material.tables.items()
        }

    def rows(self) -> Iterator[tuple[Range, pl.DataFrame]]:
        """Yield the span of each shard, and the rows of ``CutLists.read`` in it."""
        rows = _Rows(self._material.lists)
        return ((span, rows.within(span)) for span in self._spans)

    def piece(self, span: Range, rows: pl.DataFrame) -> Piece:
        """The shard of a span and its rows; of several shards at the same time, in threads."""
        lists, unmatchable = self._material.lists, self._material.unmatchable
        rows = self._material.listed.named(rows)
        # By the places of ids in their order, which are compared faster than ids.
        places = pl.Series(_PLACE, lists.keys.order[rows[NUMBER].to_numpy()])
        rows = rows.with_columns(places).sort(RUN, _PLACE, RANK)
        beyond = set(rows.filter(BEYOND)[RUN].unique())
        of_span = self._queries.within(span)
        content = ShardContent(
            queries=of_span,
            runs=lists.with_names(rows).select(list(tables.RUNS)),
            tables={name: table.within(span) for name, table in self._further.items()},
            cut_runs=tuple(name for number, name in enumerate(lists.names) if number in beyond),
            unmatchable=tuple(i for i in of_span[QUERY_ID] if i in unmatchable)
            if unmatchable
            else (),
        )
        return Piece(span, _count_pairs(self._material, rows), content)


def _pairs_of(lists: CutLists, part: int) -> _Numbers:
    """The pairs of query and document of a part, by bucket."""
    rows = lists.read(part)
    if len(lists.names) > 1:
        rows = rows.select(BUCKET, NUMBER, DOC_ID).unique()
    return np.bincount(rows[BUCKET].to_numpy(), minlength=BUCKETS)


def _count_pairs(material: Material, rows: pl.DataFrame) -> int:
    """The pairs of query and document, of which one run has none twice but by the text and the id of one."""
    if len(material.lists.names) > 1 or not material.listed.texts.is_empty():
        return rows.select(NUMBER, DOC_ID).n_unique()
    return rows.height


def _buckets(lists: CutLists, table: pl.DataFrame) -> _Numbers:
    return lists.keys.buckets[lists.keys.numbers.of(table[QUERY_ID]).to_numpy()]


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
        self._parts = enumerate(part_ranges(lists.parts))
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
