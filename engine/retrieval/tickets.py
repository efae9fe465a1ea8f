"""Pieces of work that the driver makes one after the other, done by a pool of actors on Ray Data.

The pieces may be more than any memory holds, but a dataset's rows must be known at its start. So a row is
only a ticket: it stands for the piece of its number. The driver makes pieces and hands them to a desk, a few
at a time; an actor that receives a ticket fetches its piece there, and a ticket that comes again because its
actor died gets it again. One ticket is one block and one task.

The desk stands on the driver's node and restarts where its process ends alone. It holds references; the
pieces under way are the driver's, which hands them out again when a new desk asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import ray
import ray.exceptions

from engine.machine.attempts import Attempt, Counts
from engine.messages.errors import EncodeError

_ATTEMPTS = 3  # at a piece, before it counts as the cause of its actors' deaths


class WorkItem(NamedTuple):
    """A piece of work: its name, for an error, and what an actor is given."""

    name: str
    content: Any


class TicketQueue(Counts):
    """Where the driver leaves pieces and actors take them; a Ray actor with a single event loop.

    Their contents are references to the object store, within a list so that Ray hands the reference on. The driver
    waits while there is no ``room``: so many pieces wait.
    """

    def __init__(self, room: int) -> None:
        super().__init__()
        self._room = room
        self._here: dict[int, WorkItem | None] = {}
        self._taken: set[int] = set()
        self._asked: set[int] = set()
        self._given = 0
        self._ended = False
        self._changed = asyncio.Condition()

    async def needs(self, given: int, ended: bool) -> list[int]:
        """Wait until the driver, which has ``given`` so many pieces, and all if it has ``ended``, has something to do.

        Returns:
            the pieces below ``given`` that an actor asks for and a lost desk had; else nothing, and
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

    async def offer(self, number: int, piece: WorkItem | None) -> None:
        """Leave the piece of a number; None if it is done and forgotten."""
        async with self._changed:
            self._here[number] = piece
            self._changed.notify_all()

    async def take(self, ticket: int, attempt: Attempt) -> WorkItem | None:
        """The piece of a ticket; None if there are not so many.

        Raises:
            EncodeError: the piece was handed out too often.
        """
        async with self._changed:
            self._asked.add(ticket)
            self._changed.notify_all()
            await self._changed.wait_for(
                lambda: ticket in self._here or (self._ended and ticket >= self._given)
            )
            self._asked.discard(ticket)
            piece = self._here.get(ticket)
            if piece is None:
                return None
            self._taken.add(ticket)
            self._changed.notify_all()
            if self.deaths(ticket, attempt) >= _ATTEMPTS:
                raise EncodeError(f"the process died {_ATTEMPTS} times in {piece.name}")
            return piece

    async def forget(self, ticket: int) -> None:
        """Drop a piece whose result is taken."""
        self._here.pop(ticket, None)
        self._taken.discard(ticket)
        self._attempts.pop(ticket, None)


class Feeder(threading.Thread):
    """Makes pieces in parallel with the driver's loop and hands them to the desk.

    It holds what is under way, a few pieces for each actor, so that nothing is lost with a desk. Its ``error``
    is what making a piece raised.
    """

    def __init__(self, pieces: Iterator[WorkItem], desk: Any) -> None:
        super().__init__(daemon=True)
        self._pieces = pieces
        self._desk = desk
        self._under_way: dict[int, WorkItem] = {}
        self.error: Exception | None = None

    def forget(self, ticket: int) -> None:
        """Drop a piece whose result is taken."""
        self._under_way.pop(ticket, None)
        self._desk.forget.remote(ticket)

    def run(self) -> None:
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
                    piece = next(self._pieces, None)
                except Exception as error:
                    self.error, piece = error, None
                if piece is None:
                    ended = True
                    continue
                held = piece._replace(content=[ray.put(piece.content)])
                self._under_way[given] = held
                ray.get(self._desk.offer.remote(given, held))
                given += 1
