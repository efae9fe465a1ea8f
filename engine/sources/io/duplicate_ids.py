"""Find duplicate ids in streams of tens of millions, at 8 bytes per id."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import polars as pl

_Hashes = npt.NDArray[np.uint64]
_SEED = 20_240_711


class IdHashes:
    """The ids seen so far, as 64-bit hashes.

    Hashes are kept in sorted arrays, each at least twice as long as the next: 8 bytes per id, and
    briefly 16 while two arrays are merged. An equal hash is only a suspicion (the probability that
    any two of 20 million different ids share one is 1e-5): the caller must compare the ids
    themselves.
    """

    def __init__(self) -> None:
        self._arrays: list[_Hashes] = []

    def add(self, ids: pl.Series) -> _Hashes:
        """Add ids; return the distinct hashes seen before or repeated among these ids."""
        hashes = np.sort(hash_ids(ids).to_numpy())
        repeated = [hashes[1:][hashes[1:] == hashes[:-1]]]
        for array in self._arrays:
            places = np.minimum(np.searchsorted(array, hashes), len(array) - 1)
            repeated.append(hashes[array[places] == hashes])
        if len(hashes):
            self._arrays.append(hashes)
        while len(self._arrays) > 1 and len(self._arrays[-2]) < 2 * len(self._arrays[-1]):
            merged = np.concatenate([self._arrays.pop(), self._arrays.pop()])
            merged.sort(kind="stable")  # a stable sort of two sorted runs is a merge
            self._arrays.append(merged)
        return np.unique(np.concatenate(repeated))


def hash_ids(ids: pl.Series) -> pl.Series:
    """64-bit hashes of ids (UInt64), the same within one process."""
    return ids.hash(_SEED)
