"""``erag compare``: the results of several evaluations side by side."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote

from engine.messages.wording import listed, number, with_interval
from engine.report import paired
from engine.report.layout import Answer, Grid, p_value, sentence, terminal_table, typeset_grid
from engine.report.page.plotting import forest
from engine.report.page.render import MARKDOWN, Page, Part, write_single
from engine.report.summary import jsonable
from engine.sources.io.outputs import Inputs, Outputs, refuse_overlap
from engine.tables import RUN, RUN_B
from jobs._command import run_command, with_verbosity
from jobs._options import Texts, Words, with_options
from jobs._terminal import say_json, standard_output

_INDEX = "Mean end-to-end scores of every run on the queries of its own evaluation"
_PAIRS = "Difference: run minus baseline, with intervals for all pairs of runs together"
# Rows of a table (of all flips together), and letters of a text, but on a page.
_MOST, _LONGEST = 10, 24
_DIGEST = re.compile(r"(?<!\w)([0-9a-f]{8})[0-9a-f]{8,}(?!\w)")


@partial(with_verbosity, as_json=True)
def compare(
    folders: Texts, /, *, out: Path | None = None, cluster: str | None = None, allow: Words = ()
) -> None:
    """Compare evaluations by their end-to-end scores on the queries that they share.

    Args:
        folders: Folders that erag evaluate wrote (its --out), the baseline first; FOLDER:RUN for a single run. A
            folder with such folders stands for all folders in it, by name.
        out: Page to write, such as compare.html: one file, with all rows; or Markdown, such as compare.md.
        cluster: Clusters of queries: article, or a column that an evaluation clustered them by; none for
            independent queries. By default as the evaluations did, else by article if many queries share one.
        allow: Differences to allow in a verdict: answers (the reference answers of queries).
    """
    comparison = paired.compare(*folders, cluster=cluster, allow=allow)
    notes = [with_options(note, {"cluster", "allow"}) for note in comparison.notes]
    comparison = replace(comparison, notes=notes)
    if out:
        read = [findings.folder for findings in comparison.evaluations.values()]
        refuse_overlap(Inputs({"FOLDERS": read}, {}), Outputs([out]))
        write_single(page_of(comparison, out), out)
    names = ("verdict", "pairs", "flipped", "differing", "notes")
    say_json(jsonable({name: getattr(comparison, name) for name in names}))
    grids = _grids(comparison, whole=False)
    shown = (replace(grid, names=2 if grid.name == "pairs" else 1) for grid in grids)
    tables = map(terminal_table, shown)
    standard_output().print_parts([*comparison.verdict, *tables, *comparison.remarks])


def _grids(comparison: paired.Comparison, *, whole: bool) -> Iterator[Grid]:
    names, level = comparison.names, next(iter(comparison.evaluations.values())).confidence
    columns = f"baseline|run|mean (baseline)|mean (run)|difference [{level * 100:g}%]|p"
    rows: list[list[Any]] = []
    for row in comparison.pairs:
        change = with_interval(row["difference"], row["low"], row["high"])
        means = row["mean"], row["mean_b"]
        rows.append([names[row[RUN]], names[row[RUN_B]], *means, change, p_value(row["p"])])
    tables = [("pairs", "Mean end-to-end scores", _PAIRS, columns.split("|"), rows)]
    for i, pair in enumerate(comparison.pairs, 1):
        sides = names[pair[RUN]], names[pair[RUN_B]]
        flips = [r for r in comparison.flipped if (r[RUN], r[RUN_B]) == (pair[RUN], pair[RUN_B])]
        won = sum(flip["value_b"] > flip["value"] for flip in flips)
        keys = ["query_id", "query", "answers", "output", "output_b", "value", "value_b"]
        head = ["id", *keys[1:3], *(f"{a} of {b}" for a in ("output", "score") for b in sides)]
        part = slice(None) if whole else slice(1, 5)
        rows = [[flip[key] for key in keys[part]] for flip in flips]
        title = f"{won} won by {sides[1]}, {len(flips) - won} lost"
        tables.append((f"flipped-{i}", title, "Won: a score of 0.5 or more", head[part], rows))
    title, head = "What else differs", ["setting", *comparison.evaluations]
    tables.append(("differing", title, title, head, [*_by_name(comparison)]))
    for name, title, caption, head, rows in tables:
        most = max(1, _MOST // len(comparison.pairs)) if "flipped" in name else _MOST
        shown = rows if whole else rows[:most]
        if not whole and name != "pairs":
            caption = f"{len(shown)} of {len(rows)} shown" if len(shown) < len(rows) else ""
        longest = _LONGEST if "flipped" in name and not whole else None
        cells = [[_text(cell, longest) for cell in row] for row in shown]
        if cells:
            yield Grid(name, caption, head, cells, 2 if name == "pairs" else len(head), title)


def _by_name(comparison: paired.Comparison) -> Iterator[list[str]]:
    """Rows of differences; a digest is cut, after the name of its files, reader or prompt."""
    for row in comparison.differing:
        cells = [setting := row["setting"]]
        for name, findings in comparison.evaluations.items():
            files = (findings.summary.get("audit") or {}).get("files", [])
            own = {"reader": "name", "prompt": "prompt"}.get(setting)
            paths = [file.get("path") for file in files if file["role"] == setting]
            paths += [(findings.summary["reader"] or {}).get(own)] * bool(own)
            cut = _DIGEST.sub(r"\1…", row[name])
            cells.append(" ".join([*(Path(p).name for p in paths if p and cut != row[name]), cut]))
        yield cells


def _index(comparison: paired.Comparison, out: Path) -> Grid:
    """Every evaluation; its name leads from the page to its own one, where there is one."""
    evaluations = comparison.evaluations
    runs = list(dict.fromkeys(run for own in evaluations.values() for run in own.wholes))
    rows, links = [], {}
    for name, own in evaluations.items():
        date = ((own.summary.get("audit") or {}).get("date") or "")[:16].replace("T", " ")
        k, reader = {str(row["k"]) for row in own.wholes.values()}, own.summary["reader"] or {}
        means = [number(own.wholes[run]["value"]) if run in own.wholes else "" for run in runs]
        facts = [date, reader.get("name", ""), ", ".join(sorted(k)), str(own.queries)]
        rows.append([name, *facts, *means])
        if (page := own.folder / "report.html").is_file():
            links[name] = quote(os.path.relpath(page, out.parent))
    head = ["evaluation", "date (UTC)", "reader", "k", "n", *runs]
    return Grid("evaluations", _INDEX, head, rows, 3, _INDEX, links)


def _text(value: Any, longest: int | None) -> str:
    words = ", ".join(value) if isinstance(value, list) else str(value)
    text = number(value) if isinstance(value, float) else words
    return text if longest is None or len(text) <= longest else f"{text[:longest]}…"


def page_of(
    comparison: paired.Comparison, out: Path, decision: Sequence[str] = (), margin: float = 0
) -> Page:
    """A page with links relative to its file: a gate's decision or the verdict, and all rows, or the first as Markdown."""
    names = comparison.names
    rows = [
        (f"{names[row[RUN_B]]} minus {names[row[RUN]]}", row["difference"], row["low"], row["high"])
        for row in comparison.pairs
    ]
    caption = _PAIRS + f"; dotted: the loss that is allowed, {margin:g}" * bool(margin)
    picture = forest("pairs", "Differences", caption, rows, "difference of means", margin)
    grids = [_index(comparison, out), *_grids(comparison, whole=out.suffix != MARKDOWN)]
    named = groupby(map(typeset_grid, grids), lambda grid: grid.name.partition("-")[0].capitalize())
    parts = [Part(title.lower(), title, title, grids=[*each]) for title, each in named]
    parts[1] = replace(parts[1], pictures=["pairs"])
    title = f"Comparison of {listed(list(comparison.evaluations))}"
    first, *others = decision or comparison.verdict or [title]
    headline, *more = [first] if decision else re.split(r"(?<=\.) |; ", first, maxsplit=1)
    warnings = [sentence(note) for note in comparison.notes if note in comparison.unlike]
    notes = [note for note in comparison.notes if note not in comparison.unlike]
    reasons = [*map(sentence, [*more, *others, *notes])]
    answer = Answer(sentence(headline), reasons, (), [title], warnings)
    return Page(f"erag {'gate' if decision else 'compare'}", answer, parts, [picture], (), {})


if __name__ == "__main__":
    run_command(compare)
