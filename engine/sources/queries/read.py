"""Reading queries with reference answers, from files of any layout; users' queries need only a text."""

from __future__ import annotations

import hashlib
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from itertools import accumulate, chain
from typing import Any

import polars as pl

from engine import tables
from engine.messages.characters import composed
from engine.messages.errors import InputError
from engine.messages.notes import Note, count_note, merge_notes
from engine.messages.wording import quoted
from engine.sources.fields import ANSWER_FIELDS, CONTEXT_FIELD, first_of
from engine.sources.io import locations
from engine.sources.io.locations import Location, is_data_set
from engine.sources.io.records import read_json_records, read_lines, start_of
from engine.sources.queries import layouts
from engine.sources.queries.layouts import WHAT, QueryRow, layout_of, rows_of
from engine.sources.strangers import QueryNumbers, count_strangers
from engine.tables import ANSWERS, PROVENANCE, QUERY, QUERY_ID

WRITTEN_LISTS = "written_lists"
# Queries whose further fields are kept, and the letters of the longest value.
_MOST, _LETTERS = 20_000, 40
# Queries that are objects at a time.
_ROWS = 10_000
# Programs' words for missing values, in small letters; some are answers, too.
_NOTHING = frozenset({"na", "n/a", "nan", "<na>", "none", "null"})


@dataclass(frozen=True)
class QuerySet:
    """Queries, and the number of queries left out.

    Attributes:
        table: the queries table, in the order of the file.
        unanswerable: questions that the file marks as unanswerable; they are not in the table.
        titles: by query id, titles in its ``provenance`` of articles without ids.
        groups: by query id, the value of the requested column, or else the digest of the query's context; queries that
            have neither are left out.
        fields: by query id, the further fields of the file that hold a short text, a number or a date, as texts; for
            the first queries, as many as a page may show.
        notes: notes on values whose reading may surprise (``notes_of``).
        numbering: numbers for queries without ids.
    """

    table: pl.DataFrame
    unanswerable: int = 0
    titles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)
    fields: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    notes: tuple[Note, ...] = ()
    numbering: QueryNumbers = field(default_factory=QueryNumbers)


def read_queries(path: Location, *, need_answers: bool = True) -> pl.DataFrame:
    """The table of ``read_query_set``, for callers that know that nothing is left out."""
    return read_query_set(path, need_answers=need_answers).table


def read_query_set(
    path: Location,
    *,
    need_answers: bool = True,
    answers: Location | None = None,
    remedy: str = "add at least one answer",
    column: str | None = None,
) -> QuerySet:
    """Read queries as the queries table, in the order of the file; answers are stripped and distinct, in theirs.

    Args:
        path: a file of any layout of ``layout_of``, or a BEIR directory with a ``queries.jsonl``.
        need_answers: whether a query without answers is an error (retrieval does not need any).
        answers: a file with the answers of queries by their ids, in any layout of queries, with or without the texts of
            queries; they replace the answers in ``path``.
        column: the field of the records that ``QuerySet.groups`` gives.

    Raises:
        InputError: a file is unreadable or empty, a query lacks an id, text or answers, an id is duplicated,
            ``answers`` has none of the queries, or no query has the field ``column``.
    """
    place, rows = query_rows(path, column)
    others = [] if answers is None else read_answers(answers)
    return query_set_of(
        place, rows, answers, others, need_answers=need_answers, remedy=remedy, column=column
    )


def query_rows(path: Location, column: str | None) -> tuple[Location, Iterable[QueryRow]]:
    """The file of queries, and its rows; arguments are as in ``read_query_set``."""
    path = _file(path)
    return path, rows_of(path, column=column)


