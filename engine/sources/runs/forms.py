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
from engine.sources.runs.records import COLUMNS, RESULTS, is_record
from engine.tables import DOC_ID, QUERY_ID, RANK, SCORE

WHAT = (
    'a run: TREC lines "query Q0 document rank score name", Parquet, JSON {query: {document: score}}, or '
    'records {"query_id": …, "results": [{"id": …, "text": …}, …]}'
)

# A dictionary whose first list is one of scores: it need not be parsed to know that it holds no records.
_OF_SCORES = re.compile(rb'\{\s*"(?:[^"\\]|\\.)*"\s*:\s*\{', re.S)
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
        for frame in table.batches(_BATCH, COLUMNS):
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
    return [(None, {QUERY_ID: query, RESULTS[0]: listed}) for query, listed in document.items()]
