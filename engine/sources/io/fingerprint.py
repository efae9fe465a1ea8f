"""Fingerprint the contents of tables, independent of row order, and the bytes of files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import polars as pl

from engine import tables

_COLUMNS = tuple(tables.CORPUS)
_BITS = 256


def file_sha256(path: str | Path) -> str:
    """The SHA-256 of a file's bytes, as 64 hexadecimal digits; an OSError where it cannot be read."""
    with Path(path).open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


class RowHashes:
    """The sum modulo 2**256 of the SHA-256 of rows: a multiset hash (Clarke et al. 2003).

    It depends on how often each row occurs, but neither on the order of rows nor on batches.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._sum = 0

    def add(self, rows: Iterable[bytes]) -> None:
        """Add rows, each written as bytes; different rows must give different bytes."""
        digests = b"".join([hashlib.sha256(row).digest() for row in rows])
        words = np.frombuffer(digests, dtype="<u4").reshape(-1, _BITS // 32)
        self.rows += len(words)
        # Sums of 32-bit words do not overflow 64 bits for up to 4 billion rows at once.
        for place, total in enumerate(words.sum(axis=0, dtype=np.uint64).tolist()):
            self._sum += total << (32 * place)
        self._sum %= 1 << _BITS

    def hexdigest(self) -> str:
        """64 hexadecimal digits; all zeros without any row."""
        return f"{self._sum:064x}"


class Fingerprint(RowHashes):
    """The fingerprint of a corpus, over ids, titles, texts and articles, in constant memory."""

    @property
    def passages(self) -> int:
        """The number of passages added."""
        return self.rows

    def update(self, batch: pl.DataFrame) -> None:
        """Add passages: a frame with the columns of the corpus table, without nulls."""
        # Lengths come first, so that ("ab", "c") and ("a", "bc") give different bytes.
        lengths = [pl.col(name).str.len_bytes().cast(pl.String) for name in _COLUMNS]
        row_bytes = pl.concat_str(
            pl.concat_str(lengths, separator=","), *_COLUMNS, separator=":"
        ).cast(pl.Binary)
        self.add(batch.select(row_bytes).to_series())
