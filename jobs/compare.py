"""``erag compare``: the results of several evaluations side by side."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

from engine.messages.wording import counted, listed, number
from engine.report import paired
from engine.report.layout import Answer, Grid, sentence, terminal_table, typeset_grid
from engine.report.page.plotting import forest
from engine.report.page.render import Page, Part, write_single
from engine.report.paired import Comparison
from engine.report.summary import jsonable
from engine.sources.io.outputs import Inputs, Outputs, refuse_overlap
from engine.tables import RUN, RUN_B
from jobs._command import run_command, with_verbosity
from jobs._options import Texts, Words, with_options
from jobs._terminal import say_json, standard_output, verbosity

_PAIRS = "Mean end-to-end scores, and differences of run_b from run with intervals for all pairs of runs together"
_INDEX = "Mean end-to-end scores of every run on the queries of its own evaluation"
# Rows of a table (of all flips together), letters of a text, and columns that are left out, on a screen.
_MOST, _LONGEST, _HIDDEN = 10, 24, {"query_id", "value", "value_b"}


@partial(with_verbosity, as_json=True)
def compare(
    folders: Texts, /, *, out: Path | None = None, cluster: str | None = None, allow: Words = ()
) -> None:
    """Compare evaluations by their end-to-end scores on the queries that they share.

    Parameters
    ----------
    folders
        What --out of erag evaluate named, the baseline first; FOLDER:RUN for one run of it. A folder that holds
        such folders stands for all of them, by name.
    out
        Page to write, such as compare.html: one file, with all rows.
    cluster
        What queries are clustered by: article, or a column that an evaluation clustered them by; none for independent
        queries. By default as the evaluations did, else by article where many share one.
    allow
        What may differ where a verdict is given: answers (the reference answers of queries).
    """
    found = paired.compare(*folders, cluster=cluster, allow=allow)
    told = [with_options(note, {"cluster", "allow"}) for note in found.notes]
    found = replace(found, notes=told)
    if out:
        read = [findings.folder for findings in found.evaluations.values()]
        refuse_overlap(Inputs({"FOLDERS": read}, {}), Outputs([out]))
        write_single(_page(found, out), out)
    if verbosity().as_json:
        names = ("verdict", "pairs", "flipped", "differing", "notes")
        say_json(jsonable({name: getattr(found, name) for name in names}))
    shown = map(terminal_table, _grids(found, _MOST, _LONGEST, _HIDDEN))
    notes = (f"note: {note}" for note in found.notes)
    standard_output().print_parts([*found.verdict, *shown, *notes])


def _grids(
    found: Comparison,
    most: int | None = None,
    longest: int | None = None,
    hidden: Collection[str] = (),
) -> Iterator[Grid]:
    tables = {("pairs", _PAIRS): found.pairs}
    for i, pair in enumerate(found.pairs, 1):
        runs = {RUN: pair[RUN], RUN_B: pair[RUN_B]}
        title = f"Answered by {runs[RUN]} or {runs[RUN_B]} (output_b) and not by the other"
        rows = [row for row in found.flipped if row.items() >= runs.items()]
        tables[f"flipped-{i}", title] = [{k: row[k] for k in row if k not in runs} for row in rows]
    tables["differing", "What else differs"] = found.differing
    for (name, title), rows in tables.items():
        shown = [{k: _text(v, longest) for k, v in row.items() if k not in hidden} for row in rows]
        if shown:
            of_each = most and (max(1, most // len(found.pairs)) if "flipped" in name else most)
            cells = [[*row.values()] for row in shown[:of_each]]
            caption = f"{len(cells)} of {len(rows)}" if len(rows) > len(cells) else ""
            whole = counted(len(rows), "[query|queries]") if "flipped" in name else title
            names = 2 if name == "pairs" else 1 if most else len(shown[0])
            yield Grid(name, caption if most else whole, [*shown[0]], cells, names, title)


def _index(found: Comparison, out: Path) -> Grid:
    """Every evaluation; its name leads from the page to its own one, where there is one."""
    runs = list(dict.fromkeys(run for one in found.evaluations.values() for run in one.wholes))
    rows, links = [], {}
    for name, one in found.evaluations.items():
        date = ((one.summary.get("audit") or {}).get("date") or "")[:16].replace("T", " ")
        k, reader = {str(row["k"]) for row in one.wholes.values()}, one.summary["reader"] or {}
        means = [number(one.wholes[run]["value"]) if run in one.wholes else "" for run in runs]
        facts = [date, reader.get("name", ""), ", ".join(sorted(k)), str(one.queries)]
        rows.append([name, *facts, *means])
        if (page := one.folder / "report.html").is_file():
            links[name] = quote(os.path.relpath(page, out.parent))
    head = ["evaluation", "date (UTC)", "reader", "k", "n", *runs]
    return Grid("evaluations", _INDEX, head, rows, 3, _INDEX, links)


def _text(value: Any, longest: int | None) -> str:
    words = ", ".join(value) if isinstance(value, list) else str(value)
    text = number(value) if isinstance(value, float) else words
    return text if longest is None or len(text) <= longest else f"{text[:longest]}…"


def _page(found: Comparison, out: Path) -> Page:
    rows = [
        (f"{row[RUN_B]} less {row[RUN]}", row["difference"], row["low"], row["high"])
        for row in found.pairs
    ]
    picture = forest("pairs", "Differences", _PAIRS, rows, "difference of means")
    grids = map(typeset_grid, [_index(found, out), *_grids(found)])
    named = groupby(grids, lambda grid: grid.name.partition("-")[0].capitalize())
    parts = [Part(title.lower(), title, title, grids=[*each]) for title, each in named]
    parts[1] = replace(parts[1], pictures=["pairs"])
    title = f"Comparison of {listed(list(found.evaluations))}"
    headline, _, by = (found.verdict or [title])[0].partition(". ")
    reasons = [sentence(text) for text in (by, *found.verdict[1:], *found.notes) if text]
    return Page(
        "erag compare", Answer(sentence(headline), reasons, (), [title]), parts, [picture], (), {}
    )


if __name__ == "__main__":
    run_command(compare)
