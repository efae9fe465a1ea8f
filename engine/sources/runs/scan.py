"""Runs of any layout and size in batches, in the order of the file; and how large they are.

TREC text is parsed a block at a time by Arrow. A block in which a line is anything but six columns of plain text with a
number among them is parsed line by line instead, where Python decides on white space and numbers, and every error names
its line.
"""

from __future__ import annotations

import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from engine import tables
from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.sources.fields import QUERY_FIELDS, QUERY_ID_FIELDS, TEXT_FIELDS, first_of
from engine.sources.io import locations, records
from engine.sources.io.locations import DAMAGE, PACKED, Location, suffix_of
from engine.sources.io.parquet import open_parquet
from engine.sources.io.records import BOM, LONGEST_LINE, raw_lines, start_of
from engine.sources.runs import forms
from engine.sources.runs.forms import LINE, SCHEMA, Batch
from engine.tables import DOC_ID, QUERY_ID, RANK, RUN, SCORE, STATED_RANK

# Bytes of TREC text that are parsed at a time, and rows of a batch of Parquet.
_BLOCK = 4 << 20
# Bytes of fewer than some 500 lines, for which it is not worth while to call Arrow.
_SMALL = 1 << 15
_ROWS = 50_000
# Records of a Parquet file per batch.
_RECORDS = 10_000
# A dictionary whose first list holds scores, and no passages.
_SCORES = re.compile(rb'\{\s*"(?:[^"\\]|\\.)*"\s*:\s*\{', re.S)
# One whose first value holds lists of queries.
_RUNS = re.compile(_SCORES.pattern + rb'\s*"(?:[^"\\]|\\.)*"\s*:\s*[{\[]', re.S)

_COLUMNS = [QUERY_ID, "Q0", DOC_ID, STATED_RANK, SCORE, RUN]
# Characters that Python takes for white space and that do not end a line; others of ASCII's control characters, some of
# which are white space too, are left to Python.
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
_BEYOND_SINGLE = ~(pl.col(SCORE).abs() <= forms.LARGEST_SCORE) | pl.col(SCORE).is_nan()


def scan_run(path: Location) -> Iterator[Batch]:
    """Yield a run of any layout of ``read_run``, in the order of the file.

    TREC text and Parquet take constant memory; JSON, and Parquet under other names, is read whole. ``read.RunChecks``
    compares rows. The rows above a bad line of TREC text come before its error. An InputError as of ``read_run`` names
    a fault of a row.
    """
    path = locations.require_file(path, WHAT)
    yield from layout_of(path).scan(path)


def layout_of(path: Location) -> Layout:
    """The layout of a run, by its name and its start; an InputError if none fits."""
    start = b"" if suffix_of(path) == ".parquet" else start_of(path, WHAT)
    return next(layout for layout in LAYOUTS if layout.holds(path, start))


def line_of(path: Location, query_id: str, doc_id: str) -> int | None:
    """The line in which a run with lines lists a document; only for error messages."""
    if layout_of(path).has_lines:
        for batch in scan_run(path):
            rows = batch.rows.filter(pl.col(QUERY_ID) == query_id, pl.col(DOC_ID) == doc_id)
            if rows.height:
                return int(rows[LINE][0])
    return None


def runs_within(path: Location) -> dict[str, Any]:
    """The runs of a JSON dictionary ``{run: {query: …}}``; empty for any other file."""
    if not _RUNS.match(start_of(path, WHAT)) or _begins_with_a_record(path):
        return {}
    document = records.read_json_document(path, WHAT)
    is_nested = all(isinstance(run, dict) for run in document.values())
    return document if is_nested and forms.names_runs(document) else {}


def _is_table(path: Location, start: bytes) -> bool:
    """Whether a file is Parquet with the run table's columns, without texts."""
    if suffix_of(path) != ".parquet":
        return False
    with open_parquet(path) as table:
        names = set(table.names)
    return {QUERY_ID, DOC_ID, RANK, SCORE} <= names and not names & set(TEXT_FIELDS)


