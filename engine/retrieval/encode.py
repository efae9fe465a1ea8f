"""Encoding shards in this process; ``distribute.execute`` does the same on Ray Data."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from engine.retrieval.encoders import EncoderSpec
from engine.retrieval.shards import TYPES, Floats, Shard, Storage


@dataclass(frozen=True)
class Encoded:
    """A shard that was encoded; ``vectors`` is (passages, dimensions) in the storage's type."""

    key: str
    doc_ids: list[str]
    vectors: Floats


# Encodes a stream of so many shards (given as a function that begins it), in any order.
Executor = Callable[[Callable[[], Iterator[Shard]], int, EncoderSpec, Storage], Iterator[Encoded]]


def execute(
    shards: Callable[[], Iterator[Shard]], count: int, spec: EncoderSpec, storage: Storage
) -> Iterator[Encoded]:
    """Encode shards with one encoder in this process, in order."""
    from engine.retrieval.encoder import Encoder

    encoder = Encoder(spec)
    for shard in shards():
        vectors = encoder.encode(shard.texts).astype(TYPES[storage], copy=False)
        yield Encoded(shard.key, shard.doc_ids, vectors)
