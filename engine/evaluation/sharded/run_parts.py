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
from typing import NamedTuple

import polars as pl

from engine import tables
from engine.errors import InputError
from engine.evaluation.sharded.query_keys import QueryKeys
from engine.evaluation.sharded.repeats import Repeats
from engine.sources.io.ahead import ahead, mapped
from engine.sources.io.locations import Location
from engine.sources.io.scatter import Arranged, Scatter, arrange, read_part, scan_part
from engine.sources.queries.buckets import BUCKETS
from engine.sources.runs.forms import is_ranked
from engine.sources.runs.read import require_new_name, require_one_name
from engine.sources.runs.stream import SCHEMA, Batch, scan_run
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
    repeats = Repeats(path, ranked, work.keys.table[QUERY_ID])
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
        Scatter(_kept(work.folder, number)) as kept,
        Scatter(_ignored(work.folder, number)) as ignored,
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
    with Scatter(raw / "known") as known, Scatter(raw / "unknown") as unknown:
        for batch in mapped(lambda batch: _numbered(work, batch), ahead(scan_run(path))):
            seen.add_names(batch.names)
            if batch.smallest is None:
                continue
            seen.first = batch.smallest if seen.first is None else min(seen.first, batch.smallest)
            seen.any_known = seen.any_known or batch.known is not None
            known.append(batch.known)
            unknown.append(batch.unknown)
            work.on_rows(batch.rows)
    return seen


class _Numbered(NamedTuple):
    """A batch of a run by parts: rows of known queries with their numbers, and others.

    Attributes:
        names: of the run.
        rows: how many there are.
        smallest: the first of the query ids in their order; None where there are no rows.
        known, unknown: as ``_NUMBERED`` and ``SCHEMA``; None where there are none.
    """

    names: tuple[str, ...]
    rows: int
    smallest: str | None
    known: Arranged | None
    unknown: Arranged | None


def _numbered(work: _Work, batch: Batch) -> _Numbered:
    ids = batch.rows[QUERY_ID]
    smallest = ids.min()
    assert smallest is None or isinstance(smallest, str)
    numbers = work.keys.numbers.of(ids).cast(pl.UInt32).alias(QUERY_ID)
    is_known = numbers.is_not_null()
    known = batch.rows.with_columns(numbers)
    others = batch.rows.clear()
    if not is_known.all():
        known, others = known.filter(is_known), batch.rows.filter(~is_known)
    return _Numbered(
        batch.names,
        batch.rows.height,
        smallest,
        arrange(known, _parts_of(work, known[QUERY_ID]), _NUMBERED),
        arrange(others, others[QUERY_ID].hash() % work.parts, SCHEMA),
    )


def _parts_of(work: _Work, numbers: pl.Series) -> pl.Series:
    buckets = work.keys.buckets[numbers.to_numpy()]
    return pl.Series(buckets // (BUCKETS // work.parts), dtype=pl.Int64)


def _keep_known(
    work: _Work, outputs: _Outputs, seen: _Seen, repeats: Repeats, raw: Path
) -> tuple[str, bool]:
    def of_part(part: int) -> tuple[_Kept, Arranged | None]:
        rows = repeats.look(read_part(raw / "known", part, _NUMBERED))
        kept = _kept_of(work, outputs.number, repeats.ordered(rows))
        return kept, _others(work, repeats.look(read_part(raw / "unknown", part, SCHEMA))[QUERY_ID])

    is_evaluated = False
    for kept, others in mapped(of_part, range(work.parts)):
        is_evaluated |= _keep(work, outputs, kept)
        outputs.ignored.append(others)
    assert seen.first is not None
    return seen.first, is_evaluated


def _others(work: _Work, ids: pl.Series) -> Arranged | None:
    """The distinct ones of some ids that are not those of queries, by parts."""
    distinct = ids.unique()
    return arrange(distinct.to_frame(), distinct.hash() % work.parts, _IGNORED)


def _keep_by_text(
    work: _Work, outputs: _Outputs, seen: _Seen, repeats: Repeats, raw: Path
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
        numbered = known.drop(QUERY_ID).rename({NUMBER: QUERY_ID})
        is_evaluated |= _keep(work, outputs, _kept_of(work, outputs.number, numbered))
        others = of_ids.filter(pl.col(NUMBER).is_null())[QUERY_ID]
        outputs.ignored.append(_others(work, others))
        smallest = (known["id"].min(), others.min())
        first.update(query_id for query_id in smallest if isinstance(query_id, str))
    return min(first, default=""), is_evaluated


class _Kept(NamedTuple):
    """What is kept of a part of a run.

    Attributes:
        rows: of ``KEPT``, by parts; None where there are none.
        is_evaluated: whether any query of it is evaluated.
        whole: the lists that are wanted in full length.
    """

    rows: Arranged | None
    is_evaluated: bool
    whole: pl.DataFrame | None


def _kept_of(work: _Work, number: int, rows: pl.DataFrame) -> _Kept:
    """Of ordered lists, with the numbers of queries as their ids, what is evaluated and within the
    cutoff, and in full length those that are wanted so."""
    whole = None
    run = pl.lit(number, pl.UInt32).alias(RUN)
    if len(work.whole_of):
        ids = work.keys.table[QUERY_ID].gather(rows[QUERY_ID])
        full = rows.with_columns(ids).filter(pl.col(QUERY_ID).is_in(work.whole_of.implode()))
        whole = full.with_columns(run).select(list(_WHOLE))
    kept = (
        rows.lazy()
        .filter(pl.col(QUERY_ID) < work.keys.evaluated)
        .with_columns((pl.col(RANK).max().over(QUERY_ID) > work.k).alias(BEYOND))
        .filter(pl.col(RANK) <= work.k)
        .rename({QUERY_ID: NUMBER})
        .with_columns(run)
        .select(list(KEPT))
        .collect()
    )
    # Every list that is evaluated has a first rank, which the cutoff keeps.
    return _Kept(arrange(kept, _parts_of(work, kept[NUMBER]), KEPT), not kept.is_empty(), whole)


def _keep(work: _Work, outputs: _Outputs, kept: _Kept) -> bool:
    """Write what is kept of a part. Whether any of it is evaluated."""
    if kept.whole is not None:
        work.whole.append(kept.whole)
    outputs.kept.append(kept.rows)
    return kept.is_evaluated


def part_ranges(parts: int) -> Iterator[tuple[int, int]]:
    """The range of buckets of each part, [low, high)."""
    width = BUCKETS // parts
    for part in range(parts):
        yield part * width, (part + 1) * width
