"""Read Parquet files that may be damaged or hostile.

Arrow's reader does the work, since it refuses broken files: Polars' own reader panics or aborts the process on single
flipped bits. Arrow's tables are validated in full before they become Polars', which trusts that texts are UTF-8 and
that offsets are in bounds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl
from polars.exceptions import PanicException, PolarsError

from engine.messages.errors import InputError
from engine.sources.io.locations import Location, locate, open_binary
from engine.sources.io.records import refuse_repeated_column

if TYPE_CHECKING:  # else imported where they are used, so that help is quick
    import pyarrow as pa
    import pyarrow.parquet as pq

# Errors, beside Arrow's own, that Arrow, and Polars on Arrow's tables, raise on a damaged file. A panic of Polars is no
# Exception; Python decodes names of columns that are not UTF-8.
_DAMAGE = (PolarsError, PanicException, OSError, UnicodeError, MemoryError, OverflowError)


class ParquetTable:
    """An open Parquet file; its methods raise InputError if a part is damaged.

    Attributes:
        names: its columns, in their order.
        plain_names: columns that hold neither lists nor records.
        rows: number of rows in its metadata.
    """

    def __init__(self, path: Location, file: pq.ParquetFile) -> None:
        import pyarrow as pa

        self._path = path
        self._file = file
        with _refusing_damage(path):
            self.names: tuple[str, ...] = tuple(file.schema_arrow.names)
            self.plain_names = {
                field.name for field in file.schema_arrow if not pa.types.is_nested(field.type)
            }
            self.rows: int = file.metadata.num_rows
        refuse_repeated_column(path, self.names)

    def batches(self, rows: int, columns: Collection[str]) -> Iterator[pl.DataFrame]:
        """Yield the present ones among ``columns``, in batches of at most ``rows`` rows."""
        import pyarrow as pa

        with _refusing_damage(self._path):
            batches = self._file.iter_batches(rows, columns=self._present(columns))
        while True:
            with _refusing_damage(self._path):
                batch = next(batches, None)
                frame = None if batch is None else _frame(pa.Table.from_batches([batch]))
            # Arrow keeps freed memory: up to 100 MB for files that are read whole.
            pa.default_memory_pool().release_unused()
            if frame is None:
                return
            yield frame

    def read(self, columns: Collection[str] | None = None) -> pl.DataFrame:
        """All rows of the present ones among ``columns``; by default of all columns."""
        with _refusing_damage(self._path):
            return _frame(self._file.read(columns=columns and self._present(columns)))

    def _present(self, columns: Collection[str]) -> list[str]:
        return [name for name in self.names if name in columns]


@contextlib.contextmanager
def open_parquet(
    path: Location, *, in_parts: bool = False, content: bytes | None = None
) -> Iterator[ParquetTable]:
    """Open an untrusted Parquet file for reading in batches, in constant memory; an InputError if it is damaged.

    Args:
        in_parts: whether only a part will be read, so that no more should be fetched from an address.
        content: its bytes, if they are in memory.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = locate(path)
    with contextlib.ExitStack() as stack:
        with _refusing_damage(path):
            source: Any = path
            if content is not None:
                source = pa.BufferReader(content)
            # Given a path, Arrow reads without Python's lock; a pipe is no file that it can seek in.
            elif not (isinstance(path, Path) and path.is_file()):
                source = stack.enter_context(open_binary(path, in_parts=in_parts))
            # With pre-buffering, Arrow's default, the whole file stays in memory until its last batch.
            file = pq.ParquetFile(source, pre_buffer=False, page_checksum_verification=True)
            stack.enter_context(file)
        yield ParquetTable(path, file)


def read_parquet(
    path: Location, columns: Collection[str] | None = None, *, content: bytes | None = None
) -> pl.DataFrame:
    """Read the present ones among ``columns`` from a Parquet file, by default all, as ``open_parquet`` opens it."""
    with open_parquet(path, in_parts=columns is not None, content=content) as table:
        return table.read(columns)


def _frame(table: pa.Table) -> pl.DataFrame:
    import pyarrow as pa

    table.validate(full=True)
    # Metadata is left out: Polars decodes names and notes in it, and panics if they are not UTF-8.
    plain = pa.schema([pa.field(field.name, field.type) for field in table.schema])
    frame = pl.from_arrow(pa.Table.from_arrays(table.columns, schema=plain))
    assert isinstance(frame, pl.DataFrame)
    return frame


@contextlib.contextmanager
def _refusing_damage(path: Location) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError:
        remedy = "give a Parquet file"
        raise InputError("no such file", remedy, "files.missing", path=path) from None
    except (pa.ArrowException, *_DAMAGE) as error:
        problem = "not a readable Parquet file ({})".format(str(error).split("\n")[0])
        remedy = "check it, or write it again"
        raise InputError(problem, remedy, "files.parquet", path=path) from None
