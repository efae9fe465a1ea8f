"""Count attempts at units and reads in a ledger, to bound retries and to pace the tasks that cut units.

Ray retries a unit without end if its process dies. The ledger is an actor on the driver's node that counts attempts;
actors that read call it through ``Attempts``. It restarts if only its own process ends, and counts from zero: a read
that kills its process then costs two more deaths of its unit and two of its own. No unit fails if the ledger is missing.

Planning tasks cut a unit when the ledger permits, for the pace that actors have by then, so that few units wait.
If a pool may outgrow its nodes, they cut all units of a shard at once. A file beside the driver keeps the paces of units,
so that planning a shard again after a lost node gives the same units, even if the ledger was lost too.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections import defaultdict, deque
from functools import lru_cache
from pathlib import Path
from typing import Any

import ray

from engine.machine import cluster
from engine.machine.attempts import SECONDS_TO_COUNT, Attempt, Counts, answer, weight
from engine.machine.watch import Tally, log
from engine.messages.errors import BoundError
from engine.reading.plan import shared_pace

# An actor's pace follows from so many of its last units, since its first units include one-time work.
# An actor counts as gone if it ended no unit for so long while others did.
_LAST_UNITS, _SECONDS_TO_BE_GONE = 8, 300.0
_STRIKES = 2  # deaths during a read before the read counts as their cause
# Open units (cut, not done) per actor, at an unknown pace and at a measured one. An actor holds two, so that
# Ray Data sees use for a larger pool; two more suffice while a shard is planned.
_FIRST_UNITS, _UNITS = 2, 4
# Longest wait of a caller; all callers together poll a hundred times a second.
_SECONDS_TO_HOLD, _LOOK = 10.0, 0.01
_UnitEnd = tuple[float, int, float]  # when a unit ended, its size, and the seconds that it took
_CUT = struct.Struct("qd")  # a unit and the pace that it was cut for; 0 if unknown


def planning_of(piece: int) -> int:
    """The ledger's number for the planning of a piece; reads have numbers from 0 on."""
    return -1 - piece


