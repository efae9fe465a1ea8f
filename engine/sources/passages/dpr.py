"""Passages in DPR's ``psgs_w100.tsv`` (Karpukhin et al. 2020): id, text, title."""

from __future__ import annotations

import csv
from collections import deque
from collections.abc import Iterator

from engine.messages.errors import InputError
from engine.sources.io.lines import LONGEST_LINE, read_lines
from engine.sources.io.locations import Location
from engine.sources.io.skipping import SkipBad

_HEADER = ["id", "text", "title"]
# Maximum of lines in a quoted text; beyond, a quote was left open.
_LONGEST = 200


def is_dpr(path: Location, what: str) -> bool:
    """Whether a TSV file has DPR's header.

    Raises:
        InputError: as ``read_lines``.
    """
    _, header = next(read_lines(path, what), (0, ""))
    return _parse(header)[0] == _HEADER


def dpr_rows(path: Location, what: str, *, skip: SkipBad) -> Iterator[tuple[int, tuple[str, ...]]]:
    """Yield (line, (id, text, title)) of a TSV file with its header, and with the quotes of the csv module.

    A quoted text may span lines. A record with a quote left open costs only one line: parsing
    starts again at the next one.

    Args:
        path: the file.
        what: the expected content, for errors.
        skip: tolerates broken records.

    Raises:
        InputError: more broken records than tolerated.
    """
    csv.field_size_limit(LONGEST_LINE)  # of the whole process; by default 128 KiB
    lines = read_lines(path, what, skip=skip, blank=True)
    ahead: deque[tuple[int, str]] = deque()
    header = True
    while True:
        number, line = ahead.popleft() if ahead else next(lines, (0, ""))
        if not number:
            return
        if not line.strip():
            continue
        columns, problem = _parse(line)
        if columns is None:
            columns, problem = _parse_over_lines(line, problem, ahead, lines)
        if header:
            header = False
        elif columns is None:
            remedy = 'double the quotes within "…"'
            skip.tolerate(InputError(f"broken quotes ({problem})", remedy, path=path, line=number))
        elif len(columns) != 3 or not columns[0]:
            problem = f"{len(columns)} columns, a passage has 3"
            skip.tolerate(InputError(problem, "write id, text, title", path=path, line=number))
        else:
            yield number, tuple(columns)


def _parse(text: str) -> tuple[list[str] | None, str]:
    try:
        # One string even with line ends in it, since csv.reader ends a line with each string.
        return next(csv.reader([text.rstrip("\r\n")], delimiter="\t", strict=True)), ""
    except csv.Error as error:
        return None, str(error)


def _parse_over_lines(
    first: str, problem: str, ahead: deque[tuple[int, str]], lines: Iterator[tuple[int, str]]
) -> tuple[list[str] | None, str]:
    """Parse a record that continues in the next lines; takes the lines used off ``ahead``."""
    text = first
    for count in range(_LONGEST):
        if count == len(ahead):
            following = next(lines, None)
            if following is None:
                break
            ahead.append(following)
        line = ahead[count][1]
        text += line
        if '"' not in line:  # it cannot close the quote
            continue
        columns, problem = _parse(text)
        if columns is not None:
            for _ in range(count + 1):
                ahead.popleft()
            return columns, ""
    return None, problem
