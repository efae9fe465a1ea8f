"""Check, order, perturb and cut the ranked lists of an evaluation.

Lists come in parts that have all rows of a query: one part where everything is held, many where a run is
larger than memory. A part is worked on alone; what only all parts together show (a run that lists none of the
queries, edits that leave nothing) is refused once. Keys of runs may be texts of queries, as in the eRAG package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import polars as pl

from engine import tables
from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.sources.io.ahead import Made, mapped
from engine.sources.io.locations import Location
from engine.sources.io.places import Places
from engine.sources.runs.checks import require_new_name, without_identical
from engine.sources.runs.edits import Edit, PerturbedRun, apply_edits, read_edits
from engine.sources.runs.read import Gathered, OnePart, read_in_parts
from engine.sources.runs.records import LINE
from engine.sources.runs.scan import Batch
from engine.sources.runs.texts import ID, with_ids
from engine.tables import DOC_ID, QUERY, QUERY_ID, RANK, RUN, SCORE

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
    """One part, in memory.

    Args:
        queries: as ``Parts.queries``, of all queries of the file.
    """

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
        parts: where the lists of the runs are.
        k: the cutoff.
        paths: the files of the runs.
        names: of all runs, those of perturbed runs last; the number of a run is its place.
        ignored: distinct queries of the runs that the queries file lacks.
        written: how many lists were written as a text.
        edits: the file of the edits, if there is one.
        edited: the perturbed runs.
        changed: their lists for the queries that some edit is about (``ROWS``).
        texts: documents that runs give by their texts, and their ids, as ``with_ids`` takes them.
        are_files: whether ``paths`` are files; else names of runs.
    """

    parts: Parts
    k: int
    paths: tuple[Location, ...]
    names: tuple[str, ...]
    ignored: int
    written: int
    edits: Location | None = None
    edited: tuple[PerturbedRun, ...] = ()
    changed: pl.DataFrame = field(default_factory=lambda: tables.empty(ROWS))
    texts: pl.DataFrame = field(default_factory=pl.DataFrame)
    are_files: bool = True

    def __iter__(self) -> Iterator[pl.DataFrame]:
        return self.map(lambda rows: rows)

    def map(self, function: Callable[[pl.DataFrame], Made]) -> Iterator[Made]:
        """Yield what a function makes of the lists up to the cutoff, part after part; it is called in threads."""
        return mapped(lambda part: function(self.read(part, self.k)), range(self.parts.count))

    def read(self, part: int, deepest: int) -> pl.DataFrame:
        """The run table of a part, run after run; a list that goes on below the cutoff has one rank beyond it.

        Args:
            part: which one.
            deepest: ranks are given up to this one.
        """
        rows = self.parts.kept(part)
        if self.edited:
            rows = pl.concat([rows, *self._perturbed(part, rows)])
        rows = rows.filter(pl.col(RANK) <= deepest)
        if not self.texts.is_empty():
            rows = with_ids(rows, self.texts, DOC_ID)
        names = pl.Series(RUN, self.names, dtype=pl.String)
        return rows.with_columns(names.gather(rows[RUN]).alias(RUN)).select(list(tables.RUNS))

    def path_of(self, run: str) -> Location:
        """The file of a run; of a perturbed run, that of its original."""
        originals = {one.name: one.original for one in self.edited}
        return self.paths[self.names.index(originals.get(run, run))]

    def _perturbed(self, part: int, rows: pl.DataFrame) -> Iterator[pl.DataFrame]:
        queries = self.parts.queries(part).filter(IS_EVALUATED)
        changed = self.changed.join(queries, on=QUERY_ID, how="semi")
        for number, run in enumerate(self.edited, len(self.paths)):
            edited = pl.Series([edit.query_id for edit in run.edits], dtype=pl.String).implode()
            same = rows.filter(
                pl.col(RUN) == self.names.index(run.original), ~pl.col(QUERY_ID).is_in(edited)
            )
            both = [
                same.with_columns(pl.lit(number, pl.UInt32).alias(RUN)),
                changed.filter(pl.col(RUN) == number, pl.col(QUERY_ID).is_in(edited)),
            ]
            yield pl.concat(both).sort(QUERY_ID, RANK)


