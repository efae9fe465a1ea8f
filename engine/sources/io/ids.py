"""Find ids and texts among tens of millions: duplicates, at 8 bytes per id, and places.

A join or a cast to ``polars.Enum`` hashes the whole haystack at every call, ten times as long if it is ten times as
large as the query.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import polars as pl

Place = TypeVar("Place")
_Hashes = npt.NDArray[np.uint64]
_SEED = 20_240_711
# Ids that are compared at a time.
_AT_ONCE = 10_000


class IdHashes:
    """The ids seen so far, as 64-bit hashes.

    Sorted arrays, each at least twice as long as the next, take 8 bytes per id, and briefly 16 while two are merged. An
    equal hash is only a suspicion (any two of 20 million ids share one with a probability of 1e-5): compare the ids.
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

    def repeat(
        self, ids: pl.Series, every: Iterable[tuple[str, Place]]
    ) -> tuple[str, Place, Place] | None:
        """Add ids; the first id that repeats another, its place and the other's, from ``every`` id, if it is needed."""
        suspects, each, first = self.add(ids), iter(every), dict[str, Place]()
        while len(suspects) and (batch := list(itertools.islice(each, _AT_ONCE))):
            hashes = hash_ids(pl.Series([name for name, _ in batch], dtype=pl.String))
            for row in hashes.is_in(pl.Series(suspects).implode()).arg_true():
                name, place = batch[row]
                if name in first:
                    return name, place, first[name]
                first[name] = place
        return None


def hash_ids(ids: pl.Series) -> pl.Series:
    """64-bit hashes of ids (UInt64), the same within one process."""
    return ids.hash(_SEED)


# On a collision the next seed is tried: for a million texts, once in 37 million times.
_SEEDS = range(100)


class Places:
    """Places, from 0, of distinct texts without nulls; takes about 32 bytes a text beside the texts themselves."""

    def __init__(self, texts: pl.Series) -> None:
        self._texts = texts.rechunk()
        for seed in _SEEDS:
            hashes = self._texts.hash(seed).to_numpy()
            order = np.argsort(hashes)
            ordered = hashes[order]
            if not (ordered[1:] == ordered[:-1]).any():
                break
        else:
            raise ValueError("a text is given twice")
        self._seed, self._order = seed, order
        # One more hash, since a search may end behind the last.
        self._hashes = np.append(ordered, np.uint64(0))
        # Starts of hashes by their first bits: on average every second prefix has one.
        self._shift = np.uint64(64 - 1 - max(1, len(texts)).bit_length())
        firsts = np.arange(1 << int(64 - self._shift), dtype=np.uint64)
        self._starts = np.searchsorted(ordered >> self._shift, firsts)

    def of(self, texts: pl.Series) -> pl.Series:
        """The places of some texts, in their order; null for unknown texts."""
        count = len(self._order)
        if not count:
            return pl.Series([None] * len(texts), dtype=pl.Int64)
        hashes = texts.hash(self._seed).to_numpy()
        at = self._starts[(hashes >> self._shift).astype(np.int64)]
        while (below := (at < count) & (self._hashes[at] < hashes)).any():
            at += below
        places = self._order[np.minimum(at, count - 1)]
        # Other texts may have the same hash.
        same = self._texts.gather(places) == texts
        return pl.Series(places, dtype=pl.Int64).zip_with(same, pl.Series([None], dtype=pl.Int64))
