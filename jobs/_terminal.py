"""All that commands write to a terminal or a log goes through here, without control characters of data.

Names, keys, paths and passages come from files that others may have written. Control characters in them
(escape sequences, a carriage return) would let a file change the terminal's colours, its title or the
lines above, and bidirectional overrides show a name as another. Tables and exports keep them as they are.
The steps of a command are named before it is silent for long, and repeated in a log.
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

# C0 and C1 but for tab and line feed, which are of our own layout; the embeddings, overrides and isolates
# of bidirectional text; and halves of surrogate pairs, which no terminal can be sent.
_UNSHOWN = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069\\ud800-\\udfff]"
)
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# A log has no width, and rich's default of 80 would cut figures and texts short. A study of six cutoffs has lines of 190.
_LOG_WIDTH = 240


@dataclass(frozen=True)
class Verbosity:
    """What a command says beside errors and warnings.

    Attributes:
        results: on standard output, but for JSON that was asked for.
        progress: on standard error.
        details: on standard error, where settings come from, and how an unforeseen error came about.
        as_json: what JSON is said instead of results.
    """

    results: bool = True
    progress: bool = True
    details: bool = False
    as_json: bool = False


_verbosity = Verbosity()
# JSON that is to be said at the end (``json_alone``); None where it is said at once.
_said: list[Any] | None = None


def set_verbosity(verbosity: Verbosity) -> None:
    global _verbosity
    _verbosity = verbosity


def verbosity() -> Verbosity:
    return _verbosity


def shown(text: str) -> str:
    """A text as it may be printed: each control character is one replacement character."""
    return _UNSHOWN.sub(_REPLACEMENT, text)


def say(line: str) -> None:
    """Print a line to standard output, unless results are not to be said."""
    if _verbosity.results:
        print(shown(line), flush=True)


@contextlib.contextmanager
def json_alone() -> Iterator[None]:
    """Have JSON alone on standard output, at the end; all else, of other processes too, goes to standard error."""
    global _said
    held, output, _said = None, sys.stdout, []
    with contextlib.suppress(OSError):  # one of them may be closed
        held = os.dup(1)
        os.dup2(2, 1)
    sys.stdout = sys.stderr
    try:
        yield
    finally:
        sys.stdout = output
        if held is not None:
            os.dup2(held, 1)
            os.close(held)
        said, _said = _said, None
        for content in said:
            say_json(content)


def say_json(content: Any) -> None:
    """Print JSON to standard output, in ASCII: of data, no other character reaches the terminal."""
    if _said is None:
        print(json.dumps(content, indent=2), flush=True)
    else:
        _said.append(content)


def tell(line: str) -> None:
    """Print a line to standard error: progress, warnings, errors. Where that cannot be written, nobody can be told."""
    try:
        print(shown(line), file=sys.stderr, flush=True)
    except OSError:
        discard(sys.stderr.fileno())


def open_streams() -> None:
    """Have standard output and standard error that any text can be sent to.

    What an encoding lacks is written as its number. A closed stream would be None, and the next file that is opened
    would be it: standard output is then one that cannot be written, standard error one that nobody reads.
    """
    for name, mode in (("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY)):
        if (stream := getattr(sys, name)) is None:
            number = os.open(os.devnull, mode)
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", errors="backslashreplace"))
        elif isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def discard(descriptor: int) -> None:
    """Send what is written to a descriptor, or what its stream still holds, from now on nowhere."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def warn_of_code(trusted: bool) -> None:
    """Say what it means that code of models may run, where that was asked for."""
    if trusted:
        tell(
            "erag: warning: --trust-remote-code runs Python code that comes with a model; "
            "it can read, change and send whatever you can"
        )


class Terminal(Console):
    """A console that shows no control characters but those of its own colours and cursor."""

    def print(self, *objects: Any, **options: Any) -> None:
        # Before the layout: replaced later, characters would be wider than was measured.
        super().print(*map(_without_controls, objects), **options)

    def print_parts(self, parts: Iterable[Table | str], worded: Callable[[str], str] = str) -> None:
        """Print tables, and lines as they are, however long; warnings in colour."""
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
