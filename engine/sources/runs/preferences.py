"""Human judgments: which of two or three passages or answers shown was best, that several were, or that none was."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import combinations
from typing import Any

import polars as pl

from engine import tables
from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.sources.io.files import is_text
from engine.sources.io.lines import read_json_lines
from engine.sources.io.locations import Location

_WHAT = 'preferences in JSONL: {"query_id": …, "shown": [two or three document ids], "best": one of them or null}'
_AS_IT_WAS = 'keep what `erag ask` wrote beside "best", or leave it out where passages were shown'


def read_preferences(path: Location) -> pl.DataFrame:
    """Read judgments as the preferences table, in the order of the file.

    Raises:
        InputError: the file is unreadable or empty; a line has no query id, fewer than two or more than three passages
            or answers, one twice, a best one that is missing or was not shown, or runs without how it was drawn.
    """
    return preferences_of(path, read_json_lines(path, _WHAT))


def preferences_of(
    path: Location, records: Iterable[tuple[int, Mapping[str, Any]]]
) -> pl.DataFrame:
    """The judgments of numbered records, as ``read_preferences`` refuses and gives them."""
    rows = [row for line, record in records for row in _rows(path, line, record)]
    if not rows:
        raise InputError("holds no judgments", f"give {_WHAT}", path=path)
    return pl.DataFrame(rows, schema=tables.PREFERENCES, orient="row")


def _rows(path: Location, line: int, record: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Rows of the preferences table: for each criterion, of each pair of runs, or one where runs are not named."""
    fault = partial(InputError, path=path, line=line)
    # A table has null where other rows have a value.
    record = {name: value for name, value in record.items() if value is not None or name == "best"}
    query_id = _identifier(record.get("query_id"))
    if query_id is None:
        raise fault("a judgment without a query id", 'add "query_id", as valid text')
    of_answers = "answers" in record and "shown" not in record
    key, what = ("answers", "answer") if of_answers else ("shown", "passage")
    shown = record.get(key)
    known = [_identifier(value, of_answers) for value in shown] if isinstance(shown, list) else []
    if not 2 <= len(known) <= 3 or None in known:
        raise fault(
            f"{quoted(shown)} cannot be the {what}s shown for query {quoted(query_id)}",
            f'write "{key}" as a list of two or three {"texts" if of_answers else "document ids"}',
        )
    if len({*known}) < len(known):
        raise fault(f"shows one {what} twice ({quoted(shown)})", "list it once")
    if "best" not in record:
        raise fault('a judgment without "best"', f"write which {what} was best, or null for none")
    runs, labels, drawn = record.get("runs", []), {}, (1.0, "")
    criteria = {"": record["best"]}
    try:
        criteria |= record.get("criteria", {})
        if runs or of_answers:
            how, design = record["drawn"], record["drawn"]["design"]
            sizes, weighed = sorted(design["strata"].items()), how.get("labels") or {}
            # A frame names the strata of all its pages, in any order, with null where a page lacks one.
            design = {**design, "strata": {name: n for name, n in sizes if n is not None}}
            drawn = float(how["probability"]), json.dumps(design)
            labels = {run: float(weighed.get(run) or 0) for of in runs for run in of}
            is_known = 0 < drawn[0] <= 1 and math.isfinite(sum(labels.values()))
            is_part = 0 < sum(design["strata"].values()) <= design["queries"]
            if not (is_known and is_part and len(runs) == len(known)):
                raise ValueError
    except (AttributeError, KeyError, TypeError, ValueError):
        raise fault('"runs", "drawn" or "criteria" is not as it was', _AS_IT_WAS) from None
    documents: Any = None if of_answers else known
    for criterion, value in criteria.items():
        given = value if isinstance(value, list) and value else [] if value is None else [value]
        best = [_identifier(one, of_answers) for one in given]
        if not {*best} <= {*known}:
            raise fault(
                f"the best {what} {quoted(value)} was not shown",
                f"write one of {quoted(shown)}, a list of equally good ones, or null for none",
            )
        wins = {str(run): one in best for one, of in zip(known, runs, strict=False) for run in of}
        for run, run_b in combinations(sorted(wins), 2) if wins else [("", "")]:
            labelled = (documents, best) if documents else ([], [])
            outcome = float(wins.get(run, 0)) - wins.get(run_b, 0)
            label = labels.get(run, 0.0) - labels.get(run_b, 0.0)
            name = f"{what}s {criterion}".strip()
            yield query_id, *labelled, name, run, run_b, outcome, label, *drawn
            documents = None  # whose labels count once


def _identifier(value: object, is_answer: bool = False) -> str | None:
    """An id or an answer as text; None if the value cannot be one."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return None
    return str(value) if is_text(str(value)) and (value != "" or is_answer) else None