def _holds_records(path: Location, start: bytes) -> bool:
    """Whether a file is a JSON array, or JSON lines whose first one names its query."""
    return start[:1] == b"[" or (start[:1] == b"{" and _begins_with_a_record(path))


def _begins_with_a_record(path: Location) -> bool:
    try:
        _, line = next(raw_lines(path, WHAT))
        first = records.parse_json(line)
    except (InputError, ValueError):
        return False  # a document over several lines, or one that its reader refuses
    names = (*QUERY_ID_FIELDS, *QUERY_FIELDS)
    return isinstance(first, dict) and isinstance(first_of(first, names), str | int)


def _records_batch(
    path: Location, each: Iterable[tuple[int | None, Mapping[str, Any]]]
) -> Iterator[Batch]:
    yield forms.read_records(path, each, forms.file_name(path))


def _parquet_records(path: Location) -> Iterator[tuple[None, dict[str, Any]]]:
    with open_parquet(path) as table:
        for frame in table.batches(_RECORDS, forms.COLUMNS | table.plain_names):
            yield from ((None, record) for record in frame.iter_rows(named=True))


def _table_batches(path: Location) -> Iterator[Batch]:
    first_row = 0
    with open_parquet(path) as table:
        for frame in table.batches(_ROWS, tables.RUNS):
            if RUN not in frame.columns:
                frame = frame.with_columns(pl.lit(forms.file_name(path)).alias(RUN))
            frame = tables.conform(frame, tables.RUNS, path, first_row=first_row)
            _refuse_scores(path, frame)
            line = pl.int_range(first_row, first_row + pl.len(), dtype=pl.Int64)
            stated = pl.lit(None, pl.Int32).alias(STATED_RANK)
            rows = frame.with_columns(line.alias(LINE), stated).select(list(SCHEMA))
            first_row += rows.height
            yield Batch(rows, tuple(frame[RUN].unique()), has_lines=False)


def _refuse_scores(path: Location, rows: pl.DataFrame) -> None:
    bad = rows.filter(_BEYOND_SINGLE)
    if not bad.is_empty():
        query_id, doc_id, score = bad.select(QUERY_ID, DOC_ID, SCORE).row(0)
        raise _bad_score(path, None, repr(score), query_id, doc_id)


def _dictionary_batches(path: Location) -> Iterator[Batch]:
    """A dictionary of scores, of lists of ids, or of lists of passages, which are all objects or all texts."""
    document = records.read_json_document(path, WHAT)
    lists = [] if isinstance(next(iter(document.values()), None), dict) else document.values()
    items = [item for listed in lists if isinstance(listed, list) for item in listed]
    texts = bool(items) and all(isinstance(item, str) and item.split() != [item] for item in items)
    if texts or any(isinstance(item, dict) for item in items):
        yield from _records_batch(path, forms.records_in(document, path, f"give {WHAT}"))
        return
    numbered: list[tuple[object, ...]] = []
    for query_id, ranking in forms.checked_dictionary(document, path, f"give {WHAT}").items():
        if isinstance(ranking, list):
            ranking = dict(zip(ranking, map(float, range(len(ranking), 0, -1)), strict=True))
        for doc_id, score in ranking.items():
            numbered.append((query_id, doc_id, None, float(score), len(numbered), None))
    rows = pl.DataFrame(numbered, SCHEMA, orient="row")
    _refuse_scores(path, rows)
    yield Batch(rows, (forms.file_name(path),) if rows.height else (), has_lines=False)


