"""Recorded outputs: the answers that the users' own system gave, by run and query."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from engine import tables
from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.sources.fields import QUERY_FIELDS, QUERY_ID_FIELDS, first_of, text_in
from engine.sources.io.files import is_text
from engine.sources.io.locations import Location, require_file, suffix_of
from engine.sources.io.parquet import read_parquet
from engine.sources.io.records import read_csv_records, read_json_records
from engine.tables import OUTPUT, QUERY_ID, RUN

_WHAT = (
    'recorded outputs in JSONL, JSON, CSV or Parquet: {"query_id": …, "output": text}, and "run"'
)
_IDS = (*QUERY_ID_FIELDS, *QUERY_FIELDS)


def named_file(place: Location) -> tuple[str, Location]:
    """The run's name and the file of ``RUN=FILE``; an empty name for a file alone."""
    name, mark, file = str(place).partition("=")
    if not mark or "/" in name or Path(place).exists():
        return "", place
    return name, file


def read_outputs(places: Sequence[Location]) -> pl.DataFrame:
    """Read recorded outputs (``tables.OUTPUTS``) from files, each ``RUN=FILE`` or with a field ``run``.

    ``run`` is empty where neither says it; ``query_id`` may be the text of a query.

    Raises:
        InputError: a file is unreadable or empty; a record lacks a query or an output, or answers a query of a run twice.
    """
    parts = [outputs_of(file, _records(file), name) for name, file in map(named_file, places)]
    every = pl.concat(parts)
    if (twice := every.filter(every.select(RUN, QUERY_ID).is_duplicated())).height:
        raise _answered_twice(places[-1], *twice.row(0)[:2])
    return every


def outputs_of(
    path: Location, records: Iterable[tuple[int | None, Mapping[str, Any]]], name: str = ""
) -> pl.DataFrame:
    """The outputs of numbered records, as ``read_outputs``; ``name``: of the run where a record has none."""
    rows: dict[tuple[str, str], str] = {}
    for line, record in records:
        fault = partial(InputError, path=path, line=line)
        query_id, output = first_of(record, _IDS), text_in(record, (OUTPUT,))
        if not isinstance(query_id, str | int) or isinstance(query_id, bool):
            raise fault("an output without a query", 'add "query_id"', "outputs.query")
        if not isinstance(output, str):
            problem = f"query {quoted(query_id)} has {quoted(output)} for its output"
            raise fault(problem, 'write "output" as a text, "" for none', "outputs.text")
        key = str(record.get(RUN) or name), str(query_id)
        if not all(map(is_text, (*key, output))):
            raise fault("is not valid Unicode", "write valid Unicode", "outputs.encoding")
        if key in rows:
            raise _answered_twice(path, *key, line)
        rows[key] = output
    if not rows:
        raise InputError("holds no outputs", f"give {_WHAT}", "outputs.none", path=path)
    columns = [(*key, output) for key, output in rows.items()]
    return pl.DataFrame(columns, schema=tables.OUTPUTS, orient="row")


def _answered_twice(path: Location, run: str, query_id: str, line: int | None = None) -> InputError:
    whose = f" of the run {quoted(run)}" * bool(run)
    problem = f"query {quoted(query_id)}{whose} has two outputs"
    return InputError(problem, "keep one", "outputs.twice", path=path, line=line)


def _records(file: Location) -> Iterable[tuple[int | None, Mapping[str, Any]]]:
    path = require_file(file, _WHAT)
    if suffix_of(path) == ".parquet":
        return ((None, row) for row in read_parquet(path).iter_rows(named=True))
    if suffix_of(path) in (".csv", ".tsv"):
        return read_csv_records(path, _WHAT, (OUTPUT,))
    return read_json_records(path, _WHAT)
