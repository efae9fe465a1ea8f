"""The file of a shard: what an evaluation is given of some queries, but for the texts of passages.

It is a ZIP archive, uncompressed, of Parquet tables and one JSON document; its checksums are ZIP's.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import polars as pl

from engine.errors import InputError
from engine.sources.io.locations import Location

_QUERIES = "queries.parquet"
_RUNS = "runs.parquet"
_TABLES = "tables/"
_MORE = "more.json"


@dataclass(frozen=True, eq=False)
class ShardContent:
    """What a shard holds.

    Attributes:
        queries: the queries table, in the order of the file.
        runs: the run table up to the cutoff, run after run, by query and rank.
        tables: what annotators need, by the name of the input.
        cut_runs: names of runs that list more than the cutoff keeps, for one of these queries.
        unmatchable: those of the queries whose titles no listed passage of the evaluation has.
    """

    queries: pl.DataFrame
    runs: pl.DataFrame
    tables: Mapping[str, pl.DataFrame]
    cut_runs: tuple[str, ...]
    unmatchable: tuple[str, ...]

    def hexdigest(self, *further: str) -> str:
        """64 hexadecimal digits for all of this in its order, and for ``further`` texts.

        Whatever library wrote the file, equal contents have equal digests.
        """
        lists = [list(further), list(self.cut_runs), list(self.unmatchable), sorted(self.tables)]
        total = hashlib.sha256(json.dumps(lists).encode())
        for table in (
            self.queries,
            self.runs,
            *(self.tables[name] for name in sorted(self.tables)),
        ):
            total.update(json.dumps([table.columns, table.height]).encode())
            for column in table.columns:
                _update(total, table[column])
        return total.hexdigest()


def _update(total: hashlib._Hash, column: pl.Series) -> None:
    """Add a column: its type, where it is null, and its values, whose lengths come first."""
    total.update(f"{column.dtype}:{len(column)}:".encode())
    is_null = (
        column.is_null().to_numpy() if column.null_count() else np.zeros(len(column), np.bool_)
    )
    total.update(is_null.tobytes())
    if isinstance(column.dtype, pl.List):
        lengths = column.list.len().fill_null(0)
        total.update(lengths.to_numpy().astype("<u4").tobytes())
        _update(total, column.filter(lengths > 0).explode())
    elif column.dtype == pl.String:
        _update_texts(total, column)
    elif column.dtype.is_integer():
        total.update(column.cast(pl.Int64).fill_null(0).to_numpy().astype("<i8").tobytes())
    elif column.dtype.is_float():
        total.update(column.cast(pl.Float64).fill_null(0.0).to_numpy().astype("<f8").tobytes())
    else:
        total.update(json.dumps(column.to_list(), default=str).encode())


def _update_texts(total: hashlib._Hash, column: pl.Series) -> None:
    """Add the lengths of texts and then the texts, of which null is an empty one."""
    if column.is_empty():
        return
    texts = column.fill_null("") if column.null_count() else column
    arrow = texts.rechunk().to_arrow(compat_level=pl.CompatLevel.oldest())
    _, starts, characters = arrow.buffers()
    # Arrow lays texts out one after another, and where each begins: n + 1 offsets of 8 bytes.
    offsets = np.frombuffer(starts, np.int64)[arrow.offset : arrow.offset + len(arrow) + 1]
    total.update(np.diff(offsets).astype("<u4").tobytes())
    if characters is not None:
        total.update(memoryview(characters)[offsets[0] : offsets[-1]])


def to_bytes(content: ShardContent) -> bytes:
    """The file of a shard."""
    more = {"cut_runs": content.cut_runs, "unmatchable": content.unmatchable}
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for name, table in (
            (_QUERIES, content.queries),
            (_RUNS, content.runs),
            *((f"{_TABLES}{name}.parquet", table) for name, table in content.tables.items()),
        ):
            parquet = io.BytesIO()
            table.write_parquet(parquet, statistics=False)
            archive.writestr(zipfile.ZipInfo(name), parquet.getvalue())
        archive.writestr(zipfile.ZipInfo(_MORE), json.dumps(more))
    return whole.getvalue()


def from_bytes(data: bytes, path: Location) -> ShardContent:
    """What the file of a shard holds.

    Raises:
        InputError: it is damaged; ``path`` says where it lies.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            parts = {name: archive.read(name) for name in archive.namelist()}
        more = json.loads(parts[_MORE])
        return ShardContent(
            queries=pl.read_parquet(parts[_QUERIES]),
            runs=pl.read_parquet(parts[_RUNS]),
            tables={
                name.removeprefix(_TABLES).removesuffix(".parquet"): pl.read_parquet(part)
                for name, part in parts.items()
                if name.startswith(_TABLES)
            },
            cut_runs=tuple(more["cut_runs"]),
            unmatchable=tuple(more["unmatchable"]),
        )
    except (zipfile.BadZipFile, KeyError, ValueError, EOFError, NotImplementedError) as error:
        problem = f"a damaged shard ({str(error)[:80]})"
        raise InputError(problem, "delete its folder, and run again", path=path) from None
