"""Answers and tables of figures for people: their form on a terminal and a page, and the format of figures."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

from engine.messages.wording import counted, with_interval
from engine.reading.costs import ReadingCosts
from engine.statistics.correlation import Bootstrap
from engine.tables import METHOD, high_of, low_of

# Headings of the correlations, and of tau as a share of the highest tau that the scores allow.
KENDALL, SPEARMAN = "Kendall's \N{GREEK SMALL LETTER TAU}", "Spearman's \N{GREEK SMALL LETTER RHO}"
SHARE = "share of max \N{GREEK SMALL LETTER TAU}"
_SIGN = re.compile(r"(?<![^ \[])-(?=\d)")
# First words of the engine's lines; other lines may begin with a name.
_WORDS = re.compile("(an?|the|no|not|more|that|with|labels|lists|scores|worse|undecided)\\b[ :]")
# Letters that follow intervals, with the interval method.
METHODS = {
    "percentile": ("p", "percentiles of resamples"),
    "studentized": ("s", "studentized jackknife"),
    "inverted": ("i", "inverted bootstrap test"),
    "permutation": ("t", "permutation test"),
    # In results of earlier versions.
    "bca": ("b", "BCa of resamples"),
    "resampling": ("r", "resamples"),
}


@dataclass(frozen=True)
class Answer:
    """The answer in words: headline, reasons and warnings are sentences."""

    headline: str
    reasons: Sequence[str]
    facts: Sequence[tuple[str, str]]  # with their names
    about: Sequence[str] = ()  # lines on the measurements
    warnings: Sequence[str] = ()
    decision: str = ""  # a sentence on the cost of a choice; empty if unknown


@dataclass(frozen=True)
class Grid:
    """A table for people: every cell a text. The first ``names`` columns are names, the others figures."""

    name: str  # of its files
    caption: str  # subject of the figures, and the method of their intervals
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    names: int = 1
    title: str = ""  # heading, if there are several tables
    links: Mapping[str, str] = field(default_factory=dict)  # by the text of a row's first cell


def terminal_table(grid: Grid, *, short: bool = False) -> Table:
    """A table for a terminal. A name appears where it changes: repeated words hide the numbers.

    A ``short`` one stands among text, without lines and caption, its title as the head of its names.
    """
    result = Table(
        box=None if short else SIMPLE_HEAD,
        header_style="bold",
        pad_edge=False,
        title_justify="left",
        caption_justify="left",
        padding=(0, 3, 0, 0) if short else (0, 1),
    )
    first, *others = grid.head
    if short:
        first = grid.title or first
    else:  # plain text throughout: a run's name is not markup
        result.title = Text(grid.title, style="table.title")
        if grid.caption:  # its end separates it from the next print
            result.caption = Text(f"{grid.caption}\n", style="table.caption")
    for place, name in enumerate([first, *others]):
        justify: JustifyMethod = "left" if place < grid.names else "right"
        result.add_column(Text(name), justify=justify, no_wrap=True)
    before: Sequence[str] = ()
    for row in grid.rows:
        names = row[: grid.names]
        if before and names[:-1] != before[:-1]:
            result.add_section()
        shown = [n if names[:i] != before[:i] else "" for i, n in enumerate(names, start=1)]
        before = names
        result.add_row(*map(Text, [*shown, *row[grid.names :]]))
    return result


def sentence(text: str) -> str:
    """A line as a sentence: names of runs keep their case."""
    text = text.strip()
    text = text[0].upper() + text[1:] if _WORDS.match(text) else text
    return text if not text or text[-1] in ".?!" else f"{text}."


def typeset(figure: str) -> str:
    """A figure in the typography of a page: a minus sign, no line break within, a dash for none."""
    return _SIGN.sub("\N{MINUS SIGN}", figure).replace(", ", ",\N{NO-BREAK SPACE}") or "\N{EM DASH}"


def typeset_grid(grid: Grid) -> Grid:
    """A table with its figures as a page shows them."""
    rows = [[*row[: grid.names], *map(typeset, row[grid.names :])] for row in grid.rows]
    return replace(grid, rows=rows)


def level(bootstrap: Bootstrap) -> str:
    """The suffix for names of figures with intervals, such as `` [95%]``."""
    return f" [{bootstrap.confidence * 100:g}%]" if bootstrap.resamples else ""


def adjusted(pairs: int, bootstrap: Bootstrap) -> str:
    """Adjustment of intervals and p-values of differences between runs; empty for one pair."""
    confidence, by_pairs = f"{bootstrap.confidence * 100:g}%", f"adjusted for {pairs} pairs of runs"
    if bootstrap.until:
        sequences = f"{confidence} confidence sequences, valid whenever reading stops"
        return sequences + f", {by_pairs}" * (pairs > 1)
    return f"{confidence} intervals and p {by_pairs}" * (pairs > 1 and bootstrap.resamples > 0)


def interval(row: Mapping[str, Any] | None, name: str, value: str = "", *, plus: str = "") -> str:
    """A figure ``value`` with its interval, whose bounds have the ``name``, and the letter of the method that made it."""
    if row is None or math.isnan(figure := row[value or name]):
        return "undefined"
    low, method = row[low_of(name)], row.get(METHOD)
    text = with_interval(figure, low, row[high_of(name)], 2, plus=plus)
    return f"{text} {METHODS[method][0]}" if method and not math.isnan(low) else text


def methods_line(methods: Iterable[str]) -> str:
    """Meanings of the letters after intervals, for the methods in use; empty without methods."""
    used = set(methods)
    meanings = [f"{mark} = {meaning}" for name, (mark, meaning) in METHODS.items() if name in used]
    return f"interval letters: {', '.join(meanings)}" if meanings else ""


def calls_line(costs: ReadingCosts) -> str:
    """Cost of LLM calls, in one line."""
    # No speed, since that of progress leaves the start out.
    took = f" in {costs.seconds:,.1f} s (start of the reader included)"
    highest = max(costs.workers.values(), default=0)  # 0 if a server reads
    peak = f", peak memory {highest / 2**20:.0f} MiB per process" if highest else ""
    failed = f", {costs.failed} failed" if costs.failed else ""
    if costs.retried_requests:
        failed += f", {counted(costs.retried_requests, 'request[|s]')} repeated"
    return f"{costs.wanted} distinct, {costs.reused} cached, {costs.done} new{took * bool(costs.done and costs.seconds)}{failed}{peak}"


def p_text(value: float) -> str:
    """A p-value in a sentence: ``p = 0.034``, ``p < 0.001``."""
    return f"p = {p_value(value)}".replace("= <", "< ")


def p_value(value: float) -> str:
    """A p-value in a table; empty for none."""
    shown = "<0.001" if value < 0.001 else f"{value:.3f}"
    return "" if math.isnan(value) else shown
