"""The layouts of queries: which one a file has, and its rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal

from engine import tables
from engine.messages.errors import InputError
from engine.messages.wording import quoted
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
from engine.sources.queries.kilt import WHAT as KILT
from engine.sources.queries.kilt import kilt_row
from engine.sources.queries.plain import plain_rows
from engine.sources.queries.rows import QueryRow
from engine.sources.queries.squad import squad_records

Layout = Literal["parquet", "kilt", "plain", "table", "squad", "document", "triviaqa", "data set"]

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
    - ``squad``: one JSON document with ``data`` (``is_squad``); ``document``: one with ``queries`` (``queries_in``);
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
        of_squad = b'"paragraphs"' in start or queries_in(read_json_document(path, WHAT)) is None
        return "squad" if of_squad else "document"
    for _, record in read_json_records(path, WHAT):
        if queries_in(record) is not None:
            return "document"
        return "kilt" if "input" in record or "output" in record else "plain"
    return "kilt"


def queries_in(document: Any) -> list[dict[str, Any]] | None:
    """The records of one document ``{"queries": [{"text": …}, …]}``; None for another."""
    queries = document.get("queries") if isinstance(document, dict) else None
    if not isinstance(queries, list) or not all(isinstance(one, dict) for one in queries):
        return None
    return queries if document.keys().isdisjoint(("input", *QUERY_FIELDS)) else None


def rows_of(
    path: Location, layout: Layout, *, answers_alone: bool = False, column: str | None = None
) -> Iterator[QueryRow]:
    """The rows of a file, of which some may be marked as unanswerable.

    Args:
        answers_alone: whether a row may have an id and answers, and no text.
        column: a further column that the records of Parquet must hold.

    Raises:
        InputError: a row that its layout refuses, when its turn comes.
    """
    need_text = not answers_alone
    if layout == "kilt":
        return (kilt_row(path, line, record) for line, record in read_json_records(path, WHAT))
    if layout == "parquet":
        return _parquet_rows(path, need_text=need_text, column=column)
    records: Iterable[tuple[int | None, Mapping[str, Any]]]
    if layout == "squad":
        records = squad_records(path)
    elif layout == "triviaqa":
        records = _triviaqa_records(path)
    elif layout == "document":
        records = ((None, record) for record in queries_in(read_json_document(path, WHAT)) or [])
    elif layout == "data set":
        records = ((None, record) for record in records_of(path, "queries"))
    elif layout == "plain":
        records = read_json_records(path, WHAT)
    else:
        table = read_csv_records(path, WHAT, QUERY_FIELDS if need_text else ANSWER_FIELDS)
        records = ((line, {n: text.strip() for n, text in row.items()}) for line, row in table)
    rows = plain_rows(path, records, need_text=need_text)
    # Of a table, lists are always written as texts.
    return (replace(row, written=0) for row in rows) if layout == "table" else rows


def _parquet_rows(path: Location, *, need_text: bool, column: str | None) -> Iterator[QueryRow]:
    with open_parquet(path) as table:
        fields = QUERY_FIELDS if need_text else ANSWER_FIELDS
        if not set(table.names) & columns_of(fields):
            remedy = f"a table of this kind has the columns {', '.join(tables.QUERIES)}"
            raise InputError(f"lacks a column {', '.join(fields)}", remedy, path=path)
        columns = OWN_FIELDS | table.plain_names | columns_of([column] if column else [])
        if column and not columns_of([column]) & set(table.names):
            raise no_column(path, column, table.names)
        records = (
            (None, dict.fromkeys(table.names) | record)
            for frame in table.batches(_BATCH, columns)
            for record in frame.iter_rows(named=True)
        )
        yield from plain_rows(path, records, need_text=need_text)


def no_column(path: Location, column: str, names: Iterable[str]) -> InputError:
    """The error for a column that no query has a value in, with the names of those that there are."""
    problem = f"no query has a value in a column {quoted(column)}"
    return InputError(problem, f"name one of its columns: {', '.join(names)}", path=path)


def _triviaqa_records(path: Location) -> Iterator[tuple[None, dict[str, Any]]]:
    entries = read_json_document(path, WHAT)["Data"]
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InputError('"Data" is not a list of objects', "fetch the file again", path=path)
    yield from ((None, entry) for entry in entries)
