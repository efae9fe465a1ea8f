"""JSON as users write it: read by the standard library, but a key given twice is an error."""

from __future__ import annotations

import json
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
