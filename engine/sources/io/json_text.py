"""Parse JSON as users write it, and refuse a key given twice."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any


class DuplicateKeyError(ValueError):
    """A JSON object has a key twice, of which only the last would count."""


def parse_json(text: str | bytes) -> Any:
    """The value that a JSON text stands for; bytes are UTF-8, UTF-16 or UTF-32.

    Raises:
        DuplicateKeyError: an object has a key twice.
        ValueError: broken JSON (``json.JSONDecodeError``), an integer of thousands of digits, brackets
            nested too deep, or bytes that are not text.
    """
    if isinstance(text, bytes):
        text = text.decode(json.detect_encoding(text), "surrogatepass")
    try:
        return _DECODER.decode(text.removeprefix("\ufeff"))
    except RecursionError:
        raise ValueError("brackets are nested too deep") from None


def json_items(text: str) -> Iterator[tuple[int, Any]]:
    """Yield (place, value) of each item of a JSON array; the place is that of its first character.

    An item that is broken raises as in ``parse_json``, when it has its turn.
    """
    place = _after_space(text, 0)
    if text[place : place + 1] != "[":
        raise json.JSONDecodeError("Expecting '['", text, place)
    place = _after_space(text, place + 1)
    ended = text[place : place + 1] == "]"
    while not ended:
        try:
            value, end = _DECODER.raw_decode(text, place)
        except RecursionError:
            raise ValueError("brackets are nested too deep") from None
        yield place, value
        place = _after_space(text, end)
        ended = text[place : place + 1] == "]"
        if not ended and text[place : place + 1] != ",":
            raise json.JSONDecodeError("Expecting ',' delimiter", text, place)
        place = place if ended else _after_space(text, place + 1)
    if (end := _after_space(text, place + 1)) < len(text):
        raise json.JSONDecodeError("Extra data", text, end)


_SPACE = re.compile(r"[ \t\n\r]*")


def _after_space(text: str, place: int) -> int:
    match = _SPACE.match(text, place)
    return place if match is None else match.end()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise DuplicateKeyError(f"the key {key[:80]!r} is given twice")
            seen.add(key)
    return members


# Made once: json.loads makes a decoder for every call that is given a hook.
_DECODER = json.JSONDecoder(object_pairs_hook=_object)
