"""Progress: a bar on a terminal, occasional lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from jobs._terminal import standard_error, tell

# Called with the number of things done and the total.
OnProgress = Callable[[int, int], None]

_SECONDS_BETWEEN_LINES = 15.0


class _Rate(ProgressColumn):
    """Things done per second, over the last minute."""

    def __init__(self, things: str) -> None:
        super().__init__()
        self._things = things

    def render(self, task: Task) -> Text:
        speed = "-" if task.speed is None else f"{task.speed:.1f}"
        return Text(f"{speed} {self._things}/s")


@contextlib.contextmanager
def shown_progress(doing: str = "reading", things: str = "reads") -> Iterator[OnProgress]:
    """Give a function that shows the things done and their total on standard error."""
    console = standard_error()
    if not console.is_terminal:
        yield _Lines(doing, things)
        return
    with Progress(
        TextColumn(doing),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(things),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        speed_estimate_period=60,
    ) as progress:
        task = progress.add_task(doing, total=None)

        def on_progress(done: int, total: int) -> None:
            progress.update(task, completed=done, total=total)

        yield on_progress


def event(line: str) -> None:
    """Show what happened to the cluster while the job ran; above the bar where there is one."""
    tell(f"erag: {line}")


class _Lines:
    """Plain lines for logs: at the start, every 15 seconds, and at the end."""

    def __init__(self, doing: str, things: str) -> None:
        self._doing = doing
        self._things = things
        self._start = time.monotonic()
        self._first: int | None = None
        self._last = 0.0

    def __call__(self, done: int, total: int) -> None:
        now = time.monotonic()
        if self._first is None:
            self._first = done
        elif done < total and now - self._last < _SECONDS_BETWEEN_LINES:
            return
        self._last = now
        rate = (done - self._first) / max(1e-9, now - self._start)
        left = f", {(total - done) / rate:.0f} s left" if rate > 0 and done < total else ""
        speed = f", {rate:.1f} {self._things}/s" if rate > 0 else ""
        tell(f"{self._doing}: {done}/{total} {self._things}{speed}{left}")
