"""Read text files line by line, decompressed by name: plain lines and JSONL.

Everywhere, ``what`` is the expected content, for errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from engine.messages.errors import InputError
from engine.sources.io.json_text import DuplicateKeyError, parse_json
from engine.sources.io.locations import DAMAGE, Location, open_decompressed, require_file
from engine.sources.io.skipping import SkipBad

# Bytes of the longest line that is read: an endless one would fill the memory.
LONGEST_LINE = 64 << 20
# Bytes that tell a layout.
_START = 1 << 16
_OBJECTS = "one JSON object per line"
BOM = b"\xef\xbb\xbf"
# What a web page (as servers send where a file is gone), an archive and a document begin with.
_OTHERS = (b"<!doctype html", b"<html", b"pk\x03\x04", b"%pdf-")


def raw_lines(path: Location, what: str, *, blank: bool = False) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, undecoded line) of a file; ``blank`` lines only on request.

    Raises:
        InputError: no such file, a line of more than ``LONGEST_LINE`` bytes, or a broken ``.gz`` or
            ``.bz2``. A file that ends early is broken and never tolerated, since the missing records
            cannot be counted.
    """
    path = require_file(path, what)
    number = 0
    try:
        with open_decompressed(path) as stream:
            for number, line in enumerate(iter(partial(stream.readline, LONGEST_LINE + 1), b""), 1):
                if len(line) > LONGEST_LINE:
                    problem = f"a line of more than {LONGEST_LINE >> 20} MiB"
                    raise InputError(problem, f"give {what}", path=path, line=number)
                if number == 1:
                    line = line.removeprefix(BOM)
                    _refuse_others(path, line, what)
                if blank or (line and not line.isspace()):
                    yield number, line
    except DAMAGE as error:
        raise damaged(path, number + 1, error) from None


def start_of(path: Location, what: str) -> bytes:
    """The first bytes of a file from the first that is not white space; empty if there are none."""
    start = read_document(path, what, _START).removeprefix(BOM).lstrip()
    _refuse_others(path, start, what)
    return start


def _refuse_others(path: Location, start: bytes, what: str) -> None:
    if start[:99].lstrip().lower().startswith(_OTHERS):
        raise InputError("not a text file that is read here", f"give {what}", path=path, line=1)


def read_document(path: Location, what: str, most: int = -1) -> bytes:
    """The whole of a file that is not divided into lines, or as many bytes of it.

    Raises:
        InputError: no such file, or a broken ``.gz`` or ``.bz2``.
    """
    path = require_file(path, what)
    try:
        with open_decompressed(path) as stream:
            return stream.read(most)
    except DAMAGE as error:
        raise damaged(path, None if most < 0 else 1, error) from None


def read_text(path: Location, what: str) -> str:
    """The whole of a UTF-8 text file.

    Raises:
        InputError: as ``read_document``, or it is not UTF-8, with the line.
    """
    return decode_line(path, 1, read_document(path, what).removeprefix(BOM))


def damaged(path: Location, line: int | None, error: Exception) -> InputError:
    """The error for a file that cannot be read from ``line`` on."""
    remedy = "check it, or fetch it again"
    return InputError(f"cannot be read ({error})", remedy, path=path, line=line)


def decode_line(path: Location, number: int, line: bytes) -> str:
    """A line, or all lines from this number on, as text.

    Raises:
        InputError: it is not UTF-8.
    """
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        number += line.count(b"\n", 0, error.start)
        remedy = "save the file as UTF-8"
        raise InputError("not UTF-8 text", remedy, path=path, line=number) from None


def read_lines(
    path: Location, what: str, *, skip: SkipBad | None = None, blank: bool = False
) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line) of a UTF-8 text file.

    Raises:
        InputError: as ``raw_lines``, or a line is not UTF-8, which ``skip`` tolerates.
    """
    lines = raw_lines(path, what, blank=blank)
    yield from (skip or SkipBad()).kept(lambda one: (one[0], decode_line(path, *one)), lines)


def read_json_lines(
    path: Location, what: str, *, skip: SkipBad | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number from 1, object) of a JSONL file.

    Raises:
        InputError: as ``read_lines``, or a line is not a JSON object, which ``skip`` tolerates, too.
    """
    skip = skip or SkipBad()
    lines = read_lines(path, what, skip=skip)
    yield from skip.kept(lambda one: (one[0], parse_json_object(path, *one)), lines)


def parse_json_object(path: Location, number: int, line: str) -> dict[str, Any]:
    """The JSON object in a line.

    Raises:
        InputError: the line is not a JSON object, or an object in it has a key twice.
    """
    try:
        value = parse_json(line)
    except ValueError as error:
        raise broken_json(path, _OBJECTS, error, number) from None
    if not isinstance(value, dict):
        problem = f"a JSON {type(value).__name__}, not an object"
        raise InputError(problem, f"give {_OBJECTS}", path=path, line=number)
    return value


def read_json_document(path: Location, what: str) -> Any:
    """The value that a file, as a whole, is in JSON: an InputError where it is broken, or has a key twice."""
    content = read_document(path, what)
    try:
        return parse_json(content)
    except ValueError as error:
        raise broken_json(path, what, error) from None


def broken_json(
    path: Location, what: str, error: ValueError, line: int | None = None
) -> InputError:
    """The error for what ``parse_json`` refuses; ``line`` is the one that it was given, where it is one."""
    if isinstance(error, DuplicateKeyError):
        return InputError(str(error), "keep one of them", path=path, line=line)
    problem = f"broken JSON ({getattr(error, 'msg', None) or str(error)[:60]})"
    line = line or getattr(error, "lineno", None)
    return InputError(problem, f"give {what}", path=path, line=line)
