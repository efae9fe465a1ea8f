"""Progress: a bar on a terminal, occasional lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from rich import progress as progress_bars
from rich.text import Text

from jobs._options import with_options
from jobs._terminal import SECONDS_BETWEEN_LINES, standard_error, step, tell, verbosity


class _Rate(progress_bars.ProgressColumn):
    """Things done per second, over the last minute."""

    def __init__(self, things: str) -> None:
        super().__init__()
        self._things = things

    def render(self, task: progress_bars.Task) -> Text:
        speed = "-" if task.speed is None else f"{task.speed:.1f}"
        return Text(f"{speed} {self._things}/s")


@contextlib.contextmanager
def shown_progress(
    doing: str = "reading", things: str = "LLM calls", *, then: str = ""
) -> Iterator[Callable[..., None]]:
    """Yield a function that shows the number of things done, the total, and further text on standard error.

    ``then`` names the next step.
    """
    if not verbosity().progress:
        yield lambda count, total, more="": None
        return
    console = standard_error()
    if not console.is_terminal:
        yield _Lines(doing, things, then)
        return
    with progress_bars.Progress(
        progress_bars.TextColumn(doing),
        progress_bars.BarColumn(),
        progress_bars.MofNCompleteColumn(),
        progress_bars.TextColumn("{task.description}"),
        _Rate(things),
        progress_bars.TextColumn("left"),
        progress_bars.TimeRemainingColumn(),
        console=console,
        speed_estimate_period=60,
    ) as progress:
        task = progress.add_task("", total=None)
        first: int | None = None
        under_way = False

        def on_progress(count: int, total: int, more: str = "") -> None:
            nonlocal first, under_way
            progress.update(task, completed=count, total=total, description=more)
            step(then if count == total else "")
            if first is None:
                first = count
            elif count > first and not under_way:
                # Speed counts from the first thing done: before it, actors were started.
                progress.reset(task, completed=count, total=total)
                under_way = True

        yield on_progress


def event(line: str) -> None:
    """Print an event of the cluster during the job; above the progress bar, if there is one."""
    if verbosity().progress:
        tell(f"erag: {with_options(line)}")


@dataclass
class _Lines:
    """Plain lines for logs: at the start, every 15 seconds, and at the end.

    The time left follows from the speed since the first thing done (``_under_way``): before that, actors
    were started and models loaded. The last line has the speed of the whole.
    """

    _doing: str
    _things: str
    _then: str = ""
    _start: float = field(default_factory=lambda: time.monotonic())
    _first: int | None = None
    _count: int = 0
    _last: float = 0.0
    _under_way: tuple[float, int] | None = None

    def __call__(self, count: int, total: int, more: str = "") -> None:
        now = time.monotonic()
        if count < self._count:  # of another evaluation
            self._start, self._first, self._under_way = now, None, None
        self._count = count
        is_first = self._first is None
        if self._first is None:
            self._first = count
        if self._under_way is None and count > self._first:
            self._under_way = (now, count)
        if not is_first and count < total and now - self._last < SECONDS_BETWEEN_LINES:
            return
        self._last = now
        since, before = self._start, self._first
        if count < total and self._under_way is not None:
            since, before = self._under_way
        rate = (count - before) / max(1e-9, now - since)
        left = f", {(total - count) / rate:.0f} s left" if rate > 0 and count < total else ""
        speed = f", {rate:.1f} {self._things}/s" if rate > 0 else ""
        so_far = f", {more}" if more else ""
        tell(line := f"{self._doing}: {count}/{total} {self._things}{so_far}{speed}{left}")
        step(self._then if count == total else line, is_named=count != total)
