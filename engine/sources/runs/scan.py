"""Runs of any layout and size in batches, in the order of the file; and how large they are.

TREC text is parsed a block at a time by Arrow. A block in which a line is anything but six columns of
plain text with a number among them is parsed line by line instead, where Python says what counts as white
space and as a number, and every error names its line.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import IO

import numpy as np
import numpy.typing as npt
import polars as pl

from engine import tables
from engine.messages.errors import MASK, InputError, masked
from engine.messages.wording import quoted
from engine.sources.io import locations
from engine.sources.io.locations import DAMAGE, PACKED, Location, suffix_of
from engine.sources.io.parquet import open_parquet
from engine.sources.io.records import BOM, LONGEST_LINE, decode_line, raw_lines, start_of
from engine.sources.runs.forms import (
    IN_RANGE,
    LARGEST_SCORE,
    LINE,
    WHAT,
    Batch,
    is_dictionary,
    is_table,
    read_dictionary,
    read_records,
    records_of,
)
from engine.tables import DOC_ID, QUERY_ID, RANK, RUN, SCORE, STATED_RANK

SCHEMA: tables.Schema = {
    QUERY_ID: pl.String(),
    DOC_ID: pl.String(),
    RANK: pl.Int64(),
    SCORE: pl.Float64(),
    LINE: pl.Int64(),
    STATED_RANK: pl.Int32(),
}

# Bytes of TREC text that are parsed at a time, and rows of a batch of Parquet.
_BLOCK = 4 << 20
# Bytes of fewer than some 500 lines, for which it is not worth while to call Arrow.
_SMALL = 1 << 15
_ROWS = 100_000

_COLUMNS = [QUERY_ID, "Q0", DOC_ID, STATED_RANK, SCORE, RUN]
# Characters that Python takes for white space and that do not end a line; others of ASCII's control
# characters, some of which it takes for white space too, are left to Python.
_BLANKS = bytes.maketrans(b"\t\r\v\f", b"    ")
_PLAIN = bytes(set(range(256)) - set(range(0x00, 0x09)) - set(range(0x0E, 0x20)))
# White space beyond ASCII, in UTF-8.
_WIDE_BLANK = re.compile(
    rb"\xc2[\x85\xa0]|\xe1\x9a\x80|\xe2\x80[\x80-\x8a\xa8\xa9\xaf]|\xe2\x81\x9f|\xe3\x80\x80"
)
# Lines that begin with a number sign, or are blank, but for rows of a query whose id begins with it.
_COMMENTS = re.compile(rb"(?:(?!#\S+(?:[ \t]+\S+){5}\s*?$)(?:#.*|[ \t\r]*)(?:\n|\Z))*", re.M)
_SEVERAL = re.compile(rb"  +")
# Whether a score is not a number that single precision holds.
_BEYOND_SINGLE = ~(pl.col(SCORE).abs() <= LARGEST_SCORE) | pl.col(SCORE).is_nan()


def scan_run(path: Location) -> Iterator[Batch]:
    """Yield a run of any layout of ``read_run``, in the order of the file.

    TREC text and Parquet take constant memory; JSON, and Parquet under other names, is read whole.
    Nothing is compared beyond one row: that is for ``checks.RunChecks``. The rows above a bad line of TREC
    text come before its error.

    Raises:
        InputError: the file is unreadable, a line does not have six columns, a score is not a number that
            single precision holds, or a record that ``read_records`` refuses.
    """
    path = locations.require_file(path, WHAT)
    if is_table(path):
        yield from _parquet_batches(path)
    elif (records := records_of(path)) is not None:
        yield read_records(path, records, file_name(path))
    elif is_dictionary(path, WHAT):
        yield _of_dictionary(path)
    else:
        yield from _trec_batches(path)


def _parquet_batches(path: Location) -> Iterator[Batch]:
    first_row = 0
    with open_parquet(path) as table:
        for frame in table.batches(_ROWS, tables.RUNS):
            frame = conform_rows(frame, path, first_row=first_row)
            line = pl.int_range(first_row, first_row + pl.len(), dtype=pl.Int64)
            stated = pl.lit(None, pl.Int32).alias(STATED_RANK)
            rows = frame.with_columns(line.alias(LINE), stated).select(list(SCHEMA))
            first_row += rows.height
            yield Batch(rows, tuple(frame[RUN].unique()), has_lines=False)


def conform_rows(frame: pl.DataFrame, path: Location, *, first_row: int = 0) -> pl.DataFrame:
    """Rows of a Parquet run, or of a part of one that begins at ``first_row``, as the run table.

    Raises:
        InputError: a column is missing, has another type or holds nulls, or a score is out of range.
    """
    if RUN not in frame.columns:
        frame = frame.with_columns(pl.lit(file_name(path)).alias(RUN))
    frame = tables.conform(frame, tables.RUNS, path, first_row=first_row)
    _refuse_scores(path, frame)
    return frame


def _refuse_scores(path: Location, rows: pl.DataFrame) -> None:
    bad = rows.filter(_BEYOND_SINGLE)
    if not bad.is_empty():
        query_id, doc_id, score = bad.select(QUERY_ID, DOC_ID, SCORE).row(0)
        raise _bad_score(path, None, repr(score), query_id, doc_id)


def _of_dictionary(path: Location) -> Batch:
    listed = (
        (query_id, doc_id, None, float(score))
        for query_id, ranking in read_dictionary(path, WHAT).items()
        for doc_id, score in (
            ranking.items()
            if isinstance(ranking, dict)
            else zip(ranking, range(len(ranking), 0, -1), strict=True)
        )
    )
    numbered = [(*row, place, None) for place, row in enumerate(listed)]
    rows = pl.DataFrame(numbered, SCHEMA, orient="row")
    _refuse_scores(path, rows)
    return Batch(rows, (file_name(path),) if rows.height else (), has_lines=False)


def file_name(path: Location) -> str:
    """The name of a run whose file does not give one."""
    # What follows an address's "?" may be a signature, which must not get into tables.
    name = locations.name_of(masked(str(path))).removesuffix(f"?{MASK}")
    return PurePosixPath(name.removesuffix(".gz").removesuffix(".bz2")).stem


def _trec_batches(path: Location) -> Iterator[Batch]:
    done = header = 0
    try:
        with locations.open_decompressed(path) as stream:
            while block := _next_block(stream):
                if not done:
                    block = block.removeprefix(BOM)
                    comments = _comments(block)
                    header = comments.count(b"\n")
                    block = b"\n" * header + block[len(comments) :]
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
    yield from _one_by_one(
        path, (line for line in raw_lines(path, WHAT) if line[0] > max(done, header))
    )


def header_of(path: Location) -> list[str]:
    """The comments above the lines of a TREC run, such as ``# key: value`` of ir_metadata; empty for other files."""
    lines = _comments(start_of(path, WHAT)).decode(errors="replace").split("\n")
    texts = (line.strip("# \t\r") for line in lines)
    return [text for text in texts if text and not text.startswith("ir_metadata.")]


