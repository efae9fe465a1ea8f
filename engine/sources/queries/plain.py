"""Queries as plain records: JSONL and JSON arrays (BEIR's, ragas's, FlashRAG's, TriviaQA's …), CSV, TSV, Parquet.

Fields are called as in ``engine.sources.fields``. If the first record has no id field, no record may have
one, and queries are numbered from 1 in the order of the file. In CSV and TSV, answers and articles are a
JSON list (``["a", "b"]``), else texts separated by ``|``. A question is unanswerable that says so
(``is_impossible``), or whose answers are an object with an empty list, as in SQuAD 2.0's rows.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.sources.fields import (
    ANSWER_FIELDS,
    ARTICLE_FIELDS,
    QUERY_FIELDS,
    QUERY_ID_FIELDS,
    REFERENCE_FIELDS,
    RESPONSE_FIELDS,
    first_of,
    texts_of,
    written_list,
)
from engine.sources.io.json_text import parse_json
from engine.sources.io.locations import Location
from engine.sources.queries.rows import QueryRow, clean_row, no_text

SEPARATOR = "|"


def plain_rows(
    path: Location,
    records: Iterable[tuple[int | None, Mapping[str, Any]]],
    *,
    need_text: bool = True,
) -> Iterator[QueryRow]:
    """Yield the query of each (line, record); a line is None where lines have no meaning.

    Raises:
        InputError: a query without text, with an id although others have none (or vice versa), or
            with answers that are not strings.
    """
    numbered: bool | None = None
    fields: tuple[str, ...] = ANSWER_FIELDS
    for count, (line, record) in enumerate(records, 1):
        query_id = first_of(record, QUERY_ID_FIELDS)
        if numbered is None:
            numbered = query_id is None
        if numbered != (query_id is None) or isinstance(query_id, (bool, float, list, dict)):
            problem = "a query without an id" if query_id is None else f"the id {quoted(query_id)}"
            remedy = "give every query an id (a string or a whole number), or none of them"
            raise InputError(problem, remedy, path=path, line=line)
        name = str(count if query_id is None else query_id)
        query = first_of(record, QUERY_FIELDS)
        query = "" if query is None and not need_text else query
        if not isinstance(query, str):
            raise no_text(path, line, name, query, QUERY_FIELDS[0])
        if fields is ANSWER_FIELDS and not record.keys().isdisjoint(REFERENCE_FIELDS):
            fields = tuple(one for one in ANSWER_FIELDS if one not in RESPONSE_FIELDS)
        answers, articles = (
            _texts(path, line, name, these, record) for these in (fields, ARTICLE_FIELDS)
        )
        row = clean_row(path, line, name, query, answers, articles)
        marked = record.get("is_impossible") in (True, "true", "True")
        emptied = not row.answers and isinstance(first_of(record, fields), Mapping)
        marked = marked or emptied
        yield replace(row, unanswerable=marked, numbered=numbered, record=record)


def field_of(path: Location, line: int, name: str, text: str) -> Any:
    """A field of a table (``csv_records``): lists are written as JSON or with separators, an empty field is None."""
    text = text.strip()
    if name not in ANSWER_FIELDS + ARTICLE_FIELDS or not text:
        return text or None
    if not text.startswith("["):
        return text.split(SEPARATOR)
    if (found := written_list(text)) is not None:
        return found
    if text[1:].lstrip()[:1] in ("'", '"'):
        problem = f"{name} {quoted(text)} is not a list"
        raise InputError(problem, f'write ["a", "b"], or a{SEPARATOR}b', path=path, line=line)
    with contextlib.suppress(ValueError):
        if any(isinstance(item, list | dict) for item in parse_json(text)):
            return parse_json(text)  # to be refused
    return text.split(SEPARATOR)  # "[sic]", or the year "[1899]"


def _texts(
    path: Location, line: int | None, name: str, fields: tuple[str, ...], record: Mapping[str, Any]
) -> list[str]:
    value = first_of(record, fields)
    texts = texts_of(value)
    if texts is None:
        problem = f"{fields[0]} of query {quoted(name)} are not strings: {quoted(value)}"
        raise InputError(problem, 'write ["a", "b"]', path=path, line=line)
    return texts
