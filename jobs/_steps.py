"""What a command is at: named before it is silent for long, and repeated in a log."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from jobs._terminal import standard_error, tell, verbosity

SECONDS_BETWEEN_LINES = 15.0
# A step that takes longer is named, so that nobody waits two seconds without a word.
_SECONDS_BEFORE_A_STEP = 1.5


class _Steps:
    """What a command is at: named where it takes time, and again wherever a log had no line for a while."""

    def __init__(self) -> None:
        self.begin("")

    def begin(self, what: str, *, is_named: bool = False) -> None:
        """Begin with a step; the one before has ended. Nothing, for what names itself."""
        now = time.monotonic()
        self._what, self._since, self._last = what, now, now
        self._is_named = is_named or not what

    def beat(self, *, bar: bool) -> None:
        """Say what is due; where a bar is shown, or on a terminal, no step is named twice."""
        now = time.monotonic()
        if not self._is_named and now - self._last >= _SECONDS_BEFORE_A_STEP:
            tell(f"{self._what} …")
        elif self._what and not bar and now - self._last >= SECONDS_BETWEEN_LINES:
            tell(f"{self._what} ({now - self._since:.0f} s so far)")
        else:
            return
        self._last, self._is_named = now, True


_steps = _Steps()


def step(what: str) -> None:
    """Say what the command is at from now on, if that takes more than a moment."""
    if verbosity().progress:
        _steps.begin(what)


def told(line: str) -> None:
    """A line was told of what is under way: a log has it again where no other follows."""
    _steps.begin(line, is_named=True)


@contextlib.contextmanager
def with_steps() -> Iterator[None]:
    """Name the steps of a command while it runs."""
    ended = threading.Event()
    bar = standard_error().is_terminal

    def beats() -> None:
        while not ended.wait(0.5):
            _steps.beat(bar=bar)

    thread = threading.Thread(target=beats, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()  # an error is the last line
        _steps.begin("")
