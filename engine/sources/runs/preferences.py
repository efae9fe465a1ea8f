"""Pairwise human judgments: which of two or three passages shown was best, or that none was."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import polars as pl

from engine import tables
from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.sources.io.files import is_text
from engine.sources.io.lines import read_json_lines
from engine.sources.io.locations import Location

_WHAT = 'preferences in JSONL: {"query_id": …, "shown": [two or three document ids], "best": one of them or null}'


def read_preferences(path: Location) -> pl.DataFrame:
    """Read judgments as the preferences table, one per line, in the order of the file.

    Raises:
        InputError: the file is unreadable or empty; a line has no query id, fewer than two or more
            than three passages, a passage twice, or a best passage that is missing or was not
            shown.
    """
    return preferences_of(path, read_json_lines(path, _WHAT))


def preferences_of(
    path: Location, records: Iterable[tuple[int, Mapping[str, Any]]]
) -> pl.DataFrame:
    """The judgments of numbered records, as ``read_preferences`` refuses and gives them."""
    rows = [_row(path, line, record) for line, record in records]
    if not rows:
        raise InputError("holds no judgments", f"give {_WHAT}", path=path)
    return pl.DataFrame(rows, schema=tables.PREFERENCES, orient="row")


def _row(path: Location, line: int, record: Mapping[str, Any]) -> tuple[str, list[str], str | None]:
    fault = partial(InputError, path=path, line=line)
    query_id = _identifier(record.get("query_id"))
    if query_id is None:
        raise fault("a judgment without a query id", 'add "query_id", as valid text')
    shown = record.get("shown")
    ids = [_identifier(value) for value in shown] if isinstance(shown, list) else []
    passages = [doc_id for doc_id in ids if doc_id is not None]
    if not 2 <= len(ids) <= 3 or len(passages) < len(ids):
        raise fault(
            f"{quoted(shown)} cannot be the passages shown for query {quoted(query_id)}",
            'write "shown" as a list of two or three document ids',
        )
    if len(set(passages)) < len(passages):
        raise fault(f"shows a passage twice ({quoted(shown)})", "list it once")
    if "best" not in record:
        raise fault('a judgment without "best"', "write the best passage's id, or null for none")
    best = _identifier(record["best"])
    if record["best"] is not None and best not in passages:
        raise fault(
            f"the best passage {quoted(record['best'])} was not shown",
            f"write one of {', '.join(passages)}, or null for none of them",
        )
    return query_id, passages, best


def _identifier(value: object) -> str | None:
    """An id as text; None if the value cannot be an id."""
    if isinstance(value, bool) or not isinstance(value, (str, int)) or value == "":
        return None
    return str(value) if is_text(str(value)) else None
