"""Scatter lists larger than memory over files, by the buckets of their queries."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import polars as pl

from engine import tables
from engine.inputs.lists import ROWS, Lists
from engine.messages.characters import composed
from engine.messages.errors import InputError
from engine.sources.io.files import reported_writing
from engine.sources.io.ids import Places
from engine.sources.io.locations import Location
from engine.sources.io.parallel import ahead, mapped
from engine.sources.io.scatter import Arranged, Scatter, arrange, read_part
from engine.sources.queries.buckets import BUCKETS, Counts, Range, buckets_of
from engine.sources.runs.scan import SCHEMA, bytes_of
from engine.tables import DOC_ID, QUERY, QUERY_ID

BUCKET = "bucket"
# More would have more files open at a time than a process may.
MOST_PARTS = 256
# Bytes of runs, as they would be in TREC text, that are ordered at a time: some 200,000 rows.
_PART_BYTES = 8 << 20


class ScatteredParts:
    """Lists in files (``Parts``); each part has the queries of an equal range of buckets.

    Memory is that of some parts of one run, whatever their size. The folder takes about 20 bytes and two ids a
    row of the largest run, and as much for each row that is kept.

    Args:
        queries: as ``Parts.queries``, of all queries of the file.
        folder: an empty folder of this process.
        count: of parts, a power of two up to ``MOST_PARTS``.
    """

    def __init__(self, queries: pl.DataFrame, folder: Path, count: int) -> None:
        self.count = count
        self.places = Places(queries[QUERY_ID])
        self.buckets = buckets_of(queries[QUERY])
        self._queries = Sorted(queries.with_columns(pl.Series(BUCKET, self.buckets)), self.buckets)
        self._width = BUCKETS // count
        self._raw, self._kept = folder / "raw", folder / "kept"
        self._kept.mkdir()
        self._runs = 0

    def queries(self, part: int) -> pl.DataFrame:
        return self._queries.within((part * self._width, self.end(part)))

    def end(self, part: int) -> int:
        """The bucket behind the last of a part."""
        return (part + 1) * self._width

    def gather(self, batches: Iterator[pl.DataFrame]) -> None:
        shutil.rmtree(self._raw, ignore_errors=True)
        self._raw.mkdir()
        with Scatter(self._raw) as raw:
            for rows in mapped(self._arranged, ahead(batches)):
                raw.append(rows)

    def _arranged(self, rows: pl.DataFrame) -> Arranged | None:
        ids = rows[QUERY_ID]
        places = self.places.of(ids)
        buckets = self.buckets[places.fill_null(0).to_numpy()]
        unknown = places.is_null()
        if unknown.any():
            # Where it would be if it were the text of a query.
            texts = ids.filter(unknown).to_frame()
            distinct = texts.unique()
            likely = buckets_of(map(composed, distinct[QUERY_ID]))
            found = distinct.with_columns(pl.Series(BUCKET, likely))
            joined = texts.join(found, on=QUERY_ID, how="left", maintain_order="left")
            buckets[unknown.to_numpy()] = joined[BUCKET].to_numpy()
        return arrange(rows, pl.Series(buckets // self._width), SCHEMA)

    def rows(self, part: int) -> pl.DataFrame:
        return read_part(self._raw, part, SCHEMA)

    def keep(self, part: int, run: int, lists: pl.DataFrame) -> None:
        self._runs = max(self._runs, run + 1)
        if not lists.is_empty():
            with reported_writing(self._kept):
                lists.write_ipc(self._kept / f"{part}-{run}.arrow", compression="lz4")

    def kept(self, part: int) -> pl.DataFrame:
        paths = [self._kept / f"{part}-{run}.arrow" for run in range(self._runs)]
        of_runs = [pl.read_ipc(path) for path in paths if path.exists()]
        return pl.concat([tables.empty(ROWS), *of_runs])

    def with_buckets(self, part: int, rows: pl.DataFrame) -> pl.DataFrame:
        """Rows of a part with the bucket of their query."""
        known = self.queries(part).select(QUERY_ID, BUCKET)
        return rows.join(known, on=QUERY_ID, how="left", maintain_order="left")


class Sorted:
    """A table in memory of which the rows of a range of buckets are found without looking at all."""

    def __init__(self, table: pl.DataFrame, buckets: Counts) -> None:
        self._order = np.argsort(buckets, kind="stable")
        self._buckets = buckets[self._order]
        self._table = table

    def within(self, span: Range) -> pl.DataFrame:
        """The rows in a range of buckets, in the order of the table."""
        start, end = np.searchsorted(self._buckets, span)
        return self._table[np.sort(self._order[start:end])]


def count_parts(runs: Sequence[Location]) -> int:
    """How many parts of all runs are about as large as may be ordered at a time."""
    try:
        needed = sum(bytes_of(path) for path in runs) // _PART_BYTES
    except InputError:
        return 1  # one of them cannot be read
    return min(1 << needed.bit_length(), MOST_PARTS)


def pairs_by_bucket(lists: Lists) -> Counts:
    """How many distinct pairs of query and document each bucket has, of lists in ``ScatteredParts``."""
    parts = lists.parts
    assert isinstance(parts, ScatteredParts)

    def of_part(part: int) -> Counts:
        rows = parts.with_buckets(part, lists.read(part))
        # A run lists a pair once.
        pairs = rows if len(lists.names) == 1 else rows.select(BUCKET, QUERY_ID, DOC_ID).unique()
        return np.bincount(pairs[BUCKET].to_numpy(), minlength=BUCKETS)

    total = np.zeros(BUCKETS, dtype=np.int64)
    for counts in mapped(of_part, range(parts.count)):
        total += counts
    return total
