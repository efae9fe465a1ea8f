"""Files in and out: whole or not at all."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import uuid
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl

from engine.errors import InputError
from engine.sources.skipping import SkipBad


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Give a temporary path beside ``path`` that becomes ``path`` when the block ends well.

    Whatever kills the process, ``path`` holds the old content or the new, never a part of it.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The suffix stays last: writers choose formats by it.
    temporary = path.with_name(f".{path.stem}.{uuid.uuid4().hex}.tmp{path.suffix}")
    try:
        yield temporary
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_parquet(frame: pl.DataFrame, path: str | Path) -> None:
    """Write a table as Parquet, atomically."""
    with atomic_path(path) as temporary:
        frame.write_parquet(temporary)


def write_text(text: str, path: str | Path) -> None:
    """Write a text file in UTF-8, atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def require_file(path: str | Path, what: str) -> Path:
    """``path`` as a Path if it is a file.

    Raises:
        InputError: there is no such file; ``what`` says what should have been given.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(path, None, "is a directory", f"give {what}")
    if not path.exists():
        raise InputError(path, None, "no such file", f"give {what}")
    return path


def read_parquet(path: str | Path) -> pl.DataFrame:
    """Read a Parquet file.

    Raises:
        InputError: it cannot be read as Parquet.
    """
    try:
        return pl.read_parquet(path)
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).split("\n")[0]
        raise InputError(
            path, None, f"not a readable Parquet file ({reason})", "check it"
        ) from None


def read_lines(
    path: str | Path, what: str, *, skip: SkipBad | None = None
) -> Iterator[tuple[int, str]]:
    """Yield (line number from 1, line) of a UTF-8 text file, gunzipped by its name; blank lines left out.

    Args:
        path: the file.
        what: what it should be, for errors.
        skip: tolerates lines that are not UTF-8. A file that ends early is never tolerated: nobody
            could count what it lacks.

    Raises:
        InputError: no such file, not UTF-8, or a broken gzip file.
    """
    path = require_file(path, what)
    skip = skip or SkipBad()
    number = 0
    try:
        opened = gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")
        with opened as stream:
            for number, raw in enumerate(stream, 1):
                try:
                    line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
                except UnicodeDecodeError:
                    skip.tolerate(
                        InputError(path, number, "not UTF-8 text", "save the file as UTF-8")
                    )
                    continue
                if line.strip():
                    yield number, line
    except (EOFError, OSError, zlib.error) as error:
        raise InputError(
            path, number + 1, f"cannot be read ({error})", "check it, or get it again"
        ) from None


def is_text(*values: str | None) -> bool:
    """Whether all strings can be written as UTF-8: JSON can smuggle half a surrogate pair in."""
    try:
        for value in values:
            if value and not value.isascii():
                value.encode()
    except UnicodeEncodeError:
        return False
    return True


def require_output(path: str | Path, *, directory: bool) -> None:
    """Check that a file or directory can be written, before anything costly is done for it.

    Raises:
        InputError: something else stands there or above it, or it may not be written.
    """
    path = Path(path)
    if path.exists() and path.is_dir() != directory:
        kind = "a file" if directory else "a directory"
        raise InputError(path, None, f"is {kind}", f"give a {'directory' if directory else 'file'}")
    parent = next(p for p in (path, *path.absolute().parents) if p.exists())
    if parent != path and not parent.is_dir():
        raise InputError(path, None, f"{parent} is a file", "give another path")
    if not os.access(parent, os.W_OK) or str(parent.absolute()).startswith("/proc"):
        raise InputError(path, None, f"{parent} cannot be written", "give another path")


def read_json_lines(
    path: str | Path, what: str, *, skip: SkipBad | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line number from 1, object) of a JSONL file.

    Args:
        path: the file, ``.gz`` or plain.
        what: what it should be, for errors.
        skip: tolerates lines that are no JSON objects.

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


def parse_json_object(path: str | Path, number: int, line: str | bytes) -> dict[str, Any]:
    """The JSON object that a line holds.

    Raises:
        InputError: it holds something else.
    """
    remedy = "write one JSON object a line"
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:  # ValueError also for endless integers
        reason = getattr(error, "msg", None) or str(error)[:60]
        raise InputError(path, number, f"broken JSON ({reason})", remedy) from None
    if not isinstance(value, dict):
        raise InputError(path, number, f"a JSON {type(value).__name__}, not an object", remedy)
    return value
