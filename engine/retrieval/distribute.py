"""Encoding shards on actors on Ray Data, each of which hosts the encoder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from engine.machine.pool import Pool
from engine.machine.watch import OnEvent, silent
from engine.retrieval.encode import Encoded
from engine.retrieval.encoders import EncoderSpec
from engine.retrieval.index_shards import TYPES, Shard, Storage
from engine.retrieval.tickets import TicketActor, WorkItem, do_pieces


class EncoderActor(TicketActor):
    """Hosts an encoder."""

    def __init__(self, desk: Any, spec: EncoderSpec, storage: Storage) -> None:
        from engine.retrieval.encoder import Encoder

        self._encoder = Encoder(spec)
        self._storage: Storage = storage
        super().__init__(desk)

    def do(self, content: Shard) -> Encoded:
        vectors = self._encoder.encode(content.texts)
        stored = np.ascontiguousarray(vectors.astype(TYPES[self._storage], copy=False))
        return Encoded(content.key, content.doc_ids, stored)


def execute(
    shards: Callable[[], Iterator[Shard]],
    count: int,
    spec: EncoderSpec,
    storage: Storage,
    *,
    pool: Pool,
    actor_class: type[EncoderActor] = EncoderActor,
    on_event: OnEvent = silent,
) -> Iterator[Encoded]:
    """Encode shards on a pool of actors; results are yielded as they complete, in any order.

    Ray must have been started. ``on_event`` is told one line when nodes come or go, or the pool waits.

    Raises:
        InputError: the corpus cannot be read.
        EncodeError: encoding failed.
    """

    def pieces() -> Iterator[WorkItem]:
        for shard in shards():
            yield WorkItem(f"the shard that begins with document {shard.doc_ids[0]!r}", shard)

    arguments = {"spec": spec, "storage": storage}
    return do_pieces(
        "encoding", pieces(), count, actor_class, arguments,
        pool=pool, room=2 * pool.start + 2, on_event=on_event,
    )  # fmt: skip
