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
from engine.sources.fields import text_in
from engine.sources.io.files import is_text
from engine.sources.io.locations import Location, require_file, suffix_of
from engine.sources.io.parquet import read_parquet
from engine.sources.io.records import read_csv_records, read_json_records
from engine.sources.runs.forms import query_of, run_of
from engine.tables import OUTPUT

Records = Iterable[tuple[int, Mapping[str, Any]]]
_WHAT = (
    'recorded outputs in JSONL, JSON, CSV or Parquet: {"query_id": …, "output": text}, and "run"'
)


def named_file(place: Location) -> tuple[str, Location]:
    """The run's name and the file of ``RUN=FILE``; an empty name for a file alone."""
    name, mark, file = str(place).partition("=")
    if not mark or "/" in name or Path(place).exists():
        return "", place
    return name, file


def numbered_records(path: Location, what: str, columns: Sequence[str] = ()) -> Records:
    """The records of JSON lines, a JSON array, Parquet, whose rows count as lines, or CSV with one of the columns."""
    suffix = suffix_of(path := require_file(path, what))
    if suffix == ".parquet":
        return enumerate(read_parquet(path).iter_rows(named=True), 1)
    is_csv = columns and suffix in (".csv", ".tsv")
    return read_csv_records(path, what, columns) if is_csv else read_json_records(path, what)


def read_outputs(places: Sequence[Location]) -> pl.DataFrame:
    """Read recorded outputs from files, each ``RUN=FILE`` or with a field ``run``, as ``outputs_of``."""
    files = map(named_file, places)
    return outputs_of((name, file, numbered_records(file, _WHAT, [OUTPUT])) for name, file in files)


def outputs_of(files: Iterable[tuple[str, Location, Records]]) -> pl.DataFrame:
    """The outputs (``tables.OUTPUTS``) of records, by the name of their run and their file.

    ``run`` is empty where neither says it; ``query_id`` may be the text of a query.

    Raises:
        InputError: a file is unreadable or empty; a record lacks a query or an output, or answers a query of a run twice.
    """
    rows: dict[tuple[str, str], str] = {}
    for name, path, records in files:
        before = len(rows)
        for line, record in records:
            fault = partial(InputError, path=path, line=line)
            key = run_of(fault, record) or name, (query_id := query_of(fault, record))
            output = text_in(record, (OUTPUT,))
            if not isinstance(output, str) or not is_text(output):
                problem = f"query {quoted(query_id)} has {quoted(output)} for its output"
                raise fault(problem, 'write "output" as a text, "" for none', "outputs.text")
            if key in rows:
                whose = f" of the run {quoted(key[0])}" * bool(key[0])
                problem = f"query {quoted(query_id)}{whose} has two outputs"
                raise fault(problem, "keep one", "outputs.twice")
            rows[key] = output
        if len(rows) == before:
            raise InputError("holds no outputs", f"give {_WHAT}", "outputs.none", path=path)
    columns = [(*key, output) for key, output in rows.items()]
    return pl.DataFrame(columns, schema=tables.OUTPUTS, orient="row")