def query_set_of(
    path: Location,
    rows: Iterable[QueryRow],
    answers: Location | None,
    others: Sequence[QueryRow],
    *,
    need_answers: bool,
    remedy: str,
    column: str | None,
) -> QuerySet:
    """As ``read_query_set``, from rows; ``others`` are separate answers, as ``joined`` takes them."""
    notes: list[Note] = []
    fields: dict[str, Mapping[str, str]] = {}
    numbering = QueryNumbers(path, fields)
    rows = _noted(rows, numbering, fields)
    if answers is not None:
        rows, note = joined(list(rows), others, answers, numbering)
        notes.append(note)
    checked: list[QueryRow] = []
    parts, counted = list[pl.DataFrame](), list[tuple[Note, ...]]()
    titles: dict[str, tuple[str, ...]] = {}
    groups: dict[str, str] = {}
    names: dict[str, None] = {}
    unanswerable = 0
    lines: dict[str, int | None] = {}
    for row in rows:
        _refuse_twice(path, row, lines)
        if not row.query.strip() and not row.unanswerable:
            problem = f"query {row.query_id!r} is empty"
            raise InputError(problem, "write its text", "queries.empty", path=path, line=row.line)
        group = first_of(row.record, [column or CONTEXT_FIELD])
        if group is not None:
            text = composed(str(group))
            context = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16)
            groups[row.query_id] = text if column else context.hexdigest()
        if column and not groups:
            names.update(dict.fromkeys(row.record))
        if row.unanswerable:
            unanswerable += 1
        elif need_answers and not row.answers:
            here = "" if answers is None else f", neither here nor in {answers}"
            problem = f"query {row.query_id!r} has no answers{here}"
            remedy += _read_of(row)
            raise InputError(problem, remedy, "queries.no-answers", path=path, line=row.line)
        else:
            checked.append(replace(row, record={}))
            if row.titles:
                titles[row.query_id] = row.titles
        if len(checked) == _ROWS:  # as objects, queries take ten times the room
            parts.append(_table(checked))
            counted.append(notes_of(checked))
            checked.clear()
    table = pl.concat([*parts, _table(checked)], rechunk=True)
    if table.is_empty():
        if unanswerable:
            problem = f"only unanswerable questions ({unanswerable})"
            raise InputError(problem, f"give {WHAT}", "queries.unanswerable", path=path)
        raise InputError("no queries", f"give {WHAT}", "queries.none", path=path)
    if column and not groups:
        raise layouts.no_column(path, column, names)
    merged = merge_notes([*counted, notes_of(checked), notes], 0)
    return QuerySet(table, unanswerable, titles, groups, fields, merged, numbering)


def _noted(
    rows: Iterable[QueryRow], numbering: QueryNumbers, fields: dict[str, Mapping[str, str]]
) -> Iterator[QueryRow]:
    """The rows; counts rows without ids, and keeps the further fields of the first rows."""
    for row in rows:
        numbering.count += row.numbered
        if len(fields) < _MOST:
            fields[row.query_id] = _further(row)
        yield row


def _read_of(row: QueryRow) -> str:
    """The fields of a query, and its fields with answers."""
    read = "output[].answer" if "output" in row.record else ", ".join(ANSWER_FIELDS)
    return f" (it has the fields {', '.join(row.record)}; answers are read from {read})"


def _further(row: QueryRow) -> dict[str, str]:
    """The fields of a query that are unknown to the engine, but for long ones, lists and records."""
    values = {
        name: sys.intern(composed(str(value)))
        for name, value in row.record.items()
        if name not in layouts.OWN_FIELDS and isinstance(value, str | int | float | date)
    }
    return {name: text for name, text in values.items() if 0 < len(text) <= _LETTERS}


def notes_of(rows: Sequence[QueryRow]) -> tuple[Note, ...]:
    """Notes on queries: numbers of fields with lists written as texts, and of answers that look like missing values."""
    lists = sum(row.written for row in rows)
    taken = "[answer or gold article was a list|answers or gold articles were lists] written as a text, and [was|were] taken as the list"
    named = sum({a.lower() for a in row.answers} <= _NOTHING for row in rows if row.answers)
    what = "[query has|queries have] no answer but "
    what += "NA, NaN, None or null, which was taken as that text"
    return count_note(WRITTEN_LISTS, lists, taken), count_note("answers_like_nothing", named, what)


def _table(rows: Sequence[QueryRow]) -> pl.DataFrame:
    columns = {
        QUERY_ID: [row.query_id for row in rows],
        QUERY: [row.query for row in rows],
        ANSWERS: _lists([row.answers for row in rows]),
        PROVENANCE: _lists([row.provenance for row in rows]),
    }
    return pl.DataFrame(columns, schema=tables.QUERIES)


def _lists(lists: Sequence[Sequence[str]]) -> pl.Series:
    """A column of lists of texts, all at once: Polars makes a series per list, and ``pyarrow.array`` imports pandas."""
    import pyarrow as pa  # takes longer than all of help may

    ends = pl.Series(list(accumulate(map(len, lists), initial=0)), dtype=pl.Int64)
    texts = pl.Series(list(chain.from_iterable(lists)), dtype=pl.String)
    flat = texts.to_arrow(compat_level=pl.CompatLevel.oldest())
    return pl.Series(pa.LargeListArray.from_arrays(ends.to_arrow(), flat))


