"""Count attempts at work whose process may die, and weigh how much a death counts."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterator
from typing import Any, NamedTuple

import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from engine.machine import ray_internals
from engine.machine.device import is_at_fault, is_fatal
from engine.machine.watch import Start, Tally, log
from engine.messages.errors import EncodeError, ReadError
from engine.messages.wording import listed

# The weight of a death with its whole node: clusters remove nodes, but work can also bring its machine down.
LOST_WITH_NODE = 0.25
SECONDS_TO_ANSWER = 5.0
_DEATHS = 3  # deaths of processes in a piece before it counts as their cause
# Seconds for the counter of attempts, which may have to start again, and for the keeper of a GPU to wait for it.
SECONDS_TO_COUNT, _SECONDS_TO_QUEUE = 30.0, 2.0
_FAULTS = 2  # failed loads on a GPU before it is kept
_REMEDY = "see `nvidia-smi` there, and run the same command again: what is finished is kept"


class Attempt(NamedTuple):
    """A start of a piece of work: its name, which makes repeated messages count once, and its node."""

    name: str
    node: str


def new_attempt() -> Attempt:
    """An attempt of this process, which is a worker of Ray or a driver."""
    return Attempt(uuid.uuid4().hex, ray.get_runtime_context().get_node_id())


def weight(ended: Collection[Attempt]) -> float:
    """Number of deaths that these attempts count for; an attempt on a lost node counts ``LOST_WITH_NODE``."""
    if not ended:
        return 0.0
    alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
    return sum(1.0 if attempt.node in alive else LOST_WITH_NODE for attempt in ended)


@contextlib.contextmanager
def ending_if_fatal(counts: Any = None) -> Iterator[None]:
    """End this process if its GPU has failed: Ray retries its task on a fresh one; an error would end the job.

    During a model's load, ``Counts`` count the faults of GPUs; a ReadError if no node has one left.
    """
    try:
        yield
    except Exception as error:
        # A ReadError during a load may quote such an error.
        passes = isinstance(error, ReadError) or not is_fatal(error)
        if passes if counts is None else not is_at_fault(error):
            raise
        log("device_fault", error=error)
        if counts is not None:
            context, reason = ray.get_runtime_context(), " ".join(str(error).split())[:300]
            ids = context.get_accelerator_ids().get("GPU", [])
            # A single attempt, in any thread of the process.
            attempt = Attempt(str(os.getpid()), context.get_node_id())
            node = f"node {attempt.node[:8]} ({ray.util.get_node_ip_address()})"
            gpu, needs = f"GPU {','.join(ids)} of {node}", context.get_assigned_resources()
            fault = counts.fault.remote(attempt, gpu, ids, needs, reason)
            if end := answer(fault, "", SECONDS_TO_COUNT):
                raise ReadError(end) from error
            time.sleep(_SECONDS_TO_QUEUE)
        ray_internals.end_process()


class _Keeper:
    def placed(self) -> None:
        """Answer once this actor has a GPU, which it keeps from others."""


class Counts:
    """Counts a job's attempts at pieces, and its actors' starts, beside the driver; repeated messages count once."""

    def __init__(self) -> None:
        ray_internals.end_at_exit()
        self._name = uuid.uuid4().hex
        self._attempts: defaultdict[Hashable, set[Attempt]] = defaultdict(set)
        self._repeated: set[Hashable] = set()
        self._starts: list[Start] = []
        self._faults: defaultdict[str, set[Attempt]] = defaultdict(set)
        self._sick: dict[str, str] = {}
        self._lost: defaultdict[str, set[str]] = defaultdict(set)
        self._keepers: defaultdict[str, list[tuple[Any, ray.ObjectRef]]] = defaultdict(list)

    def deaths(self, piece: Hashable, attempt: Attempt) -> float:
        """Record the start of a piece; returns the deaths of its earlier attempts."""
        earlier = self._attempts[piece] - {attempt}
        self._attempts[piece].add(attempt)
        if earlier:
            self._repeated.add(piece)
            log("repeated", piece=piece, earlier=len(earlier), node=attempt.node[:8])
        return weight(earlier)

    def started(self, start: Start) -> None:
        """Record that an actor's process can begin to work."""
        if start not in self._starts:
            self._starts.append(start)

    def fault(
        self, attempt: Attempt, gpu: str, ids: list[str], needs: dict[str, float], reason: str
    ) -> str:
        """Record that a GPU failed during a model's load; returns why the job cannot go on, if no node is left.

        After a second failure the GPU is kept from actors, which Ray would start there again and again.
        """
        node, faults = attempt.node, self._faults[gpu]
        is_new = attempt not in faults
        faults.add(attempt)
        if len(faults) >= _FAULTS and is_new:
            self._sick[gpu] = reason
            self._lost[node].update(ids or [""])
            # A waiting keeper gets this GPU when the process ends; a placed one holds another, a free one.
            waiting = [placed for _, placed in self._keepers[node][-1:]]
            if not waiting or ray.wait(waiting, timeout=0)[0]:
                there = NodeAffinitySchedulingStrategy(node, soft=False)
                share = {"num_gpus": needs.get("GPU", 0.0)}
                share["num_cpus"] = 0.0 if ids else needs.get("CPU", 0.0)
                keeper = ray.remote(**share, scheduling_strategy=there)(_Keeper).remote()
                self._keepers[node].append((keeper, keeper.placed.remote()))
        for alive in filter(lambda node: node["Alive"], ray.nodes()):
            has, lost = alive["Resources"], len(self._lost[alive["NodeID"]])
            left = (has.get("GPU", 0.0) if ids else 1.0) - lost
            fits = all(has.get(name, 0.0) >= amount for name, amount in needs.items())
            if fits and left >= needs.get("GPU", 1.0):
                return ""
        gpus = [*self._sick][:5] + [f"{len(self._sick) - 5} others"] * (len(self._sick) > 5)
        return f"no node can load the model: {listed(gpus)} failed (the last: {reason}); {_REMEDY}"

    def tally(self) -> Tally:
        """The counts since this process started."""
        sick = [f"{gpu} failed and is left alone: {reason}" for gpu, reason in self._sick.items()]
        return Tally(self._name, list(self._starts), len(self._repeated), sick)


def answer(call: ray.ObjectRef, otherwise: Any, seconds: float = SECONDS_TO_ANSWER) -> Any:
    """An answer from an actor beside the driver; ``otherwise`` if none comes within some seconds."""
    with contextlib.suppress(ray.exceptions.RayError, TimeoutError):
        return ray.get(call, timeout=seconds)
    return otherwise


def begin(counts: Any, piece: Hashable, name: str) -> None:
    """Count an attempt at a piece, which Ray would repeat forever; after ``_DEATHS`` deaths an EncodeError names it."""
    if answer(counts.deaths.remote(piece, new_attempt()), 0.0, SECONDS_TO_COUNT) >= _DEATHS:
        raise EncodeError(f"the process died {_DEATHS} times in {name}")


def tally_of(counts: Any) -> Tally | None:
    """The counts of ``Counts``; None if it does not answer within some seconds."""
    return answer(counts.tally.remote(), None)
