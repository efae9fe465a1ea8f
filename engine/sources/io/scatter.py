"""Scatter tables larger than memory over files, by a part number per row."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import polars as pl

from engine.sources.io.files import reported_writing
from engine.tables import Schema, empty

if TYPE_CHECKING:  # loaded where it is used, so that help is quick
    import pyarrow as pa

# Bytes of rows that wait for more rows of their parts: a write costs as much as some thousand rows, and a batch has but
# some hundred for each of 256 parts.
_WAITING = 16 << 20


RowsByPart: TypeAlias = "Sequence[tuple[int, pa.Table]]"
"""Parts with their rows, in the order of the rows."""


def arrange(rows: pl.DataFrame, parts: pl.Series, schema: Schema) -> RowsByPart:
    """Rows by part, 0 to 65,535, with the columns of a schema."""
    # numpy radix-sorts 16-bit numbers, in a tenth of the time of comparisons.
    order = np.argsort(parts.to_numpy().astype(np.uint16), kind="stable")
    numbers = parts.to_numpy()[order].astype(np.int64)
    table = rows.select(list(schema))[order].to_arrow(compat_level=pl.CompatLevel.oldest())
    starts = np.flatnonzero(np.diff(numbers, prepend=-1)).tolist()
    ends = [*starts[1:], rows.height]
    return [(int(numbers[a]), table.slice(a, b - a)) for a, b in zip(starts, ends, strict=False)]


class Scatter:
    """Files in a process' own folder, one per part that has rows; batches of rows are appended.

    The folder must exist. Up to about 16 MiB of rows wait in memory, at the latest until it is closed: a WriteError
    says that the disk is full. Files are neither flushed nor safe from a killed process: they are an intermediate step,
    in a folder that is removed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._open: dict[int, pa.RecordBatchFileWriter] = {}
        self._waiting: dict[int, list[pa.Table]] = {}
        self._bytes = 0
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Scatter:
        return self

    def __exit__(self, *_: object) -> None:
        """Finish all files; they can be read from then on."""
        try:
            self._write()
        finally:
            with reported_writing(self._folder):
                self._stack.close()
            self._open.clear()

    def append(self, rows: RowsByPart | None) -> None:
        """Append each row to the file of its part, in their order."""
        for part, table in rows or ():
            self._waiting.setdefault(part, []).append(table)
            self._bytes += table.nbytes
        if self._bytes > _WAITING:
            self._write()

    def _write(self) -> None:
        import pyarrow as pa

        waiting, self._waiting, self._bytes = self._waiting, {}, 0
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with reported_writing(self._folder):
            for part, tables in waiting.items():
                table = pa.concat_tables(tables).combine_chunks()
                if part not in self._open:
                    stream = self._stack.enter_context(_file(self._folder, part).open("wb"))
                    writer = pa.ipc.new_file(stream, table.schema, options=options)
                    self._open[part] = self._stack.enter_context(writer)
                self._open[part].write_table(table)


def read_part(folder: Path, part: int, schema: Schema) -> pl.DataFrame:
    """The rows of a part, in the order in which they were added."""
    path = _file(folder, part)
    if not path.exists():
        return empty(schema)
    import pyarrow as pa

    with pa.OSFile(str(path)) as source, pa.ipc.open_file(source) as reader:
        batches = map(reader.get_batch, range(reader.num_record_batches))
        return pl.concat(pl.DataFrame(pa.Table.from_batches([batch])) for batch in batches)


def _file(folder: Path, part: int) -> Path:
    return folder / f"{part:05d}.arrow"
