"""Read records of CSV and TSV files: a header with field names, and rows quoted as in the csv module."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.sources.io.lines import LONGEST_LINE, read_lines
from engine.sources.io.locations import Location
from engine.sources.io.skipping import SkipBad


def read_csv_records(
    path: Location,
    what: str,
    needed: Sequence[str],
    *,
    parse: Callable[[Location, int, str, str], Any] = lambda path, line, name, text: text,
    skip: SkipBad | None = None,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (line, record) of a CSV file, or of a TSV file if the header contains a tab.

    Args:
        path: the file.
        what: the expected content, for errors.
        needed: columns of which the header must name one.
        parse: gives the value of a field, of path, line, column and text.
        skip: tolerates rows of another length.

    Raises:
        InputError: a header without any of these columns, rows of another length, or broken quotes.
    """
    skip = skip or SkipBad()
    numbers: list[int] = []

    def texts() -> Iterator[str]:
        for number, line in read_lines(path, what, blank=True):
            numbers.append(number)
            yield line

    lines = texts()
    csv.field_size_limit(LONGEST_LINE)  # of the whole process; by default 128 KiB
    header = next(filter(str.strip, lines), "")
    delimiter = "\t" if "\t" in header else ","
    try:
        fields = next(csv.reader([header], delimiter=delimiter), [])
    except csv.Error as error:
        raise _broken(path, numbers[-1], error) from None
    names = [name.strip() for name in fields]
    if not set(names) & set(needed):
        apart = {one: {name.strip(' \r\n"') for name in header.split(one)} for one in ";|"}
        other = next((one for one, found in apart.items() if found & set(needed)), None)
        raise InputError(
            f"columns are separated by {other!r}"
            if other
            else f"no header with a column {', '.join(needed)}",
            "separate them by commas or tabs" if other else "name the columns in the first line",
            path=path,
            line=numbers[-1] if numbers else 1,
        )
    if twice := next((name for name in names if name and names.count(name) > 1), None):
        raise InputError(
            f"the column {quoted(twice)} is given twice",
            "keep one of them",
            path=path,
            line=numbers[-1],
        )
    rows = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        # A quoted field may span lines, so the lines of each row are noted.
        while True:
            numbers.clear()
            row = next(rows, None)
            if row is None:
                return
            if not any(field.strip() for field in row):
                continue
            line = numbers[0]
            if len(row) != len(names):
                problem = f"{len(row)} columns, the header has {len(names)}"
                skip.tolerate(InputError(problem, "quote fields", path=path, line=line))
                continue
            yield (
                line,
                {
                    name: parse(path, line, name, text)
                    for name, text in zip(names, row, strict=True)
                },
            )
    except csv.Error as error:
        raise _broken(path, numbers[0], error) from None


def _broken(path: Location, line: int, error: csv.Error) -> InputError:
    """The error for a row that the csv module refuses."""
    if "field limit" in str(error):
        problem = f"a field of more than {LONGEST_LINE >> 20} MiB, or an open quote"
    elif "new-line character" in str(error):
        return InputError(
            "a carriage return within a line", "end lines with line feeds", path=path, line=line
        )
    else:
        problem = f"broken quotes from this line on ({error})"
    return InputError(problem, 'double the quotes within "…"', path=path, line=line)