def joined(
    rows: list[QueryRow], others: Sequence[QueryRow], answers: Location, numbering: QueryNumbers
) -> tuple[list[QueryRow], Note]:
    """The rows, with the answers of ``others``, from the file ``answers``, if any, instead of their own.

    Answers match by the ids of queries; by texts if either has no ids, or no id is a query's. An InputError says that
    there are answers to none of the queries, or two to one, or that answers have neither ids nor texts.
    """
    ids, texts = {row.query_id for row in rows}, dict[str, list[str]]()
    for row in rows:
        texts.setdefault(row.query.strip(), []).append(row.query_id)
    texts.pop("", None)
    times = Counter(row.query.strip() for row in others)
    has_texts = any(text in texts for text in times)
    has_ids = not numbering.count and any(r.query_id in ids for r in others if not r.numbered)
    by_id: dict[str, QueryRow] = {}
    lines: dict[str, int | None] = {}
    for row in others:
        fault = partial(InputError, path=answers, line=row.line)
        text = row.query.strip()
        if not row.numbered:
            _refuse_twice(answers, row, lines)
        elif not text and not numbering.count:
            problem, remedy = "answers without ids and texts of queries", "give each the query's id"
            raise fault(problem, remedy, "queries.unnumbered")
        named = [row.query_id]
        if (row.numbered and text) or (has_texts and not has_ids):
            same = texts.get(text, [text])
            named = named if times[text] > 1 and row.query_id in same else same
        else:
            numbering.see(named, answers)
        for name in named:
            if by_id.setdefault(name, row).answers != row.answers and name in ids:
                problem = f"query {quoted(row.query)} has other answers twice"
                raise fault(problem, "name queries by ids", "queries.differ")
    numbering.check()
    strangers = count_strangers(
        pl.Series(by_id.keys(), dtype=pl.String),
        pl.Series([row.query_id for row in rows], dtype=pl.String),
        f"has answers to none of the {{}} [query|queries] of {numbering.path}",
        remedy="give the answers of these queries, by the same ids",
        path=answers,
    )
    what = "[id|ids] in `answers` [belongs|belong] to no query"
    answered = []
    for row in rows:
        if (own := by_id.get(row.query_id)) and own.answers:
            written = row.written + own.written
            row = replace(row, answers=own.answers, unanswerable=False, written=written)
        answered.append(row)
    return answered, count_note("answers_of_others", strangers, what)


def read_answers(path: Location) -> list[QueryRow]:
    """The answers of a file in any layout of queries; texts are not needed."""
    return [*rows_of(_file(path), answers_alone=True)]


def line_of(path: Location, query_id: str) -> int | None:
    """The line of a query in its file; None in Parquet and SQuAD. Looked up only to word an error."""
    return next((row.line for row in rows_of(_file(path)) if row.query_id == query_id), None)


def _file(path: Location) -> Location:
    if is_data_set(path):
        return str(path)
    if locations.is_directory(path):
        if files := locations.named(locations.list_files(path), "queries.jsonl"):
            return files[0]
        problem = "is a directory without queries.jsonl"
        raise InputError(problem, "give BEIR's directory, or a file", "queries.files", path=path)
    return locations.require_file(path, WHAT)


def _refuse_twice(path: Location, row: QueryRow, lines: dict[str, int | None]) -> None:
    if row.query_id in lines:
        first = f" (see line {lines[row.query_id]})" if lines[row.query_id] else ""
        problem, remedy = f"duplicate query id {row.query_id!r}{first}", "make query ids unique"
        raise InputError(problem, remedy, "queries.twice", path=path, line=row.line)
    lines[row.query_id] = row.line


_USERS = "a text file (.txt) with one query per line, or queries in any other layout"
_TEXT = re.compile(r"[^.]\.txt(\.gz|\.bz2)?$")


def read_user_queries(path: Location) -> QuerySet:
    """Read queries that need neither answers nor ids, in the order of the file.

    - In a text file, which is named ``.txt`` (compressed or not) and does not start with a brace, each line that is not
      blank is a query, with its line number for an id.
    - The same holds for JSON lines if the first has ``input`` and no ``id``.
    - Any other file is read by ``read_query_set``, and refused as it refuses queries.
    """
    path = locations.locate(path)
    if not (locations.is_directory(path) or is_data_set(path)):
        locations.require_file(path, _USERS)
        # Other layouts are recognized by their content and may have any name; no query starts like this.
        if _TEXT.search(locations.name_of(path)) and not start_of(path, _USERS).startswith(b"{"):
            return QuerySet(_numbered(path, read_lines(path, _USERS)))
        if layout_of(path) == "kilt":
            first = next((record for _, record in read_json_records(path, _USERS)), {"id": None})
            if "id" not in first:
                return QuerySet(_numbered(path, _inputs(path)))
    return read_query_set(path, need_answers=False)


def _inputs(path: Location) -> Iterable[tuple[int, Any]]:
    for line, record in read_json_records(path, _USERS):
        if record.get("id") is not None:
            remedy = "give every query an id, or none of them"
            raise InputError("a query with an id", remedy, "queries.mixed", path=path, line=line)
        yield line, record.get("input")


def _numbered(path: Location, texts: Iterable[tuple[int, Any]]) -> pl.DataFrame:
    """The queries table of (line, text); the line number is the query's id."""
    rows: list[QueryRow] = []
    for line, text in texts:
        if not isinstance(text, str) or not text.strip():
            problem = "a query without text"
            raise InputError(problem, "write its text", "queries.text", path=path, line=line)
        rows.append(layouts.clean_row(path, line, str(line), text.strip(), [], []))
    if not rows:
        raise InputError("no queries", f"give {_USERS}", "queries.none", path=path)
    return _table(rows)
