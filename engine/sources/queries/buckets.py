"""Buckets of queries: by their text alone, so that other evaluations of the same questions agree."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

BUCKETS = 1 << 16


def buckets_of(queries: Iterable[str]) -> npt.NDArray[np.int64]:
    """The bucket of each query text, 0 to 65,535: the first 16 bits of the SHA-256 of its UTF-8.

    The names of the read store's files hold ranges of these.
    """
    digests = (hashlib.sha256(query.encode("utf-8", "surrogatepass")).digest() for query in queries)
    return np.fromiter((int.from_bytes(digest[:2], "big") for digest in digests), dtype=np.int64)
