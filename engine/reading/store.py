"""The read store: every read that was ever done, found by its key.

A store is a directory with one folder per reader fingerprint and one Parquet file (the reads table)
per finished unit. Files are written whole or not at all and never changed, so a store survives any
crash, and several jobs may use one store at once; at worst, a read is done twice.

A file is named by its keys and by a digest of its bytes, which are compared before they are parsed. So
a file that the disk damaged is never used, whatever the damage would have meant, and moves aside. Files
of earlier versions, named by their keys alone, are read without that test.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import polars as pl

from engine import tables
from engine.errors import InputError
from engine.sources.io.files import atomic_path
from engine.sources.io.parquet import read_parquet
from engine.sources.io.temporary import remove_abandoned
from engine.tables import READ_KEY

# Added to the name of a file whose bytes are not those that were written.
DAMAGED = ".damaged"
# Digests of the keys and of the file's bytes; files of earlier versions have the former alone.
_NAME = re.compile(r"[0-9a-f]{32}-(?P<content>[0-9a-f]{32})\.parquet")


class Stored(NamedTuple):
    """What a store has of one reader.

    Attributes:
        reads: the reads table, one row per key.
        damaged: where the files were moved that the disk damaged; none of their reads is used.
    """

    reads: pl.DataFrame
    damaged: Sequence[Path]


NOTHING = Stored(tables.empty(tables.READS), ())


def load(store: Path, fingerprint: str) -> Stored:
    """The stored reads of one reader; damaged files are moved aside.

    Raises:
        InputError: a file of the store cannot be read, has other columns, or is a damaged one of an
            earlier version.
    """
    folder = store / fingerprint
    remove_abandoned(folder)
    frames: list[pl.DataFrame] = []
    damaged: list[Path] = []
    for path in sorted(folder.glob("[!.]*.parquet")):
        frame = _read(path)
        if frame is None:
            damaged.append(_set_aside(path))
        else:
            frames.append(tables.conform(frame, tables.READS, path))
    if not frames:
        return Stored(tables.empty(tables.READS), damaged)
    reads = pl.concat(frames).unique(READ_KEY, keep="first", maintain_order=True)
    return Stored(reads, damaged)


def add(store: Path, fingerprint: str, reads: pl.DataFrame) -> None:
    """Add finished reads (the reads table) as one file.

    Raises:
        WriteError: it cannot be written; the store is as it was.
    """
    if reads.is_empty():
        return
    keys = hashlib.sha256("".join(reads[READ_KEY].sort()).encode()).hexdigest()[:32]
    memory = io.BytesIO()
    reads.select(list(tables.READS)).write_parquet(memory)
    content = memory.getvalue()
    with atomic_path(store / fingerprint / f"{keys}-{_digest(content)}.parquet") as temporary:
        temporary.write_bytes(content)


def _read(path: Path) -> pl.DataFrame | None:
    """The table in a file; None where its bytes are not those that its name speaks of."""
    named = _NAME.fullmatch(path.name)
    remedy = "delete it; its reads are done again"
    try:
        if named is None:
            return read_parquet(path)
        content = path.read_bytes()
        if _digest(content) != named["content"]:
            return None
        return pl.read_parquet(io.BytesIO(content))
    except InputError as error:
        raise InputError(
            path, None, f"broken file in the read store ({error.problem})", remedy
        ) from None
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(path, None, f"broken file in the read store ({error})", remedy) from None


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def _set_aside(path: Path) -> Path:
    """Move a damaged file to where it is not looked for; it stays where the store cannot be changed."""
    aside = path.with_name(path.name + DAMAGED)
    with contextlib.suppress(OSError):  # another job may have moved it already
        os.replace(path, aside)
    return aside if aside.exists() else path
