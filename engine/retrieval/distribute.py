"""Encoding shards on Ray Data: actors that host the encoder, tickets as the rows of a dataset.

A corpus is streamed and may be larger than any memory, but a dataset's rows must be known at its
start. So a row is only a ticket: it stands for the shard of its number. The driver reads the corpus
and hands shards to a desk, a few at a time; an actor that receives a ticket fetches its shard there,
and a ticket that comes again because its actor died gets it again. One ticket is one block, one task
and, when its vectors arrive at the driver, one file.

The desk stands on the driver's node and restarts where its process ends alone. It holds references;
the shards under way are the driver's, which hands them out again when a new desk asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import ray
import ray.exceptions

from engine.errors import EncodeError
from engine.machine.attempts import Attempt, new_attempt, weight
from engine.machine.cluster import beside_driver, end_at_exit
from engine.machine.device import is_fatal
from engine.machine.pool import Pool, map_rows, reported
from engine.machine.watch import OnEvent, PoolTotals, silent, watched
from engine.retrieval.encode import Encoded
from engine.retrieval.encoders import EncoderSpec
from engine.retrieval.shards import TYPES, Shard, Storage

_ATTEMPTS = 3  # at a shard, before it counts as the cause of its actors' deaths


# A shard in the object store, within a list so that Ray hands the reference on and not the shard.
_Reference = list[Any]


class Desk:
    """Where the driver leaves shards and actors take them; a Ray actor with a single event loop.

    Every call may come twice, since Ray sends calls under way again to a desk that restarts.

    Args:
        room: maximum of waiting shards; the driver waits while there are that many.
    """

    def __init__(self, room: int) -> None:
        end_at_exit()
        self._room = room
        self._here: dict[int, _Reference | None] = {}
        self._taken: set[int] = set()
        self._asked: set[int] = set()
        self._attempts: defaultdict[int, set[Attempt]] = defaultdict(set)
        self._given = 0
        self._ended = False
        self._changed = asyncio.Condition()

    async def needs(self, given: int, ended: bool) -> list[int]:
        """Wait until the driver has something to do.

        Args:
            given: how many shards the driver has handed over so far.
            ended: whether there are no more.

        Returns:
            the shards below ``given`` that an actor asks for and a lost desk had; else nothing, and
            there is room for the next, or an actor waits for it.
        """

        def lacking() -> list[int]:
            return sorted(n for n in self._asked if n < given and n not in self._here)

        def wanted() -> bool:
            waiting = len(self._here.keys() - self._taken)
            return not ended and (waiting < self._room or any(n >= given for n in self._asked))

        async with self._changed:
            self._given, self._ended = given, ended
            self._changed.notify_all()
            await self._changed.wait_for(lambda: lacking() or wanted())
            return lacking()

    async def offer(self, number: int, shard: _Reference | None) -> None:
        """Leave the shard of a number; None if it is done and forgotten."""
        async with self._changed:
            self._here[number] = shard
            self._changed.notify_all()

    async def take(self, ticket: int, attempt: Attempt) -> _Reference | None:
        """The shard of a ticket; None if there is none, since the corpus changed after the count.

        Raises:
            EncodeError: the shard was handed out too often.
        """
        async with self._changed:
            self._asked.add(ticket)
            self._changed.notify_all()
            await self._changed.wait_for(
                lambda: ticket in self._here or (self._ended and ticket >= self._given)
            )
            self._asked.discard(ticket)
            shard = self._here.get(ticket)
            if shard is None:
                return None
            self._taken.add(ticket)
            self._changed.notify_all()
            earlier = self._attempts[ticket] - {attempt}
            self._attempts[ticket].add(attempt)
            if weight(earlier) >= _ATTEMPTS:
                first = ray.get(shard[0]).doc_ids[0]
                raise EncodeError(
                    f"the encoder's process died {_ATTEMPTS} times in the shard that begins with "
                    f"document {first!r}"
                )
            return shard

    async def forget(self, ticket: int) -> None:
        """Drop the shard of a ticket whose vectors are stored."""
        self._here.pop(ticket, None)
        self._taken.discard(ticket)
        self._attempts.pop(ticket, None)


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
        found = ray.get(self._desk.take.remote(row["ticket"], new_attempt()))
        if found is None:
            return _RESULT.empty_table()
        shard: Shard = ray.get(found[0])
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
    options = beside_driver() | {"max_concurrency": 1000}
    desk = ray.remote(**options)(Desk).remote(2 * pool.start + 2)
    feeder = _Feeder(shards, desk)
    tickets = [{"ticket": ticket} for ticket in range(count)]
    arguments = {"spec": spec, "storage": storage, "desk": desk}
    feeder.start()
    try:
        with (
            reported("encoding", EncodeError, pool.needs),
            watched(pool.needs, on_event, PoolTotals(), lambda: None),
        ):
            for row in map_rows(tickets, actor_class, arguments, pool):
                vectors = np.frombuffer(row["vectors"], dtype=TYPES[storage])
                yield Encoded(row["key"], row["doc_ids"], vectors.reshape(-1, spec.dimensions))
                feeder.forget(row["ticket"])
        if feeder.error is not None:
            raise feeder.error
    finally:
        with contextlib.suppress(Exception):
            ray.kill(desk)
        feeder.join()


class _Feeder(threading.Thread):
    """Reads the corpus in parallel with the driver's loop and hands its shards to the desk.

    It holds what is under way, a few shards for each actor, so that nothing is lost with a desk.
    """

    def __init__(self, shards: Callable[[], Iterator[Shard]], desk: Any) -> None:
        super().__init__(daemon=True)
        self._shards = shards
        self._desk = desk
        self._under_way: dict[int, _Reference] = {}
        self.error: Exception | None = None

    def forget(self, ticket: int) -> None:
        """Drop a shard whose vectors are stored."""
        self._under_way.pop(ticket, None)
        self._desk.forget.remote(ticket)

    def run(self) -> None:
        shards = self._shards()
        given, ended = 0, False
        # Ends when the driver ends the desk: until then a new desk may ask for what the old one had.
        with contextlib.suppress(ray.exceptions.RayError):
            while True:
                lost = ray.get(self._desk.needs.remote(given, ended))
                for number in lost:
                    ray.get(self._desk.offer.remote(number, self._under_way.get(number)))
                if lost:
                    continue
                try:
                    shard = next(shards, None)
                except Exception as error:
                    self.error, shard = error, None
                if shard is None:
                    ended = True
                    continue
                self._under_way[given] = [ray.put(shard)]
                ray.get(self._desk.offer.remote(given, self._under_way[given]))
                given += 1
