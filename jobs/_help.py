"""The help of commands that have many options: short, and in full with ``--help-all``."""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cyclopts.help import HelpPanel
    from rich.console import Console, ConsoleOptions

# Commands whose help shows some of their options, these, until it is asked for in full.
LONG = ("evaluate", "plan")
SHORT = frozenset(
    [
        "--queries",
        "--corpus",
        "--run",
        "--reader",
        "--base-url",
        "--metric",
        "--k",
        "--measures",
        "--annotators",
        "--store",
        "--out",
        "--overwrite",
        "--json",
        "--config",
        "--pace",
        "--price-per-hour",
        "--finish-in",
    ]
)
HELP_ALL = "--help-all"
IN_FULL: ContextVar[bool] = ContextVar("in_full", default=False)


class ShortHelp:
    """The help of a command with many options: some of them, unless ``--help-all`` asks for all."""

    def __call__(self, console: Console, options: ConsoleOptions, panel: HelpPanel) -> None:
        from cyclopts.help import DefaultFormatter

        entries = panel.entries
        if not IN_FULL.get():
            entries = [entry for entry in entries if not SHORT.isdisjoint(entry.positive_names)]
        if entries:
            DefaultFormatter()(console, options, panel.copy(entries=entries))

    def render_usage(self, console: Console, options: ConsoleOptions, usage: Any) -> None:
        """As other commands show it; a formatter without this method would leave out the word."""
        from cyclopts.help import DefaultFormatter

        DefaultFormatter().render_usage(console, options, usage)


def help_of(command: str) -> ShortHelp | None:
    """How the help of a command is shown; None for the usual way."""
    return ShortHelp() if command in LONG else None
