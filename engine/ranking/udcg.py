"""UDCG, Utility and Distraction-aware Cumulative Gain (Trappolini et al., arXiv 2510.21440).

UDCG@k of a list is sigmoid(mean of the labels of its first k passages), for labels that may be
negative (``engine.labels.utility``); a shorter list is averaged over what it has, an empty one scores 0, as
in the authors' code. No rank counts more than another: the paper found that readers' preference for
places differs and gains little. ir_measures does not have it.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from engine import tables
from engine.ranking.measures import Measure
from engine.ranking.scores import Missing
from engine.tables import ANNOTATOR, DOC_ID, LABEL, MEASURE, QUERY_ID, RANK, RUN, VALUE


def score_utility(
    runs: pl.DataFrame,
    labels: pl.DataFrame,
    query_ids: Sequence[str],
    measures: Sequence[Measure],
    *,
    missing: Missing = "zero",
    names: Sequence[str] = (),
) -> pl.DataFrame:
    """Query scores table of one annotator's labels, by run, measure and query.

    Args:
        labels: the labels table, of one annotator; a passage without a label counts as 0.
        measures: all of the kind ``UDCG``.
        missing: as in ``scores.score_runs``; ``error`` is refused there and counts as ``zero`` here.
    """
    place = pl.col(RANK).rank("ordinal").over(RUN, QUERY_ID)
    listed = runs.join(
        labels.select(QUERY_ID, DOC_ID, ANNOTATOR, LABEL), on=[QUERY_ID, DOC_ID], how="left"
    ).select(RUN, QUERY_ID, pl.col(LABEL).fill_null(0.0), place.alias("_place"))
    of_runs = list(names) or runs[RUN].unique(maintain_order=True).to_list()
    grid = pl.DataFrame({RUN: of_runs}, {RUN: pl.String}).join(
        pl.DataFrame({QUERY_ID: query_ids}, {QUERY_ID: pl.String}),
        how="cross",
        maintain_order="left_right",
    )
    parts = [tables.empty(tables.QUERY_SCORES)]
    for measure in measures:
        cut = listed.filter(pl.col("_place") <= (measure.cutoff or listed.height))
        means = cut.group_by(RUN, QUERY_ID).agg(pl.col(LABEL).mean())
        scored = grid.join(means, on=[RUN, QUERY_ID], how="left", maintain_order="left")
        if missing == "skip":
            scored = scored.filter(pl.col(LABEL).is_not_null())
        parts.append(
            scored.with_columns(
                pl.lit(labels[ANNOTATOR].first(), pl.String).alias(ANNOTATOR),
                pl.lit(str(measure)).alias(MEASURE),
                (1.0 / (1.0 + (-pl.col(LABEL)).exp())).fill_null(0.0).alias(VALUE),
            ).select(list(tables.QUERY_SCORES))
        )
    order = {name: place for place, name in enumerate(of_runs)}
    return pl.concat(parts).sort(pl.col(RUN).replace_strict(order, default=0), maintain_order=True)
