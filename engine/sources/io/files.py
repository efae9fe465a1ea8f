"""Write files atomically."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from engine.messages.errors import InputError, WriteError
from engine.sources.io.temporary import temporary_directory, temporary_file

if TYPE_CHECKING:  # every command begins with this module, and few write tables
    import polars as pl


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Give a temporary path beside ``path`` that becomes ``path`` when the block succeeds.

    Even if the process is killed, ``path`` holds the old content or the new, never a part of it.

    Raises:
        WriteError: the disk is full, or the place cannot be written.
    """
    path = Path(path)
    with reported_writing(path), temporary_file(path) as temporary:
        yield temporary
        flush(temporary)
        os.replace(temporary, path)


@contextlib.contextmanager
def atomic_directory(path: str | Path) -> Iterator[Path]:
    """Give a temporary directory beside ``path`` that becomes ``path`` when the block succeeds.

    Raises:
        InputError: ``path`` is not empty, so it cannot be replaced in one step.
        WriteError: the disk is full, or the place cannot be written.
    """
    path = Path(path)
    if path.exists() and any(path.iterdir()):
        raise InputError("is a directory with content", "give a new directory", path=path)
    with reported_writing(path), temporary_directory(path) as temporary:
        yield temporary
        for file in temporary.iterdir():
            flush(file)
        os.replace(temporary, path)


def flush(path: Path) -> None:
    """Have a file's content written to the disk, as far as the system lets us."""
    with path.open("rb") as stream:
        os.fsync(stream.fileno())


@contextlib.contextmanager
def reported_writing(path: Path) -> Iterator[None]:
    """Turn what libraries raise where no space is left, or a file at ``path`` or beside it is refused, into a WriteError."""
    try:
        yield
    except Exception as error:
        name = error.filename if isinstance(error, OSError) else None
        folder = path.absolute().parent
        ours = isinstance(name, str | bytes | Path) and (
            Path(os.fsdecode(name)).absolute().is_relative_to(folder)
        )
        if not no_room(error) and not ours:
            raise
        raise cannot_write(path, error) from error


# The system's words for a full disk, in libraries that have no errno.
_FULL = r"No space left on device|Disk quota exceeded|database or disk is full"


def no_room(error: BaseException) -> tuple[str, str] | None:
    """Problem and remedy where an error, or what it came from, says that there is no room for a file; else None."""
    known: set[int] = set()  # an error can be its own cause, through others too
    cause: BaseException | None = error
    while cause is not None and id(cause) not in known:
        known.add(id(cause))
        number = cause.errno if isinstance(cause, OSError) else None
        text = "" if isinstance(cause, InputError) else str(cause)
        if number in (errno.ENOSPC, errno.EDQUOT) or re.search(_FULL, text, re.IGNORECASE):
            return "no space is left on the disk", "free some"
        if number == errno.EFBIG or "file too large" in text.lower():
            return "the file is larger than files may be here", "raise that limit (ulimit -f)"
        cause = cause.__cause__
    return None


def cannot_write(path: str | Path, error: BaseException) -> WriteError:
    """The error for a file that cannot be written."""
    if room := no_room(error):
        problem, remedy = room
        return WriteError(
            f"{path}: cannot be written: {problem}; {remedy}, and run the same command again"
        )
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return WriteError(f"{path}: cannot be written ({reason}); check the place, and run again")


def write_parquet(frame: pl.DataFrame, path: str | Path) -> None:
    """Write a table as Parquet atomically."""
    with atomic_path(path) as temporary:
        frame.write_parquet(temporary)


def write_text(text: str, path: str | Path) -> None:
    """Write a text file in UTF-8 atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_bytes(content: bytes, path: str | Path) -> None:
    """Write a file atomically."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def is_text(*values: str | None) -> bool:
    """Whether all strings can be written as UTF-8: JSON can contain half a surrogate pair."""
    try:
        "".join(value for value in values if value).encode()
    except UnicodeEncodeError:
        return False
    return True
