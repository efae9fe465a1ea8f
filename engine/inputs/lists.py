"""Check, order and cut the ranked lists of an evaluation.

Lists come in parts that have all rows of a query: a single part in memory, many parts if a run is larger than memory.
Parts are processed alone; a fault that only all parts together show (a run that lists none of the queries) is refused
once. Keys of runs may be texts of queries, as in the eRAG package.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import polars as pl

from engine import tables
from engine.messages.characters import composed
from engine.messages.errors import InputError
from engine.messages.notes import Note
from engine.messages.wording import quoted
from engine.sources.io.files import reported_writing
from engine.sources.io.ids import Places
from engine.sources.io.locations import Location
from engine.sources.io.parallel import Made, ahead, mapped
from engine.sources.io.scatter import RowsByPart, Scatter, arrange, read_part
from engine.sources.passages.index import Listed
from engine.sources.queries.buckets import BUCKETS, Counts, Range, buckets_of
from engine.sources.runs import read
from engine.sources.runs.forms import LINE, SCHEMA, Batch
from engine.sources.runs.read import ID, OnePart, read_in_parts, with_ids, with_query_ids
from engine.sources.runs.scan import bytes_of, line_of
from engine.sources.strangers import QueryNumbers
from engine.tables import DOC_ID, QUERY, QUERY_ID, RANK, RUN, SCORE, STATED_RANK, TEXT

IS_EVALUATED = "is_evaluated"
# Rows of lists; ``run`` is the number of the run.
ROWS: tables.Schema = {**tables.RUNS, RUN: pl.UInt32()}
BUCKET = "bucket"
# More would have more files open at a time than a process may.
MOST_PARTS = 256
# Bytes of runs, measured as TREC text, to order at a time: some 100,000 rows.
_PART_BYTES = 4 << 20
_GIVE_TEXTS = "give `corpus`, or write the texts of passages into the run"


class HeldPart(OnePart):
    """A store of lists as one part, in memory: rows of the current run, and the lists of all runs.

    ``places``: positions of the ids of all queries in their file.
    """

    def __init__(self, queries: pl.DataFrame) -> None:
        super().__init__()
        self.places = Places(queries[QUERY_ID])
        self._queries = queries
        self._lists = [tables.empty(ROWS)]

    def queries(self, part: int) -> pl.DataFrame:
        """``query_id``, ``query`` and ``is_evaluated`` of the queries of a part."""
        return self._queries

    def keep(self, part: int, run: int, lists: pl.DataFrame) -> None:
        """Keep the lists of a run for the queries of a part (``ROWS``)."""
        self._lists.append(lists)

    def lists(self, part: int) -> pl.DataFrame:
        """The lists of all runs for the queries of a part, run after run."""
        return pl.concat(self._lists)


class ScatteredParts:
    """Lists in files, as ``HeldPart``; the parts have the queries of equal ranges of buckets.

    Memory holds a few parts of a run, for runs of any size. The folder takes about 20 bytes and two ids a row of the
    largest run, and as much for each row that is kept.

    Args:
        queries: as ``HeldPart.queries``, of all queries of the file.
        folder: an empty folder of this process.
        count: of parts, a power of two up to ``MOST_PARTS``.
    """

    def __init__(self, queries: pl.DataFrame, folder: Path, count: int) -> None:
        self.count = count
        self.places = Places(queries[QUERY_ID])
        self.buckets = buckets_of(queries[QUERY])
        numbered = queries.with_columns(pl.Series(BUCKET, self.buckets))
        self._queries = SortedTable(numbered, self.buckets)
        self._width = BUCKETS // count
        self._raw, self._kept = folder / "raw", folder / "kept"
        self._kept.mkdir()
        self._runs = 0

    def queries(self, part: int) -> pl.DataFrame:
        return self._queries.within((part * self._width, self.end(part)))

    def end(self, part: int) -> int:
        """The end of a part's buckets, exclusive."""
        return (part + 1) * self._width

    def gather(self, batches: Iterator[pl.DataFrame]) -> None:
        shutil.rmtree(self._raw, ignore_errors=True)
        self._raw.mkdir()
        with Scatter(self._raw) as raw:
            for rows in mapped(self._arranged, ahead(batches)):
                raw.append(rows)

    def _arranged(self, rows: pl.DataFrame) -> RowsByPart | None:
        ids = rows[QUERY_ID]
        places = self.places.of(ids)
        buckets = self.buckets[places.fill_null(0).to_numpy()]
        unknown = places.is_null()
        if unknown.any():
            # The bucket of the key if it were the text of a query.
            texts = ids.filter(unknown).to_frame()
            distinct = texts.unique()
            likely = buckets_of(map(composed, distinct[QUERY_ID]))
            known = distinct.with_columns(pl.Series(BUCKET, likely))
            joined = texts.join(known, on=QUERY_ID, how="left", maintain_order="left")
            buckets[unknown.to_numpy()] = joined[BUCKET].to_numpy()
        return arrange(rows, pl.Series(buckets // self._width), SCHEMA)

    def rows(self, part: int) -> pl.DataFrame:
        return read_part(self._raw, part, SCHEMA)

    def keep(self, part: int, run: int, lists: pl.DataFrame) -> None:
        self._runs = max(self._runs, run + 1)
        if not lists.is_empty():
            with reported_writing(self._kept):
                lists.write_ipc(self._kept / f"{part}-{run}.arrow", compression="lz4")

    def lists(self, part: int) -> pl.DataFrame:
        paths = [self._kept / f"{part}-{run}.arrow" for run in range(self._runs)]
        frames = [pl.read_ipc(path) for path in paths if path.exists()]
        return pl.concat([tables.empty(ROWS), *frames])

    def with_buckets(self, part: int, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows of a part with the bucket of their query."""
        known = self.queries(part).select(QUERY_ID, BUCKET)
        return rows.join(known, on=QUERY_ID, how="left", maintain_order="left")


class SortedTable:
    """A table in memory, sorted by bucket: ranges of buckets need no full scan."""

    def __init__(self, table: pl.DataFrame, buckets: Counts) -> None:
        self._order = np.argsort(buckets, kind="stable")
        self._buckets = buckets[self._order]
        self._table = table

    def within(self, span: Range) -> pl.DataFrame:
        """The rows in a range of buckets, in the order of the table."""
        start, end = np.searchsorted(self._buckets, span)
        return self._table[np.sort(self._order[start:end])]


Parts = HeldPart | ScatteredParts


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
        """Yield the function's results for the lists up to the cutoff, part after part; threads call it."""
        return mapped(lambda part: function(self.read(part)), range(self.parts.count))

    def read(self, part: int) -> pl.DataFrame:
        """The run table of a part, to the cutoff."""
        rows = self.parts.lists(part).filter(pl.col(RANK) <= self.k)
        if not self.texts.is_empty():
            rows = with_ids(rows, self.texts, DOC_ID)
        names = pl.Series(RUN, self.names, dtype=pl.String)
        return rows.with_columns(names.gather(rows[RUN]).alias(RUN)).select(list(tables.RUNS))

    def cut_runs(self) -> tuple[str, ...]:
        """The runs that list more for some query than the cutoff keeps: one rank beyond it is kept."""

        def cut_in(part: int) -> pl.Series:
            return self.parts.lists(part).filter(pl.col(RANK) > self.k)[RUN].unique()

        cut = {run for runs in mapped(cut_in, range(self.parts.count)) for run in runs}
        return tuple(self.names[run] for run in sorted(cut))

    def path_of(self, run: str) -> Location:
        """The file of a run."""
        return self.paths[self.names.index(run)]


class _OfPart(NamedTuple):
    """A run's ``first`` query id among the queries of a part, and hashes of ids of no query."""

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
    numbering: QueryNumbers,
    ignore_identical_ids: bool = False,
    loaded: pl.DataFrame | None = None,
    on_rows: Callable[[int], None] = lambda rows: None,
) -> Lists:
    """Read the lists of all runs; one that has no known query id is keyed by the texts of queries.

    Args:
        queries: as ``HeldPart.queries``, of all queries of the file.
        numbering: numbering for the queries, which sees the ids of runs.
        loaded: the run table of all runs if they were read before, since they carry the texts of passages.

    Raises:
        InputError: a run cannot be used, or lists none of the queries.
    """
    work = _ReadingRuns(parts, k, on_rows, ignore_identical_ids, numbering)
    listed_runs: list[tuple[str, list[_OfPart]]] = []
    sources: dict[str, Location] = {}
    own = None if loaded is None else loaded.partition_by(RUN, maintain_order=True)
    for number, path in enumerate(paths):
        listed_runs.append(
            work.list_run(number, path) if own is None else work.take(number, own[number])
        )
        read.require_new_name(path, listed_runs[-1][0], sources)
    numbering.check()
    for path, (_, run_parts) in zip(paths, listed_runs, strict=True):
        if not any(part.is_evaluated for part in run_parts):
            has = min(part.first for part in run_parts if part.first is not None)
            numbering.see([has], path)
            numbering.check()
            problem = f"lists none of the {queries[IS_EVALUATED].sum()} queries of {numbering.path}"
            problem += f" (it has {quoted(has)}, they have {quoted(queries[QUERY_ID][0])})"
            remedy = "give the queries that the run was made for"
            raise InputError(problem, remedy, "inputs.unrelated", path=path)
    all_parts = [part for _, run_parts in listed_runs for part in run_parts]
    ignored = pl.concat([pl.Series([], dtype=pl.UInt64), *(part.ignored for part in all_parts)])
    names = tuple(name for name, _ in listed_runs)
    orders = ((name, [part.order for part in run_parts]) for name, run_parts in listed_runs)
    notes = tuple(note for name, of in orders for note in read.order_notes(name, of))
    return Lists(parts, k, paths, names, ignored.n_unique(), work.taken, notes=notes)


@dataclass
class _ReadingRuns:
    """Shared state of all runs during reading; ``taken``: as in ``forms.Batch``."""

    parts: Parts
    k: int
    on_rows: Callable[[int], None]
    ignores: bool
    numbering: QueryNumbers
    rows: int = 0
    taken: Counter[str] = field(default_factory=Counter)

    def list_run(self, number: int, path: Location) -> tuple[str, list[_OfPart]]:
        """Read a run: its name, and its findings by part."""
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
        """As ``list_run``, for a run in memory."""
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
            rows = with_query_ids(rows, queries).sort(QUERY_ID, RANK)
        first, has_some = rows[QUERY_ID][0] if rows.height else None, False
        if self.ignores:  # a list of its query alone is an empty one, and no stranger's
            evaluated = queries.filter(IS_EVALUATED)
            has_some = not rows.join(evaluated, on=QUERY_ID, how="semi").is_empty()
            rows = read.without_identical(rows)
        run, known = pl.lit(number, pl.UInt32).alias(RUN), queries.select(QUERY_ID, IS_EVALUATED)
        rows = rows.select(QUERY_ID, DOC_ID, RANK, SCORE, run, STATED_RANK)
        rows = rows.join(known, on=QUERY_ID, how="left", maintain_order="left")
        lists = rows.filter(IS_EVALUATED, pl.col(RANK) <= self.k + 1).drop(IS_EVALUATED)
        self.parts.keep(part, number, lists.drop(STATED_RANK))
        return _OfPart(
            first,
            has_some or not lists.is_empty(),
            rows.filter(pl.col(IS_EVALUATED).is_null())[QUERY_ID].unique().hash(),
            read.order_of(lists, self.k),
        )


def named_by_id(lists: Lists, passages: Listed, corpus: Location | None) -> Lists:
    """The lists with ids of documents in place of texts, which ``passages`` resolves.

    Raises:
        InputError: the corpus cannot be used, lacks a document, or a run lists a document by its id and by
            its text.
    """
    texts = [pl.Series([], dtype=pl.String)]
    lacks_some = False
    for ids in lists.map(lambda rows: rows[DOC_ID].unique()):
        unknown = passages.look_up(ids)
        # Texts hold white space and ids of TREC runs cannot, so the corpus is searched only for texts; texts that runs
        # carry have ids by now.
        is_text = unknown.str.contains(r"\s") & (corpus is not None)
        texts.append(unknown.filter(is_text))
        lacks_some = lacks_some or not is_text.all()
    wanted = pl.concat(texts).str.normalize("NFC").unique()  # as the corpus is read
    if not wanted.is_empty():
        named = passages.look_up_texts(wanted)
        lacks_some = lacks_some or named.height < len(wanted)
        texts_named = named.select(pl.col(TEXT).alias(DOC_ID), pl.col(DOC_ID).alias(ID))
        _refuse_twice(lists := replace(lists, texts=texts_named))
    if lacks_some:
        _refuse_lost(lists, passages, corpus)
    return lists


_Row = tuple[str, str, int, str]


def _first(lists: Lists, fault: Callable[[pl.DataFrame], pl.DataFrame]) -> _Row | None:
    """Run, query id, rank and document id of the first row that has a fault, in this order."""
    firsts: list[_Row] = []
    for rows in lists:
        faulty = fault(rows).select(RUN, QUERY_ID, RANK, DOC_ID)
        firsts += faulty.sort(RUN, QUERY_ID, RANK).head(1).rows()
    return min(firsts, default=None)


def _refuse_twice(lists: Lists) -> None:
    twice = pl.struct(RUN, QUERY_ID, DOC_ID).is_duplicated()
    if first := _first(lists, lambda rows: rows.filter(twice)):
        name, query_id, _, doc_id = first
        problem = f"document {quoted(doc_id)} comes into the list of query {quoted(query_id)} twice"
        problem, path = f"{problem}, by its id and by its text", lists.path_of(name)
        raise InputError(problem, "name it once", "inputs.duplicate", path=path)


def _refuse_lost(lists: Lists, passages: Listed, corpus: Location | None) -> None:
    hashes = np.array([], dtype=np.uint64)

    def lost(rows: pl.DataFrame) -> pl.DataFrame:
        nonlocal hashes
        unknown = passages.unknown(rows[DOC_ID].unique())
        # 8 bytes per missing document, at most one per row.
        hashes = np.union1d(hashes, unknown.hash().to_numpy())
        return rows.filter(pl.col(DOC_ID).is_in(unknown.implode()))

    if (first := _first(lists, lost)) is None:
        return
    name, query_id, _, doc_id = first
    path = lists.path_of(name)
    line = line_of(path, query_id, doc_id) if lists.are_files else None
    texts = _GIVE_TEXTS if lists.are_files else "give `passages`, or runs with texts"
    remedy = texts if corpus is None else "give the corpus that the run was made from"
    more = f" and {len(hashes) - 1} more" if len(hashes) > 1 else ""
    where = "without a text in any run" if corpus is None else f"not in the corpus {corpus}"
    problem = f"document {quoted(doc_id)} of query {quoted(query_id)}{more} {where}"
    raise InputError(problem, remedy, "inputs.passage", path=path, line=line)


def count_parts(runs: Sequence[Location]) -> int:
    """How many parts of all runs are about as large as may be ordered at a time."""
    try:
        needed = sum(bytes_of(path) for path in runs) // _PART_BYTES
    except InputError:
        return 1  # an unreadable run
    return min(1 << needed.bit_length(), MOST_PARTS)


def pairs_by_bucket(lists: Lists) -> Counts:
    """How many distinct pairs of query and document each bucket has, of lists in ``ScatteredParts``."""
    parts = lists.parts
    assert isinstance(parts, ScatteredParts)

    def pairs_of(part: int) -> Counts:
        rows = parts.with_buckets(part, lists.read(part))
        # A run lists a pair once.
        pairs = rows if len(lists.names) == 1 else rows.select(BUCKET, QUERY_ID, DOC_ID).unique()
        return np.bincount(pairs[BUCKET].to_numpy(), minlength=BUCKETS)

    total = np.zeros(BUCKETS, dtype=np.int64)
    for counts in mapped(pairs_of, range(parts.count)):
        total += counts
    return total
