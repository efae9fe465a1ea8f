"""Ids given twice, found in streams of tens of millions at 8 bytes an id."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

_Hashes = npt.NDArray[np.uint64]
_SEED = 20_240_711


class IdHashes:
    """The ids met so far, as 64-bit hashes.

    Hashes are kept in sorted arrays, each at least twice as long as the next: 8 bytes an id, for a
    moment 16 while two arrays become one. An equal hash is only a suspicion (among 20 million
    different ids two share one with a probability of 1e-5): the caller looks at the ids themselves.
    """

    def __init__(self) -> None:
        self._arrays: list[_Hashes] = []

    def add(self, ids: pl.Series) -> _Hashes:
        """Add ids; the distinct hashes among theirs that were met before, or twice among them."""
        hashes = np.sort(hash_ids(ids).to_numpy())
        twice = [hashes[1:][hashes[1:] == hashes[:-1]]]
        for array in self._arrays:
            places = np.minimum(np.searchsorted(array, hashes), len(array) - 1)
            twice.append(hashes[array[places] == hashes])
        if len(hashes):
            self._arrays.append(hashes)
        while len(self._arrays) > 1 and len(self._arrays[-2]) < 2 * len(self._arrays[-1]):
            merged = np.concatenate([self._arrays.pop(), self._arrays.pop()])
            merged.sort(kind="stable")  # of two sorted runs, stable sorting is a merge
            self._arrays.append(merged)
        return np.unique(np.concatenate(twice))


def hash_ids(ids: pl.Series) -> pl.Series:
    """64-bit hashes of ids (UInt64), the same within one process."""
    return ids.hash(_SEED)
