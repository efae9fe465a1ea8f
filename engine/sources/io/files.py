"""Writing files whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from engine.errors import InputError
from engine.sources.io.locations import locate, shown

# 255 bytes, less what the name of a temporary file has besides.
_LONGEST_NAME = 209


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Give a temporary path beside ``path`` that becomes ``path`` when the block succeeds.

    Even if the process is killed, ``path`` holds the old content or the new, never a part of it.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The suffix stays last, since writers choose the format by it.
    temporary = path.with_name(f".{path.stem}.{uuid.uuid4().hex}.tmp{path.suffix}")
    try:
        yield temporary
        with temporary.open("rb") as stream:
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_directory(path: str | Path) -> Iterator[Path]:
    """Give a temporary directory beside ``path`` that becomes ``path`` when the block succeeds.

    Raises:
        InputError: ``path`` is not empty, so it cannot be replaced in one step.
    """
    path = Path(path)
    if path.exists() and any(path.iterdir()):
        raise InputError(path, None, "is a directory with content", "give a new directory")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    temporary.mkdir()
    try:
        yield temporary
        for file in temporary.iterdir():
            with file.open("rb") as stream:
                os.fsync(stream.fileno())
        os.replace(temporary, path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_parquet(frame: pl.DataFrame, path: str | Path) -> None:
    """Write a table as Parquet atomically."""
    with atomic_path(path) as temporary:
        frame.write_parquet(temporary)


def write_text(text: str, path: str | Path) -> None:
    """Write a text file in UTF-8 atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


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
    """Refuse a path that no file system takes, or whose temporary files it would not take.

    Raises:
        InputError: a NUL, a part of more than 255 bytes, a last part of more than 209, or 4,096 in all.
    """
    parts = [os.fsencode(part) for part in path.absolute().parts]
    # A temporary file has the name, a number of 32 digits, dots and .tmp.
    if len(parts[-1]) > _LONGEST_NAME or any(len(part) > 255 for part in parts):
        problem = f"a name of more than {_LONGEST_NAME} bytes"
    elif sum(len(part) + 1 for part in parts) > 4000:
        problem = "a path of more than 4,000 bytes"
    elif any(b"\0" in part for part in parts):
        problem = "a name that holds the character U+0000"
    else:
        return
    raise InputError(shown(path), None, problem, "give another")


def require_output(path: str | Path, *, directory: bool) -> None:
    """Check that a file or directory can be written, before any costly work.

    Raises:
        InputError: something else is in its place or above it, or it cannot be written.
    """
    if locate(path) != Path(path):
        raise InputError(path, None, "results are written to local files", "give a path")
    path = Path(path)
    refuse_impossible_name(path)
    if not directory and path.suffix in (".gz", ".bz2"):
        raise InputError(
            path, None, "results are written uncompressed", "leave out the last suffix"
        )
    if path.exists() and path.is_dir() != directory:
        existing, wanted = ("a file", "a directory") if directory else ("a directory", "a file")
        raise InputError(path, None, f"is {existing}", f"give {wanted}")
    existing_part = next(p for p in (path, *path.absolute().parents) if p.exists())
    if existing_part != path and not existing_part.is_dir():
        raise InputError(path, None, f"{existing_part} is a file", "give another path")
    if not os.access(existing_part, os.W_OK) or str(existing_part.absolute()).startswith("/proc"):
        raise InputError(path, None, f"{existing_part} cannot be written", "give another path")
