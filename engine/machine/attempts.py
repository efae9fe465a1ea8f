"""Count attempts at work whose process may die, and weigh what a death says of the work."""

from __future__ import annotations

import contextlib
import uuid
from collections import defaultdict
from collections.abc import Collection, Iterator
from typing import Any, NamedTuple

import ray
import ray.exceptions

from engine.machine import ray_internals
from engine.machine.device import is_fatal
from engine.machine.watch import Start, Tally

# An attempt that ended with its whole node says little of the work: nodes are taken away in the middle of
# it. It says something, since a piece of work can bring its machine down.
LOST_WITH_NODE = 0.25
SECONDS_TO_ANSWER = 5.0


class Attempt(NamedTuple):
    """One beginning of a piece of work: its name, by which a repeated message counts once, and its node."""

    name: str
    node: str


def new_attempt() -> Attempt:
    """An attempt of this process, which is a worker of Ray or a driver."""
    return Attempt(uuid.uuid4().hex, ray.get_runtime_context().get_node_id())


def weight(ended: Collection[Attempt]) -> float:
    """How many deaths these attempts count for; those whose node is gone count ``LOST_WITH_NODE``."""
    if not ended:
        return 0.0
    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    return sum(1.0 if attempt.node in alive else LOST_WITH_NODE for attempt in ended)


@contextlib.contextmanager
def ending_if_fatal() -> Iterator[None]:
    """End this process where its GPU can do no more: Ray retries its task on a fresh one; an error would end the job."""
    try:
        yield
    except Exception as error:
        if is_fatal(error):
            ray_internals.end_process()
        raise


class Counts:
    """Counts attempts at the pieces of a job, and starts of its actors; an actor of Ray's beside the driver.

    Every message may come twice, as Ray's retries may have it, and counts once.
    """

    def __init__(self) -> None:
        ray_internals.end_at_exit()
        self._name = uuid.uuid4().hex
        self._attempts: defaultdict[int, set[Attempt]] = defaultdict(set)
        self._repeated: set[int] = set()
        self._starts: list[Start] = []

    def deaths(self, piece: int, attempt: Attempt) -> float:
        """Record the beginning of a piece; how many deaths its earlier attempts count for."""
        earlier = self._attempts[piece] - {attempt}
        self._attempts[piece].add(attempt)
        if earlier:
            self._repeated.add(piece)
        return weight(earlier)

    def started(self, start: Start) -> None:
        """Record that an actor's process can begin to work."""
        if start not in self._starts:
            self._starts.append(start)

    def tally(self) -> Tally:
        """What was counted since this process started."""
        return Tally(self._name, list(self._starts), len(self._repeated))


def answer(call: ray.ObjectRef, otherwise: Any, seconds: float) -> Any:
    """What an actor beside the driver answers to a call; something else where it does not within some seconds."""
    with contextlib.suppress(ray.exceptions.RayError, TimeoutError):
        return ray.get(call, timeout=seconds)
    return otherwise


def tally_of(counts: Any) -> Tally | None:
    """What ``Counts`` has counted; None where it does not answer within some seconds."""
    tally: Tally | None = answer(counts.tally.remote(), None, SECONDS_TO_ANSWER)
    return tally
