"""Pairwise human judgments: which of two or three passages shown was best, or none of them."""

from __future__ import annotations

from typing import Any

import polars as pl

from engine import tables
from engine.errors import InputError
from engine.sources.io.lines import read_json_lines
from engine.sources.io.locations import Location

_WHAT = 'preferences in JSONL: {"query_id": …, "shown": [two or three document ids], "best": one of them or null}'


def read_preferences(path: Location) -> pl.DataFrame:
    """Read judgments as the preferences table, one a line, in the order of the file.

    Raises:
        InputError: unreadable or empty; a line without query id, with fewer than two or more than
            three passages, one of them twice, or a best one that was not shown or is left out.
    """
    rows = [_row(path, line, record) for line, record in read_json_lines(path, _WHAT)]
    if not rows:
        raise InputError(path, None, "holds no judgments", f"give {_WHAT}")
    return pl.DataFrame(rows, schema=tables.PREFERENCES, orient="row")


def _row(path: Location, line: int, record: dict[str, Any]) -> tuple[str, list[str], str | None]:
    query_id = _identifier(record.get("query_id"))
    if query_id is None:
        raise InputError(path, line, "a judgment without a query id", 'add "query_id"')
    listed = record.get("shown")
    shown = [_identifier(value) for value in listed] if isinstance(listed, list) else []
    passages = [doc_id for doc_id in shown if doc_id is not None]
    if not 2 <= len(shown) <= 3 or len(passages) < len(shown):
        raise InputError(
            path,
            line,
            f"{listed!r} is not what was shown for query {query_id!r}",
            'write "shown" as a list of two or three document ids',
        )
    if len(set(passages)) < len(passages):
        raise InputError(path, line, f"shows a passage twice ({listed!r})", "show it once")
    if "best" not in record:
        raise InputError(
            path, line, 'a judgment without "best"', "write the best one's id, or null for none"
        )
    best = _identifier(record["best"])
    if record["best"] is not None and best not in passages:
        raise InputError(
            path,
            line,
            f"the best passage {record['best']!r} was not shown",
            f"write one of {', '.join(passages)}, or null for none of them",
        )
    return query_id, passages, best


def _identifier(value: object) -> str | None:
    """An id as text; None for what can be none."""
    if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
        return None
    return str(value)