class _OfPart(NamedTuple):
    """What was found out of a run and the queries of a part.

    Attributes:
        first: the first of its query ids, in their order; None for a part without rows.
        is_evaluated: whether it lists a query that is evaluated.
        ignored: hashes of the distinct ids that are not those of queries.
        edited: lists in full, of the queries that some edit is about.
    """

    first: str | None
    is_evaluated: bool
    ignored: pl.Series
    edited: pl.DataFrame


# Wide: what is read, where it waits, and what is left out of it belong together.
def read_lists(
    paths: tuple[Location, ...],
    queries: pl.DataFrame,
    parts: Parts,
    *,
    k: int,
    queries_file: Location,
    edits_file: Location | None = None,
    ignore_identical_ids: bool = False,
    given: pl.DataFrame | None = None,
    on_rows: Callable[[int], None] = lambda rows: None,
) -> Lists:
    """Read the lists of all runs.

    A run that has no known query id is keyed by the texts of queries. Edits are applied before the cutoff, so
    that documents below a deleted one move up; the lists that they are about are held in memory, whatever the
    parts are.

    Args:
        paths: the files of the runs.
        queries: as ``Parts.queries``, of all queries of the file.
        parts: of these queries, where lists are gathered and kept.
        k: passages per query at most.
        queries_file: where they come from.
        edits_file: edits, if there are any.
        ignore_identical_ids: whether documents with the id of their query are left out, before edits.
        given: the run table of all runs where these were read before, since they carry the texts of passages.
        on_rows: called with the rows read so far, of all runs.

    Raises:
        InputError: a run or the edits cannot be used, a run lists none of the queries, or edits leave nothing
            of a run.
    """
    edits, fault = _edits(edits_file)
    evaluated = int(queries[IS_EVALUATED].sum())
    about = pl.Series(list({edit.query_id for edit in edits}), dtype=pl.String)
    work = _ReadingRuns(parts, k, about, on_rows, ignore_identical_ids)
    listed_runs: list[tuple[str, list[_OfPart]]] = []
    sources: dict[str, Location] = {}
    held = None if given is None else given.partition_by(RUN, maintain_order=True)
    for number, path in enumerate(paths):
        listed_runs.append(
            work.list_run(number, path) if held is None else work.take(number, held[number])
        )
        require_new_name(path, listed_runs[-1][0], sources)
    for path, (_, run_parts) in zip(paths, listed_runs, strict=True):
        if not any(part.is_evaluated for part in run_parts):
            has = min(part.first for part in run_parts if part.first is not None)
            raise InputError(
                f"lists none of the {evaluated} queries of {queries_file} "
                f"(it has {quoted(has)}, they have {quoted(queries[QUERY_ID][0])})",
                "give the queries that the run was made for",
                path=path,
            )
    if fault is not None:
        raise fault
    all_parts = [part for _, run_parts in listed_runs for part in run_parts]
    ignored = pl.concat([pl.Series([], dtype=pl.UInt64), *(part.ignored for part in all_parts)])
    names = tuple(name for name, _ in listed_runs)
    lists = Lists(parts, k, paths, names, ignored.n_unique(), work.written)
    if edits_file is None:
        return lists
    full = pl.concat([part.edited for part in all_parts])
    lists = _with_edits(lists, full, edits, edits_file, queries)
    _refuse_emptied(lists, evaluated)
    return lists


def _edits(path: Location | None) -> tuple[list[Edit], InputError | None]:
    """The edits of a file, and what is wrong with it, which comes behind what is wrong with the runs."""
    if path is None:
        return [], None
    try:
        return read_edits(path), None
    except InputError as error:
        return [], error