def _trec_batches(path: Location) -> Iterator[Batch]:
    above = header = 0  # lines above the block, and with comments
    try:
        with locations.open_decompressed(path) as stream:
            while block := stream.read(_BLOCK):
                if not block.endswith(b"\n"):  # cut, maybe, in a line longer than any line may be
                    block += stream.readline(LONGEST_LINE + 1)
                if not above:
                    block = block.removeprefix(BOM)
                    comments = _comments(block)
                    header = comments.count(b"\n")
                    block = b"\n" * header + block[len(comments) :]
                if len(block) > LONGEST_LINE:
                    break
                if (batch := _parse_block(block, above + 1)) is not None:
                    yield batch
                else:
                    numbered = enumerate(block.split(b"\n"), above + 1)
                    yield from _one_by_one(path, (line for line in numbered if line[1].strip()))
                above += _count_lines(block)
            else:
                return
    except DAMAGE:
        pass
    # A line without end, or a damaged file: yield whole lines, then raise the error with its line.
    first = max(above, header) + 1
    yield from _one_by_one(path, (line for line in raw_lines(path, WHAT) if line[0] >= first))


def header_of(path: Location) -> list[str]:
    """The comments above the lines of a TREC run, such as ``# key: value`` of ir_metadata; empty for other files."""
    lines = _comments(start_of(path, WHAT)).decode(errors="replace").split("\n")
    texts = (line.strip("# \t\r") for line in lines)
    return [text for text in texts if text and not text.startswith("ir_metadata.")]


def _comments(block: bytes) -> bytes:
    comments = _COMMENTS.match(block) if block.lstrip()[:1] == b"#" else None
    return comments[0] if comments else b""


def _count_lines(block: bytes) -> int:
    return block.count(b"\n") + (not block.endswith(b"\n"))


def _one_by_one(path: Location, lines: Iterable[tuple[int, bytes]]) -> Iterator[Batch]:
    """Parse line by line. The rows above a bad line come before its error."""
    rows: list[tuple[object, ...]] = []
    try:
        for number, line in lines:
            rows.append(_trec_row(path, number, records.decode_line(path, number, line)))
            if len(rows) == _ROWS:
                yield _batch(rows)
                rows = []
    except InputError:
        yield _batch(rows)
        raise
    yield _batch(rows)


def _batch(rows: list[tuple[object, ...]]) -> Batch:
    frame = pl.DataFrame(rows, {**SCHEMA, RUN: pl.String()}, orient="row")
    return Batch(frame.drop(RUN), tuple(frame[RUN].unique()), has_lines=True)


def _trec_row(path: Location, number: int, line: str) -> tuple[object, ...]:
    """The row of ``SCHEMA`` and the system name in a line that is not blank."""
    columns = line.split()
    if len(columns) != 6:
        problem = f"{len(columns)} columns, a TREC run has 6"
        remedy = 'write "query Q0 document rank score name"'
        raise InputError(problem, remedy, "runs.columns", path=path, line=number)
    query_id, _, doc_id, rank, score_text, name = columns
    try:
        score = float(score_text)
    except ValueError:
        score = math.nan
    if not abs(score) <= forms.LARGEST_SCORE:
        raise _bad_score(path, number, score_text, query_id, doc_id)
    stated = int(rank) if rank.isdecimal() and len(rank) < 10 else None
    return query_id, doc_id, None, score, number, stated, name


def _bad_score(
    path: Location, line: int | None, score: str, query_id: str, doc_id: str
) -> InputError:
    """The error for a score that an export could not preserve in order."""
    which = f"document {quoted(doc_id)} of query {quoted(query_id)}"
    problem = f"score {quoted(score)} is not a number that single precision holds ({which})"
    return InputError(problem, forms.IN_RANGE, "runs.score", path=path, line=line)


def _parse_block(block: bytes, first_line: int) -> Batch | None:
    """The rows of a block of whole lines; None if Python should parse every line."""
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

    types = dict.fromkeys((QUERY_ID, DOC_ID, STATED_RANK), pa.string())
    types |= {SCORE: pa.float64(), RUN: pa.dictionary(pa.int32(), pa.string())}
    read = pa_csv.ReadOptions(column_names=_COLUMNS, use_threads=False, block_size=len(block) + 1)
    parse = pa_csv.ParseOptions(delimiter=" ", quote_char=False, escape_char=False)
    # Nothing stands for a missing value.
    convert = pa_csv.ConvertOptions(column_types=types, include_columns=[*types], null_values=[])
    try:
        table = pa_csv.read_csv(pa.BufferReader(block), read, parse, convert)
    except pa.ArrowInvalid:  # another number of columns, or a score that Arrow cannot read
        return None
    rows = pl.DataFrame(table.drop_columns([RUN]))
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


