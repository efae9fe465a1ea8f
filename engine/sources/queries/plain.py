"""Queries as plain records: JSONL and JSON arrays (BEIR's, ragas's, FlashRAG's, TriviaQA's …), CSV, TSV, Parquet.

Fields are called as in ``engine.sources.fields``. If the first record has no id field, no record may have
one, and queries are numbered from 1 in the order of the file. Answers and articles that are a text are
what it lists (``fields.listed``), whatever the layout. A question is unanswerable that says so
(``is_impossible``), or whose answers are an object with an empty list, as in SQuAD 2.0's rows.
"""

from __future__ import annotations

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
    listed,
    texts_of,
)
from engine.sources.io.locations import Location
from engine.sources.queries.rows import QueryRow, clean_row, no_text


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
        of_both = (fields, ARTICLE_FIELDS)
        values = [first_of(record, names) for names in of_both]
        own = [*map(listed, values)]
        lists = sum(isinstance(v, str) and [v] != one for v, one in zip(values, own, strict=True))
        answers, articles = (
            _texts(path, line, f"{names[0]} of query {quoted(name)}", value)
            for names, value in zip(of_both, own, strict=True)
        )
        row = clean_row(path, line, name, query, answers, articles)
        marked = record.get("is_impossible") in (True, "true", "True")
        emptied = not row.answers and isinstance(own[0], Mapping)
        unanswerable, written = marked or emptied, row.written + lists
        yield replace(
            row, unanswerable=unanswerable, numbered=numbered, written=written, record=record
        )


def _texts(path: Location, line: int | None, what: str, value: Any) -> list[str]:
    texts = None if isinstance(value, str) else texts_of(value)
    if texts is None:
        fault = "is not a list" if isinstance(value, str) else "are not strings"
        problem = f"{what} {fault}: {quoted(value)}"
        raise InputError(problem, 'write ["a", "b"]', path=path, line=line)
    return texts
