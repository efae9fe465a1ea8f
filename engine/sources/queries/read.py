"""Reading queries with their reference answers, from files of any supported layout."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import polars as pl

from engine import tables
from engine.errors import InputError
from engine.sources.articles.squad import is_squad
from engine.sources.io.lines import read_json_lines, start_of
from engine.sources.io.locations import (
    Location,
    is_directory,
    list_files,
    name_of,
    require_file,
    suffix_of,
)
from engine.sources.io.parquet import read_parquet
from engine.sources.queries.kilt import WHAT as KILT
from engine.sources.queries.kilt import kilt_row
from engine.sources.queries.plain import plain_rows, table_records
from engine.sources.queries.rows import QueryRow, clean_row
from engine.sources.queries.squad import squad_rows

Layout = Literal["parquet", "kilt", "plain", "table", "squad"]

_WHAT = f"{KILT}, or JSONL or CSV with query and answers, or a SQuAD document"


@dataclass(frozen=True)
class QuerySet:
    """Queries, and the number of those left out.

    Attributes:
        table: the queries table, in the order of the file.
        unanswerable: questions that the file marks as unanswerable; they are not in the table.
        titles: by query id, those of its ``provenance`` that are titles of articles without ids.
    """

    table: pl.DataFrame
    unanswerable: int = 0
    titles: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def read_queries(
    path: Location, *, need_answers: bool = True, layout: Layout | None = None
) -> pl.DataFrame:
    """The table of ``read_query_set``, for callers that know that nothing is left out."""
    return read_query_set(path, need_answers=need_answers, layout=layout).table


def read_query_set(
    path: Location, *, need_answers: bool = True, layout: Layout | None = None
) -> QuerySet:
    """Read queries as the queries table, in the order of the file.

    Answers are stripped and distinct, in their order.

    Args:
        path: a file of any layout of ``layout_of``, or a BEIR directory with a ``queries.jsonl``.
        need_answers: whether a query without answers is an error (retrieval does not need any).
        layout: the required layout; by default any.

    Raises:
        InputError: the file is unreadable or empty, a query lacks an id, text or answers, or an id is
            duplicated.
    """
    path = _file(path)
    rows, unanswerable = _rows(path, layout or layout_of(path))
    checked = _checked(path, rows, need_answers=need_answers)
    values = [(row.query_id, row.query, row.answers, row.provenance) for row in checked]
    table = pl.DataFrame(values, schema=tables.QUERIES, orient="row")
    if table.is_empty():
        problem = "no queries"
        if unanswerable:
            problem = f"only unanswerable questions ({unanswerable})"
        raise InputError(path, None, problem, f"give {_WHAT}")
    titles = {row.query_id: row.titles for row in checked if row.titles}
    return QuerySet(table, unanswerable, titles)


def line_of(path: Location, query_id: str) -> int | None:
    """The line of a query in its file; None in Parquet and SQuAD. Looked up only to word an error."""
    path = _file(path)
    rows, _ = _rows(path, layout_of(path))
    return next((row.line for row in rows if row.query_id == query_id), None)


def layout_of(path: Location) -> Layout:
    """The layout of a file of queries.

    - ``parquet``: by the name;
    - ``squad``: one JSON document with ``data`` (``is_squad``);
    - JSON lines: ``kilt`` if the first object has ``input`` or ``output``, else ``plain``;
    - anything that does not start with ``{`` or ``[`` is a ``table``, CSV or TSV.

    Raises:
        InputError: there is no such file, or it cannot be read.
    """
    if suffix_of(path) == ".parquet":
        return "parquet"
    start = start_of(path, _WHAT)
    if start and start[:1] not in (b"{", b"["):
        return "table"
    if is_squad(path):
        return "squad"
    for _, record in read_json_lines(path, _WHAT):
        return "kilt" if "input" in record or "output" in record else "plain"
    return "kilt"


def _rows(path: Location, layout: Layout) -> tuple[Iterable[QueryRow], int]:
    """The rows of a file, and how many questions it marks as unanswerable, which are not among them."""
    if layout == "parquet":
        frame = tables.conform(read_parquet(path, tables.QUERIES), tables.QUERIES, path)
        return [clean_row(path, None, *row) for row in frame.iter_rows()], 0
    if layout == "squad":
        return squad_rows(path)
    if layout == "kilt":
        return (kilt_row(path, line, record) for line, record in read_json_lines(path, _WHAT)), 0
    records = read_json_lines if layout == "plain" else table_records
    return plain_rows(path, records(path, _WHAT)), 0


def _file(path: Location) -> Location:
    if is_directory(path):
        for file in list_files(path):
            if name_of(file) in ("queries.jsonl", "queries.jsonl.gz", "queries.jsonl.bz2"):
                return file
        raise InputError(
            path, None, "is a directory without queries.jsonl", "give BEIR's directory, or a file"
        )
    return require_file(path, _WHAT)


def _checked(path: Location, rows: Iterable[QueryRow], *, need_answers: bool) -> list[QueryRow]:
    lines: dict[str, int | None] = {}
    checked: list[QueryRow] = []
    for row in rows:
        name = repr(row.query_id)
        if row.query_id in lines:
            first = f" (see line {lines[row.query_id]})" if lines[row.query_id] else ""
            raise InputError(
                path, row.line, f"duplicate query id {name}{first}", "make query ids unique"
            )
        lines[row.query_id] = row.line
        if not row.query.strip():
            raise InputError(path, row.line, f"query {name} is empty", "write its text")
        if need_answers and not row.answers:
            raise InputError(
                path, row.line, f"query {name} has no answers", "add at least one answer"
            )
        checked.append(row)
    return checked
