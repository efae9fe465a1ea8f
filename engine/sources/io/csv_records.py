"""Read records of CSV and TSV files: a header with field names, and rows quoted as in the csv module."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator, Sequence
from functools import partial

from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.sources.io.lines import LONGEST_LINE, read_lines
from engine.sources.io.locations import Location
from engine.sources.io.skipping import SkipBad

# Programs write TSV with quotes and without them.
_QUOTES = 'write each " within a field twice and the field in quotes, or write CSV or JSONL'


def read_csv_records(
    path: Location, what: str, needed: Sequence[str], *, skip: SkipBad | None = None
) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield (line, record) of a CSV file, or of a TSV file if the header contains a tab.

    Args:
        needed: columns of which the header must name one.
        skip: tolerates rows of another length, and lines that are not UTF-8.

    Raises:
        InputError: a header without any of these columns, rows of another length, or quotes that are broken,
            or that span lines of a TSV and what may be rows.
    """
    skip = skip or SkipBad()
    fault = partial(InputError, path=path)
    numbers: list[int] = []

    def texts() -> Iterator[str]:
        for number, line in read_lines(path, what, skip=skip, blank=True):
            numbers.append(number)
            yield line

    lines = texts()
    csv.field_size_limit(LONGEST_LINE)  # of the whole process; by default 128 KiB
    header = next(filter(str.strip, lines), "")
    delimiter = "\t" if "\t" in header else ","
    rows = csv.reader(itertools.chain([header], lines), delimiter=delimiter, strict=True)
    try:
        names = [name.strip() for name in next(rows, [])]
        line = numbers[-1] if numbers else 1
        if not set(names) & set(needed):
            problem = f"no header with a column {', '.join(needed)}"
            remedy = "name the columns in the first line, separated by commas or tabs"
            raise fault(problem, remedy, line=line)
        if twice := next((name for name in names if name and names.count(name) > 1), None):
            raise fault(f"the column {quoted(twice)} is given twice", "keep one of them", line=line)
        # A quoted field may span lines, so the lines of each row are noted.
        while True:
            numbers.clear()
            row = next(rows, None)
            if row is None:
                return
            if not any(map(str.strip, row)):
                continue
            line = numbers[0]
            # Rows of a program that writes no quotes: with the line end, the field took in tabs.
            if delimiter == "\t" and any("\n" in text and "\t" in text for text in row):
                problem = f"a quoted field goes on to line {numbers[-1]}, over tabs"
                raise fault(problem, _QUOTES, line=line)
            if len(row) == len(names):
                yield line, dict(zip(names, row, strict=True))
            else:
                problem = f"{len(row)} columns, the header has {len(names)}"
                skip.tolerate(fault(problem, "quote fields", line=line))
    except csv.Error as error:
        problem = f"broken quotes or line ends from this line on ({error})"
        raise fault(problem, 'double the quotes within "…"', line=numbers[0]) from None
