"""``erag compare``: the results of several evaluations side by side."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from engine.messages.wording import listed, number
from engine.report import paired
from engine.report.layout import Grid, terminal_table
from engine.report.page.content import Answer, Part
from engine.report.page.plain import Page, write_single
from engine.report.page.plotting import forest
from engine.report.paired import Comparison
from engine.report.summary import jsonable
from engine.tables import RUN, RUN_B
from jobs._command import run_command, with_verbosity
from jobs._options import Texts
from jobs._terminal import say_json, standard_output, verbosity

_TITLES = {
    "pairs": "Mean end-to-end scores, and differences of run_b from run with intervals for all pairs of runs together",
    "flipped": "Queries that one run of a pair answers and the other does not",
    "differing": "What else differs",
}
# Rows of a table, letters of a text, and columns that are left out, on a screen.
_MOST, _LONGEST, _HIDDEN = 10, 24, {"query_id", "value", "value_b"}


@partial(with_verbosity, as_json=True)
def compare(folders: Texts, /, *, out: Path | None = None) -> None:
    """Compare evaluations by their end-to-end scores on the queries that they share.

    Parameters
    ----------
    folders
        What --out of erag evaluate named, the baseline first; FOLDER:RUN for one run of it. A folder that holds
        such folders stands for all of them, by name.
    out
        Page to write, such as compare.html: one file, with all rows.
    """
    found = paired.compare(*folders)
    if verbosity().as_json:
        say_json(jsonable({name: getattr(found, name) for name in (*_TITLES, "notes")}))
    console = standard_output()
    for grid in _grids(found, _MOST, _LONGEST, _HIDDEN):
        console.print(terminal_table(grid))
    for note in found.notes:
        console.print_line(f"note: {note}")
    if out:
        write_single(_page(found), out)


def _grids(
    found: Comparison,
    most: int | None = None,
    longest: int | None = None,
    hidden: Collection[str] = (),
) -> Iterator[Grid]:
    for name, title in _TITLES.items():
        rows: list[dict[str, Any]] = getattr(found, name)
        shown = [{k: _text(v, longest) for k, v in row.items() if k not in hidden} for row in rows]
        if shown:
            caption = f"{most} of {len(rows)}" if most and len(rows) > most else ""
            cells = [[*row.values()] for row in shown[:most]]
            names = 1 + (RUN_B in shown[0]) if most or name == "pairs" else len(shown[0])
            yield Grid(name, caption, [*shown[0]], cells, names, title)


def _text(value: Any, longest: int | None) -> str:
    words = ", ".join(value) if isinstance(value, list) else str(value)
    text = number(value) if isinstance(value, float) else words
    return text if longest is None or len(text) <= longest else f"{text[:longest]}…"


def _page(found: Comparison) -> Page:
    rows = [
        (f"{row[RUN_B]} less {row[RUN]}", row["difference"], row["low"], row["high"])
        for row in found.pairs
    ]
    picture = forest("pairs", "Differences", _TITLES["pairs"], rows, "difference of means")
    parts = [Part(grid.name, grid.name, grid.title, grids=[grid]) for grid in _grids(found)]
    parts.insert(0, Part("differences", "differences", "Differences", pictures=["pairs"]))
    answer = Answer(f"Comparison of {listed(list(found.evaluations))}", found.notes, ())
    return Page("erag compare", answer, parts, [picture], (), {})


if __name__ == "__main__":
    run_command(compare)
