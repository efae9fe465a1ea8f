"""What runs list for the queries of an evaluation: checked, in order, perturbed and cut.

Lists come in parts that have all rows of a query: one part where everything is held, many where a run is
larger than memory. A part is worked on alone; what only all parts together show (a run that lists none of the
queries, edits that leave nothing, documents that the corpus lacks) is refused once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np
import polars as pl

from engine import tables
from engine.errors import InputError
from engine.evaluation.by_text import ids_of_texts, keyed_by_text
from engine.evaluation.refusals import comes_twice, leaves_nothing, lists_none, not_in_corpus
from engine.sources.io.ahead import Made, mapped
from engine.sources.io.locations import Location
from engine.sources.io.places import Places
from engine.sources.passages.listed import Listed
from engine.sources.runs.checks import require_new_name
from engine.sources.runs.edits import Edit, EditedRun, apply_edits, read_edits
from engine.sources.runs.read import Gathered, OnePart, read_in_parts
from engine.sources.runs.records import LINE
from engine.sources.runs.scan import Batch
from engine.sources.runs.texts import with_ids
from engine.tables import DOC_ID, QUERY_ID, RANK, RUN, SCORE

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
        ...

    def keep(self, part: int, run: int, lists: pl.DataFrame) -> None:
        """Keep the lists of a run for the queries of a part (``ROWS``)."""
        ...

    def kept(self, part: int) -> pl.DataFrame:
        """The lists of all runs for the queries of a part, run after run."""
        ...


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
        names: of all runs, those of edited runs last; the number of a run is its place.
        ignored: distinct queries of the runs that the queries file lacks.
        edits: the file of the edits, if there is one.
        edited: the edited runs.
        changed: their lists for the queries that some edit is about (``ROWS``).
        texts: documents that runs give by their texts, and their ids (``by_text.ids_of_texts``).
    """

    parts: Parts
    k: int
    paths: tuple[Location, ...]
    names: tuple[str, ...]
    ignored: int
    edits: Location | None = None
    edited: tuple[EditedRun, ...] = ()
    changed: pl.DataFrame = field(default_factory=lambda: tables.empty(ROWS))
    texts: pl.DataFrame = field(default_factory=pl.DataFrame)

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
        """The file of a run; of an edited run, that of its original."""
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


