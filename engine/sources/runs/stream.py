"""Runs of any size in batches, in constant memory: what ``read_run`` reads whole, with the same errors.

TREC text is parsed a block at a time by Arrow. A block in which a line is anything but six columns of
plain text with a number among them is parsed line by line instead, so that what counts as white space or
as a number, and every message, is that of ``read_run``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import IO

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.csv as pa_csv

from engine import tables
from engine.errors import InputError
from engine.sources.io.lines import BOM, LONGEST_LINE, decode_line, raw_lines
from engine.sources.io.locations import (
    DAMAGE,
    Location,
    open_decompressed,
    require_file,
)
from engine.sources.io.parquet import open_parquet
from engine.sources.runs.forms import WHAT, is_ranked, is_table
from engine.sources.runs.read import beyond_single, conform_rows, read_run, trec_row
from engine.tables import DOC_ID, QUERY_ID, RANK, RUN, SCORE

# The column of the line of a row in TREC text, from 1; of its place in Parquet and JSON, from 0.
LINE = "line"
SCHEMA: tables.Schema = {
    QUERY_ID: pl.String(),
    DOC_ID: pl.String(),
    RANK: pl.Int64(),
    SCORE: pl.Float64(),
    LINE: pl.Int64(),
}

# Bytes of TREC text that are parsed at a time, and rows of a batch from elsewhere.
_BLOCK = 4 << 20
_ROWS = 100_000
# The most rows of a faulty Parquet run that is read whole, for the very error of ``read_run``: about 300 MB.
_READ_WHOLE = 2_000_000

_COLUMNS = [QUERY_ID, "Q0", DOC_ID, RANK, SCORE, RUN]
# Characters that Python takes for white space and that do not end a line; others of ASCII's control
# characters, some of which it takes for white space too, are left to Python.
_BLANKS = bytes.maketrans(b"\t\r\v\f", b"    ")
_PLAIN = bytes(set(range(256)) - set(range(0x00, 0x09)) - set(range(0x0E, 0x20)))
# White space beyond ASCII, in UTF-8.
_WIDE_BLANK = re.compile(
    rb"\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80"
)
_SEVERAL = re.compile(rb"  +")


@dataclass(frozen=True)
class Batch:
    """A part of a run, in the order of its file.

    Attributes:
        rows: columns of ``SCHEMA``; ranks are 0 where the scores decide.
        names: the distinct system names of these rows.
    """

    rows: pl.DataFrame
    names: tuple[str, ...]


def scan_run(path: Location) -> Iterator[Batch]:
    """Yield a run of any layout of ``read_run``, in the order of the file.

    TREC text and Parquet take constant memory; JSON, and Parquet under other names, is read whole.
    Nothing is compared beyond one row: an empty run, repeated documents and ranks, and several names are
    left to the caller, who must look for repeated documents in TREC text above the line of an error too.

    Raises:
        InputError: as ``read_run``, for what one row or the file as such has wrong. Of a Parquet file with
            several faults and more than two million rows, another may be named.
    """
    path = require_file(path, WHAT)
    if is_table(path):
        yield from _parquet_batches(path)
    elif is_ranked(path):
        run = read_run(path).with_columns(pl.int_range(pl.len(), dtype=pl.Int64).alias(LINE))
        for rows in run.iter_slices(_ROWS):
            yield Batch(rows.select(list(SCHEMA)), tuple(rows[RUN].unique()))
    else:
        yield from _trec_batches(path)


def _parquet_batches(path: Location) -> Iterator[Batch]:
    first_row = 0
    with open_parquet(path) as table:
        try:
            for frame in table.batches(_ROWS, tables.RUNS):
                frame = conform_rows(frame, path, first_row=first_row)
                line = pl.int_range(first_row, first_row + pl.len(), dtype=pl.Int64)
                rows = frame.with_columns(line.alias(LINE)).select(list(SCHEMA))
                first_row += rows.height
                yield Batch(rows, tuple(frame[RUN].unique()))
            if not first_row:  # no batch named a missing column
                conform_rows(pl.DataFrame(schema=list(table.names)), path)
        except InputError:
            if table.rows <= _READ_WHOLE:
                read_run(path)  # it names the first fault by its own order, of columns before rows
            raise


def _trec_batches(path: Location) -> Iterator[Batch]:
    done = 0
    try:
        with open_decompressed(path) as stream:
            while block := _next_block(stream):
                if not done:
                    block = block.removeprefix(BOM)
                if len(block) > LONGEST_LINE:
                    break
                batch = _parsed(block, done + 1)
                if batch is not None:
                    yield batch
                else:
                    yield from _one_by_one(path, _lines(block, done + 1))
                done += _count_lines(block)
            else:
                return
    except DAMAGE:
        pass
    # A line without end, or a damaged file: what is still whole, and then the error with its line.
    yield from _one_by_one(path, (line for line in raw_lines(path, WHAT) if line[0] > done))


def _next_block(stream: IO[bytes]) -> bytes:
    """Whole lines; the last may be cut where it is longer than any line may be."""
    block = stream.read(_BLOCK)
    return block if block.endswith(b"\n") else block + stream.readline(LONGEST_LINE + 1)


def _count_lines(block: bytes) -> int:
    return block.count(b"\n") + (not block.endswith(b"\n"))


def _lines(block: bytes, first_line: int) -> Iterator[tuple[int, bytes]]:
    for number, line in enumerate(block.split(b"\n"), first_line):
        if line and not line.isspace():
            yield number, line


def _one_by_one(path: Location, lines: Iterable[tuple[int, bytes]]) -> Iterator[Batch]:
    """Parse lines as ``read_run`` does. The rows above a bad line are given before the error is raised."""
    rows: list[tuple[str, str, int, float, int]] = []
    names: set[str] = set()
    try:
        for number, line in lines:
            text = decode_line(path, number, line)
            query_id, doc_id, score, name = trec_row(path, number, text)
            rows.append((query_id, doc_id, 0, score, number))
            names.add(name)
            if len(rows) == _ROWS:
                yield _batch(rows, names)
                rows, names = [], set()
    except InputError:
        yield _batch(rows, names)
        raise
    yield _batch(rows, names)


def _batch(rows: list[tuple[str, str, int, float, int]], names: set[str]) -> Batch:
    return Batch(pl.DataFrame(rows, schema=SCHEMA, orient="row"), tuple(names))


def _parsed(block: bytes, first_line: int) -> Batch | None:
    """The rows of a block of whole lines; None where Python should look at every line."""
    if not block.isascii():
        try:
            block.decode()
        except UnicodeDecodeError:
            return None
        if _WIDE_BLANK.search(block):
            return None
    if block.translate(None, _PLAIN):
        return None
    block = block.translate(_BLANKS)
    if b"  " in block:
        block = _SEVERAL.sub(b" ", block)
    if b" \n" in block or b"\n " in block:
        block = block.replace(b" \n", b"\n").replace(b"\n ", b"\n")
    block = block.strip(b" ")
    try:
        table = _parse(block)
    except pa.ArrowInvalid:  # another number of columns, or a score that Arrow cannot read
        return None
    rows = pl.from_arrow(table.drop_columns([RUN]))
    assert isinstance(rows, pl.DataFrame)
    if rows.select(beyond_single(pl.col(SCORE)).any()).item():
        return None
    lines = _numbers(block, rows.height, first_line)
    rows = rows.with_columns(pl.lit(0, pl.Int64).alias(RANK), pl.Series(LINE, lines))
    return Batch(rows.select(list(SCHEMA)), tuple(table[RUN].unique().to_pylist()))


def _parse(block: bytes) -> pa.Table:
    texts = {
        QUERY_ID: pa.string(),
        DOC_ID: pa.string(),
        RUN: pa.dictionary(pa.int32(), pa.string()),
    }
    return pa_csv.read_csv(
        pa.BufferReader(block),
        read_options=pa_csv.ReadOptions(
            column_names=_COLUMNS, use_threads=False, block_size=len(block) + 1
        ),
        parse_options=pa_csv.ParseOptions(delimiter=" ", quote_char=False, escape_char=False),
        convert_options=pa_csv.ConvertOptions(
            include_columns=[QUERY_ID, DOC_ID, SCORE, RUN],
            column_types={**texts, SCORE: pa.float64()},
            null_values=[],
            strings_can_be_null=False,
        ),
    )


def _numbers(block: bytes, rows: int, first_line: int) -> npt.NDArray[np.int64]:
    """The lines of the rows of a block whose blank lines are empty."""
    if _count_lines(block) == rows:
        return np.arange(first_line, first_line + rows, dtype=np.int64)
    ends = np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == ord("\n"))
    ends = np.append(ends, len(block))
    return first_line + np.flatnonzero(np.diff(ends, prepend=-1) > 1).astype(np.int64)
