"""Users' queries: any supported layout of queries, or a text log with one query per line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import polars as pl

from engine import tables
from engine.messages.errors import InputError
from engine.sources.data_sets import is_data_set
from engine.sources.io.json_records import read_json_records
from engine.sources.io.lines import read_lines, start_of
from engine.sources.io.locations import Location, is_directory, locate, name_of, require_file
from engine.sources.queries.layouts import layout_of
from engine.sources.queries.read import QuerySet, read_query_set
from engine.sources.queries.rows import clean_row

_WHAT = "a text file (.txt) with one query per line, or queries in any other layout"
_TEXT = re.compile(r"[^.]\.txt(\.gz|\.bz2)?$")


def read_user_queries(path: Location) -> QuerySet:
    """Read queries that need neither answers nor ids, in the order of the file.

    - In a text file, one that is named ``.txt`` (compressed or not) and does not start with a
      brace, each line that is not blank is a query, and its line number is its id.
    - The same holds for JSON lines if the first has ``input`` and no ``id``.
    - Any other file is read by ``read_query_set``.

    Raises:
        InputError: the file is unreadable, empty or not UTF-8, or has a query that
            ``read_query_set`` refuses.
    """
    path = locate(path)
    if not (is_directory(path) or is_data_set(path)):
        require_file(path, _WHAT)
        # Other layouts are recognized by their content and may have any name; no query starts like this.
        if _TEXT.search(name_of(path)) and not start_of(path, _WHAT).startswith(b"{"):
            return QuerySet(_numbered(path, read_lines(path, _WHAT)))
        if layout_of(path) == "kilt":
            first = next((record for _, record in read_json_records(path, _WHAT)), {"id": None})
            if "id" not in first:
                return QuerySet(_numbered(path, _inputs(path)))
    return read_query_set(path, need_answers=False)


def _inputs(path: Location) -> Iterable[tuple[int, Any]]:
    for line, record in read_json_records(path, _WHAT):
        if record.get("id") is not None:
            remedy = "give every query an id, or none of them"
            raise InputError("a query with an id", remedy, path=path, line=line)
        yield line, record.get("input")


def _numbered(path: Location, texts: Iterable[tuple[int, Any]]) -> pl.DataFrame:
    """The queries table of (line, text); the line number is the query's id."""
    rows: list[tuple[str, str, list[str], list[str]]] = []
    for line, text in texts:
        if not isinstance(text, str) or not text.strip():
            raise InputError("a query without text", "write its text", path=path, line=line)
        row = clean_row(path, line, str(line), text.strip(), [], [])
        rows.append((row.query_id, row.query, row.answers, row.provenance))
    if not rows:
        raise InputError("no queries", f"give {_WHAT}", path=path)
    return pl.DataFrame(rows, schema=tables.QUERIES, orient="row")
