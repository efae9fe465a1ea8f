"""Text files line by line, decompressed according to their names: plain lines and JSONL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from engine.errors import InputError
from engine.sources.io.locations import DAMAGE, Location, open_decompressed, require_file
from engine.sources.io.skipping import SkipBad

_BOM = b"\xef\xbb\xbf"


def raw_lines(path: Location, what: str, *, blank: bool = False) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, undecoded line) of a file; ``blank`` lines only on request.

    Raises:
        InputError: no such file, or a broken ``.gz`` or ``.bz2``. A file that ends early is broken
            and never tolerated, since the missing records cannot be counted.
    """
    path = require_file(path, what)
    number = 0
    try:
        with open_decompressed(path) as stream:
            for number, line in enumerate(stream, 1):
                if number == 1:
                    line = line.removeprefix(_BOM)
                if blank or (line and not line.isspace()):
                    yield number, line
    except DAMAGE as error:
        raise damaged(path, number + 1, error) from None


def damaged(path: Location, line: int | None, error: Exception) -> InputError:
    """The error for a file that cannot be read from ``line`` on."""
    return InputError(path, line, f"cannot be read ({error})", "check it, or fetch it again")


def decode_line(path: Location, number: int, line: bytes) -> str:
    """A line as text.

    Raises:
        InputError: it is not UTF-8.
    """
    try:
        return line.decode()
    except UnicodeDecodeError:
        raise InputError(path, number, "not UTF-8 text", "save the file as UTF-8") from None


def read_lines(
    path: Location, what: str, *, skip: SkipBad | None = None, blank: bool = False
) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line) of a UTF-8 text file.

    Args:
        path: the file, plain, ``.gz`` or ``.bz2``.
        what: the expected content, for errors.
        skip: tolerates lines that are not UTF-8.
        blank: whether to yield blank lines too.

    Raises:
        InputError: as ``raw_lines``, or a line is not UTF-8.
    """
    skip = skip or SkipBad()
    for number, raw in raw_lines(path, what, blank=blank):
        try:
            line = decode_line(path, number, raw)
        except InputError as error:
            skip.tolerate(error)
            continue
        yield number, line


def read_json_lines(
    path: Location, what: str, *, skip: SkipBad | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number from 1, object) of a JSONL file.

    Args:
        path: the file, plain, ``.gz`` or ``.bz2``.
        what: the expected content, for errors.
        skip: tolerates lines that are not JSON objects.

    Raises:
        InputError: as ``read_lines``, or a line is not a JSON object.
    """
    skip = skip or SkipBad()
    for number, line in read_lines(path, what, skip=skip):
        try:
            value = parse_json_object(path, number, line)
        except InputError as error:
            skip.tolerate(error)
            continue
        yield number, value


def parse_json_object(path: Location, number: int, line: str) -> dict[str, Any]:
    """The JSON object in a line.

    Raises:
        InputError: the line is not a JSON object.
    """
    remedy = "write one JSON object per line"
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:  # ValueError also for overlong integers
        reason = getattr(error, "msg", None) or str(error)[:60]
        raise InputError(path, number, f"broken JSON ({reason})", remedy) from None
    if not isinstance(value, dict):
        raise InputError(path, number, f"a JSON {type(value).__name__}, not an object", remedy)
    return value
