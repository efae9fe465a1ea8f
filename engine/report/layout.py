"""How tables of figures are laid out for a terminal."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from engine.reading.costs import ReadingCosts
from engine.statistics.correlation import Bootstrap
from engine.tables import METHOD
from engine.wording import counted, with_interval

_MIB = 2**20
# Letters that follow intervals, and what they stand for.
_METHODS = {
    "percentile": ("p", "percentile of resamples"),
    "bca": ("b", "BCa of resamples"),
    "studentized": ("s", "studentized"),
    "inverted": ("i", "by inverting a test"),
    "resampling": ("r", "resampled"),
    "permutation": ("t", "by a permutation test"),
}


def table(title: str, names: Sequence[str], values: Sequence[str]) -> Table:
    """A table with columns of names, to the left, and of values, to the right."""
    result = Table(
        box=SIMPLE_HEAD,
        header_style="bold",
        pad_edge=False,
        title_justify="left",
        caption_justify="left",
    )
    result.title = Text(title, style="table.title")  # a run's name is not markup
    for header in names:
        result.add_column(Text(header), no_wrap=True)
    for header in values:
        result.add_column(Text(header), justify="right", no_wrap=True)
    return result


def plain_table(names: Sequence[str], values: Sequence[str]) -> Table:
    """The same without title and lines, for short tables that stand among text."""
    result = table("", names, values)
    result.title, result.box, result.padding = None, None, (0, 3, 0, 0)
    return result


def add_rows(result: Table, rows: Sequence[tuple[Sequence[str], Sequence[str]]]) -> None:
    """Add (names, values). Names are shown where they change: repeated words hide the numbers."""
    before: Sequence[str] = ()
    for names, values in rows:
        if before and names[:-1] != before[:-1]:
            result.add_section()
        changed = [not before or names[: i + 1] != before[: i + 1] for i in range(len(names))]
        shown = [name if new else "" for name, new in zip(names, changed, strict=True)]
        before = names
        result.add_row(*map(Text, [*shown, *values]))


def level(bootstrap: Bootstrap) -> str:
    """The suffix of the names of figures that have intervals, as in `` [95%]``."""
    return f" [{bootstrap.confidence * 100:g}%]" if bootstrap.resamples else ""


def adjusted(pairs: int, bootstrap: Bootstrap) -> str:
    """What intervals and p-values of differences between runs are adjusted for; empty for one pair."""
    if pairs < 2 or not bootstrap.resamples:
        return ""
    return f"{bootstrap.confidence * 100:g}% intervals and p adjusted for {counted(pairs, 'pair[|s]')} of runs"


def interval(cell: dict[str, Any] | None, name: str) -> str:
    """A correlation with its interval, and the letter of the method that made it."""
    if cell is None or math.isnan(cell[name]):
        return "undefined"
    low = cell[f"{name}_low"]
    text = with_interval(cell[name], low, cell[f"{name}_high"], 2)
    return text if math.isnan(low) else text + letter(cell.get(METHOD))


def letter(method: str | None) -> str:
    """What follows an interval, to say which method made it."""
    return f" {_METHODS[method][0]}" if method else ""


def methods_line(methods: Iterable[str]) -> str:
    """What the letters after intervals mean, for the methods in use; empty where there are none."""
    used = set(methods)
    meanings = [f"{mark} {meaning}" for name, (mark, meaning) in _METHODS.items() if name in used]
    return f"intervals: {', '.join(meanings)}\n" if meanings else ""


def add_methods(result: Table, methods: Iterable[str], *, more: str = "") -> None:
    """Put below a table what the letters after its intervals mean, and more lines.

    Args:
        more: lines, each with its end, which sets the last one apart from what is printed next.
    """
    if caption := methods_line(methods) + more:
        result.caption = Text(caption, style="table.caption")


def reads_line(what: str, costs: ReadingCosts) -> str:
    """What some reads cost."""
    rate = f" at {costs.done / costs.seconds:.1f} reads/s" if costs.done else ""
    highest = max(costs.workers.values(), default=0)  # 0 where a server reads
    peak = f", peak {highest / _MIB:.0f} MiB per actor" if highest else ""
    failed = f", {costs.failed} failed" if costs.failed else ""
    if costs.retried_requests:
        failed += f", {counted(costs.retried_requests, 'request[|s]')} made again"
    return (
        f"{what}: {costs.wanted} wanted, {costs.reused} from the store, {costs.done} done{rate}"
        f"{failed}{peak}"
    )


def p_value(value: float) -> str:
    if math.isnan(value):
        return ""
    return "<0.001" if value < 0.001 else f"{value:.3f}"
