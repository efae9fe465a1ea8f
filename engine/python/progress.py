"""Progress where somebody watches: a bar on a terminal, a line in a notebook; nothing in a log."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Iterator
from typing import Any

from engine.reading.backends import Progress


@contextlib.contextmanager
def progress(*, shown: bool) -> Iterator[Progress]:
    """A function that is called with the reads done and wanted, and shows them."""
    display = _notebook() if shown else None
    if display is not None:
        yield _Line(display)
    elif shown and sys.stderr.isatty():
        with _bar() as on_progress:
            yield on_progress
    else:
        yield lambda done, total: None


@contextlib.contextmanager
def _bar() -> Iterator[Progress]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("reading"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _notebook() -> Any:
    """IPython's ``display`` where this is a notebook; else None."""
    module = sys.modules.get("IPython")
    shell = module.get_ipython() if module is not None else None
    if type(shell).__name__ != "ZMQInteractiveShell":
        return None
    return importlib.import_module("IPython.display").display


class _Line:
    """A line of a notebook's output, which is replaced as reads are done."""

    def __init__(self, display: Any) -> None:
        self._display, self._handle = display, None

    def __call__(self, done: int, total: int) -> None:
        shown = _Shown(done, total)
        if self._handle is None:
            self._handle = self._display(shown, display_id=True)
        else:
            self._handle.update(shown)


class _Shown:
    def __init__(self, done: int, total: int) -> None:
        self._done, self._total = done, total

    def __repr__(self) -> str:
        return f"reading: {self._done}/{self._total} LLM calls"

    def _repr_html_(self) -> str:
        return f'<progress value="{self._done}" max="{self._total}"></progress> {self!r}'
