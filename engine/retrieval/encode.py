"""Encoding in this process: shards (``distribute.execute`` uses Ray Data instead) and queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.retrieval.encoders import EncoderSpec
from engine.retrieval.index_shards import SHARD, TYPES, Floats, Shard, Storage


@dataclass(frozen=True)
class Encoded:
    """An encoded shard; ``vectors`` is (passages, dimensions) in the storage's type."""

    key: str
    doc_ids: list[str]
    vectors: Floats


# Encodes a stream of shards, in any order: takes a function that begins the stream, and its length.
Executor = Callable[[Callable[[], Iterator[Shard]], int, EncoderSpec, Storage], Iterator[Encoded]]


def execute(
    shards: Callable[[], Iterator[Shard]], count: int, spec: EncoderSpec, storage: Storage
) -> Iterator[Encoded]:
    """Encode shards with one encoder in this process, in their order."""
    from engine.retrieval.encoder import Encoder

    encoder = Encoder(spec)
    for shard in shards():
        vectors = encoder.encode(shard.texts).astype(TYPES[storage], copy=False)
        yield Encoded(shard.key, shard.doc_ids, vectors)


def queries(
    texts: Sequence[str],
    spec: EncoderSpec,
    *,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> npt.NDArray[np.float32]:
    """The vectors of queries, prefix added, encoded ``SHARD`` at a time; (texts, dimensions).

    Args:
        texts: the queries.
        spec: the encoder.
        on_progress: called with the number of queries done and the total.
    """
    from engine.retrieval.encoder import Encoder

    encoder = Encoder(spec)
    vectors = np.empty((len(texts), spec.dimensions), dtype=np.float32)
    on_progress(0, len(texts))
    for start in range(0, len(texts), SHARD):
        part = texts[start : start + SHARD]
        vectors[start : start + SHARD] = encoder.queries(part)
        on_progress(start + len(part), len(texts))
    return vectors
