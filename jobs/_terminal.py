"""Output of commands to a terminal or a log, without control characters from data.

Names, keys, paths and passages come from files that others may have written. Control characters in them
(escape sequences, a carriage return) would let a file change the terminal's colours, its title or the
lines above, and bidirectional overrides show a name as another. Tables and exports keep them as they are.
Long steps of a command are announced, and repeated in a log.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

# C0 and C1, except for tab and line feed, which our own layout uses; the embeddings, overrides and isolates
# of bidirectional text; and halves of surrogate pairs, which terminals cannot receive.
_UNSHOWN = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
)
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# A log has no width, and rich's default of 80 would cut figures and texts short. A study of six cutoffs has lines of 190.
_LOG_WIDTH = 240


@dataclass(frozen=True)
class Verbosity:
    """Output of a command beside errors and warnings."""

    results: bool = True  # on standard output, except for requested JSON
    progress: bool = True  # on standard error
    details: bool = False  # on standard error: sources of settings, tracebacks of other errors
    as_json: bool = False  # in place of results


_verbosity = Verbosity()
# JSON to print at the end (``json_alone``); None if JSON is printed at once.
_pending: list[Any] | None = None


def set_verbosity(verbosity: Verbosity) -> None:
    global _verbosity
    _verbosity = verbosity


def verbosity() -> Verbosity:
    return _verbosity


def shown(text: str) -> str:
    """A text safe to print: a replacement character stands for each control character."""
    return _UNSHOWN.sub(_REPLACEMENT, text)


def say(line: str) -> None:
    """Print a line to standard output, if results are to be printed."""
    if _verbosity.results:
        print(shown(line), flush=True)


@contextlib.contextmanager
def json_alone() -> Iterator[None]:
    """Print only JSON to standard output, at the end; all else, also from other processes, goes to standard error."""
    global _pending
    descriptor, output, _pending = None, sys.stdout, []
    with contextlib.suppress(OSError):  # stdout or stderr may be closed
        descriptor = os.dup(1)
        os.dup2(2, 1)
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        sys.stdout = output
        if descriptor is not None:
            os.dup2(descriptor, 1)
            os.close(descriptor)
        contents, _pending = _pending, None
        for content in contents:
            say_json(content)


def say_json(content: Any) -> None:
    """Print JSON to standard output if it is requested, in ASCII: no other character from data reaches the terminal."""
    if _pending is not None:
        _pending.append(content)
    elif _verbosity.as_json:
        print(json.dumps(content, indent=2), flush=True)


def tell(line: str) -> None:
    """Print a line to standard error: progress, warnings, errors. A closed standard error is ignored."""
    try:
        print(shown(line), file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr.fileno())


def open_streams() -> None:
    """Open standard output and standard error, and make them accept any text.

    Characters that an encoding lacks are written as their numbers. A closed stream would be None, and the next file
    would take its descriptor: a closed stdout becomes a stream that rejects writes, a closed stderr the null device.
    """
    for name, mode in (("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if (stream := getattr(sys, name)) is None:
            number = os.open(os.devnull, mode)
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace"))
        elif isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def discard(descriptor: int) -> None:
    """Redirect a descriptor, and the buffer of its stream, to the null device."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def warn_of_code(trusted: bool) -> None:
    """Warn that code of models may run, if ``--trust-remote-code`` allows it."""
    if trusted:
        tell(
            "erag: warning: --trust-remote-code runs Python code that comes with a model; "
            "it can read, change and send whatever you can"
        )


class Terminal(Console):
    """A console that removes control characters, except for its own colours and cursor."""

    def print(self, *objects: Any, **options: Any) -> None:
        # Before the layout: characters replaced later would be wider than measured.
        super().print(*map(_without_controls, objects), **options)

    def print_parts(self, parts: Iterable[Table | str], worded: Callable[[str], str] = str) -> None:
        """Print tables, and lines unwrapped; warnings in colour."""
        for part in parts:
            if isinstance(part, str):
                style = "yellow" if part.startswith("warning: ") else None
                self.print(worded(part), style=style, highlight=False, markup=False, soft_wrap=True)
            else:
                self.print(part)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=shown(segment.text))


def standard_output() -> Terminal:
    width = None if sys.stdout.isatty() else _LOG_WIDTH
    return Terminal(width=width, quiet=not _verbosity.results)


def standard_error() -> Terminal:
    return Terminal(stderr=True, quiet=not _verbosity.progress)


def _without_controls(value: Any) -> Any:
    if isinstance(value, str):
        return shown(value)
    if isinstance(value, Text):
        value.plain = shown(value.plain)  # as long as before, so that its styles stay in place
    elif isinstance(value, Table):
        value.title = _without_controls(value.title)
        value.caption = _without_controls(value.caption)
        for column in value.columns:
            column.header = _without_controls(column.header)
            for cell in column.cells:
                _without_controls(cell)
    return value


SECONDS_BETWEEN_LINES = 15.0
# A step that takes longer is announced, so that the terminal shows progress within two seconds.
_SECONDS_BEFORE_A_STEP = 1.5


class _Steps:
    """The current step of a command: announced if it takes time, and again after a pause in a log."""

    def __init__(self) -> None:
        self.begin("")

    def begin(self, what: str, *, is_named: bool = False) -> None:
        """Begin a step, which ends the one before; an empty ``what`` announces nothing."""
        now = time.monotonic()
        self._what, self._since, self._last = what, now, now
        self._is_named = is_named or not what

    def beat(self, *, bar: bool) -> None:
        """Print due lines; with a bar or on a terminal, each step is named once."""
        now = time.monotonic()
        if not self._is_named and now - self._last >= _SECONDS_BEFORE_A_STEP:
            tell(f"{self._what} …")
        elif self._what and not bar and now - self._last >= SECONDS_BETWEEN_LINES:
            tell(f"{self._what} ({now - self._since:.0f} s so far)")
        else:
            return
        self._last, self._is_named = now, True


_steps = _Steps()


def step(what: str, *, is_named: bool = False) -> None:
    """Name the current step of the command, which is printed if it takes more than a moment.

    ``is_named``: whether ``what`` was printed just now; a log repeats it if no other line follows.
    """
    if _verbosity.progress:
        _steps.begin(what, is_named=is_named)


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
