"""Queries as plain records: JSONL (including BEIR's), CSV and TSV.

====================  =======================================================
part of a query       the first of these fields that is present
====================  =======================================================
id                    ``query_id``, ``id``, ``_id``, ``qid``
text                  ``query``, ``question``, ``text``
answers               ``answers``, ``answer``, ``golden_answers``
articles              ``provenance``, ``article_ids``, ``article_id``
====================  =======================================================

If the first record has no id field, no record may have one, and queries are numbered from 1 in the
order of the file. Answers and articles are a string or a list of strings; in CSV and TSV a JSON
list (``["a", "b"]``), else texts separated by ``|``.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from engine.errors import InputError
from engine.sources.io.json_text import parse_json
from engine.sources.io.lines import LONGEST_LINE, read_lines
from engine.sources.io.locations import Location
from engine.sources.queries.rows import QueryRow, clean_row, no_text
from engine.wording import quoted

ID_FIELDS = ("query_id", "id", "_id", "qid")
QUERY_FIELDS = ("query", "question", "text")
ANSWER_FIELDS = ("answers", "answer", "golden_answers")
ARTICLE_FIELDS = ("provenance", "article_ids", "article_id")
SEPARATOR = "|"


def plain_rows(
    path: Location, records: Iterable[tuple[int, Mapping[str, Any]]]
) -> Iterator[QueryRow]:
    """Yield the query of each (line, record).

    Raises:
        InputError: a query without text, with an id although others have none (or vice versa), or
            with answers that are not strings.
    """
    numbered: bool | None = None
    nameless: int | None = None
    for count, (line, record) in enumerate(records, 1):
        query_id = _first(record, ID_FIELDS)
        if numbered is None:
            numbered = query_id is None
            # The line at fault where later queries have ids, and this one has a place for it.
            nameless = line if any(name in record for name in ID_FIELDS) else None
        if numbered != (query_id is None) or isinstance(query_id, (bool, float, list, dict)):
            wanting = query_id is None or (numbered and nameless is not None)
            raise InputError(
                path,
                nameless if numbered and nameless is not None else line,
                "a query without an id" if wanting else f"the id {quoted(query_id)}",
                "give every query an id (a string or a whole number), or none of them",
            )
        name = str(count if query_id is None else query_id)
        query = _first(record, QUERY_FIELDS)
        if not isinstance(query, str):
            raise no_text(path, line, name, query, QUERY_FIELDS[0])
        answers, articles = (
            _texts(path, line, name, fields, record) for fields in (ANSWER_FIELDS, ARTICLE_FIELDS)
        )
        yield clean_row(path, line, name, query, answers, articles)


def table_records(path: Location, what: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line, record) of a CSV file, or of a TSV file if the header contains a tab.

    Raises:
        InputError: a header without any of ``QUERY_FIELDS``, rows of another length, or broken
            quotes.
    """
    numbers: list[int] = []

    def texts() -> Iterator[str]:
        for number, line in read_lines(path, what, blank=True):
            numbers.append(number)
            yield line

    lines = texts()
    csv.field_size_limit(LONGEST_LINE)  # of the whole process; by default 128 KiB
    header = next(filter(str.strip, lines), "")
    delimiter = "\t" if "\t" in header else ","
    try:
        fields = next(csv.reader([header], delimiter=delimiter), [])
    except csv.Error as error:
        raise _broken(path, len(numbers), error) from None
    names = [name.strip() for name in fields]
    if not set(names) & set(QUERY_FIELDS):
        raise InputError(
            path,
            len(numbers) or 1,
            f"no header with a column {', '.join(QUERY_FIELDS)}",
            "name the columns in the first line",
        )
    if twice := next((name for name in names if name and names.count(name) > 1), None):
        raise InputError(
            path, len(numbers), f"the column {quoted(twice)} is given twice", "keep one of them"
        )
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        # A quoted field may span lines, so the start of a row is noted before the row is read.
        while True:
            start = len(numbers)
            row = next(rows, None)
            if row is None:
                return
            if not any(field.strip() for field in row):
                continue
            line = numbers[start]
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
        raise _broken(path, numbers[start], error) from None


def _broken(path: Location, line: int, error: csv.Error) -> InputError:
    """The error for a row that the csv module refuses."""
    if "field limit" in str(error):
        problem = f"a field of more than {LONGEST_LINE >> 20} MiB, or an open quote"
    elif "new-line character" in str(error):
        return InputError(
            path, line, "a carriage return within a line", "end lines with line feeds"
        )
    else:
        problem = f"broken quotes from this line on ({error})"
    return InputError(path, line, problem, 'double the quotes within "…"')


def _parsed(path: Location, line: int, name: str, text: str) -> Any:
    """A field of a table: lists are written as JSON or with separators, an empty field is None."""
    text = text.strip()
    if name not in ANSWER_FIELDS + ARTICLE_FIELDS or not text:
        return text or None
    if not text.startswith("["):
        return text.split(SEPARATOR)
    try:
        return parse_json(text)
    except ValueError:
        raise InputError(
            path,
            line,
            f"{name} {quoted(text)} is not a JSON list",
            f'write ["a", "b"], or a{SEPARATOR}b',
        ) from None


def _texts(
    path: Location, line: int, name: str, fields: tuple[str, ...], record: Mapping[str, Any]
) -> list[str]:
    value = _first(record, fields)
    values = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(text, str) for text in values):
        raise InputError(
            path, line, f"{fields[0]} of query {quoted(name)} are not strings", 'write ["a", "b"]'
        )
    return values


def _first(record: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((record[name] for name in names if record.get(name) not in (None, "")), None)
