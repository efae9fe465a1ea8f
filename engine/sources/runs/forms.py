"""The forms of runs: which one a file has, and the records of those that hold any."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from engine.messages.errors import InputError
from engine.sources.fields import TEXT_FIELDS
from engine.sources.io.json_records import read_json_records
from engine.sources.io.json_text import parse_json
from engine.sources.io.lines import raw_lines, read_json_document, start_of
from engine.sources.io.locations import Location, require_file, suffix_of
from engine.sources.io.parquet import open_parquet
from engine.sources.runs.dictionaries import problem_of
from engine.sources.runs.records import COLUMNS, RESULTS, ROW_QUERIES, is_record
from engine.tables import DOC_ID, QUERY_ID, RANK, SCORE

WHAT = (
    'a run: TREC lines "query Q0 document rank score name", Parquet, JSON {query: {document: score}}, or '
    'records {"query_id": …, "results": [{"id": …, "text": …}, …]}'
)

# A dictionary whose first list is one of scores: it need not be parsed to know that it holds no records.
_OF_SCORES = re.compile(rb'\{\s*"(?:[^"\\]|\\.)*"\s*:\s*\{', re.S)
# One whose first value holds lists of queries.
_OF_RUNS = re.compile(_OF_SCORES.pattern + rb'\s*"(?:[^"\\]|\\.)*"\s*:\s*[{\[]', re.S)
# Records of a Parquet file that are taken at a time.
_BATCH = 10_000


def is_trec(path: Location) -> bool:
    """Whether a run is TREC text; else it is Parquet or JSON."""
    path = require_file(path, WHAT)
    return suffix_of(path) != ".parquet" and start_of(path, WHAT)[:1] not in (b"{", b"[")


def is_table(path: Location) -> bool:
    """Whether a file is Parquet with the columns of the run table and without texts."""
    if suffix_of(path) != ".parquet":
        return False
    with open_parquet(path) as table:
        names = set(table.names)
    return {QUERY_ID, DOC_ID, RANK, SCORE} <= names and not names & set(TEXT_FIELDS)


def records_of(path: Location) -> Iterable[tuple[int | None, Mapping[str, Any]]] | None:
    """The records of a run with their lines, None where lines have no meaning; None for a run without records.

    Records are a JSON array, JSON lines of which the first names its query, a Parquet file that is no run table,
    or a JSON dictionary with lists of passages.
    """
    if suffix_of(path) == ".parquet":
        return None if is_table(path) else _parquet_records(path)
    start = start_of(path, WHAT)[:1]
    if start == b"[" or (start == b"{" and _begins_with_a_record(path)):
        return read_json_records(path, WHAT)
    if start != b"{" or _OF_SCORES.match(start_of(path, WHAT)):
        return None
    return _of_dictionary(path)


def _begins_with_a_record(path: Location) -> bool:
    try:
        _, line = next(raw_lines(path, WHAT))
        first = parse_json(line)
    except (InputError, ValueError):
        return False  # a document over several lines, or one that its reader refuses
    return isinstance(first, dict) and is_record(first)


def _parquet_records(path: Location) -> Iterator[tuple[None, dict[str, Any]]]:
    with open_parquet(path) as table:
        for frame in table.batches(_BATCH, COLUMNS | table.plain_names):
            yield from ((None, record) for record in frame.iter_rows(named=True))


def _of_dictionary(path: Location) -> list[tuple[None, dict[str, Any]]] | None:
    """A dictionary whose lists hold passages: objects or, all of them, texts; else ids, and None."""
    document = read_json_document(path, WHAT)
    if not isinstance(document, dict):
        return None
    items = [item for listed in document.values() if isinstance(listed, list) for item in listed]
    texts = bool(items) and all(isinstance(item, str) and item.split() != [item] for item in items)
    if not texts and not any(isinstance(item, dict) for item in items):
        return None
    return [*of_dictionary(document, path, f"give {WHAT}")]


def of_dictionary(
    given: Mapping[str, Any], path: Location, remedy: str
) -> Iterator[tuple[None, dict[str, Any]]]:
    """A dictionary by query as records: its rows, where they name their queries, and else its lists or scores.

    Raises:
        InputError: a query has neither, with this remedy.
    """
    grouped = _are_grouped(given)
    for query_id, value in given.items():
        if isinstance(value, list):
            rows = value if grouped else [{QUERY_ID: query_id, RESULTS[0]: value}]
            yield from ((None, row) for row in rows)
            continue
        if problem := problem_of(query_id, value):
            raise InputError(problem, remedy, path=path)
        for doc_id, score in value.items():
            yield None, {QUERY_ID: query_id, DOC_ID: doc_id, SCORE: score}


def names_runs(given: Mapping[str, Any]) -> bool:
    """Whether the keys of a dictionary are names of runs, and not ids of queries."""
    for value in given.values():
        if isinstance(value, Mapping):
            # {query: {document: number}} is one run, {name: {query: …}} are several.
            inner = next(iter(value.values()), None)
            if inner is not None:
                return isinstance(inner, Mapping | list | tuple)
        elif isinstance(value, list | tuple):
            if value:
                return is_row(value[0]) and not _are_grouped(given)
        else:
            return True
    return False


def is_row(value: Any) -> bool:
    """Whether this is a row of a run, or a list of one: a dictionary that says of which query."""
    return isinstance(value, Mapping) and any(name in value for name in (*ROW_QUERIES, *RESULTS))


def _are_grouped(given: Mapping[str, Any]) -> bool:
    """Whether a dictionary holds rows by their queries, as pandas groups them: each row names its key."""
    return all(
        isinstance(row, Mapping) and key in {str(row.get(name)) for name in ROW_QUERIES}
        for key, rows in given.items()
        for row in (rows if isinstance(rows, list | tuple) else [rows])
    )


def runs_within(path: Location) -> dict[str, Any]:
    """The runs of a JSON dictionary ``{run: {query: …}}``; empty for any other file."""
    if not _OF_RUNS.match(start_of(path, WHAT)) or _begins_with_a_record(path):
        return {}
    document = read_json_document(path, WHAT)
    of_runs = all(isinstance(one, dict) for one in document.values()) and names_runs(document)
    return document if of_runs else {}
