"""Watch a pool at work: nodes that come and go, actors that restart, waiting; and log events on a worker.

Ray keeps a job going through such events without reporting them. It keeps a worker's standard error as a file.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from engine.machine import nodes, ray_internals
from engine.machine.nodes import Needs, Node
from engine.messages.errors import masked
from engine.messages.wording import counted

_LOG = logging.getLogger("erag")
# Values that need no quotes.
_PLAIN = re.compile(r"[^\s=\"]+")


def log(event: str, **about: object) -> None:
    """Log an event; in the driver's process it appears only if the user's program asks for it."""
    ray: Any = sys.modules.get("ray")
    # Requesting the context of a Ray that has not started would start it.
    joined = not _LOG.handlers and ray and ray.is_initialized()
    if joined and ray.get_runtime_context().worker.mode == ray.WORKER_MODE:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(name)s %(message)s"))
        _LOG.addHandler(handler)
        _LOG.setLevel(logging.INFO)
        _LOG.propagate = False
    fields = {"event": event} | {name: masked(str(value)) for name, value in about.items()}
    words = (f"{k}={v if _PLAIN.fullmatch(v) else json.dumps(v)}" for k, v in fields.items())
    _LOG.info(" ".join(words))


OnEvent = Callable[[str], None]

_SECONDS_BETWEEN_LOOKS = 2.0
# Seconds until the same wait is reported again; it doubles each time.
_SECONDS_BETWEEN_LINES = 60.0
# Seconds of waiting without a change in `ray status` before a report, with the autoscaler's last lines.
_SECONDS_UNCHANGED = 180.0
# Seconds for an actor to load its model before a report that none is ready.
_SECONDS_TO_START = 180.0


def silent(line: str) -> None:
    """An ``OnEvent`` that drops the event."""


class Start(NamedTuple):
    """An actor's process that has loaded its model; ``again`` if it is not the actor's first."""

    actor: str
    node: str
    process: int
    again: bool


def started_here() -> Start:
    """The start of this process, which belongs to an actor."""
    import ray

    context = ray.get_runtime_context()
    again = context.was_current_actor_reconstructed
    return Start(context.get_actor_id() or "", context.get_node_id(), os.getpid(), again)


class Tally(NamedTuple):
    """Counts of a pool's counting actor since its start.

    Attributes:
        counter: identifies a start of the counting actor, since counts then begin anew.
        repeated: tasks that were begun more than once.
        faults: a line for each GPU that is no longer used.
        open_units: units that are cut, and not done.
    """

    counter: str
    starts: list[Start]
    repeated: int
    faults: Sequence[str] = ()
    open_units: int = 0


_NO_TALLY = Tally("", [], 0)


@dataclass
class PoolTotals:
    """Events of a job's actors.

    Attributes:
        waiting_units: cut, and not read yet.
        actors: present number of actors with a loaded model on live nodes.
        lost_actors: actors whose process or node was lost, whether or not they were started again.
    """

    lost_nodes: int = 0
    joined_nodes: int = 0
    restarted_actors: int = 0
    repeated_units: int = 0
    waited_seconds: float = 0.0
    waiting_units: int = 0
    actors: int = 0
    lost_actors: int = 0


@dataclass
class Observer:
    """Compares observations with earlier ones; its only effect is to ``tell`` lines. ``status`` gives the present
    output of ``ray status``, ``last_lines`` those of the autoscaler; empty if unavailable.
    """

    needs: Needs
    tell: OnEvent
    totals: PoolTotals
    status: Callable[[], str] = str
    last_lines: Callable[[], str] = str
    _status: str = ""
    _status_since: float = 0.0
    _nodes: dict[str, Node] | None = None
    _tally: Tally = _NO_TALLY
    _places: dict[str, str] = field(default_factory=dict)
    _waiting_since: float | None = None
    _told_at: float = 0.0
    _gap: float = _SECONDS_BETWEEN_LINES
    _fitting_since: float | None = None
    _any_started: bool = False

    def see(self, alive: list[Node], tally: Tally | None, now: float) -> None:
        """Record live nodes and, if available, the tally."""
        self._see_nodes({node.id: node for node in alive})
        if tally is not None:
            self._see_tally(tally)
        self._see_waiting(alive, now)

    def end(self, now: float) -> None:
        """Close open waits."""
        if self._waiting_since is not None:
            self.totals.waited_seconds += now - self._waiting_since
            self._waiting_since = None

    def _see_nodes(self, alive: dict[str, Node]) -> None:
        before, self._nodes = self._nodes, alive
        if before is None:
            return
        left = counted(len(alive), "[node|nodes]")
        for name in before.keys() - alive.keys():
            self.totals.lost_nodes += 1
            self.tell(f"{_called(before[name])} is lost; {left} left")
        for name in alive.keys() - before.keys():
            self.totals.joined_nodes += 1
            self.tell(f"{_called(alive[name])} joined; {left} now")

    def _see_tally(self, tally: Tally) -> None:
        totals, alive = self.totals, self._nodes or {}
        before = self._tally if tally.counter == self._tally.counter else _NO_TALLY
        self._tally = tally
        self._any_started |= bool(tally.starts)
        self._places |= {start.actor: start.node for start in tally.starts}
        for start in tally.starts[len(before.starts) :]:
            if start.again:
                totals.restarted_actors += 1
                self.tell(f"an actor was lost and started again on node {start.node[:8]}")
        if (more := tally.repeated - before.repeated) > 0:
            totals.repeated_units += more
            units = counted(more, "[unit of work is|units of work are]")
            self.tell(f"{units} done again, {totals.repeated_units} in all")
        for line in tally.faults[len(before.faults) :]:
            self.tell(line)
        totals.actors = sum(node in alive for node in self._places.values())
        totals.waiting_units = max(0, tally.open_units - totals.actors)
        totals.lost_actors = totals.restarted_actors + len(self._places) - totals.actors

    def _see_waiting(self, alive: list[Node], now: float) -> None:
        if any(node.fits(self.needs) for node in alive):
            if self._waiting_since is not None:
                self.tell(f"a node with {self.needs} is there: actors start")
            self.end(now)
            self._see_start(now)
            return
        self._fitting_since = None
        if self._waiting_since is None:
            self._waiting_since, self._told_at, self._gap = now, now, _SECONDS_BETWEEN_LINES
            self._status, self._status_since = self.status(), now
            self.tell(f"waiting for a node with {self.needs}: none is there")
        elif now - self._told_at >= self._gap:
            self._told_at, self._gap = now, 2 * self._gap
            minutes = counted(int((now - self._waiting_since) / 60), "[minute|minutes]")
            self.tell(f"still waiting for a node with {self.needs}, for {minutes}")
            self._see_status(now)

    def _see_status(self, now: float) -> None:
        """Report an idle autoscaler: it may be dead, which Ray does not report."""
        before, self._status = self._status, self.status()
        if self._status != before:
            self._status_since = now
        elif self._status and now - self._status_since >= _SECONDS_UNCHANGED:
            minutes = counted(int((now - self._status_since) / 60), "[minute|minutes]")
            lines = self.last_lines() or "its log is monitor.log on the head"
            self.tell(
                f"`ray status` has not changed for {minutes}: if nodes are to be added, see whether the "
                f"autoscaler works ({lines})"
            )

    def _see_start(self, now: float) -> None:
        """Report once if there are nodes and yet no actor has started: other jobs may hold its resources."""
        if self._fitting_since is None:
            self._fitting_since = now
        is_late = now - self._fitting_since >= _SECONDS_TO_START
        if self._tally.counter and not self._any_started and is_late:
            self._any_started = True
            self.tell(
                f"no actor is ready after {_SECONDS_TO_START / 60:.0f} minutes, though there are nodes "
                f"with {self.needs}: its model loads, or other jobs hold them"
            )


def _called(node: Node) -> str:
    gpus = f" with {counted(int(node.gpus), '[GPU|GPUs]')}" if node.gpus else ""
    return f"node {node.id[:8]} ({node.address}){gpus}"


@contextlib.contextmanager
def watched(
    needs: Needs, tell: OnEvent, totals: PoolTotals, tally: Callable[[], Tally | None]
) -> Iterator[None]:
    """Look at the cluster every two seconds while the block runs, and ``tell`` a line per event, from a separate
    thread; ``tally`` gives the counts so far, None if unavailable.
    """
    from ray.exceptions import RayError

    autoscaler = ray_internals.autoscaler_status, ray_internals.autoscaler_lines
    observer = Observer(needs, tell, totals, *autoscaler)
    ended = threading.Event()

    def look() -> None:
        # Ray may be shutting down, or a look fail in the middle of a change: the next one reports.
        with contextlib.suppress(RayError, ConnectionError, TimeoutError):
            observer.see(nodes.alive(), tally(), time.monotonic())

    def run() -> None:
        look()
        while not ended.wait(_SECONDS_BETWEEN_LOOKS):
            look()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        look()
        observer.end(time.monotonic())
