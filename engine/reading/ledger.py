"""Count attempts at units and reads in a ledger, so that no retry goes on for ever.

Ray hands a unit whose process died out again, without end. The ledger is an actor that counts; the actors that
read ask it through ``Attempts``. It stands on the driver's node, so that no other node's end takes it away, and
restarts where its process ends alone. Its counts are then lost and start anew: a read that kills its process
costs two deaths of its unit and two of its own more, each time that the ledger is lost. No unit fails for want
of the ledger.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from typing import Any, NamedTuple

import ray

from engine.machine import attempts, cluster
from engine.machine.attempts import Attempt, Counts, answer, weight
from engine.machine.watch import started_here

# Seconds that a unit waits for a ledger that starts again; it may never, on a node that is being drained.
_SECONDS_TO_COUNT = 30.0
# An actor's pace follows from so many of its last units, since its first ones hold what is done once; and
# an actor that has ended none for so long, while others have, is taken for gone.
_LAST_UNITS, _SECONDS_TO_BE_GONE = 8, 300.0
_STRIKES = 2  # deaths during a read before the read counts as their cause


def planning_of(piece: int) -> int:
    """The number under which the planning of a piece is entered; those of reads are 0 or more."""
    return -1 - piece


class _Done(NamedTuple):
    """A unit that an actor has done: when it ended, its size, and the seconds that it took."""

    at: float
    size: int
    seconds: float


class Ledger(Counts):
    """The actor."""

    def __init__(self) -> None:
        super().__init__()
        self._entered: defaultdict[int, set[Attempt]] = defaultdict(set)
        self._done: defaultdict[int, dict[str, deque[_Done]]] = defaultdict(dict)

    def begin(self, unit: int, attempt: Attempt) -> int:
        """Record the beginning of a unit; returns how often it was begun so far, this one included."""
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
        """Record that an actor has done a unit, of this size in this time; it is not begun again but by chance."""
        self._attempts.pop(unit, None)
        done = self._done[role].setdefault(actor, deque(maxlen=_LAST_UNITS))
        done.append(_Done(time.monotonic(), size, seconds))

    def paces(self, role: int) -> list[float]:
        """What each actor reads in a second for a role, in the sizes of units; those before their first unit
        are left out.
        """
        actors = self._done[role].values()
        latest = max((done[-1].at for done in actors), default=0.0)
        there = [done for done in actors if latest - done[-1].at <= _SECONDS_TO_BE_GONE]
        sums = [(sum(d.size for d in done), sum(d.seconds for d in done)) for done in there]
        return [size / seconds for size, seconds in sums if seconds]


def start_ledger() -> Any:
    """Start the ledger beside the driver; its handle. End it with ``ray.kill``."""
    return ray.remote(**cluster.beside_driver())(Ledger).remote()


def paces_of(ledger: Any, role: int) -> list[float]:
    """What each actor reads in a second for a role, as far as is known."""
    paces: list[float] = answer(ledger.paces.remote(role), [], attempts.SECONDS_TO_ANSWER)
    return paces


class Attempts:
    """What an actor knows of the ledger; its calls never fail for want of it.

    Ray sends a call again to a ledger that restarts. Where there is none (the driver is about to end), or
    none that answers, everything counts as begun for the first time.
    """

    def __init__(self, ledger: Any) -> None:
        self._ledger = self.counts = ledger

    def started(self) -> None:
        """Announce that this process has loaded its reader."""
        self._ledger.started.remote(started_here())

    def begin(self, unit: int, attempt: Attempt) -> int:
        """How often a unit was begun, this attempt included."""
        return int(answer(self._ledger.begin.remote(unit, attempt), 1, _SECONDS_TO_COUNT))

    def ended(self, unit: int, role: int, size: int, seconds: float, actor: str) -> None:
        """Record that an actor has done a unit, without waiting."""
        self._ledger.ended.remote(unit, role, size, seconds, actor)

    def enter(self, row: int, attempt: Attempt, strikes: int = _STRIKES) -> bool:
        """Whether a read, or other piece, may be tried: so many processes have died in it if not."""
        entered = self._ledger.enter.remote(row, attempt, strikes)
        return bool(answer(entered, True, _SECONDS_TO_COUNT))

    def leave(self, row: int) -> None:
        """Record that a read ended with this process alive."""
        answer(self._ledger.leave.remote(row), None, _SECONDS_TO_COUNT)
