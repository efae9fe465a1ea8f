"""The layouts of queries: which one a file has, and its rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal

import polars as pl

from engine import tables
from engine.messages.errors import InputError
from engine.sources.articles.squad import is_squad
from engine.sources.data_sets import is_data_set, records_of
from engine.sources.fields import (
    ANSWER_FIELDS,
    ARTICLE_FIELDS,
    CONTEXT_FIELD,
    QUERY_FIELDS,
    QUERY_ID_FIELDS,
    columns_of,
)
from engine.sources.io.csv_records import read_csv_records
from engine.sources.io.json_records import read_json_records
from engine.sources.io.lines import read_json_document, start_of
from engine.sources.io.locations import Location, suffix_of
from engine.sources.io.parquet import open_parquet
from engine.sources.queries.groups import no_column
from engine.sources.queries.kilt import WHAT as KILT
from engine.sources.queries.kilt import kilt_row
from engine.sources.queries.plain import field_of, plain_rows
from engine.sources.queries.rows import QueryRow, clean_row
from engine.sources.queries.squad import squad_rows
from engine.tables import ANSWERS, PROVENANCE, QUERY, QUERY_ID

Layout = Literal["parquet", "kilt", "plain", "table", "squad", "triviaqa", "data set"]

WHAT = f"{KILT}, or JSONL, JSON, CSV or Parquet with query and answers, or a SQuAD document"

# A document of TriviaQA's; its keys are in their order.
_TRIVIAQA = re.compile(rb'\{\s*"Data"\s*:')
# The fields that the engine itself knows; any others may group queries.
OWN_FIELDS = columns_of(QUERY_ID_FIELDS, QUERY_FIELDS, ANSWER_FIELDS, ARTICLE_FIELDS)
OWN_FIELDS |= {"is_impossible", CONTEXT_FIELD, "input", "output"}
_BATCH = 10_000


def layout_of(path: Location) -> Layout:
    """The layout of a file of queries.

    - ``data set``: a name that begins with ``irds:`` or ``hf:``;
    - ``parquet``: by the name;
    - ``triviaqa``: one JSON document that begins with ``Data``;
    - ``squad``: one JSON document with ``data`` (``is_squad``);
    - JSON lines, or a JSON array: ``kilt`` if the first object has ``input`` or ``output``, else ``plain``;
    - anything that does not start with ``{`` or ``[`` is a ``table``, CSV or TSV.

    Raises:
        InputError: there is no such file, or it cannot be read.
    """
    if is_data_set(path):
        return "data set"
    if suffix_of(path) == ".parquet":
        return "parquet"
    start = start_of(path, WHAT)
    if start and start[:1] not in (b"{", b"["):
        return "table"
    if _TRIVIAQA.match(start):
        return "triviaqa"
    if start[:1] != b"[" and is_squad(path):
        return "squad"
    for _, record in read_json_records(path, WHAT):
        return "kilt" if "input" in record or "output" in record else "plain"
    return "kilt"


def rows_of(
    path: Location, layout: Layout, *, answers_alone: bool = False, column: str | None = None
) -> tuple[Iterable[QueryRow], int]:
    """The rows of a file, and how many questions it marks as unanswerable, which are not among them.

    Rows may be marked as unanswerable, too.

    Args:
        answers_alone: whether a row may have an id and answers, and no text.
        column: a further column that the records of Parquet must hold.

    Raises:
        InputError: a row that its layout refuses, now or when its turn comes.
    """
    need_text = not answers_alone
    if layout == "squad":
        return squad_rows(path)
    if layout == "kilt":
        return (kilt_row(path, line, record) for line, record in read_json_records(path, WHAT)), 0
    if layout == "parquet":
        return _parquet_rows(path, need_text=need_text, column=column), 0
    records: Iterable[tuple[int | None, Mapping[str, Any]]]
    if layout == "triviaqa":
        records = _triviaqa_records(path)
    elif layout == "data set":
        records = ((None, record) for record in records_of(path, "queries"))
    elif layout == "plain":
        records = read_json_records(path, WHAT)
    else:
        needed = QUERY_FIELDS if need_text else ANSWER_FIELDS
        records = read_csv_records(path, WHAT, needed, parse=field_of)
    return plain_rows(path, records, need_text=need_text), 0


def _parquet_rows(path: Location, *, need_text: bool, column: str | None) -> Iterator[QueryRow]:
    with open_parquet(path) as table:
        if not set(table.names) & set(QUERY_FIELDS if need_text else QUERY_ID_FIELDS):
            fields = QUERY_FIELDS if need_text else QUERY_ID_FIELDS
            raise InputError(
                f"lacks a column {', '.join(fields)}",
                f"a table of this kind has the columns {', '.join(tables.QUERIES)}",
                path=path,
            )
        columns = OWN_FIELDS | table.plain_names | columns_of([column] if column else [])
        if column and not columns_of([column]) & set(table.names):
            raise no_column(path, column, table.names)
        if not columns - OWN_FIELDS and {QUERY_ID, QUERY, ANSWERS} <= set(table.names):
            frame = table.read(tables.QUERIES)
            # Any other form of answers, and a table without provenance, is for the names of fields.
            if PROVENANCE in frame.columns and isinstance(frame.schema[ANSWERS], pl.List):
                frame = tables.conform(frame, tables.QUERIES, path)
                yield from (clean_row(path, None, *row) for row in frame.iter_rows())
                return
        records = (
            (None, record)
            for frame in table.batches(_BATCH, columns)
            for record in frame.iter_rows(named=True)
        )
        yield from plain_rows(path, records, need_text=need_text)


def _triviaqa_records(path: Location) -> Iterator[tuple[None, dict[str, Any]]]:
    document = read_json_document(path, WHAT)
    entries = document["Data"]
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InputError('"Data" is not a list of objects', "fetch the file again", path=path)
    yield from ((None, entry) for entry in entries)