def _comments(block: bytes) -> bytes:
    found = _COMMENTS.match(block) if block.lstrip()[:1] == b"#" else None
    return found[0] if found else b""


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
    """Parse line by line. The rows above a bad line are given before the error is raised."""
    rows: list[tuple[object, ...]] = []
    names: set[str] = set()
    try:
        for number, line in lines:
            row, name = _trec_row(path, number, decode_line(path, number, line))
            rows.append(row)
            names.add(name)
            if len(rows) == _ROWS:
                yield _batch(rows, names)
                rows, names = [], set()
    except InputError:
        yield _batch(rows, names)
        raise
    yield _batch(rows, names)


def _batch(rows: list[tuple[object, ...]], names: set[str]) -> Batch:
    return Batch(pl.DataFrame(rows, SCHEMA, orient="row"), tuple(names), has_lines=True)


def _trec_row(path: Location, number: int, line: str) -> tuple[tuple[object, ...], str]:
    """The row of ``SCHEMA`` of a line that is not blank, and its system name."""
    columns = line.split()
    if len(columns) != 6:
        problem = f"{len(columns)} columns, a TREC run has 6"
        remedy = 'write "query Q0 document rank score name"'
        raise InputError(problem, remedy, path=path, line=number)
    query_id, _, doc_id, rank, score_text, name = columns
    try:
        score = float(score_text)
    except ValueError:
        score = math.nan
    if not abs(score) <= LARGEST_SCORE:
        raise _bad_score(path, number, score_text, query_id, doc_id)
    stated = int(rank) if rank.isdecimal() and len(rank) < 10 else None
    return (query_id, doc_id, None, score, number, stated), name


def _bad_score(
    path: Location, line: int | None, score: str, query_id: str, doc_id: str
) -> InputError:
    """The error for a score that a run could not be exported with and read back in the same order."""
    which = f"document {quoted(doc_id)} of query {quoted(query_id)}"
    problem = f"score {quoted(score)} is not a number that single precision holds ({which})"
    return InputError(problem, IN_RANGE, path=path, line=line)


