"""Queries with their references, from files of any known layout."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import polars as pl

from engine import tables
from engine.errors import InputError
from engine.normalize import normalize_answer
from engine.sources.articles.squad import is_squad
from engine.sources.io.files import read_parquet
from engine.sources.io.lines import raw_lines, read_json_lines
from engine.sources.io.locations import (
    Location,
    is_directory,
    list_files,
    name_of,
    require_file,
    suffix_of,
)
from engine.sources.queries.kilt import WHAT as KILT
from engine.sources.queries.kilt import kilt_row
from engine.sources.queries.plain import plain_rows, table_records
from engine.sources.queries.rows import QueryRow, clean_row
from engine.sources.queries.squad import squad_rows

Layout = Literal["parquet", "kilt", "plain", "table", "squad"]

_WHAT = f"{KILT}, or JSONL or CSV with query and answers, or a SQuAD document"


@dataclass(frozen=True)
class QuerySet:
    """Queries and what was left out of them.

    Attributes:
        table: the queries table, in the order of the file.
        unanswerable: questions that the file itself calls unanswerable; they are not in the table.
    """

    table: pl.DataFrame
    unanswerable: int = 0


def read_queries(
    path: Location, *, need_answers: bool = True, layout: Layout | None = None
) -> pl.DataFrame:
    """The table of ``read_query_set``, for those who know that nothing is left out."""
    return read_query_set(path, need_answers=need_answers, layout=layout).table


def read_query_set(
    path: Location, *, need_answers: bool = True, layout: Layout | None = None
) -> QuerySet:
    """Read queries as the queries table, in the order of the file.

    Answers are stripped and distinct, in their order.

    Args:
        path: a file of any layout of ``layout_of``, or a BEIR directory with a ``queries.jsonl``.
        need_answers: whether a query without answers is an error (retrieval does without).
        layout: what the file is, where only that will do.

    Raises:
        InputError: unreadable or empty, a query without id, text or answers, a duplicate id, or
            answers that normalize to nothing (every empty output would match them).
    """
    path = _file(path)
    layout = layout or layout_of(path)
    unanswerable = 0
    rows: Iterable[QueryRow]
    if layout == "parquet":
        frame = tables.conform(read_parquet(path), tables.QUERIES, path)
        rows = [clean_row(path, None, *row) for row in frame.iter_rows()]
    elif layout == "squad":
        rows, unanswerable = squad_rows(path)
    elif layout == "kilt":
        rows = [kilt_row(path, line, record) for line, record in read_json_lines(path, _WHAT)]
    elif layout == "plain":
        rows = plain_rows(path, read_json_lines(path, _WHAT))
    else:
        rows = plain_rows(path, table_records(path, _WHAT))
    table = _checked(path, rows, need_answers=need_answers)
    if table.is_empty():
        left = f" but {unanswerable} unanswerable ones" if unanswerable else ""
        raise InputError(path, None, f"no queries{left}", f"give {_WHAT}")
    return QuerySet(table, unanswerable)


def layout_of(path: Location) -> Layout:
    """The layout of a file of queries.

    - ``parquet`` by its name;
    - ``squad``: one JSON document with ``data`` (``is_squad``);
    - JSON lines: ``kilt`` where the first object has ``input`` or ``output``, else ``plain``;
    - anything that does not begin with ``{`` or ``[`` is a ``table``, CSV or TSV.

    Raises:
        InputError: no such file, or it cannot be read.
    """
    if suffix_of(path) == ".parquet":
        return "parquet"
    for _, line in raw_lines(path, _WHAT):
        if line.lstrip()[:1] not in (b"{", b"["):
            return "table"
        break
    if is_squad(path):
        return "squad"
    for _, record in read_json_lines(path, _WHAT):
        return "kilt" if "input" in record or "output" in record else "plain"
    return "kilt"


def _file(path: Location) -> Location:
    if is_directory(path):
        for file in list_files(path):
            if name_of(file) in ("queries.jsonl", "queries.jsonl.gz", "queries.jsonl.bz2"):
                return file
        raise InputError(
            path, None, "is a directory without queries.jsonl", "give BEIR's directory, or a file"
        )
    return require_file(path, _WHAT)


def _checked(path: Location, rows: Iterable[QueryRow], *, need_answers: bool) -> pl.DataFrame:
    seen: dict[str, int | None] = {}
    found: list[tuple[str, str, list[str], list[str]]] = []
    for row in rows:
        name = repr(row.query_id)
        if row.query_id in seen:
            before = f" (see line {seen[row.query_id]})" if seen[row.query_id] else ""
            raise InputError(
                path, row.line, f"duplicate query id {name}{before}", "make query ids unique"
            )
        seen[row.query_id] = row.line
        if not row.query.strip():
            raise InputError(path, row.line, f"query {name} is empty", "write its text")
        if need_answers and not row.answers:
            raise InputError(
                path, row.line, f"query {name} has no answers", "add at least one answer"
            )
        if need_answers and not any(normalize_answer(answer) for answer in row.answers):
            raise InputError(
                path,
                row.line,
                f"the answers of query {name} normalize to nothing ({row.answers[0]!r})",
                "an answer needs more than articles and punctuation",
            )
        found.append((row.query_id, row.query, row.answers, row.provenance))
    return pl.DataFrame(found, schema=tables.QUERIES, orient="row")
