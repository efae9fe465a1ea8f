"""The searches of agents in the details of a query, for the page's ``traces.js``."""

from __future__ import annotations

from typing import Any

import polars as pl

from engine.report.findings import Findings
from engine.tables import ANNOTATOR, DOC_IDS, FIRST_USEFUL, QUERY_ID, RUN, SEARCH, STEP

_MOST_STEPS, _MOST_PASSAGES = 50, 20


def searches(findings: Findings) -> dict[tuple[str, str], dict[str, Any]]:
    """By run and query: ``steps`` (text, passages, whether the first useful step), and their number ``taken``."""
    rows = findings.table("trace_steps")
    rows = rows.filter(pl.col(ANNOTATOR) == pl.col(ANNOTATOR).first()).sort(RUN, QUERY_ID, STEP)
    step = pl.struct(SEARCH, pl.col(DOC_IDS).list.head(_MOST_PASSAGES), FIRST_USEFUL)
    found = rows.group_by(RUN, QUERY_ID).agg(step.head(_MOST_STEPS).alias(STEP), pl.len())
    return {
        (run, query_id): {"steps": [[*one.values()] for one in steps], "taken": taken}
        for run, query_id, steps, taken in found.iter_rows()
    }
