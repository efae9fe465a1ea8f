"""The table of correlations between ranking measures and the end-to-end score."""

from __future__ import annotations

from dataclasses import asdict

import polars as pl

from engine import tables
from engine.statistics.correlation import correlate
from engine.tables import ANNOTATOR, MEASURE, QUERY_ID, RUN, VALUE, K


def correlations(
    query_scores: pl.DataFrame,
    downstream: pl.DataFrame,
    *,
    resamples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
) -> pl.DataFrame:
    """tau-b and rho of every (run, annotator, measure) with the run's end-to-end score, per query.

    Queries are matched by ``query_id`` and put in its order, so the table does not depend on the
    order of the rows. Values are compared at 12 decimals: sums of the same labels in another order
    differ in the last bits, and must not rank. ``k`` is the number of passages that the end-to-end reader was given.
    """
    end_to_end = downstream.select(RUN, QUERY_ID, K, pl.col(VALUE).alias("_end_to_end"))
    joined = query_scores.join(end_to_end, on=[RUN, QUERY_ID], how="inner", maintain_order="left")
    rows = []
    for cell, frame in joined.group_by([RUN, ANNOTATOR, MEASURE, K], maintain_order=True):
        frame = frame.sort(QUERY_ID)
        result = correlate(
            frame[VALUE].round(12).to_numpy(),
            frame["_end_to_end"].round(12).to_numpy(),
            resamples=resamples,
            confidence=confidence,
            seed=seed,
        )
        rows.append(dict(zip([RUN, ANNOTATOR, MEASURE, K], cell, strict=True)) | asdict(result))
    return pl.DataFrame(rows, schema=tables.CORRELATIONS)
