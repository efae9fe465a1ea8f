"""The read store: every read that was ever done, found by its key.

A store is a directory with one folder per reader fingerprint and one Parquet file (the reads table)
per finished unit. Files are written whole or not at all and never changed, so a store survives any
crash, and several jobs may use one store at once; at worst, a read is done twice.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import polars as pl

from engine import tables
from engine.errors import InputError
from engine.sources.io.files import write_parquet
from engine.tables import READ_KEY


def load(store: Path, fingerprint: str) -> pl.DataFrame:
    """The stored reads of one reader, one row per key.

    Raises:
        InputError: a file of the store cannot be read or has other columns.
    """
    frames: list[pl.DataFrame] = []
    for path in sorted((store / fingerprint).glob("[!.]*.parquet")):
        try:
            frame = pl.read_parquet(path)
        except (pl.exceptions.PolarsError, OSError) as error:
            raise InputError(
                path,
                None,
                f"broken file in the read store ({error})",
                "delete it; its reads are done again",
            ) from None
        frames.append(tables.conform(frame, tables.READS, path))
    if not frames:
        return tables.empty(tables.READS)
    return pl.concat(frames).unique(READ_KEY, keep="first", maintain_order=True)


def add(store: Path, fingerprint: str, reads: pl.DataFrame) -> None:
    """Add finished reads (the reads table) as one file, named by their keys."""
    if reads.is_empty():
        return
    name = hashlib.sha256("".join(reads[READ_KEY].sort()).encode()).hexdigest()[:32]
    write_parquet(reads.select(list(tables.READS)), store / fingerprint / f"{name}.parquet")
