"""Judgments (qrels): TREC text files and Parquet."""

from __future__ import annotations

import math

import polars as pl

from engine import tables
from engine.errors import InputError
from engine.sources.files import read_parquet
from engine.sources.lines import read_lines
from engine.sources.locations import Location, require_file, suffix_of
from engine.tables import DOC_ID, LABEL, QUERY_ID

_WHAT = 'qrels: TREC lines "query 0 document label", or Parquet'


def read_qrels(path: Location) -> pl.DataFrame:
    """Read judgments: ``query_id``, ``doc_id``, ``label``, in the order of the file.

    Labels are numbers, whole ones in TREC's collections; below 0 means that a passage was pooled but
    not judged.

    Raises:
        InputError: unreadable, empty, a line that has not four columns, a label that is no finite
            number, or a document judged twice for a query.
    """
    path = require_file(path, _WHAT)
    if suffix_of(path) == ".parquet":
        frame = tables.conform(read_parquet(path), tables.QRELS, path)
        twice = frame.filter(pl.struct(QUERY_ID, DOC_ID).is_duplicated())
        if not twice.is_empty():
            query_id, doc_id = twice.select(QUERY_ID, DOC_ID).row(0)
            raise InputError(
                path, None, f"query {query_id!r} judges {doc_id!r} twice", "keep one judgment"
            )
        if not frame[LABEL].is_finite().all():
            raise InputError(path, None, "a label is not a finite number", "give every label one")
    else:
        frame = _from_trec(path)
    if frame.is_empty():
        raise InputError(path, None, "holds no judgments", f"give {_WHAT}")
    return frame


def _from_trec(path: Location) -> pl.DataFrame:
    rows: list[tuple[str, str, float]] = []
    seen: dict[tuple[str, str], int] = {}
    for number, line in read_lines(path, _WHAT):
        columns = line.split()
        if len(columns) != 4:
            raise InputError(
                path,
                number,
                f"{len(columns)} columns, TREC qrels have 4",
                'write "query 0 document label"',
            )
        query_id, _, doc_id, written = columns
        try:
            label = float(written)
        except ValueError:
            label = math.nan
        if not math.isfinite(label):
            raise InputError(path, number, f"label {written!r} is no number", "write a number")
        if (query_id, doc_id) in seen:
            raise InputError(
                path,
                number,
                f"query {query_id!r} judges document {doc_id!r} twice "
                f"(see line {seen[query_id, doc_id]})",
                "keep one judgment",
            )
        seen[query_id, doc_id] = number
        rows.append((query_id, doc_id, label))
    return pl.DataFrame(rows, schema=tables.QRELS, orient="row")
