"""Check, order and cut the ranked lists of an evaluation.

Lists come in parts that have all rows of a query: one part where everything is held, many where a run is
larger than memory. A part is worked on alone; a fault that only all parts together show (a run that lists none of
the queries) is refused once. Keys of runs may be texts of queries, as in the eRAG package.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import polars as pl

from engine import tables
from engine.messages.errors import InputError
from engine.messages.notes import Note
from engine.messages.wording import quoted
from engine.sources.io.ids import Places
from engine.sources.io.locations import Location
from engine.sources.io.parallel import Made, mapped
from engine.sources.runs import read
from engine.sources.runs.forms import LINE, Batch
from engine.sources.runs.read import ID, Gathered, OnePart, read_in_parts, with_ids
from engine.sources.strangers import Numbering
from engine.tables import DOC_ID, QUERY, QUERY_ID, RANK, RUN, SCORE, STATED_RANK

IS_EVALUATED = "is_evaluated"
# Rows of lists; ``run`` is the number of the run.
ROWS: tables.Schema = {**tables.RUNS, RUN: pl.UInt32()}


class Parts(Gathered, Protocol):
    """Where lists wait, in parts: rows of the run that is read at the moment, and the lists of all runs.

    Attributes:
        places: of the ids of all queries in their file.
    """

    places: Places

    def queries(self, part: int) -> pl.DataFrame:
        """``query_id``, ``query`` and ``is_evaluated`` of the queries of a part."""

    def keep(self, part: int, run: int, lists: pl.DataFrame) -> None:
        """Keep the lists of a run for the queries of a part (``ROWS``)."""

    def kept(self, part: int) -> pl.DataFrame:
        """The lists of all runs for the queries of a part, run after run."""


class HeldPart(OnePart):
    """One part, in memory."""

    def __init__(self, queries: pl.DataFrame) -> None:
        super().__init__()
        self.places = Places(queries[QUERY_ID])
        self._queries = queries
        self._kept = [tables.empty(ROWS)]

    def queries(self, part: int) -> pl.DataFrame:
        return self._queries

    def keep(self, part: int, run: int, lists: pl.DataFrame) -> None:
        self._kept.append(lists)

    def kept(self, part: int) -> pl.DataFrame:
        return pl.concat(self._kept)


@dataclass(frozen=True, eq=False)
class Lists:
    """The lists of all runs for the queries evaluated; iterating yields those up to the cutoff, part after part.

    Attributes:
        paths: the files of the runs.
        names: of the runs; the number of a run is its place.
        ignored: distinct queries of the runs that the queries file lacks.
        taken: as in ``forms.Batch``, of all runs.
        texts: documents that runs give by their texts, and their ids, as ``with_ids`` takes them.
        are_files: whether ``paths`` are files; else names of runs.
        notes: on the order of lists.
    """

    parts: Parts
    k: int
    paths: tuple[Location, ...]
    names: tuple[str, ...]
    ignored: int
    taken: Counter[str]
    texts: pl.DataFrame = field(default_factory=pl.DataFrame)
    are_files: bool = True
    notes: tuple[Note, ...] = ()

    def __iter__(self) -> Iterator[pl.DataFrame]:
        return self.map(lambda rows: rows)

    def map(self, function: Callable[[pl.DataFrame], Made]) -> Iterator[Made]:
        """Yield what a function makes of the lists up to the cutoff, part after part; it is called in threads."""
        return mapped(lambda part: function(self.read(part)), range(self.parts.count))

    def read(self, part: int) -> pl.DataFrame:
        """The run table of a part, to the cutoff."""
        rows = self.parts.kept(part).filter(pl.col(RANK) <= self.k)
        if not self.texts.is_empty():
            rows = with_ids(rows, self.texts, DOC_ID)
        names = pl.Series(RUN, self.names, dtype=pl.String)
        return rows.with_columns(names.gather(rows[RUN]).alias(RUN)).select(list(tables.RUNS))

    def cut_runs(self) -> tuple[str, ...]:
        """The runs that list more for some query than the cutoff keeps: one rank beyond it is kept."""

        def of_part(part: int) -> pl.Series:
            return self.parts.kept(part).filter(pl.col(RANK) > self.k)[RUN].unique()

        cut = {run for runs in mapped(of_part, range(self.parts.count)) for run in runs}
        return tuple(self.names[run] for run in sorted(cut))

    def path_of(self, run: str) -> Location:
        """The file of a run."""
        return self.paths[self.names.index(run)]


class _OfPart(NamedTuple):
    """What was found out of a run and the queries of a part: its ``first`` query id, and hashes of ids of no query."""

    first: str | None
    is_evaluated: bool
    ignored: pl.Series
    order: tuple[int, int, int, int]


def read_lists(
    paths: tuple[Location, ...],
    queries: pl.DataFrame,
    parts: Parts,
    *,
    k: int,
    numbering: Numbering,
    ignore_identical_ids: bool = False,
    given: pl.DataFrame | None = None,
    on_rows: Callable[[int], None] = lambda rows: None,
) -> Lists:
    """Read the lists of all runs; one that has no known query id is keyed by the texts of queries.

    Args:
        queries: as ``Parts.queries``, of all queries of the file.
        numbering: of these queries, which sees the ids of runs.
        given: the run table of all runs where these were read before, since they carry the texts of passages.

    Raises:
        InputError: a run cannot be used, or lists none of the queries.
    """
    evaluated = int(queries[IS_EVALUATED].sum())
    work = _ReadingRuns(parts, k, on_rows, ignore_identical_ids, numbering)
    listed_runs: list[tuple[str, list[_OfPart]]] = []
    sources: dict[str, Location] = {}
    held = None if given is None else given.partition_by(RUN, maintain_order=True)
    for number, path in enumerate(paths):
        listed_runs.append(
            work.list_run(number, path) if held is None else work.take(number, held[number])
        )
        read.require_new_name(path, listed_runs[-1][0], sources)
    numbering.check()
    for path, (_, run_parts) in zip(paths, listed_runs, strict=True):
        if not any(part.is_evaluated for part in run_parts):
            has = min(part.first for part in run_parts if part.first is not None)
            numbering.see([has], path)
            numbering.check()
            raise InputError(
                f"lists none of the {evaluated} queries of {numbering.path} "
                f"(it has {quoted(has)}, they have {quoted(queries[QUERY_ID][0])})",
                "give the queries that the run was made for",
                path=path,
            )
    all_parts = [part for _, run_parts in listed_runs for part in run_parts]
    ignored = pl.concat([pl.Series([], dtype=pl.UInt64), *(part.ignored for part in all_parts)])
    names = tuple(name for name, _ in listed_runs)
    orders = ((name, [part.order for part in run_parts]) for name, run_parts in listed_runs)
    notes = tuple(note for name, of in orders for note in read.order_notes(name, of))
    return Lists(parts, k, paths, names, ignored.n_unique(), work.taken, notes=notes)


@dataclass
class _ReadingRuns:
    """What all runs share while they are read; ``taken``: as in ``forms.Batch``."""

    parts: Parts
    k: int
    on_rows: Callable[[int], None]
    ignores: bool
    numbering: Numbering
    rows: int = 0
    taken: Counter[str] = field(default_factory=Counter)

    def list_run(self, number: int, path: Location) -> tuple[str, list[_OfPart]]:
        """Read a run: its name, and what was found out of each part."""
        any_known = False

        def look(batch: Batch) -> None:
            nonlocal any_known
            any_known = any_known or self._knows_some(batch.rows)
            self.rows += batch.rows.height
            self.taken += batch.taken
            self.on_rows(self.rows)

        def listed(part: int, rows: pl.DataFrame) -> _OfPart:
            if any_known:
                self.numbering.see(rows[QUERY_ID].unique(maintain_order=True), path)
            return self._listed(number, part, rows, by_text=not any_known)

        return read_in_parts(path, self.parts, listed, look)

    def take(self, number: int, rows: pl.DataFrame) -> tuple[str, list[_OfPart]]:
        """As ``list_run``, of a run that was read before."""
        by_text = not self._knows_some(rows)
        if not by_text:
            self.numbering.see(rows[QUERY_ID].unique(maintain_order=True), rows[RUN][0])
        self.parts.gather(iter([rows.with_columns(pl.lit(None, pl.Int64).alias(LINE))]))
        numbers = range(self.parts.count)
        run_parts = [self._listed(number, n, self.parts.rows(n), by_text=by_text) for n in numbers]
        return rows[RUN][0], run_parts

    def _knows_some(self, rows: pl.DataFrame) -> bool:
        return not self.parts.places.of(rows[QUERY_ID]).is_null().all()

    def _listed(self, number: int, part: int, rows: pl.DataFrame, *, by_text: bool) -> _OfPart:
        queries = self.parts.queries(part)
        if by_text:
            ids = queries.select(pl.col(QUERY).alias(QUERY_ID), pl.col(QUERY_ID).alias(ID))
            rows = with_ids(rows, ids, QUERY_ID).sort(QUERY_ID, RANK)
        first, has_some = rows[QUERY_ID][0] if rows.height else None, False
        if self.ignores:  # a list of its query alone is an empty one, and no stranger's
            asked = queries.filter(IS_EVALUATED)
            has_some = not rows.join(asked, on=QUERY_ID, how="semi").is_empty()
            rows = read.without_identical(rows)
        run = pl.lit(number, pl.UInt32).alias(RUN)
        rows = rows.select(QUERY_ID, DOC_ID, RANK, SCORE, run, STATED_RANK)
        joined = rows.join(
            queries.select(QUERY_ID, IS_EVALUATED), on=QUERY_ID, how="left", maintain_order="left"
        )
        evaluated = joined[IS_EVALUATED]
        kept = rows.filter(evaluated, pl.col(RANK) <= self.k + 1)
        self.parts.keep(part, number, kept.drop(STATED_RANK))
        return _OfPart(
            first,
            has_some or not kept.is_empty(),
            rows[QUERY_ID].filter(evaluated.is_null()).unique().hash(),
            read.order_of(kept, self.k),
        )
