"""Read text files line by line, decompressed by name: plain lines and JSONL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

from engine.messages.errors import InputError
from engine.sources.io.json_text import DuplicateKeyError, parse_json
from engine.sources.io.locations import DAMAGE, Location, open_decompressed, require_file
from engine.sources.io.skipping import SkipBad

# Bytes of the longest line that is read: an endless one would fill the memory.
LONGEST_LINE = 64 << 20
# Bytes of the largest file that is read as one document, whatever its lines.
LARGEST_DOCUMENT = 2 << 30
# Bytes that tell a layout.
_START = 1 << 16
BOM = b"\xef\xbb\xbf"
# What other formats begin with.
_FORMATS = {
    b"\x1f\x8b": "packed with gzip, and its name does not end in .gz",
    b"\x28\xb5\x2f\xfd": "packed with zstd, which is not read",
    b"PK\x03\x04": "a ZIP archive or a spreadsheet",
    b"%PDF-": "a PDF document",
    b"ARROW1": "an Arrow file",
}


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
            read = partial(stream.readline, LONGEST_LINE + 1)
            for number, line in enumerate(iter(read, b""), 1):
                if len(line) > LONGEST_LINE:
                    raise InputError(
                        f"a line of more than {LONGEST_LINE >> 20} MiB",
                        f"give {what}",
                        path=path,
                        line=number,
                    )
                if number == 1:
                    line = line.removeprefix(BOM)
                    _refuse_page(path, line, what)
                if blank or (line and not line.isspace()):
                    yield number, line
    except DAMAGE as error:
        raise damaged(path, number + 1, error) from None


def start_of(path: Location, what: str) -> bytes:
    """The first bytes of a file from the first that is not white space; empty if there are none.

    Raises:
        InputError: as ``raw_lines``, for a line of white space too.
    """
    path = require_file(path, what)
    try:
        with open_decompressed(path) as stream:
            start = stream.read(_START).removeprefix(BOM).lstrip()
            for _ in range(LONGEST_LINE // _START):
                if start or not (block := stream.read(_START)):
                    break
                start = block.lstrip()
            _refuse_page(path, start, what)
            return start
    except DAMAGE as error:
        raise damaged(path, 1, error) from None


def _refuse_page(path: Location, start: bytes, what: str) -> None:
    """Refuse what is no text: a page, as servers send where a file is gone or needs a login, or another format."""
    for begins, kind in _FORMATS.items():
        if start.startswith(begins):
            raise InputError(f"is {kind}", f"give {what}, as text", path=path, line=1)
    if start[:99].lstrip().lower().startswith((b"<!doctype html", b"<html")):
        raise InputError("is an HTML page", f"fetch the file itself: {what}", path=path, line=1)


def read_document(path: Location, what: str) -> bytes:
    """The whole of a file that is not divided into lines.

    Raises:
        InputError: no such file, one of more than ``LARGEST_DOCUMENT`` bytes, or a broken ``.gz`` or
            ``.bz2``.
    """
    path = require_file(path, what)
    try:
        with open_decompressed(path) as stream:
            content = stream.read(LARGEST_DOCUMENT + 1)
    except DAMAGE as error:
        raise damaged(path, None, error) from None
    if len(content) > LARGEST_DOCUMENT:
        problem = f"a document of more than {LARGEST_DOCUMENT >> 30} GiB"
        raise InputError(problem, f"give {what}, in lines or in parts", path=path)
    return content


def read_text(path: Location, what: str) -> str:
    """The whole of a UTF-8 text file.

    Raises:
        InputError: as ``read_document``, or it is not UTF-8, with the line.
    """
    return decode_line(path, 1, read_document(path, what).removeprefix(BOM))


def damaged(path: Location, line: int | None, error: Exception) -> InputError:
    """The error for a file that cannot be read from ``line`` on."""
    return InputError(
        f"cannot be read ({error})", "check it, or fetch it again", path=path, line=line
    )


def decode_line(path: Location, number: int, line: bytes) -> str:
    """A line, or all lines from this number on, as text.

    Raises:
        InputError: it is not UTF-8.
    """
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        number += line.count(b"\n", 0, error.start)
        raise InputError(
            "not UTF-8 text", "save the file as UTF-8", path=path, line=number
        ) from None


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
        InputError: the line is not a JSON object, or an object in it has a key twice.
    """
    remedy = "write one JSON object per line"
    try:
        value = parse_json(line)
    except DuplicateKeyError as error:
        raise InputError(str(error), "keep one of them", path=path, line=number) from None
    except ValueError as error:  # also for overlong integers
        reason = getattr(error, "msg", None) or str(error)[:60]
        raise InputError(f"broken JSON ({reason})", remedy, path=path, line=number) from None
    if not isinstance(value, dict):
        raise InputError(
            f"a JSON {type(value).__name__}, not an object", remedy, path=path, line=number
        )
    return value


def read_json_document(path: Location, what: str) -> Any:
    """The value that a file, as a whole, is in JSON.

    Raises:
        InputError: as ``read_document``, broken JSON, or a key given twice.
    """
    content = read_document(path, what)
    try:
        return parse_json(content)
    except ValueError as error:
        raise broken_json(path, what, error) from None


def broken_json(
    path: Location, what: str, error: ValueError, line: int | None = None
) -> InputError:
    """The error for what ``parse_json`` refuses; ``line`` is that of the value, where it is known."""
    fault = partial(InputError, path=path)
    if isinstance(error, DuplicateKeyError):
        return fault(str(error), "keep one of them", line=line)
    if isinstance(error, json.JSONDecodeError):
        problem = f"broken JSON ({error.msg}, column {error.colno})"
        return fault(problem, f"give {what}", line=error.lineno)
    return fault(f"broken JSON ({str(error)[:60]})", f"give {what}", line=line)
