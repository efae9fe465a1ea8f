"""Where tasks on Ray ask the driver for shards of a corpus that they cannot read themselves.

The desk stands on the driver's node and restarts, empty, where its process ends alone: Ray then sends again
what was asked, and the driver reads the part of the corpus again.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import ray
import ray.exceptions

from engine.machine.attempts import Counts
from engine.messages.errors import EncodeError, InputError
from engine.retrieval.index_shards import Part, Shard


class Desk(Counts):
    """Passes on shards that tasks ask for, by the number of their part of the corpus and their key; an asynchronous actor."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: set[tuple[int, str]] = set()
        self._answers: dict[Any, Sequence[ray.ObjectRef]] = {}
        self._changed = asyncio.Condition()

    async def ask(self, shard: tuple[int, str]) -> Sequence[ray.ObjectRef]:
        """The shard, pickled, as a reference in a list, which Ray hands on; or an exception; no item if there is none."""
        async with self._changed:
            self._asked |= {shard} - self._answers.keys()
            self._changed.notify_all()
            await self._changed.wait_for(lambda: shard in self._answers)
            return self._answers[shard]

    async def asked(self) -> list[tuple[int, str]]:
        """Wait for what the driver is to read."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._asked)
            return list(self._asked)

    async def answer(self, shard: tuple[int, str], content: Sequence[ray.ObjectRef]) -> None:
        """Take what ``ask`` gives."""
        async with self._changed:
            self._asked.discard(shard)
            self._answers[shard] = content
            self._changed.notify_all()

    def forget(self, piece: tuple[int, str] | str) -> None:
        """Drop what is known of a shard that is read, or that is encoded."""
        self._answers.pop(piece, None)
        self._attempts.pop(piece, None)


def feed(parts: Sequence[Part], desk: Any) -> None:
    """Read in this process what tasks ask for, until the desk ends; what reading raises is handed on in its place."""
    reading: dict[int, Iterator[Shard]] = {}

    def found(number: int, key: str) -> list[Any]:
        # From where the part is read, else from its beginning: a task may be done again.
        for again in (False, True):
            if again or number not in reading:
                reading[number] = parts[number]()
            if shard := next((one for one in reading[number] if one.key == key), None):
                if key == parts[number].keys[-1]:
                    del reading[number]
                return [shard]
        return []

    with contextlib.suppress(ray.exceptions.RayError):
        while True:
            for asked in ray.get(desk.asked.remote()):
                try:
                    answers = found(*asked)
                except Exception as error:  # others may not travel
                    answers = [error if isinstance(error, InputError) else EncodeError(str(error))]
                held = [ray.put(pickle.dumps(one, 5)) for one in answers]
                ray.get(desk.answer.remote(asked, held))
