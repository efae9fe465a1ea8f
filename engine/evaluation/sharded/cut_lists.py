"""All lists that are evaluated, up to the cutoff and with the edited runs, part after part."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from engine import tables
from engine.errors import InputError
from engine.evaluation.inputs import InputFiles
from engine.evaluation.refusals import comes_twice, leaves_nothing, lists_none, not_in_corpus
from engine.evaluation.sharded.listed import Listed
from engine.evaluation.sharded.query_keys import QueryKeys
from engine.evaluation.sharded.run_parts import (
    BEYOND,
    KEPT,
    NUMBER,
    RunParts,
    scatter_runs,
)
from engine.sources.queries.buckets import BUCKETS
from engine.sources.runs.edits import Edit, EditedRun, apply_edits, read_edits
from engine.tables import DOC_ID, QUERY_ID, RANK, RUN

BUCKET = "bucket"


@dataclass(frozen=True, eq=False)
class CutLists:
    """The lists of all runs and edited runs up to the cutoff.

    Attributes:
        keys: the queries.
        parts: the lists of the runs, as they are without edits.
        names: of all runs, the edited ones last; the number of a run is its place.
        edited: the edited runs.
        changed: rows of ``KEPT`` and ``BUCKET`` of the edited runs, for queries that some edit is about.
        touched: the numbers of these queries.
    """

    keys: QueryKeys
    parts: RunParts
    names: tuple[str, ...]
    edited: tuple[EditedRun, ...]
    changed: pl.DataFrame
    touched: pl.Series

    def read(self, part: int) -> pl.DataFrame:
        """The rows of ``KEPT`` and ``BUCKET`` of a part."""
        rows = self._with_buckets(self.parts.read(part))
        if not self.edited:
            return rows
        untouched = rows.filter(~pl.col(NUMBER).is_in(self.touched.implode()))
        frames = [rows]
        for number, run in enumerate(self.edited, len(self.parts.runs)):
            same = untouched.filter(pl.col(RUN) == self.names.index(run.original))
            frames.append(same.with_columns(pl.lit(number, pl.UInt32).alias(RUN)))
        in_part = pl.col(BUCKET) // (BUCKETS // self.parts.parts) == part
        return pl.concat([*frames, self.changed.filter(in_part)])

    def _with_buckets(self, rows: pl.DataFrame) -> pl.DataFrame:
        buckets = pl.Series(BUCKET, self.keys.buckets[rows[NUMBER].to_numpy()], dtype=pl.Int64)
        return rows.with_columns(buckets)

    def __iter__(self) -> Iterator[pl.DataFrame]:
        return (self.read(part) for part in range(self.parts.parts))

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

    Args:
        files, keys, k: the evaluation.
        folder, parts, on_rows: as in ``scatter_runs``.

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
    run_parts = scatter_runs(
        files.run,
        keys,
        folder,
        k=k,
        parts=parts,
        whole_of=list({edit.query_id for edit in edits}),
        on_rows=on_rows,
    )
    for run in run_parts.runs:
        if not run.is_evaluated:
            first = keys.table[QUERY_ID][0]
            raise lists_none(
                run.path, run.first, queries=files.queries, count=keys.evaluated, first=first
            )
    if fault is not None:
        raise fault
    names = [run.name for run in run_parts.runs]
    lists = CutLists(
        keys, run_parts, tuple(names), (), _empty_change(), pl.Series([], dtype=pl.UInt32)
    )
    return lists if files.edits is None else _with_edits(lists, edits, files.edits, k)


def _empty_change() -> pl.DataFrame:
    return tables.empty({**KEPT, BUCKET: pl.Int64()})


def _with_edits(lists: CutLists, edits: list[Edit], path: str | Path, k: int) -> CutLists:
    keys = lists.keys
    changed, edited = apply_edits(
        lists.parts.whole,
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
    result = CutLists(
        keys, lists.parts, names, edited, lists._with_buckets(rows), touched.cast(pl.UInt32)
    )
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
        files={run.name: run.path for run in lists.parts.runs},
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
