"""Encoding shards on Ray Data: actors that host the encoder, tickets as the rows of a dataset.

A corpus is streamed and may be larger than any memory, but a dataset's rows must be known at its
start. So a row is only a ticket: it stands for one shard, whichever comes next. The driver reads
the corpus and hands shards to a desk, which holds a few at a time; an actor that receives a ticket
fetches a shard for it from the desk. A ticket that comes again because its actor died gets the same
shard. One ticket is one block, one task and, when its vectors arrive at the driver, one file.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import ray
import ray.exceptions

from engine.errors import EncodeError, InputError
from engine.machine.cluster import cause, end_at_exit, map_rows
from engine.machine.device import is_fatal
from engine.retrieval.encode import Encoded
from engine.retrieval.encoders import EncoderSpec
from engine.retrieval.shards import TYPES, Shard, Storage

_ATTEMPTS = 3  # at a shard, before it counts as the cause of its actors' deaths


class Desk:
    """Where the driver leaves shards and actors take them; a Ray actor with a single event loop.

    Args:
        room: maximum of waiting shards; the driver waits while there are that many.
    """

    def __init__(self, room: int) -> None:
        end_at_exit()
        self._room = room
        self._waiting: deque[Shard] = deque()
        self._taken: dict[int, Shard] = {}
        self._attempts: dict[int, int] = {}
        self._closed = False
        self._changed = asyncio.Condition()

    async def offer(self, shard: Shard) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: len(self._waiting) < self._room)
            self._waiting.append(shard)
            self._changed.notify_all()

    async def close(self) -> None:
        """Announce that no more shards will come; actors that wait for one get None."""
        async with self._changed:
            self._closed = True
            self._changed.notify_all()

    async def take(self, ticket: int) -> Shard | None:
        """The shard of a ticket; None if none is left, since the corpus changed after the count.

        Raises:
            EncodeError: the shard was handed out too often.
        """
        async with self._changed:
            if ticket not in self._taken:
                await self._changed.wait_for(lambda: self._waiting or self._closed)
                if not self._waiting:
                    return None
                self._taken[ticket] = self._waiting.popleft()
                self._changed.notify_all()
            self._attempts[ticket] = self._attempts.get(ticket, 0) + 1
            if self._attempts[ticket] > _ATTEMPTS:
                raise EncodeError(
                    f"the encoder's process died {_ATTEMPTS} times in the shard that begins with "
                    f"document {self._taken[ticket].doc_ids[0]!r}"
                )
            return self._taken[ticket]

    async def forget(self, ticket: int) -> None:
        """Drop the shard of a ticket whose vectors are stored."""
        self._taken.pop(ticket, None)


class EncoderActor:
    """Hosts an encoder; Ray Data calls it with one ticket at a time."""

    def __init__(self, spec: EncoderSpec, storage: Storage, desk: Any) -> None:
        end_at_exit()
        from engine.retrieval.encoder import Encoder

        self._encoder = Encoder(spec)
        self._storage: Storage = storage
        self._desk = desk

    def __call__(self, batch: pa.Table) -> pa.Table:
        (row,) = batch.to_pylist()
        shard: Shard | None = ray.get(self._desk.take.remote(row["ticket"]))
        if shard is None:
            return _RESULT.empty_table()
        try:
            vectors = self._encoder.encode(shard.texts)
        except Exception as error:
            if is_fatal(error):
                os._exit(1)  # Ray retries a task whose process died, in a new process
            raise
        stored = np.ascontiguousarray(vectors.astype(TYPES[self._storage], copy=False))
        return pa.table(
            {
                "ticket": [row["ticket"]],
                "key": [shard.key],
                "doc_ids": [shard.doc_ids],
                "vectors": [stored.tobytes()],
            },
            schema=_RESULT,
        )


_RESULT = pa.schema(
    {
        "ticket": pa.int64(),
        "key": pa.string(),
        "doc_ids": pa.list_(pa.string()),
        "vectors": pa.large_binary(),
    }
)


def execute(
    shards: Callable[[], Iterator[Shard]],
    count: int,
    spec: EncoderSpec,
    storage: Storage,
    *,
    actors: int,
    actor_class: type[EncoderActor] = EncoderActor,
) -> Iterator[Encoded]:
    """Encode shards on ``actors`` actors; results are yielded as they complete, in any order.

    Ray must have been started. Each actor takes one GPU if the cluster has GPUs, else an even share
    of the CPUs.

    Raises:
        InputError: more actors than GPUs, or the corpus cannot be read.
        EncodeError: encoding failed.
    """
    desk = ray.remote(num_cpus=0, max_concurrency=1000)(Desk).remote(2 * actors + 2)
    feeder = _Feeder(shards, desk)
    tickets = [{"ticket": ticket} for ticket in range(count)]
    arguments = {"spec": spec, "storage": storage, "desk": desk}
    feeder.start()
    try:
        for row in map_rows(tickets, actor_class, arguments, actors=actors):
            vectors = np.frombuffer(row["vectors"], dtype=TYPES[storage])
            yield Encoded(row["key"], row["doc_ids"], vectors.reshape(-1, spec.dimensions))
            desk.forget.remote(row["ticket"])
        if feeder.error is not None:
            raise feeder.error
    except ray.exceptions.RayError as error:
        raise EncodeError(f"encoding on Ray failed: {cause(error)}") from error
    finally:
        with contextlib.suppress(Exception):
            ray.kill(desk)
        feeder.join()


class _Feeder(threading.Thread):
    """Reads the corpus in parallel with the driver's loop and hands its shards to the desk."""

    def __init__(self, shards: Callable[[], Iterator[Shard]], desk: Any) -> None:
        super().__init__(daemon=True)
        self._shards = shards
        self._desk = desk
        self.error: InputError | None = None

    def run(self) -> None:
        # The desk is gone if the driver ended early: nothing waits for shards any more.
        with contextlib.suppress(ray.exceptions.RayError):
            try:
                for shard in self._shards():
                    ray.get(self._desk.offer.remote(shard))
            except InputError as error:
                self.error = error
            ray.get(self._desk.close.remote())
