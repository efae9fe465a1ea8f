"""Runs of any size, checked, ordered and cut as ``inputs.read_inputs`` does it, part after part.

A run is streamed once, and its rows are scattered over files by the buckets of their queries. Each part,
which fits into memory, is then checked and ordered as a whole, and what the cutoff keeps is appended to a
second set of files, in which all runs lie together.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from engine import tables
from engine.errors import InputError
from engine.sources.io.locations import Location
from engine.sources.io.scatter import Scatter, read_part, scan_part
from engine.sources.queries.buckets import BUCKETS
from engine.sources.runs.forms import is_ranked
from engine.sources.runs.read import (
    by_rank,
    by_score,
    require_new_name,
    require_one_name,
    twice_in_parquet,
    twice_in_trec,
)
from engine.sources.runs.stream import LINE, SCHEMA, scan_run
from engine.tables import DOC_ID, QUERY, QUERY_ID, RANK, RUN, SCORE

# The number of a query: its place in the queries file, from 0.
NUMBER = "query_number"
# Whether the list of a row goes on below the cutoff.
BEYOND = "beyond"
# What the cutoff keeps; ``run`` is the number of the run, in the order of the files.
KEPT: tables.Schema = {
    RUN: pl.UInt32(),
    NUMBER: pl.UInt32(),
    DOC_ID: pl.String(),
    RANK: pl.Int64(),
    SCORE: pl.Float64(),
    BEYOND: pl.Boolean(),
}
# More would have more files open at a time than a process may: there are two of each part.
MOST_PARTS = 256
# Names of which one is kept beside the smallest: more than the message for several names shows.
_NAMES = 1000


@dataclass(frozen=True, eq=False)
class QueryKeys:
    """The queries of an evaluation, by number.

    Attributes:
        table: the queries table, of all queries of the file.
        evaluated: how many are evaluated: the first ones.
        buckets: the bucket of each.
        ids: their ids, whose physical values are the numbers.
    """

    table: pl.DataFrame
    evaluated: int
    buckets: npt.NDArray[np.int64]
    ids: pl.Enum


@dataclass(frozen=True)
class ListedRun:
    """What is known of a run that was scattered.

    Attributes:
        name: of the system.
        path: its file.
        first: the first of its query ids, in their order.
        is_evaluated: whether it lists any of the queries evaluated.
    """

    name: str
    path: Location
    first: str
    is_evaluated: bool


@dataclass(frozen=True, eq=False)
class RunParts:
    """The lists of all runs up to the cutoff, in files.

    Attributes:
        folder: where the files are.
        parts: into how many, a power of two; each has an equal range of buckets.
        runs: in the order of their files.
        ignored: distinct queries of the runs that the queries file lacks.
        whole: lists of the queries in question in full length, as the run table.
    """

    folder: Path
    parts: int
    runs: tuple[ListedRun, ...]
    ignored: int
    whole: pl.DataFrame

    def read(self, part: int) -> pl.DataFrame:
        """The rows of ``KEPT`` of the queries evaluated in a part."""
        frames = (read_part(_kept(self.folder, run), part, KEPT) for run in range(len(self.runs)))
        return pl.concat(frames)


@dataclass
class _Work:
    """What all runs share while they are scattered."""

    keys: QueryKeys
    k: int
    folder: Path
    parts: int
    whole_of: pl.Series
    on_rows: Callable[[int], None]
    texts: pl.DataFrame | None = None
    whole: list[pl.DataFrame] = field(default_factory=list)


def scatter_runs(
    paths: Sequence[Location],
    keys: QueryKeys,
    folder: Path,
    *,
    k: int,
    parts: int,
    whole_of: Sequence[str] = (),
    on_rows: Callable[[int], None] = lambda rows: None,
) -> RunParts:
    """Read, check, order and cut runs; memory is that of one part of one run, whatever their size.

    A run that has no known query id is keyed by the texts of queries, as in ``inputs.read_inputs``.

    Args:
        paths: the files of the runs, in any layout of ``read_run``; JSON is read whole.
        keys: the queries.
        folder: an empty folder of this process; takes about 20 bytes and two ids a row of the largest run,
            and as much for each row that is kept.
        k: the cutoff.
        parts: into how many parts, a power of two up to ``MOST_PARTS``.
        whole_of: query ids whose lists are wanted beyond the cutoff.
        on_rows: called with the rows read so far, of all runs.

    Raises:
        InputError: as ``read_runs``.
        WriteError: the disk is full.
    """
    done = 0

    def count(rows: int) -> None:
        nonlocal done
        done += rows
        on_rows(done)

    work = _Work(keys, k, folder, parts, pl.Series(whole_of, dtype=pl.String), count)
    runs: list[ListedRun] = []
    sources: dict[str, Location] = {}
    for number, path in enumerate(paths):
        runs.append(_list_run(work, number, path, sources))
    names = pl.lit(pl.Series([run.name for run in runs], dtype=pl.String))
    return RunParts(
        folder=folder,
        parts=parts,
        runs=tuple(runs),
        ignored=sum(_distinct(folder, len(runs), part) for part in range(parts)),
        whole=pl.concat([tables.empty(_WHOLE), *work.whole])
        .sort(RUN, QUERY_ID, RANK)
        .with_columns(names.gather(pl.col(RUN)).alias(RUN)),
    )


def _kept(folder: Path, run: int) -> Path:
    return folder / f"kept-{run}"


def _ignored(folder: Path, run: int) -> Path:
    return folder / f"ignored-{run}"


def _distinct(folder: Path, runs: int, part: int) -> int:
    ids = tables.empty(_IGNORED)
    for run in range(runs):
        for batch in scan_part(_ignored(folder, run), part):
            ids = pl.concat([ids, batch]).unique()
    return ids.height


def _list_run(work: _Work, number: int, path: Location, sources: dict[str, Location]) -> ListedRun:
    raw = work.folder / "raw"
    for name in ("known", "unknown"):
        (raw / name).mkdir(parents=True)
    ranked = is_ranked(path)
    repeats = _Repeats(path, ranked, work.keys)
    try:
        seen = _scatter(work, path, raw)
    except InputError:
        if not ranked:  # a line above that of the error may be the first at fault
            for part in range(work.parts):
                for name, schema in (("known", _NUMBERED), ("unknown", SCHEMA)):
                    repeats.look(read_part(raw / name, part, schema))
            repeats.refuse()
        raise
    keep = _keep_known if seen.any_known else _keep_by_text
    for folder in (_kept(work.folder, number), _ignored(work.folder, number)):
        folder.mkdir()
    with (
        Scatter(_kept(work.folder, number), KEPT) as kept,
        Scatter(_ignored(work.folder, number), _IGNORED) as ignored,
    ):
        first, is_evaluated = keep(work, _Outputs(number, kept, ignored), seen, repeats, raw)
    repeats.refuse()
    names = sorted(seen.names)
    require_one_name(path, names)
    require_new_name(path, names[0], sources)
    shutil.rmtree(raw)
    return ListedRun(names[0], path, first, is_evaluated)


# Rows of a run with the numbers of queries as their ids; lists in full length with the number of the run.
_IGNORED: tables.Schema = {QUERY_ID: pl.String()}
_NUMBERED: tables.Schema = {**SCHEMA, QUERY_ID: pl.UInt32()}
_WHOLE: tables.Schema = {**tables.RUNS, RUN: pl.UInt32()}


@dataclass(frozen=True, eq=False)
class _Outputs:
    """Where the lists of a run go, and its queries that the queries file lacks."""

    number: int
    kept: Scatter
    ignored: Scatter


@dataclass
class _Seen:
    """What was seen of a run while it was streamed: names, the first query id, whether one is known."""

    names: set[str] = field(default_factory=set)
    first: str | None = None
    any_known: bool = False

    def add_names(self, names: Sequence[str]) -> None:
        self.names.update(names)
        if len(self.names) > _NAMES:
            self.names = set(sorted(self.names)[:_NAMES])


def _scatter(work: _Work, path: Location, raw: Path) -> _Seen:
    seen = _Seen()
    with Scatter(raw / "known", _NUMBERED) as known, Scatter(raw / "unknown", SCHEMA) as unknown:
        for batch in scan_run(path):
            seen.add_names(batch.names)
            if batch.rows.is_empty():
                continue
            smallest = batch.rows[QUERY_ID].min()
            assert isinstance(smallest, str)
            seen.first = smallest if seen.first is None else min(seen.first, smallest)
            numbers = batch.rows[QUERY_ID].cast(work.keys.ids, strict=False).to_physical()
            numbers = numbers.cast(pl.UInt32)
            is_known = numbers.is_not_null()
            numbered = batch.rows.with_columns(numbers).filter(is_known)
            seen.any_known = seen.any_known or not numbered.is_empty()
            known.add(numbered, _parts_of(work, numbered[QUERY_ID]))
            others = batch.rows.filter(~is_known)
            unknown.add(others, others[QUERY_ID].hash() % work.parts)
            work.on_rows(batch.rows.height)
    return seen


def _parts_of(work: _Work, numbers: pl.Series) -> pl.Series:
    buckets = work.keys.buckets[numbers.to_numpy()]
    return pl.Series(buckets // (BUCKETS // work.parts), dtype=pl.Int64)


def _keep_known(
    work: _Work, outputs: _Outputs, seen: _Seen, repeats: _Repeats, raw: Path
) -> tuple[str, bool]:
    is_evaluated = False
    for part in range(work.parts):
        rows = repeats.look(read_part(raw / "known", part, _NUMBERED))
        is_evaluated |= _keep(work, outputs, repeats.ordered(rows))
        others = repeats.look(read_part(raw / "unknown", part, SCHEMA)).select(QUERY_ID).unique()
        outputs.ignored.add(others, others[QUERY_ID].hash() % work.parts)
    assert seen.first is not None
    return seen.first, is_evaluated


def _keep_by_text(
    work: _Work, outputs: _Outputs, seen: _Seen, repeats: _Repeats, raw: Path
) -> tuple[str, bool]:
    """Keep a run in which a text stands for every query that has it."""
    if work.texts is None:
        work.texts = work.keys.table.select(
            QUERY,
            pl.int_range(pl.len(), dtype=pl.UInt32).alias(NUMBER),
            pl.col(QUERY_ID).alias("id"),
        )
    is_evaluated = False
    first: set[str] = set()
    for part in range(work.parts):
        rows = repeats.ordered(repeats.look(read_part(raw / "unknown", part, SCHEMA)))
        of_ids = rows.join(work.texts, left_on=QUERY_ID, right_on=QUERY, how="left")
        known = of_ids.filter(pl.col(NUMBER).is_not_null())
        is_evaluated |= _keep(work, outputs, known.drop(QUERY_ID).rename({NUMBER: QUERY_ID}))
        others = of_ids.filter(pl.col(NUMBER).is_null()).select(QUERY_ID).unique()
        outputs.ignored.add(others, others[QUERY_ID].hash() % work.parts)
        smallest = (known["id"].min(), others[QUERY_ID].min())
        first.update(query_id for query_id in smallest if isinstance(query_id, str))
    return min(first, default=""), is_evaluated


def _keep(work: _Work, outputs: _Outputs, rows: pl.DataFrame) -> bool:
    """Keep of ordered lists, with the numbers of queries as their ids, what is evaluated and within the
    cutoff, and in full length those that are wanted so. Whether any is evaluated."""
    if len(work.whole_of):
        ids = work.keys.table[QUERY_ID].gather(rows[QUERY_ID])
        full = rows.with_columns(ids).filter(pl.col(QUERY_ID).is_in(work.whole_of.implode()))
        work.whole.append(
            full.with_columns(pl.lit(outputs.number, pl.UInt32).alias(RUN)).select(list(_WHOLE))
        )
    evaluated = rows.filter(pl.col(QUERY_ID) < work.keys.evaluated)
    kept = (
        evaluated.with_columns((pl.col(RANK).max().over(QUERY_ID) > work.k).alias(BEYOND))
        .filter(pl.col(RANK) <= work.k)
        .rename({QUERY_ID: NUMBER})
        .with_columns(pl.lit(outputs.number, pl.UInt32).alias(RUN))
    )
    outputs.kept.add(kept, _parts_of(work, kept[NUMBER]))
    return not evaluated.is_empty()


class _Repeats:
    """Looks for documents and ranks that a run lists twice, in one part after another.

    As in ``read_run``, the line that repeats first counts in TREC text; in Parquet the first row of those
    that are repeated, with documents before ranks.
    """

    def __init__(self, path: Location, ranked: bool, keys: QueryKeys) -> None:
        self._path = path
        self._ranked = ranked
        self._keys = keys
        self._found: list[tuple[tuple[int, int], InputError]] = []

    def ordered(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The lists of a part in their order, with ranks from 1."""
        return by_rank(rows) if self._ranked else by_score(rows)

    def look(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Look through a part that has all rows of its queries; gives it back."""
        columns = [(DOC_ID, "document"), (RANK, "rank")] if self._ranked else [(DOC_ID, "document")]
        for place, (column, what) in enumerate(columns):
            # Hashes first, since hardly any run repeats anything.
            hashes = rows.select(pl.col(QUERY_ID).hash(1) ^ pl.col(column).hash(2)).to_series()
            if hashes.n_unique() < rows.height:
                self._note(rows.sort(LINE), column, what, place)
        return rows

    def _note(self, rows: pl.DataFrame, column: str, what: str, place: int) -> None:
        repeated = rows.filter(pl.struct(QUERY_ID, column).is_duplicated())
        if repeated.is_empty():
            return
        if self._ranked:
            query, value, line = repeated.select(QUERY_ID, column, LINE).row(0)
            error = twice_in_parquet(self._path, self._id(query), value, what)
        else:
            again = repeated.filter(~pl.struct(QUERY_ID, column).is_first_distinct())
            query, value, line = again.select(QUERY_ID, column, LINE).row(0)
            same = (pl.col(QUERY_ID) == query) & (pl.col(column) == value)
            first = repeated.filter(same)[LINE][0]
            error = twice_in_trec(self._path, line, self._id(query), value, first)
        self._found.append(((place, line), error))

    def _id(self, query: int | str) -> str:
        return query if isinstance(query, str) else str(self._keys.table[QUERY_ID][query])

    def refuse(self) -> None:
        """Refuse what was found.

        Raises:
            InputError: the run lists a document or a rank twice.
        """
        if self._found:
            raise min(self._found, key=lambda found: found[0])[1]


def part_ranges(parts: int) -> Iterator[tuple[int, int]]:
    """The range of buckets of each part, [low, high)."""
    width = BUCKETS // parts
    for part in range(parts):
        yield part * width, (part + 1) * width
