"""How an evaluation is run: its store, backend, progress and events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.machine.watch import OnEvent, PoolTotals, silent
from engine.reading.executors import Executor, Progress
from engine.reading.stream import Host, UnitDone
from engine.sources.io.folders import Folder, folder_at
from engine.sources.io.locations import Location

OnUnit = Callable[[str, UnitDone, tuple[int, int], PoolTotals], None]


@dataclass(frozen=True, kw_only=True)
class Context:
    """How an evaluation is run; no figure depends on it but for the executor.

    Attributes:
        store: the read store, a path or an address.
        on_progress: called with the distinct reads done and wanted. Until all shards are planned, the
            latter is an estimate from above.
        on_event: told one line when nodes of the cluster come or go, actors restart, or the job waits.
        on_unit: called as a unit ends, with the name of its role, what ``on_progress`` is called with, and what happened
            to its actors, which goes on changing. ``wanted`` and ``reused`` of its shard come with the
            first unit alone, so they add up. Before the first unit of a role, it is called with one of nothing.
        executor: a program of the user's that does the reads instead of the readers, given their
            prompts (docs/guide/python.md). The store keeps its reads under its name if it is a
            ``NamedExecutor``; otherwise they are neither stored nor looked up.
        host: what hosts the readers.
    """

    store: Location
    on_progress: Progress = lambda done, total: None
    on_event: OnEvent = silent
    on_unit: OnUnit = lambda role, unit, reached, pool: None
    executor: Executor | None = None
    host: type[Host] = Host

    @property
    def place(self) -> Folder:
        """The read store."""
        return folder_at(self.store)
