"""Fingerprints of tables' contents, the same in whatever order their rows come."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import polars as pl

from engine import tables

_COLUMNS = tuple(tables.CORPUS)
_BITS = 256


class RowHashes:
    """The sum modulo 2**256 of the SHA-256 of rows: a hash of a multiset (Clarke et al. 2003).

    Neither the order of rows nor how they were batched counts; how often a row occurs does.
    """

    def __init__(self) -> None:
        self.rows = 0
        self._sum = 0

    def add(self, rows: Iterable[bytes]) -> None:
        """Add rows, written as bytes in a way that no two different rows share."""
        digests = b"".join([hashlib.sha256(row).digest() for row in rows])
        words = np.frombuffer(digests, dtype="<u4").reshape(-1, _BITS // 32)
        self.rows += len(words)
        # Columns of 32-bit words add up without overflow in 64 bits for 4 billion rows at once.
        for place, total in enumerate(words.sum(axis=0, dtype=np.uint64).tolist()):
            self._sum += total << (32 * place)
        self._sum %= 1 << _BITS

    def hexdigest(self) -> str:
        """64 hexadecimal digits; of no rows at all these are zeros."""
        return f"{self._sum:064x}"


class Fingerprint:
    """Of a corpus: its passages' ids, titles, texts and articles, batch by batch in constant memory.

    Attributes:
        passages: how many passages were added.
    """

    def __init__(self) -> None:
        self._rows = RowHashes()

    @property
    def passages(self) -> int:
        return self._rows.rows

    def update(self, batch: pl.DataFrame) -> None:
        """Add passages: a frame with the columns of the corpus table, without nulls."""
        # Lengths first, so that ("ab", "c") and ("a", "bc") are written differently.
        lengths = [pl.col(name).str.len_bytes().cast(pl.String) for name in _COLUMNS]
        written = pl.concat_str(
            pl.concat_str(lengths, separator=","), *_COLUMNS, separator=":"
        ).cast(pl.Binary)
        self._rows.add(batch.select(written).to_series())

    def hexdigest(self) -> str:
        """64 hexadecimal digits."""
        return self._rows.hexdigest()
