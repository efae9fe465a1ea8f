"""All lists that are evaluated, up to the cutoff and with the edited runs, part after part.

They are checked, ordered and cut as ``inputs.read_inputs`` does it, whatever the size of the runs. A run is
streamed once, and its rows are scattered over files by the buckets of their queries. Each part, which fits into
memory, is then checked and ordered as a whole, and what the cutoff keeps is appended to a second set of files,
in which all runs lie together.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from engine import tables
from engine.errors import InputError
from engine.evaluation.inputs import InputFiles
from engine.evaluation.refusals import comes_twice, leaves_nothing, lists_none, not_in_corpus
from engine.evaluation.sharded.listed import Listed
from engine.evaluation.sharded.query_keys import QueryKeys
from engine.sources.io.ahead import ahead, mapped
from engine.sources.io.locations import Location
from engine.sources.io.scatter import Arranged, Scatter, arrange, read_part
from engine.sources.queries.buckets import BUCKETS, buckets_of
from engine.sources.runs.checks import RunChecks, in_order, require_new_name
from engine.sources.runs.edits import Edit, EditedRun, apply_edits, read_edits
from engine.sources.runs.scan import SCHEMA, Batch
from engine.tables import DOC_ID, QUERY, QUERY_ID, RANK, RUN, SCORE

# The number of a query: its place in the queries file, from 0.
NUMBER = "query_number"
BUCKET = "bucket"
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
class CutLists:
    """The lists of all runs and edited runs up to the cutoff, in files.

    Attributes:
        keys: the queries.
        folder: where the files are.
        parts: into how many, a power of two; each has an equal range of buckets.
        runs: in the order of their files.
        ignored: distinct queries of the runs that the queries file lacks.
        edited: the edited runs.
        changed: rows of ``KEPT`` and ``BUCKET`` of the edited runs, for queries that some edit is about.
        touched: the numbers of these queries.
    """

    keys: QueryKeys
    folder: Path
    parts: int
    runs: tuple[ListedRun, ...]
    ignored: int
    edited: tuple[EditedRun, ...]
    changed: pl.DataFrame
    touched: pl.Series

    @property
    def names(self) -> tuple[str, ...]:
        """Of all runs, the edited ones last; the number of a run is its place."""
        return (*(run.name for run in self.runs), *(run.name for run in self.edited))

    def read(self, part: int) -> pl.DataFrame:
        """The rows of ``KEPT`` and ``BUCKET`` of the queries evaluated in a part, run after run."""
        rows = self.with_buckets(read_part(self.folder, part, KEPT))
        if not self.edited:
            return rows
        untouched = rows.filter(~pl.col(NUMBER).is_in(self.touched.implode()))
        frames = [rows]
        for number, run in enumerate(self.edited, len(self.runs)):
            same = untouched.filter(pl.col(RUN) == self.names.index(run.original))
            frames.append(same.with_columns(pl.lit(number, pl.UInt32).alias(RUN)))
        in_part = pl.col(BUCKET) // (BUCKETS // self.parts) == part
        return pl.concat([*frames, self.changed.filter(in_part)])

    def with_buckets(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows with the bucket of their query."""
        buckets = pl.Series(BUCKET, self.keys.buckets[rows[NUMBER].to_numpy()], dtype=pl.Int64)
        return rows.with_columns(buckets)

    def __iter__(self) -> Iterator[pl.DataFrame]:
        return (self.read(part) for part in range(self.parts))

    def with_names(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows with ``query_id``, and the name of their run as ``run``."""
        names = pl.Series(RUN, self.names, dtype=pl.String)
        ids = self.keys.table[QUERY_ID]
        return rows.with_columns(ids.gather(rows[NUMBER]), names.gather(rows[RUN]))


def list_runs(
    files: InputFiles,
    keys: QueryKeys,
    folder: Path,
    *,
    k: int,
    parts: int,
    on_rows: Callable[[int], None] = lambda rows: None,
) -> CutLists:
    """The lists of an evaluation, with edits applied before the cutoff; edits are held in memory.

    A run that has no known query id is keyed by the texts of queries, as in ``inputs.read_inputs``. Memory is that
    of one part of one run, whatever their size; JSON is read whole.

    Args:
        files, keys, k: the evaluation.
        folder: an empty folder of this process; takes about 20 bytes and two ids a row of the largest run,
            and as much for each row that is kept.
        parts: into how many parts, a power of two up to ``MOST_PARTS``.
        on_rows: called with the rows read so far, of all runs.

    Raises:
        InputError: as ``inputs.read_inputs``, up to what it says of edits.
        WriteError: the disk is full.
    """
    edits: list[Edit] = []
    fault: InputError | None = None
    if files.edits is not None:
        try:
            edits = read_edits(files.edits)
        except InputError as error:
            fault = error  # of the edits; what is wrong with runs comes before
    done = 0

    def count(rows: int) -> None:
        nonlocal done
        done += rows
        on_rows(done)

    runs: list[ListedRun] = []
    sources: dict[str, Location] = {}
    (folder / "kept").mkdir()
    with Scatter(folder / "kept") as kept:
        wanted = pl.Series(list({edit.query_id for edit in edits}), dtype=pl.String)
        work = _Work(keys, k, parts, count, folder / "raw", kept, wanted)
        for number, path in enumerate(files.run):
            runs.append(_list_run(work, number, path))
            require_new_name(path, runs[-1].name, sources)
    for run in runs:
        if not run.is_evaluated:
            first = keys.table[QUERY_ID][0]
            raise lists_none(
                run.path, run.first, queries=files.queries, count=keys.evaluated, first=first
            )
    if fault is not None:
        raise fault
    none, no_numbers = _empty_change(), pl.Series([], dtype=pl.UInt32)
    lists = CutLists(
        keys, folder / "kept", parts, tuple(runs), len(work.ignored), (), none, no_numbers
    )
    if files.edits is None:
        return lists
    return _with_edits(lists, pl.concat(work.whole), edits, files.edits, k)


@dataclass
class _Work:
    """What all runs share while they are scattered.

    Attributes:
        keys, k, parts: as in ``list_runs``.
        on_rows: called with the rows of each batch.
        raw: the folder of the rows of the run at hand.
        kept: takes what the cutoff keeps.
        whole_of: query ids whose lists are wanted beyond the cutoff.
        whole: these lists.
        ignored: hashes of the distinct queries that the queries file lacks.
    """

    keys: QueryKeys
    k: int
    parts: int
    on_rows: Callable[[int], None]
    raw: Path
    kept: Scatter
    whole_of: pl.Series
    whole: list[pl.DataFrame] = field(default_factory=list)
    ignored: pl.Series = field(default_factory=lambda: pl.Series([], dtype=pl.UInt64))


# Rows of a run, with the numbers of queries, or the ids of those that are not known.
_RAW: tables.Schema = {**SCHEMA, NUMBER: pl.UInt32()}
# Lists in full length with the number of the run.
_WHOLE: tables.Schema = {**tables.RUNS, RUN: pl.UInt32()}


def _list_run(work: _Work, number: int, path: Location) -> ListedRun:
    work.raw.mkdir()
    checks = RunChecks(path)

    def checked(part: int) -> pl.DataFrame:
        rows = read_part(work.raw, part, _RAW)
        ids = work.keys.table[QUERY_ID].gather(rows[NUMBER])
        checks.look(rows.with_columns(ids.zip_with(ids.is_not_null(), rows[QUERY_ID])))
        return rows

    firsts: set[str] = set()
    any_known = is_evaluated = False
    try:
        with Scatter(work.raw) as raw:
            for batch in mapped(lambda batch: _numbered(work, batch), ahead(checks.scan())):
                any_known |= batch.any_known
                raw.append(batch.rows)
                work.on_rows(batch.height)
    except InputError:
        if checks.has_lines:
            for part in range(work.parts):
                checked(part)
            checks.refuse_repeats()
        raise
    texts = None if any_known else _texts(work.keys)

    def of_part(part: int) -> _Kept:
        return _kept_of(work, number, checked(part), texts)

    for kept in mapped(of_part, range(work.parts)):
        is_evaluated |= kept.rows is not None
        firsts |= kept.firsts
        work.kept.append(kept.rows)
        work.whole += kept.whole
        work.ignored = pl.concat([work.ignored, kept.ignored]).unique()
    name = checks.name()
    shutil.rmtree(work.raw)
    return ListedRun(name, path, min(firsts, default=""), is_evaluated)


class _Numbered(NamedTuple):
    """A batch of a run by parts.

    Attributes:
        rows: of ``_RAW``; None where there are none.
        height: how many there are.
        any_known: whether any of them is known.
    """

    rows: Arranged | None
    height: int
    any_known: bool


def _numbered(work: _Work, batch: Batch) -> _Numbered:
    ids = batch.rows[QUERY_ID]
    numbers = work.keys.numbers.of(ids).cast(pl.UInt32).alias(NUMBER)
    unknown = numbers.is_null()
    buckets = work.keys.buckets[numbers.fill_null(0).to_numpy()]
    if unknown.any():
        # Where it would be if it were the text of a query.
        texts = ids.filter(unknown).to_frame()
        distinct = texts.unique()
        found = distinct.with_columns(pl.Series("bucket", buckets_of(distinct[QUERY_ID])))
        joined = texts.join(found, on=QUERY_ID, how="left", maintain_order="left")
        buckets[unknown.to_numpy()] = joined["bucket"].to_numpy()
    # Ids are left out where numbers stand for them: there are as many as rows.
    rows = batch.rows.with_columns(ids.set(~unknown, None), numbers)
    return _Numbered(
        arrange(rows, _parts_of(work, buckets), _RAW),
        len(ids),
        not unknown.all(),
    )


def _parts_of(work: _Work, buckets: npt.NDArray[np.int64]) -> pl.Series:
    return pl.Series(buckets // (BUCKETS // work.parts), dtype=pl.Int64)


def _texts(keys: QueryKeys) -> pl.DataFrame:
    """The numbers of queries by their texts, as ``query_id``."""
    numbers = pl.int_range(pl.len(), dtype=pl.UInt32).alias(NUMBER)
    return keys.table.select(pl.col(QUERY).alias(QUERY_ID), numbers)


class _Kept(NamedTuple):
    """What is kept of a part of a run.

    Attributes:
        rows: of ``KEPT``, by parts; None where no query of it is evaluated.
        whole: the lists that are wanted in full length.
        ignored: hashes of the distinct ids that are not those of queries.
        firsts: the first of these ids, and that of the ids of queries, in their order.
    """

    rows: Arranged | None
    whole: list[pl.DataFrame]
    ignored: pl.Series
    firsts: set[str]


def _kept_of(work: _Work, number: int, rows: pl.DataFrame, texts: pl.DataFrame | None) -> _Kept:
    """What is evaluated and within the cutoff of the rows of a part, and in full length what is wanted so.

    Args:
        work, number: the run.
        rows: of ``_RAW``.
        texts: numbers by texts, where these stand for every query that has them.
    """
    if texts is not None:
        rows = rows.drop(NUMBER).join(texts, on=QUERY_ID, how="left")
    unknown = rows[NUMBER].is_null()
    others = rows[QUERY_ID].filter(unknown).unique()
    firsts = set(others.sort().head(1))
    known = rows.drop(QUERY_ID).filter(~unknown) if unknown.any() else rows.drop(QUERY_ID)
    rows = in_order(known.rename({NUMBER: QUERY_ID}))
    if not rows.is_empty():
        numbers = rows[QUERY_ID].to_numpy()
        firsts.add(work.keys.table[QUERY_ID][int(numbers[work.keys.order[numbers].argmin()])])
    run = pl.lit(number, pl.UInt32).alias(RUN)
    whole = []
    if len(work.whole_of):
        ids = work.keys.table[QUERY_ID].gather(rows[QUERY_ID])
        full = rows.with_columns(ids).filter(pl.col(QUERY_ID).is_in(work.whole_of.implode()))
        whole = [full.with_columns(run).select(list(_WHOLE))]
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
    buckets = work.keys.buckets[kept[NUMBER].to_numpy()]
    return _Kept(arrange(kept, _parts_of(work, buckets), KEPT), whole, others.hash(), firsts)


def part_ranges(parts: int) -> Iterator[tuple[int, int]]:
    """The range of buckets of each part, [low, high)."""
    width = BUCKETS // parts
    for part in range(parts):
        yield part * width, (part + 1) * width


def _empty_change() -> pl.DataFrame:
    return tables.empty({**KEPT, BUCKET: pl.Int64()})


def _with_edits(
    lists: CutLists, whole: pl.DataFrame, edits: list[Edit], path: str | Path, k: int
) -> CutLists:
    """The lists with edited runs, of which ``whole`` has the lists that edits are about in full length."""
    keys = lists.keys
    run_names = pl.Series(RUN, lists.names, dtype=pl.String)
    whole = whole.sort(RUN, QUERY_ID, RANK)
    changed, edited = apply_edits(
        whole.with_columns(run_names.gather(whole[RUN])),
        edits,
        path=path,
        query_ids=keys.table[QUERY_ID].to_list(),
        names=lists.names,
    )
    names = (*lists.names, *(run.name for run in edited))
    touched = keys.numbers.of(pl.Series(sorted({edit.query_id for edit in edits})))
    rows = (
        changed.with_columns(
            keys.numbers.of(changed[QUERY_ID]).cast(pl.UInt32).alias(NUMBER),
            pl.col(RUN).cast(pl.Enum(names)).to_physical().cast(pl.UInt32),
        )
        .filter(pl.col(NUMBER) < keys.evaluated)
        .with_columns((pl.col(RANK).max().over(RUN, NUMBER) > k).alias(BEYOND))
        .filter(pl.col(RANK) <= k)
        .select(list(KEPT))
    )
    changes = lists.with_buckets(rows)
    result = replace(lists, edited=edited, changed=changes, touched=touched.cast(pl.UInt32))
    for number, run in enumerate(edited, len(lists.names)):
        if not any((part[RUN] == number).any() for part in result):
            raise leaves_nothing(path, run.original, keys.evaluated)
    return result


def refuse_unknown(files: InputFiles, lists: CutLists, listed: Listed) -> None:
    """Refuse documents that edits bring into a list twice, and documents that the corpus lacks.

    Raises:
        InputError: as ``inputs.read_inputs``.
    """
    if files.edits is not None and not listed.texts.is_empty():
        _refuse_twice(files.edits, lists, listed)
    if not listed.lacks_some:
        return
    firsts: list[pl.DataFrame] = []
    hashes = np.array([], dtype=np.uint64)
    for part in lists:
        lost = lists.with_names(listed.lacking(listed.named(part)))
        firsts.append(lost.select(RUN, QUERY_ID, RANK, DOC_ID).sort(RUN, QUERY_ID, RANK).head(1))
        # 8 bytes a document that is lost, of which there may be as many as rows.
        hashes = np.union1d(hashes, lost[DOC_ID].hash().to_numpy())
    name, query_id, _, doc_id = pl.concat(firsts).sort(RUN, QUERY_ID, RANK).row(0)
    raise not_in_corpus(
        (name, query_id, doc_id),
        len(hashes) - 1,
        corpus=files.corpus,
        files={run.name: run.path for run in lists.runs},
        edits=files.edits,
        edited=lists.edited,
    )


def _refuse_twice(edits: str | Path, lists: CutLists, listed: Listed) -> None:
    found: list[tuple[int, str, int, str]] = []
    for part in lists:
        named = listed.named(part)
        twice = named.filter(pl.struct(RUN, NUMBER, DOC_ID).is_duplicated())
        ids = lists.keys.table[QUERY_ID].gather(twice[NUMBER])
        found += twice.with_columns(ids).select(RUN, QUERY_ID, RANK, DOC_ID).rows()
        found = sorted(found)[:1]
    if found:
        _, query_id, _, doc_id = found[0]
        raise comes_twice(edits, query_id, doc_id)
