"""Ctrl-C and SIGTERM: a command reports the work that is kept, ends within seconds, and leaves no process behind."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from pathlib import Path
from types import FrameType
from typing import Any

from engine.messages.errors import BoundError, masked
from jobs._terminal import discard, shown

_STOPPING = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
# Most seconds for a command's own end, actors and all; then its processes are killed.
_PATIENCE = 7.0
_NOTHING = "every file is as it was, or whole; run the same command again"
# Text on kept work, and the function for a signal, in a list: threads that run already have another context.
_AFTER: ContextVar[list[Any]] = ContextVar("after a stop")


class StoppedError(Exception):
    """A command was stopped by a signal; the text names the kept work and the way to go on, unless printed already."""

    def __init__(self, number: int, *, is_logged: bool = False) -> None:
        self.status, self.is_logged = 128 + number, is_logged
        super().__init__(_line(number, _AFTER.get()))


def _line(number: int, after: list[Any]) -> str:
    return f"{_STOPPING[signal.Signals(number)]}; {after[0]}"


def keeps(what: str, then: Callable[[], None] = lambda: None) -> None:
    """Set the text on work that is kept after a stop, and how to go on; a thread calls ``then`` at the stop."""
    if (after := _AFTER.get(None)) is not None:  # else Python called the command's function
        after[:] = what, then


@contextlib.contextmanager
def stoppable() -> Iterator[None]:
    """Run a command's work such that SIGINT and SIGTERM end it in the same way, in any library.

    The block is left by a ``KeyboardInterrupt``, as libraries expect it. Some libraries turn that into an error of
    their own, some native code does not return in time: such errors count as interrupts, and a process that
    has not ended by itself some seconds later is killed with its children. After a signal, or a KeyboardInterrupt that
    left the block, a StoppedError is raised.
    """
    token = _AFTER.set([_NOTHING, lambda: None])
    try:
        # In other threads, Python accepts no signal handlers.
        in_main = threading.current_thread() is threading.main_thread()
        watch = _Watch() if in_main else None
        with watch or contextlib.nullcontext():
            try:
                yield
            except BaseException as error:
                if isinstance(error, BoundError):
                    error.add_note(_AFTER.get()[0])
                number = watch.received if watch else None
                if number is None and not isinstance(error, KeyboardInterrupt):
                    raise
                is_logged = False
                if watch:
                    watch.left = True
                    is_logged = number is not None and watch.logged.wait(1)
                raise StoppedError(number or signal.SIGINT, is_logged=is_logged) from error
    finally:
        _AFTER.reset(token)


class _Watch:
    """Handles the signals while it is open."""

    def __init__(self) -> None:
        self.received: int | None = None  # the number of the first signal that came
        self.left = False  # whether the block has been left; the caller then reports the kept work
        self.logged = threading.Event()  # set once a log has this line

    def __enter__(self) -> _Watch:
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        # The interpreter's own handler writes here at once, even while the main thread is busy.
        self._wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        # A signal that the parent process ignores, as shells do for background jobs, stays ignored.
        heeded = [number for number in _STOPPING if signal.getsignal(number) is not signal.SIG_IGN]
        self._handlers = {number: signal.signal(number, self._stop) for number in heeded}
        arguments = (self._read, self, _AFTER.get())
        threading.Thread(target=_end_in_time, args=arguments, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        signal.set_wakeup_fd(self._wakeup)
        if self.received is None:
            for number, handler in self._handlers.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            os.close(self._write)  # ends the thread

    def _stop(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        for stopping in _STOPPING:  # a second Ctrl-C must not interrupt the cleanup
            signal.signal(stopping, signal.SIG_IGN)
        raise KeyboardInterrupt


def _end_in_time(read: int, watch: _Watch, after: list[Any]) -> None:
    """Wait for a signal's number in a pipe, then for the process to end; kill it if it does not."""
    while content := os.read(read, 64):
        for number in content:
            if number in set(_STOPPING):
                # A signal to the whole group, as Slurm and timeout send it, ends Ray's processes too, and Ray then
                # ends this one: the log gets the line first, without Ray's own messages.
                if not os.isatty(2):
                    _tell(number, after)
                    watch.logged.set()
                    if not os.isatty(1):
                        discard(1)
                    discard(2)
                threading.Thread(target=after[1], daemon=True).start()
                time.sleep(_PATIENCE)
                if not (watch.left or watch.logged.is_set()):
                    _tell(number, after)
                for child in children(os.getpid()):
                    with contextlib.suppress(OSError):
                        os.kill(child, signal.SIGKILL)
                os._exit(128 + number)
    os.close(read)


def _tell(number: int, after: list[Any]) -> None:
    with contextlib.suppress(OSError):
        os.write(2, f"erag: {shown(masked(_line(number, after)))}\n".encode())


def children(process: int) -> list[int]:
    """The descendants of a process, by ``/proc``; none without ``/proc``."""
    parents: dict[int, list[int]] = {}
    for status in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name in parentheses can hold spaces and parentheses.
            parent = int(status.read_text().rpartition(")")[2].split()[1])
            parents.setdefault(parent, []).append(int(status.parent.name))
    descendants = parents.get(process, [])
    for child in descendants:  # to which the loop adds
        descendants += parents.get(child, [])
    return descendants
