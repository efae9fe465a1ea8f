"""The heartbeat of an evaluation: ``progress.json``, written anew every second for as long as its process lives."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from engine.machine.remote.api_settings import ApiSettings
from engine.machine.watch import OnEvent, silent
from engine.messages.errors import BoundError, InputError, LaterError, WriteError, masked
from engine.reading.observed import Observations, RayMetrics
from engine.sources.io.folders import folder_at
from engine.sources.io.locations import Location

PROGRESS = "progress.json"
_RUNNING, _DONE, _INTERRUPTED, _FAILED = "running", "done", "interrupted", "failed"
# Seconds between two beats at a path, and at an address, where each is a request; number of beats that may be missing.
_AT_A_PATH, _AT_AN_ADDRESS, _MISSING = 1.0, 5.0, 10
_GO_ON = "run the same command again to go on from the cached calls"


class Heartbeat:
    """Beats in a file and in Ray's metrics, from ``begin`` or the first unit to the end of its block; writes the outcome.

    A file that cannot be written ends no evaluation: ``tell`` is called once. A refusal before ``begin`` leaves no file.
    """

    def __init__(self, out: Location, api: ApiSettings, tell: OnEvent) -> None:
        self._folder, self._tell, self._observed = folder_at(out), tell, Observations(api)
        self._every = _AT_A_PATH if isinstance(self._folder.at, Path) else _AT_AN_ADDRESS
        self._metrics, self._beating = RayMetrics(), threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beats, daemon=True)
        self._state, self._error = "", ""

    def __enter__(self) -> Heartbeat:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not self._state:
            if error is not None:
                return
            self.begin()
        self._ended.set()
        self._thread.join()
        in_order = isinstance(error, LaterError | BoundError) or not isinstance(error, Exception)
        if error is None:
            self._state = _DONE
        elif self._state == _RUNNING:
            self._state = _INTERRUPTED if in_order else _FAILED
        self._error = masked(" ".join(str(error or "").split()))
        self._beat()

    def begin(self) -> None:
        """Begin to beat, unless begun already; the heartbeat of an earlier evaluation is replaced."""
        if not self._state:
            self._state, self._began = _RUNNING, _now()
            self._beat()
            self._thread.start()

    def on_unit(self, *unit: Any) -> None:
        """As ``Context.on_unit``."""
        self.begin()
        self._observed.on_unit(*unit)

    def interrupt(self) -> None:
        """Record at once that a signal ends the evaluation: its process may be killed before the block is left."""
        if self._state and not self._ended.is_set():
            self._state = _INTERRUPTED
            self._beat()

    def _beats(self) -> None:
        while not self._ended.wait(self._every):
            self._beat()

    def _beat(self) -> None:
        with self._beating:
            record = self._observed.record()
            with contextlib.suppress(Exception):  # Ray may be on its way out
                self._metrics.tell(record)
            record["last_error"] = self._error or record["last_error"]
            head = {"state": self._state, "began": self._began, "at": _now(), "every": self._every}
            try:
                self._folder.write(PROGRESS, json.dumps(head | record).encode())
            except (WriteError, InputError) as error:
                self._tell(f"no heartbeat: {error}")
                self._tell = silent


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def progress_of(out: Location) -> tuple[list[str], bool]:
    """The heartbeat of an evaluation in lines; and whether it is done, or runs with a recent beat.

    If the time in the file is far from now, by another machine's clock, it is read again two beats later.

    Raises:
        InputError: the folder has no heartbeat, or it cannot be read.
    """
    record = _read(out)
    lines, is_running = list(_lines(record)), record["state"] == _RUNNING
    age = (datetime.now(UTC) - datetime.fromisoformat(record["at"])).total_seconds()
    if is_running and abs(age) > _MISSING * record["every"]:
        time.sleep(wait := 2 * record["every"])
        if _read(out) == record:
            gone = f"no heartbeat for {max(age, wait):.0f} s; its process or machine is gone"
            return [*lines, f"{gone}: {_GO_ON}"], False
    return lines, is_running or record["state"] == _DONE


def _read(out: Location) -> dict[str, Any]:
    folder, record = folder_at(out), None
    with contextlib.suppress(FileNotFoundError, NotADirectoryError, ValueError):
        record = json.loads(folder.read(PROGRESS))
    if isinstance(record, dict) and "calls_expected" in record:
        return record
    problem, remedy = f"has no {PROGRESS} of an evaluation", "give what `out` named"
    raise InputError(problem, remedy, "results.progress", path=folder.shown())


def _lines(record: dict[str, Any]) -> Iterator[str]:
    has_left = record["state"] == _RUNNING and record["seconds_left"]
    left = f", {record['seconds_left']:.0f} s left" if has_left else ""
    calls, expected = record["calls_done"], record["calls_expected"]
    share = f" ({calls / expected:.0%})" if expected else ""
    yield f"{record['state']}: {calls:,} of {expected:,} LLM calls{share}{left}"
    if record["state"] == _INTERRUPTED:
        yield _GO_ON
    for role, counts in record["roles"].items():
        named = (f"{count:,} {name.replace('_', ' ')}" for name, count in counts.items())
        yield f"{role}: {', '.join(named)}"
    units = f"units of work: {record['units_waiting']} waiting, {record['units_repeated']} repeated"
    yield f"actors: {record['actors_alive']} alive, {record['actors_lost']} lost; {units}"
    actors = sum(map(Counter, record["actors"].values()), Counter[str]())
    if seconds := actors["actor_seconds"]:
        calls, tokens = (actors[f"actor_{name}"] / seconds for name in ("calls", "tokens"))
        yield f"an actor: {calls:,.1f} calls and {tokens:,.1f} tokens in a second of reading"
    if record["cost"] is not None:
        yield f"cost so far: {record['cost']:.4g}"
    if record["last_error"]:
        yield f"last error: {record['last_error']}"
