"""Buckets of queries by their text alone, and ranges of about equal work: other evaluations of the questions agree."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

BUCKETS = 1 << 16

Range = tuple[int, int]
Counts = npt.NDArray[np.int64]


def buckets_of(queries: Iterable[str]) -> npt.NDArray[np.int64]:
    """Buckets by query text, 0 to 65,535: the first 16 bits of the SHA-256 of its UTF-8.

    The names of the read store's files hold ranges of buckets.
    """
    digests = (hashlib.sha256(query.encode("utf-8", "surrogatepass")).digest() for query in queries)
    return np.fromiter((int.from_bytes(digest[:2], "big") for digest in digests), dtype=np.int64)


def halved(pairs: Counts, queries: Counts, most: int) -> list[Range]:
    """Cut all buckets into ranges with at most ``most`` pairs and as many queries each.

    A range that has more is halved, until it is a single bucket: its bounds are multiples of its width, a power of two,
    and depend on its content alone, so that ranges of two evaluations are equal, or one holds the other. ``pairs`` and
    ``queries`` are counts by bucket, a power of two in number. The ranges [low, high) that have queries come ascending.
    """
    pairs_below, queries_below = (np.concatenate([[0], np.cumsum(c)]) for c in (pairs, queries))

    def ranges(low: int, high: int) -> Iterator[Range]:
        total = queries_below[high] - queries_below[low]
        most_here = max(total, pairs_below[high] - pairs_below[low])
        if total and (most_here <= most or high - low == 1):
            yield low, high
        elif total:
            middle = (low + high) // 2
            yield from ranges(low, middle)
            yield from ranges(middle, high)

    return [*ranges(0, len(pairs))]