def read_lists(
    paths: tuple[Location, ...],
    queries: pl.DataFrame,
    parts: Parts,
    *,
    k: int,
    queries_file: Location,
    edits_file: Location | None = None,
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
        given: the run table of all runs where these were read before, since they carry the texts of passages.
        on_rows: called with the rows read so far, of all runs.

    Raises:
        InputError: a run or the edits cannot be used, a run lists none of the queries, or edits leave nothing
            of a run.
    """
    edits, fault = _edits(edits_file)
    evaluated = int(queries[IS_EVALUATED].sum())
    about = pl.Series(list({edit.query_id for edit in edits}), dtype=pl.String)
    work = _Work(parts, k, about, on_rows)
    found: list[tuple[str, list[_OfPart]]] = []
    sources: dict[str, Location] = {}
    held = None if given is None else given.partition_by(RUN, maintain_order=True)
    for number, path in enumerate(paths):
        found.append(
            work.list_run(number, path) if held is None else work.take(number, held[number])
        )
        require_new_name(path, found[-1][0], sources)
    for path, (_, of_run) in zip(paths, found, strict=True):
        if not any(one.is_evaluated for one in of_run):
            first = min(one.first for one in of_run if one.first is not None)
            named = queries[QUERY_ID][0]
            raise lists_none(path, first, queries=queries_file, count=evaluated, first=named)
    if fault is not None:
        raise fault
    of_parts = [one for _, of_run in found for one in of_run]
    ignored = pl.concat([pl.Series([], dtype=pl.UInt64), *(one.ignored for one in of_parts)])
    names = tuple(name for name, _ in found)
    lists = Lists(parts, k, paths, names, ignored.n_unique())
    if edits_file is None:
        return lists
    full = pl.concat([one.edited for one in of_parts])
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
class _Work:
    """What all runs share while they are read.

    Attributes:
        parts: where their lists are gathered and kept.
        k: the cutoff.
        about: ids of the queries that some edit is about.
        on_rows: called with the rows so far.
        rows: of all runs so far.
    """

    parts: Parts
    k: int
    about: pl.Series
    on_rows: Callable[[int], None]
    rows: int = 0

    def list_run(self, number: int, path: Location) -> tuple[str, list[_OfPart]]:
        """Read a run: its name, and what was found out of each part."""
        any_known = False

        def look(batch: Batch) -> None:
            nonlocal any_known
            any_known = any_known or self._knows_some(batch.rows)
            self.rows += batch.rows.height
            self.on_rows(self.rows)

        def listed(part: int, rows: pl.DataFrame) -> _OfPart:
            return self._listed(number, part, rows, by_text=not any_known)

        return read_in_parts(path, self.parts, listed, look)

    def take(self, number: int, rows: pl.DataFrame) -> tuple[str, list[_OfPart]]:
        """As ``list_run``, of a run that was read before."""
        by_text = not self._knows_some(rows)
        self.parts.gather(iter([rows.with_columns(pl.lit(None, pl.Int64).alias(LINE))]))
        of_parts = range(self.parts.count)
        found = [self._listed(number, n, self.parts.rows(n), by_text=by_text) for n in of_parts]
        return rows[RUN][0], found

    def _knows_some(self, rows: pl.DataFrame) -> bool:
        return not self.parts.places.of(rows[QUERY_ID]).is_null().all()

    def _listed(self, number: int, part: int, rows: pl.DataFrame, *, by_text: bool) -> _OfPart:
        queries = self.parts.queries(part)
        if by_text:
            rows = keyed_by_text(rows, queries)
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
    """The lists with those of edited runs, of which ``full`` has the lists that edits are about."""
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
            raise leaves_nothing(lists.edits, run.original, evaluated)


def named_by_id(lists: Lists, passages: Listed, corpus: Location | None) -> Lists:
    """The lists with ids of documents, whose passages are looked up, in place of texts of passages.

    Args:
        lists: of all runs.
        passages: takes note of the listed passages.
        corpus: where they are looked up, for errors; None for the texts that the runs carry.

    Raises:
        InputError: the corpus cannot be used, lacks a document, or a run lists a document by its id and by
            its text.
    """
    texts = [pl.Series([], dtype=pl.String)]
    lacks_some = False
    for ids in lists.map(lambda rows: rows[DOC_ID].unique()):
        unknown = passages.look_up(ids)
        # Texts hold white space and ids of TREC runs cannot, so the corpus is looked through only for texts.
        is_text = unknown.str.contains(r"\s")
        texts.append(unknown.filter(is_text))
        lacks_some = lacks_some or not is_text.all()
    wanted = pl.concat(texts).unique()
    if not wanted.is_empty():
        named = passages.look_up_texts(wanted)
        lacks_some = lacks_some or named.height < len(wanted)
        lists = replace(lists, texts=ids_of_texts(named))
        _refuse_twice(lists)
    if lacks_some:
        _refuse_lost(lists, passages, corpus)
    return lists


_Row = tuple[str, str, int, str]


def _first(lists: Lists, fault: Callable[[pl.DataFrame], pl.DataFrame]) -> _Row | None:
    """Run, query id, rank and document id of the first row that has a fault, in this order."""
    found: list[_Row] = []
    for rows in lists:
        faulty = fault(rows).select(RUN, QUERY_ID, RANK, DOC_ID)
        found += faulty.sort(RUN, QUERY_ID, RANK).head(1).rows()
    return min(found, default=None)


def _refuse_twice(lists: Lists) -> None:
    """Refuse documents that come into a list by their id and by their text."""
    twice = pl.struct(RUN, QUERY_ID, DOC_ID).is_duplicated()
    first = _first(lists, lambda rows: rows.filter(twice))
    if first is not None:
        name, query_id, _, doc_id = first
        is_edited = name in {run.name for run in lists.edited}
        path = lists.edits if is_edited and lists.edits is not None else lists.path_of(name)
        raise comes_twice(path, query_id, doc_id)


def _refuse_lost(lists: Lists, passages: Listed, corpus: Location | None) -> None:
    """Refuse listed documents that the corpus lacks."""
    hashes = np.array([], dtype=np.uint64)

    def lost(rows: pl.DataFrame) -> pl.DataFrame:
        nonlocal hashes
        unknown = passages.unknown(rows[DOC_ID].unique())
        # 8 bytes a document that is lost, of which there may be as many as rows.
        hashes = np.union1d(hashes, unknown.hash().to_numpy())
        return rows.filter(pl.col(DOC_ID).is_in(unknown.implode()))

    first = _first(lists, lost)
    if first is not None:
        name, query_id, _, doc_id = first
        edited = next((run for run in lists.edited if run.name == name), None)
        inserted = edited.line_of(query_id, doc_id) if edited is not None else None
        raise not_in_corpus(
            (query_id, doc_id),
            len(hashes) - 1,
            corpus=corpus,
            run=lists.path_of(name),
            insertion=None if inserted is None or lists.edits is None else (lists.edits, inserted),
        )