@dataclass(frozen=True)
class Layout:
    """How a run is written.

    Attributes:
        words: its name in refusals; empty if another layout's name covers it.
        holds: whether a file has it, by its place and its start (empty for Parquet), if no layout above holds.
        scan: the batches of such a file.
        least: bytes of its shortest row; 0 if unknown.
        usual: bytes of a usual row, if rows are estimated by size and never counted.
        has_lines: whether each row is a line.
    """

    words: str
    holds: Callable[[Location, bytes], bool]
    scan: Callable[[Location], Iterator[Batch]]
    least: int
    usual: int = 0
    has_lines: bool = False


# The first that holds counts. Refusals name them from the last to the first.
LAYOUTS = (
    Layout(
        'records {"query_id": …, "results": [{"id": …, "text": …}, …]}',
        _holds_records,
        lambda path: _records_batch(path, records.read_json_records(path, WHAT)),
        least=2,
    ),
    Layout(
        "JSON {query: {document: score}}",
        lambda path, start: _SCORES.match(start) is not None,
        _dictionary_batches,
        least=6,
        usual=20,
    ),
    Layout("", lambda path, start: start[:1] == b"{", _dictionary_batches, least=2),
    Layout("Parquet", _is_table, _table_batches, least=1),
    Layout(
        "",
        lambda path, start: suffix_of(path) == ".parquet",
        lambda path: _records_batch(path, _parquet_records(path)),
        least=0,
    ),
    Layout(
        'TREC lines "query Q0 document rank score name"',
        lambda path, start: True,
        _trec_batches,
        least=12,
        has_lines=True,
    ),
)
*_NAMED, _LAST = (layout.words for layout in LAYOUTS[::-1] if layout.words)
WHAT: str = f"a run: {', '.join(_NAMED)}, or {_LAST}"
# Bytes of a usual line of a TREC run.
_USUAL = 45
# How far text shrinks when it is packed, at the most and usually.
_PACKED_AT_MOST, _PACKED = 1000, 5


def bytes_of(path: Location) -> int:
    """Approximate bytes of a run, or of the run as TREC text; 0 if unknown."""
    if suffix_of(path) == ".parquet":
        return _rows_of(path) * _USUAL
    return _stored(path) * (_PACKED if suffix_of(path) in PACKED else 1)


def lists_at_least(paths: Sequence[Location], passages: int, *, k: int) -> bool:
    """Whether runs list this many passages within the cutoff, counted once for each run.

    Small files are judged by their sizes alone, JSON dictionaries of scores by ``Layout.usual``. Others are counted
    until the number is reached, at more than half a million rows a second; files with a fault count as far as they can.
    """
    if sum(_most_rows(path) for path in paths) < passages:
        return False
    listed = 0
    for path in paths:
        counts = Counter[str]()
        try:
            if usual := layout_of(path).usual:
                listed += bytes_of(path) // usual
            else:
                for batch in scan_run(path):
                    for query_id, rows in batch.rows[QUERY_ID].value_counts().iter_rows():
                        listed += min(rows, max(0, k - counts[query_id]))
                        counts[query_id] += rows
                    if listed >= passages:
                        return True
        except InputError:
            continue
    return listed >= passages


def _most_rows(path: Location) -> int:
    try:
        least = layout_of(path).least
        if suffix_of(path) == ".parquet":
            # A row of records may hold a list.
            return _rows_of(path) if least else sys.maxsize
        return _stored(path) * (_PACKED_AT_MOST if suffix_of(path) in PACKED else 1) // least + 1
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
            raise InputError("no such file", "give a run", "files.missing", path=path) from None
    system, inside = locations.file_system(path)
    with locations.reported(path):
        return int(system.info(inside).get("size") or 0)
