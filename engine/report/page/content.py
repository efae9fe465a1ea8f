"""What a page is made of, whatever it is about."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from engine.report.layout import Grid

_SIGN = re.compile(r"(?<![^ \[])-(?=\d)")


@dataclass(frozen=True)
class Answer:
    """The answer in words: a headline, reasons as sentences, facts with their names, and lines above on what was measured."""

    headline: str
    reasons: Sequence[str]
    facts: Sequence[tuple[str, str]]
    about: Sequence[str] = ()


@dataclass(frozen=True)
class Fold:
    """A list that opens when its title is chosen."""

    title: str
    items: Sequence[str]


@dataclass(frozen=True)
class Part:
    """A part of a page: ``name`` is of the place that links lead to, ``short`` their text; pictures are named."""

    name: str
    short: str
    title: str
    texts: Sequence[str] = ()
    grids: Sequence[Grid] = ()
    pictures: Sequence[str] = ()
    folds: Sequence[Fold] = ()


def sentence(text: str) -> str:
    """A line as a sentence: names of runs keep their case."""
    text = text.strip()
    for start in ("choose ", "the data ", "to tell "):
        if text.startswith(start):
            text = text[0].upper() + text[1:]
    return text if not text or text[-1] in ".?!" else f"{text}."


def typeset(figure: str) -> str:
    """A figure as a page shows it: with a minus sign, and whole where lines are broken; a dash for none."""
    return _SIGN.sub("\N{MINUS SIGN}", figure).replace(", ", ",\N{NO-BREAK SPACE}") or "\N{EM DASH}"


def typeset_grid(grid: Grid) -> Grid:
    """A table with its figures as a page shows them."""
    rows = [[*row[: grid.names], *map(typeset, row[grid.names :])] for row in grid.rows]
    return replace(grid, rows=rows)