class Ledger(Counts):
    """The actor. ``paces``: a file for the paces that units were cut for; ``waits``: whether units are cut when actors
    need them, and not as soon as their shard is planned.
    """

    def __init__(self, paces: str = os.devnull, *, waits: bool = True) -> None:
        super().__init__()
        self._waits, self._actors = waits, set[str]()
        self._entered: defaultdict[int, set[Attempt]] = defaultdict(set)
        self._ends: defaultdict[int, dict[str, deque[_UnitEnd]]] = defaultdict(dict)
        self._file = Path(paces).open("a+b", buffering=0)
        self._file.seek(0)
        self._cut: dict[int, float] = dict(_CUT.iter_unpack(self._file.read()))
        # Open units; consecutive shards without units; callers that wait to cut a unit.
        self._open, self._empty, self._waiting = set[int](), 0, 0
        self._pace = lru_cache(64)(self._pace_in)
        self._ended, self._is_closed = 0, False

    def joined(self, actor: str) -> None:
        """Record that an actor is ready for units."""
        self._actors.add(actor)

    def cut(self, unit: int, role: int) -> tuple[bool, float | None]:
        """Whether a unit may be cut, and its pace: the recorded one if it was cut before."""
        if unit not in self._cut:
            pace, actors = self._pace(role, int(time.monotonic()), len(self._ends))
            # A shard is planned when its first unit may be cut, so shards without missing reads raise the limit.
            most = actors * (_UNITS if pace else _FIRST_UNITS) + self._empty
            if self._waits and len(self._open) >= most:
                return False, None
            self._file.write(_CUT.pack(unit, pace or 0.0))
            self._cut[unit] = pace or 0.0
            self._open.add(unit)
        return True, self._cut[unit] or None

    async def hand_over(self, unit: int, role: int) -> tuple[bool, float | None]:
        """``cut``, once permitted; returns a refusal after some seconds, so that the caller knows that the ledger lives."""
        until = time.monotonic() + _SECONDS_TO_HOLD
        self._waiting += 1
        while not (answered := self.cut(unit, role))[0] and time.monotonic() < until:
            await asyncio.sleep(_LOOK * self._waiting)
        self._waiting -= 1
        return answered

    def _pace_in(self, role: int, *_when: int) -> tuple[float | None, int]:
        """The pace for a role's units (other roles' until measured) and the number of actors; computed once a second."""
        paces = self.paces(role) or [pace for other in self._ends for pace in self.paces(other)]
        actors = max(1, len(self._actors))
        return shared_pace(paces, actors), actors

    def tally(self) -> Tally:
        """Counts since this process started."""
        return super().tally()._replace(open_units=len(self._open))

    def close(self) -> int:
        """Let no further unit begin; return how many did."""
        self._is_closed = True
        return self._ended + len(self._attempts)

    def begin(self, unit: int, attempt: Attempt) -> int:
        """Record the beginning of a unit; returns the number of its attempts, this one included, or 0 after ``close``."""
        if self._is_closed:
            self._attempts.pop(unit, None)
            return 0
        return int(1 + self.deaths(unit, attempt))

    def enter(self, row: int, attempt: Attempt, strikes: int = _STRIKES) -> bool:
        """Record the beginning of a single read, or other piece; False if processes died in it too often."""
        earlier = self._entered[row] - {attempt}
        self._entered[row].add(attempt)
        return weight(earlier) < strikes

    def leave(self, row: int) -> None:
        """Record that a read ended with its process alive."""
        self._entered.pop(row, None)

    def ended(self, unit: int, role: int, size: int, seconds: float, actor: str) -> None:
        """Record that an actor has read a unit of this size in this time; it rarely begins again."""
        self._ended += self._attempts.pop(unit, None) is not None
        self._open.discard(unit)
        self._empty = 0 if size else self._empty + 1
        self._actors.add(actor)
        ends = self._ends[role].setdefault(actor, deque(maxlen=_LAST_UNITS))
        ends.append((time.monotonic(), size, seconds))

    def paces(self, role: int) -> list[float]:
        """Actors' paces for a role, in sizes a second; without actors that are gone or before their first unit."""
        actors = self._ends.get(role, {})
        latest = max((ends[-1][0] for ends in actors.values()), default=0.0)
        gone = {name for name in actors if latest - actors[name][-1][0] > _SECONDS_TO_BE_GONE}
        self._actors -= gone
        present = [ends for name, ends in actors.items() if name not in gone]
        sums = [[sum(figure) for figure in zip(*ends, strict=True)] for ends in present]
        return [size / seconds for _, size, seconds in sums if seconds]


def start_ledger(paces: str = os.devnull, *, waits: bool = True) -> Any:
    """Start the ledger on the driver's node and return its handle. End it with ``ray.kill``."""
    return ray.remote(**cluster.beside_driver())(Ledger).remote(paces, waits=waits)


class Attempts:
    """An actor's calls to the ledger that need an answer, and get one even without it.

    Ray repeats a call to a ledger that restarts. Every attempt counts as the first if no ledger answers.
    """

    def __init__(self, ledger: Any) -> None:
        self.ledger = ledger

    def hand_over(self, unit: int, role: int) -> float | None:
        """Wait until a unit may be cut; return its pace. Ray lends the CPU of a waiting task to others."""
        # Ray must not retry: it would print warnings if a job ends while units wait.
        wait, ask = self.ledger.hand_over.options(max_task_retries=0), self.ledger.cut
        may, pace = False, None
        while not may:
            reply = answer(wait.remote(unit, role), None, SECONDS_TO_COUNT)
            may, pace = reply or answer(ask.remote(unit, role), (True, None), SECONDS_TO_COUNT)
        return pace

    def begin(self, unit: int, attempt: Attempt) -> int:
        """Number of a unit's attempts, this one included; a BoundError if no unit may begin."""
        if begun := int(answer(self.ledger.begin.remote(unit, attempt), 1, SECONDS_TO_COUNT)):
            return begun
        raise BoundError("no unit is begun any more")

    def enter(self, row: int, attempt: Attempt, strikes: int = _STRIKES) -> bool:
        """Whether to try a read or other piece: False if ``strikes`` processes died in it."""
        entered = self.ledger.enter.remote(row, attempt, strikes)
        if not (may := bool(answer(entered, True, SECONDS_TO_COUNT))):
            log("given_up", piece=row, strikes=strikes)
        return may

    def leave(self, row: int) -> None:
        """Record that a read ended with this process alive."""
        answer(self.ledger.leave.remote(row), None, SECONDS_TO_COUNT)
