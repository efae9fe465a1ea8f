"""Sizes in bytes, as users write them."""

from __future__ import annotations

import re

from cyclopts import Token

from engine.errors import InputError
from engine.wording import quoted

_UNITS = {"": 1, "b": 1, "kib": 2**10, "mib": 2**20, "gib": 2**30, "kb": 10**3, "mb": 10**6}
_UNITS |= {"gb": 10**9, "k": 2**10, "m": 2**20, "g": 2**30}


def parse_bytes(text: str) -> int:
    """A size in bytes: 1.5GiB, 800MB, 1000000.

    Raises:
        InputError: the text is not a size from 1 byte to 8 EiB.
    """
    parts = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", text)
    size = float(parts[1]) * _UNITS.get(parts[2].lower(), 0) if parts else 0.0
    if not 1 <= size < 2**63:
        raise InputError(f"{quoted(text)} is not a size", "write it like 1.5GiB or 800MB")
    return int(size)


def convert_bytes(kind: type, tokens: tuple[Token, ...]) -> int:
    """``parse_bytes`` as a converter of cyclopts."""
    return parse_bytes(tokens[0].value)
