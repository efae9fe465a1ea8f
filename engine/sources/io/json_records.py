"""Read records in JSON: one object per line, or one array of objects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine.messages.errors import InputError
from engine.sources.io.json_text import json_items
from engine.sources.io.lines import broken_json, read_json_lines, read_text, start_of
from engine.sources.io.locations import Location
from engine.sources.io.skipping import SkipBad


def read_json_records(
    path: Location, what: str, *, skip: SkipBad | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number from 1, object) of a JSONL file, or of a JSON array, by the first character.

    An array is read as a whole text, of which one object at a time is parsed.

    Raises:
        InputError: as ``lines.read_json_lines``, also for items of an array that are no objects; broken JSON in
            an array is never tolerated, since nobody knows where the next item begins.
    """
    try:
        is_array = start_of(path, what)[:1] == b"["
    except InputError:  # whoever reads its lines says in which the fault is
        is_array = False
    if not is_array:
        yield from read_json_lines(path, what, skip=skip)
        return

    def object_of(item: tuple[int, Any]) -> tuple[int, dict[str, Any]]:
        line, value = item
        if not isinstance(value, dict):
            problem = f"a JSON {type(value).__name__}, not an object"
            raise InputError(problem, "write a list of objects", path=path, line=line)
        return line, value

    yield from (skip or SkipBad()).kept(object_of, _items(path, read_text(path, what), what))


def _items(path: Location, text: str, what: str) -> Iterator[tuple[int, Any]]:
    line, counted = 1, 0
    try:
        for place, value in json_items(text):
            line += text.count("\n", counted, place)
            counted = place
            yield line, value
    except ValueError as error:
        raise broken_json(path, what, error) from None
