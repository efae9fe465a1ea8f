"""Encoding shards on actors on Ray Data, each of which hosts the encoder."""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import ray

from engine.machine.attempts import ending_if_fatal, new_attempt, tally_of
from engine.machine.cluster import beside_driver
from engine.machine.pool import Pool, one_row_blocks, pool_options, reported
from engine.machine.ray_internals import end_at_exit
from engine.machine.watch import OnEvent, PoolTotals, silent, started_here, watched
from engine.messages.errors import EncodeError
from engine.retrieval.encode import Encoded
from engine.retrieval.encoders import EncoderSpec
from engine.retrieval.index_shards import TYPES, Shard, Storage
from engine.retrieval.tickets import Feeder, TicketQueue, WorkItem

_RESULT = pa.schema({"ticket": pa.int64(), "result": pa.large_binary()})


class EncoderActor:
    """Hosts an encoder; Ray Data calls it with one ticket at a time."""

    def __init__(self, desk: Any, spec: EncoderSpec, storage: Storage) -> None:
        end_at_exit()
        with ending_if_fatal(desk):
            self._encoder = self.load(spec)
        self._storage: Storage = storage
        self._desk = desk
        desk.started.remote(started_here())

    def load(self, spec: EncoderSpec) -> Any:
        """The encoder."""
        from engine.retrieval.encoder import Encoder

        return Encoder(spec)

    def __call__(self, batch: pa.Table) -> pa.Table:
        (ticket,) = batch["ticket"].to_pylist()
        piece = ray.get(self._desk.take.remote(ticket, new_attempt()))
        if piece is None:
            return _RESULT.empty_table()
        with ending_if_fatal():
            shard: Shard = ray.get(piece.content[0])
            vectors = self._encoder.encode(shard.texts)
        stored = np.ascontiguousarray(vectors.astype(TYPES[self._storage], copy=False))
        result = pickle.dumps(Encoded(shard.key, shard.doc_ids, stored), 5)
        return pa.table({"ticket": [ticket], "result": [result]}, schema=_RESULT)


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

    Ray must have been started. ``on_event`` is told one line when nodes come or go, actors restart, or the pool
    waits.

    Raises:
        InputError: the corpus cannot be read.
        EncodeError: encoding failed.
    """
    # Ray Data makes a pool larger whose actors have tickets that wait; elsewhere none waits behind a slow one.
    in_flight = 1 if pool.most == pool.start else 2
    queue = ray.remote(**beside_driver() | {"max_concurrency": 1000})(TicketQueue)
    desk = queue.remote(2 * pool.start + 2)
    pieces = (
        WorkItem(f"the shard that begins with document {shard.doc_ids[0]!r}", shard)
        for shard in shards()
    )
    feeder = Feeder(pieces, desk)
    feeder.start()
    try:
        with (
            reported("encoding", EncodeError, pool.needs),
            watched(pool.needs, on_event, PoolTotals(), lambda: tally_of(desk)),
        ):
            results = one_row_blocks([{"ticket": ticket} for ticket in range(count)]).map_batches(
                actor_class,
                fn_constructor_kwargs={"desk": desk, "spec": spec, "storage": storage},
                **pool_options(pool.at_most(count), in_flight=in_flight),
            )
            for block in results.iter_batches(batch_size=None, batch_format="pyarrow"):
                for row in block.to_pylist():
                    yield pickle.loads(row["result"])
                    feeder.forget(row["ticket"])
        if feeder.error is not None:
            raise feeder.error
    finally:
        with contextlib.suppress(Exception):
            ray.kill(desk)
        feeder.join()