@dataclass
class _ReadingRuns:
    """What all runs share while they are read.

    Attributes:
        parts: where their lists are gathered and kept.
        k: the cutoff.
        about: ids of the queries that some edit is about.
        on_rows: called with the rows so far.
        ignores: whether documents with the id of their query are left out.
        rows: of all runs so far.
        written: how many of their lists were written as a text.
    """

    parts: Parts
    k: int
    about: pl.Series
    on_rows: Callable[[int], None]
    ignores: bool
    rows: int = 0
    written: int = 0

    def list_run(self, number: int, path: Location) -> tuple[str, list[_OfPart]]:
        """Read a run: its name, and what was found out of each part."""
        any_known = False

        def look(batch: Batch) -> None:
            nonlocal any_known
            any_known = any_known or self._knows_some(batch.rows)
            self.rows += batch.rows.height
            self.written += batch.written
            self.on_rows(self.rows)

        def listed(part: int, rows: pl.DataFrame) -> _OfPart:
            return self._listed(number, part, rows, by_text=not any_known)

        return read_in_parts(path, self.parts, listed, look)

    def take(self, number: int, rows: pl.DataFrame) -> tuple[str, list[_OfPart]]:
        """As ``list_run``, of a run that was read before."""
        by_text = not self._knows_some(rows)
        self.parts.gather(iter([rows.with_columns(pl.lit(None, pl.Int64).alias(LINE))]))
        numbers = range(self.parts.count)
        run_parts = [self._listed(number, n, self.parts.rows(n), by_text=by_text) for n in numbers]
        return rows[RUN][0], run_parts

    def _knows_some(self, rows: pl.DataFrame) -> bool:
        return not self.parts.places.of(rows[QUERY_ID]).is_null().all()

    def _listed(self, number: int, part: int, rows: pl.DataFrame, *, by_text: bool) -> _OfPart:
        queries = self.parts.queries(part)
        if by_text:
            rows = keyed_by_text(rows, queries)
        if self.ignores:
            rows = without_identical(rows)
        run = pl.lit(number, pl.UInt32).alias(RUN)
        rows = rows.select(QUERY_ID, DOC_ID, RANK, SCORE, run)
        joined = rows.join(
            queries.select(QUERY_ID, IS_EVALUATED), on=QUERY_ID, how="left", maintain_order="left"
        )
        evaluated = joined[IS_EVALUATED]
        kept = rows.filter(evaluated, pl.col(RANK) <= self.k + 1)
        self.parts.keep(part, number, kept)
        return _OfPart(
            rows[QUERY_ID][0] if rows.height else None,
            not kept.is_empty(),
            rows[QUERY_ID].filter(evaluated.is_null()).unique().hash(),
            rows.filter(pl.col(QUERY_ID).is_in(self.about.implode())),
        )


def _with_edits(
    lists: Lists, full: pl.DataFrame, edits: list[Edit], path: Location, queries: pl.DataFrame
) -> Lists:
    """The lists with those of perturbed runs, of which ``full`` has the lists that edits are about."""
    full = full.sort(RUN, QUERY_ID, RANK)
    named = full.with_columns(pl.Series(RUN, lists.names).gather(full[RUN]))
    query_ids = queries[QUERY_ID].to_list()
    changed, edited = apply_edits(named, edits, path=path, query_ids=query_ids, names=lists.names)
    names = (*lists.names, *(run.name for run in edited))
    numbers = pl.col(RUN).cast(pl.Enum(names)).to_physical().cast(pl.UInt32)
    return replace(
        lists, names=names, edits=path, edited=edited, changed=changed.with_columns(numbers)
    )


def _refuse_emptied(lists: Lists, evaluated: int) -> None:
    """Refuse edits that leave a run without documents."""
    if lists.edits is None:
        return
    left = {name for rows in lists for name in rows[RUN].unique()}
    for run in lists.edited:
        if run.name not in left:
            raise InputError(
                f"leaves {quoted(run.original)} no document for any of the {evaluated} queries",
                "keep at least one document",
                path=lists.edits,
            )


def keyed_by_text(run: pl.DataFrame, queries: pl.DataFrame) -> pl.DataFrame:
    """Lists in order whose keys are texts of queries, with the id of each query that has the text."""
    ids = queries.select(pl.col(QUERY).alias(QUERY_ID), pl.col(QUERY_ID).alias(ID))
    return with_ids(run, ids, QUERY_ID).sort(QUERY_ID, RANK)
