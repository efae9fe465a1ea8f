"""``erag compare``: the results of several evaluations side by side."""

from __future__ import annotations

from functools import partial
from typing import Any

from engine.messages.wording import number
from engine.report import paired
from engine.report.layout import Grid, terminal_table
from engine.report.summary import jsonable
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
def compare(folders: Texts, /) -> None:
    """Compare evaluations by their end-to-end scores on the queries that they share.

    Parameters
    ----------
    folders
        What --out of erag evaluate named, the baseline first; FOLDER:RUN for one run of it.
    """
    found = paired.compare(*folders)
    tables: dict[str, list[dict[str, Any]]] = {name: getattr(found, name) for name in _TITLES}
    if verbosity().as_json:
        say_json(jsonable(tables | {"notes": found.notes}))
    console = standard_output()
    for name, rows in tables.items():
        caption = f"{_MOST} of {len(rows)}; --json has all" * (len(rows) > _MOST)
        shown = [{k: _cell(v) for k, v in row.items() if k not in _HIDDEN} for row in rows[:_MOST]]
        if rows:
            cells, names = [[*row.values()] for row in shown], 2 if "run" in shown[0] else 1
            grid = Grid(name, caption, [*shown[0]], cells, names, _TITLES[name])
            console.print(terminal_table(grid))
    for note in found.notes:
        console.print_line(f"note: {note}")


def _cell(value: Any) -> str:
    text = number(value) if isinstance(value, float) else str(value)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


if __name__ == "__main__":
    run_command(compare)
