"""What an evaluation would find, from scores that are made so that the figures are known."""

from pathlib import Path

import polars as pl

from engine.report.findings import STATISTICS, Findings
from engine.report.summary import configuration


def made_findings(query_scores, downstream, statistics, settings, *, queries):
    """Findings of these scores, with the statistics of them; nothing was read."""

    def means(table, by):
        mean = pl.col("value").mean()
        return table.group_by(by, maintain_order=True).agg(mean, pl.len().alias("n")).to_dicts()

    summary = {
        "configuration": configuration(settings, "pool", {}),
        "counts": {"queries": queries},
        "means": means(query_scores, ["run", "annotator", "measure"]),
        "end_to_end": means(downstream, ["run", "k"]),
        "undefined": [],
        "verdict": None,
        "reading": {},
    }
    held = {name: getattr(statistics, name) for name in STATISTICS}
    return Findings(summary, Path(), None, held)
