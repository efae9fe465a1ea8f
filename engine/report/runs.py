"""The differences between the means of runs, as people read them."""

from __future__ import annotations

from typing import Any

import polars as pl
from rich.table import Table
from rich.text import Text

from engine import tables
from engine.evaluation.assess import Evaluation
from engine.report import layout
from engine.tables import ANNOTATOR, MEASURE, RUN, RUN_B
from engine.wording import with_interval


def shown(evaluation: Evaluation) -> Table:
    """The first run against every other: its end-to-end score, and of each annotator the primary measure.

    All measures where no list was read whole.
    """
    settings = evaluation.settings
    pairs = evaluation.statistics.run_pairs
    pairs = pairs.filter(pl.col(RUN) == pl.col(RUN).first())
    primary = evaluation.primary_measures.items()
    end_to_end = not evaluation.downstream.is_empty()
    rows: list[tuple[list[str], dict[str, Any], str]] = []
    for (run_b,), of_pair in pairs.group_by([RUN_B], maintain_order=True):
        if end_to_end:
            row = of_pair.row(0, named=True)
            row[tables.N] = row[tables.END_TO_END_N]
            rows.append(
                ([str(run_b), "end to end", settings.reader.metric_name], row, "end_to_end")
            )
        for row in of_pair.iter_rows(named=True):
            if not end_to_end or (row[ANNOTATOR], row[MEASURE]) in primary:
                rows.append(([str(run_b), row[ANNOTATOR], row[MEASURE]], row, "difference"))
    partial = any(row[tables.N] != evaluation.queries for _, row, _ in rows)
    headers = ["run", "annotator", "measure"]
    if end_to_end:  # a row for each: two columns would set every row apart
        headers = ["run", "score"]
        rows = [([run, f"{who} {what}"], row, score) for (run, who, what), row, score in rows]
    result = layout.table(
        f"Means of {pairs[RUN][0]}, less those of:",
        headers,
        [f"difference{layout.level(settings.bootstrap)}"]
        + (["p"] if settings.bootstrap.resamples else [])
        + (["n"] if partial else []),
    )
    if adjusted := layout.adjusted(pairs[tables.PAIRS][0], settings.bootstrap):
        # The line's end sets it apart from what is printed next.
        result.caption = Text(f"{adjusted}\n", style="table.caption")
    layout.add_rows(
        result,
        [
            (
                names,
                [_difference(row, score)]
                + ([layout.p_value(row[f"{score}_p"])] if settings.bootstrap.resamples else [])
                + ([str(row[tables.N])] if partial else []),
            )
            for names, row, score in rows
        ],
    )
    return result


def _difference(row: dict[str, Any], score: str) -> str:
    value = row["end_to_end_difference" if score == "end_to_end" else "difference"]
    return with_interval(value, row[f"{score}_low"], row[f"{score}_high"], plus="+")