def _parsed(block: bytes, first_line: int) -> Batch | None:
    """The rows of a block of whole lines; None where Python should look at every line."""
    if len(block) < _SMALL:
        return None
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
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    texts = {
        QUERY_ID: pa.string(),
        DOC_ID: pa.string(),
        STATED_RANK: pa.string(),
        RUN: pa.dictionary(pa.int32(), pa.string()),
    }
    try:
        table = pa_csv.read_csv(
            pa.BufferReader(block),
            read_options=pa_csv.ReadOptions(
                column_names=_COLUMNS, use_threads=False, block_size=len(block) + 1
            ),
            parse_options=pa_csv.ParseOptions(delimiter=" ", quote_char=False, escape_char=False),
            convert_options=pa_csv.ConvertOptions(
                include_columns=[QUERY_ID, DOC_ID, STATED_RANK, SCORE, RUN],
                column_types={**texts, SCORE: pa.float64()},
                null_values=[],
                strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid:  # another number of columns, or a score that Arrow cannot read
        return None
    rows = pl.from_arrow(table.drop_columns([RUN]))
    assert isinstance(rows, pl.DataFrame)
    if rows.select(_BEYOND_SINGLE.any()).item():
        return None
    lines = _numbers(block, rows.height, first_line)
    stated = pl.col(STATED_RANK).cast(pl.Int32, strict=False)
    rows = rows.with_columns(pl.lit(None, pl.Int64).alias(RANK), pl.Series(LINE, lines), stated)
    return Batch(rows.select(list(SCHEMA)), tuple(table[RUN].unique().to_pylist()), has_lines=True)


def _numbers(block: bytes, rows: int, first_line: int) -> npt.NDArray[np.int64]:
    """The lines of the rows of a block whose blank lines are empty."""
    if _count_lines(block) == rows:
        return np.arange(first_line, first_line + rows, dtype=np.int64)
    ends = np.flatnonzero(np.frombuffer(block, dtype=np.uint8) == ord("\n"))
    ends = np.append(ends, len(block))
    return first_line + np.flatnonzero(np.diff(ends, prepend=-1) > 1).astype(np.int64)


# Bytes of the shortest line of a TREC run that is not blank ("q Q0 d 1 1 s"), of a usual one, and of an
# entry of a JSON dictionary.
_LEAST, _USUAL, _ENTRY = 12, 45, 20
# How far text shrinks when it is packed, at the most and usually.
_PACKED_AT_MOST, _PACKED = 1000, 5


def bytes_of(path: Location) -> int:
    """About how many bytes a run has, or would have as TREC text; 0 where nobody knows."""
    if suffix_of(path) == ".parquet":
        return _rows_of(path) * _USUAL
    return _stored(path) * (_PACKED if suffix_of(path) in PACKED else 1)


def lists_at_least(paths: Sequence[Location], passages: int, *, k: int) -> bool:
    """Whether runs list this many passages within the cutoff, counted once for each run.

    Small files are told by their sizes alone. Others are counted until the number is reached, at more
    than half a million rows a second; JSON dictionaries of scores are taken to list one passage in 20
    bytes.

    Those that cannot be read, or have a fault, count as far as they can: to refuse them is for whoever reads them.
    """
    if sum(_most_rows(path) for path in paths) < passages:
        return False
    listed = 0
    for path in paths:
        counts: dict[str, int] = {}
        try:
            if is_dictionary(path, WHAT) and records_of(path) is None:
                listed += bytes_of(path) // _ENTRY
            else:
                for batch in scan_run(path):
                    found = batch.rows.group_by(QUERY_ID).agg(pl.len().alias("rows"))
                    for query_id, rows in found.select(QUERY_ID, "rows").iter_rows():
                        before = counts.get(query_id, 0)
                        counts[query_id] = before + rows
                        listed += min(k, before + rows) - min(k, before)
                    if listed >= passages:
                        return True
        except InputError:
            continue
    return listed >= passages


def _most_rows(path: Location) -> int:
    try:
        if suffix_of(path) == ".parquet":
            # A row may hold a list.
            return _rows_of(path) if is_table(path) else sys.maxsize
        return _stored(path) * (_PACKED_AT_MOST if suffix_of(path) in PACKED else 1) // _LEAST + 1
    except InputError:
        return 0


def _rows_of(path: Location) -> int:
    with open_parquet(path) as table:
        return table.rows


def _stored(path: Location) -> int:
    path = locations.locate(path)
    if isinstance(path, Path):
        try:
            return path.stat().st_size
        except (OSError, ValueError):
            raise InputError("no such file", "give a run", path=path) from None
    system, inside = locations.file_system(path)
    with locations.reported(path):
        return int(system.info(inside).get("size") or 0)
