"""Writing files whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from engine.errors import InputError, WriteError
from engine.sources.io.locations import locate, shown
from engine.sources.io.temporary import temporary_directory, temporary_file

# The most bytes that file systems take.
_LONGEST_NAME = 255


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
    """Turn what a full disk or an unwritable place makes libraries raise into a WriteError.

    Args:
        path: what is being written, for the message.

    Raises:
        WriteError: no space is left, or the operating system refused a file at ``path`` or beside it.
    """
    try:
        yield
    except Exception as error:
        ours = isinstance(error, OSError) and error.filename and _is_beside(error.filename, path)
        if not is_full(error) and not ours:
            raise
        raise cannot_write(path, error) from error


def _is_beside(name: object, path: Path) -> bool:
    if not isinstance(name, str | bytes | Path):
        return False
    return Path(os.fsdecode(name)).absolute().is_relative_to(path.absolute().parent)


# What the operating system calls a full disk, in libraries that have no errno.
_FULL = re.compile(r"No space left on device|Disk quota exceeded", re.IGNORECASE)


def is_full(error: BaseException) -> bool:
    """Whether an error, or what it came from, says that a disk is full."""
    known: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in known:
        known.add(id(cause))
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        if not isinstance(cause, InputError) and _FULL.search(str(cause)):
            return True
        cause = cause.__cause__
    return False


def cannot_write(path: str | Path, error: BaseException) -> WriteError:
    """The error for a file that cannot be written."""
    if is_full(error):
        return WriteError(
            f"{path}: cannot be written: no space is left on the disk; free some, and run the same "
            "command again"
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
        for value in values:
            if value and not value.isascii():
                value.encode()
    except UnicodeEncodeError:
        return False
    return True


def refuse_impossible_name(path: Path) -> None:
    """Refuse a path that no file system takes.

    Raises:
        InputError: a NUL, a part of more than 255 bytes, or more than 4,000 in all.
    """
    parts = [os.fsencode(part) for part in path.absolute().parts]
    if any(len(part) > _LONGEST_NAME for part in parts):
        problem = f"a name of more than {_LONGEST_NAME} bytes"
    elif sum(len(part) + 1 for part in parts) > 4000:
        problem = "a path of more than 4,000 bytes"
    elif any(b"\0" in part for part in parts):
        problem = "a name that holds the character U+0000"
    else:
        return
    raise InputError(problem, "give another", path=shown(path))


def require_output(path: str | Path, *, directory: bool) -> None:
    """Check that a file or directory can be written, before any costly work.

    Raises:
        InputError: something else is in its place or above it, or it cannot be written.
    """
    if locate(path) != Path(path):
        raise InputError("results are written to local files", "give a path", path=locate(path))
    path = Path(path)
    refuse_impossible_name(path)
    if not directory and path.suffix in (".gz", ".bz2"):
        raise InputError("results are written uncompressed", "leave out the last suffix", path=path)
    if path.exists() and path.is_dir() != directory:
        existing, wanted = ("a file", "a directory") if directory else ("a directory", "a file")
        raise InputError(f"is {existing}", f"give {wanted}", path=path)
    existing_part = next(p for p in (path, *path.absolute().parents) if p.exists())
    if existing_part != path and not existing_part.is_dir():
        raise InputError(f"{existing_part} is a file", "give another path", path=path)
    if not os.access(existing_part, os.W_OK) or str(existing_part.absolute()).startswith("/proc"):
        raise InputError(f"{existing_part} cannot be written", "give another path", path=path)
