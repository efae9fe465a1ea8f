"""Queries as plain records: JSONL (BEIR's among them), CSV and TSV.

====================  =======================================================
a query's             is the first of these fields
====================  =======================================================
id                    ``query_id``, ``id``, ``_id``, ``qid``
text                  ``query``, ``question``, ``text``
answers               ``answers``, ``answer``, ``golden_answers``
articles              ``provenance``, ``article_ids``, ``article_id``
====================  =======================================================

Where the first record has no id field, no record may have one, and queries are numbered from 1 in the
order of the file. Answers and articles are a string or a list of strings; in CSV and TSV a JSON list
(``["a", "b"]``), else texts with ``|`` between them.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from engine.errors import InputError
from engine.sources.io.lines import read_lines
from engine.sources.io.locations import Location
from engine.sources.queries.rows import QueryRow, clean_row

ID_FIELDS = ("query_id", "id", "_id", "qid")
QUERY_FIELDS = ("query", "question", "text")
ANSWER_FIELDS = ("answers", "answer", "golden_answers")
ARTICLE_FIELDS = ("provenance", "article_ids", "article_id")
SEPARATOR = "|"


def plain_rows(
    path: Location, records: Iterable[tuple[int, Mapping[str, Any]]]
) -> Iterator[QueryRow]:
    """Yield the queries of (line, record).

    Raises:
        InputError: a query without text, with an id where others have none (or the other way round),
            or with answers that are no strings.
    """
    numbered: bool | None = None
    for count, (line, record) in enumerate(records, 1):
        query_id = _first(record, ID_FIELDS)
        if numbered is None:
            numbered = query_id is None
        if numbered != (query_id is None) or isinstance(query_id, (bool, float, list, dict)):
            problem = "a query without an id" if query_id is None else f"the id {query_id!r}"
            raise InputError(
                path, line, problem, "give every query an id, a text or whole number, or none any"
            )
        name = str(count if query_id is None else query_id)
        query = _first(record, QUERY_FIELDS)
        if not isinstance(query, str):
            raise InputError(path, line, f"query {name!r} has no text", 'add "query"')
        answers, articles = (
            _texts(path, line, name, fields, record) for fields in (ANSWER_FIELDS, ARTICLE_FIELDS)
        )
        yield clean_row(path, line, name, query, answers, articles)


def table_records(path: Location, what: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line, record) of a CSV file, or a TSV file: one whose header holds a tab.

    Raises:
        InputError: a header without any of ``QUERY_FIELDS``, rows of another length, broken quotes.
    """
    numbers: list[int] = []

    def texts() -> Iterator[str]:
        for number, line in read_lines(path, what, blank=True):
            numbers.append(number)
            yield line

    lines = texts()
    header = next(filter(str.strip, lines), "")
    delimiter = "\t" if "\t" in header else ","
    names = [name.strip() for name in next(csv.reader([header], delimiter=delimiter), [])]
    if not set(names) & set(QUERY_FIELDS):
        raise InputError(
            path,
            1,
            f"no header with a column {', '.join(QUERY_FIELDS)}",
            "name the columns in the first line",
        )
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        # A quoted field may run over lines; where the row begins is told before it is read.
        while True:
            before = len(numbers)
            row = next(rows, None)
            if row is None:
                return
            if not any(field.strip() for field in row):
                continue
            line = numbers[before]
            if len(row) != len(names):
                raise InputError(
                    path, line, f"{len(row)} columns, the header has {len(names)}", "quote fields"
                )
            yield (
                line,
                {
                    name: _parsed(path, line, name, text)
                    for name, text in zip(names, row, strict=True)
                },
            )
    except csv.Error as error:
        raise InputError(
            path,
            numbers[before],
            f"broken quotes from this line on ({error})",
            'double the quotes within "…"',
        ) from None


def _parsed(path: Location, line: int, name: str, text: str) -> Any:
    """A field of a table: lists are written as JSON or with separators, an empty field is none."""
    text = text.strip()
    if name not in ANSWER_FIELDS + ARTICLE_FIELDS or not text:
        return text or None
    if not text.startswith("["):
        return text.split(SEPARATOR)
    try:
        return json.loads(text)
    except ValueError:
        raise InputError(
            path,
            line,
            f"{name} {text[:40]!r} is no JSON list",
            f'write ["a", "b"], or a{SEPARATOR}b',
        ) from None


def _texts(
    path: Location, line: int, name: str, fields: tuple[str, ...], record: Mapping[str, Any]
) -> list[str]:
    found = _first(record, fields)
    values = found if isinstance(found, list) else [] if found is None else [found]
    if not all(isinstance(value, str) for value in values):
        raise InputError(
            path, line, f"{fields[0]} of query {name!r} are no strings", 'write ["a", "b"]'
        )
    return values


def _first(record: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((record[name] for name in names if record.get(name) not in (None, "")), None)
