"""The five probabilities of document and word labels, with exact intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import polars as pl

from engine import tables
from engine.statistics.arrays import Ints, Mask
from engine.statistics.bounded import mean_interval
from engine.statistics.cells import Clusters, numbered
from engine.statistics.correlation import Bootstrap
from engine.tables import DOC_ID, DOCUMENT_LABEL, QUERY_ID, RANK, RUN, WORD_LABEL, K

PROBABILITIES = ("P(Doc)", "P(Word)", "P(Doc ∩ Word)", "P(Doc | Word)", "P(Word | Doc)")


class Probability(NamedTuple):
    """A probability with its interval.

    ``value`` in [0, 1], NaN where the condition never occurs; then ``note`` says so. Bounds are NaN where
    none were asked for or ``value`` is.
    """

    name: str
    value: float
    low: float
    high: float
    note: str


def dual_probabilities(
    document: Mask, word: Mask, bootstrap: Bootstrap, clusters: Ints | None = None
) -> list[Probability]:
    """The probabilities of two events over queries, in the order of ``PROBABILITIES``.

    Each is a proportion: ``P(Doc | Word) = P(Doc ∩ Word) / P(Word)`` is that of the queries with Word which
    have Doc too. Intervals are therefore exact ones of proportions (``bounded.mean_interval``), also where
    an event occurs for every query, which resamples would call certain. Those of conditional
    probabilities are given the number of queries with the condition.

    Args:
        document, word: shape (n,), whether the event occurred for a query.
        bootstrap: its level; without resamples there are no intervals.
        clusters: shape (n,), of each query, where these are not independent.
    """
    always, both = np.ones_like(document), document & word
    events = [(document, always), (word, always), (both, always), (both, word), (both, document)]
    return [
        _proportion(
            name,
            event[condition],
            None if clusters is None else np.unique(clusters[condition], return_inverse=True)[1],
            bootstrap,
        )
        for name, (event, condition) in zip(PROBABILITIES, events, strict=True)
    ]


def dual_events(
    runs: pl.DataFrame,
    both: pl.DataFrame,
    query_ids: Sequence[str],
    cutoffs: Sequence[int],
    *,
    names: Sequence[str],
) -> pl.DataFrame:
    """The events of every query (``tables.DUAL_EVENTS``), by run, cutoff and query in the order given.

    At cutoff k an event occurs for a query if it does for any passage within the first k: Doc where
    some passage is of a gold document, Word where some passage holds an answer, and Doc ∩ Word where
    both occur, even in different passages. (``Success@k`` of the annotator ``dual`` requires them in
    one passage.) Both are null where a run lists nothing for a query.

    Args:
        both: the dual labels table; passages without labels have neither.
        cutoffs: 1 or more each.
    """
    labelled = runs.join(both, on=[QUERY_ID, DOC_ID], how="left")
    hits = [
        labelled.group_by(RUN, QUERY_ID).agg(
            pl.lit(cutoff, pl.Int64).alias(K),
            (pl.col(DOCUMENT_LABEL, WORD_LABEL).fill_null(False) & (pl.col(RANK) <= cutoff)).any(),
        )
        for cutoff in cutoffs
    ]
    cells = pl.DataFrame({RUN: names}, {RUN: pl.String})
    for column, values in ((K, cutoffs), (QUERY_ID, query_ids)):
        each = pl.DataFrame({column: values}, {column: tables.DUAL_EVENTS[column]})
        cells = cells.join(each, how="cross", maintain_order="left_right")
    return cells.join(pl.concat(hits), on=[RUN, K, QUERY_ID], how="left", maintain_order="left")


def dual_table(
    events: pl.DataFrame,
    bootstrap: Bootstrap,
    *,
    skip_missing: bool = False,
    clusters: Clusters = None,
) -> pl.DataFrame:
    """The dual table: the five probabilities of every run at every cutoff.

    The order of the queries has no effect on any figure.

    Args:
        events: of all queries (``dual_events``).
        skip_missing: leave queries that a run lists nothing for out of its figures; else neither event
            occurs for them.
    """
    rows = []
    for (run, cutoff), cell in events.group_by([RUN, K], maintain_order=True):
        counted = (cell.drop_nulls() if skip_missing else cell).sort(QUERY_ID)
        document, word = (
            counted[name].fill_null(False).to_numpy() for name in (DOCUMENT_LABEL, WORD_LABEL)
        )
        five = dual_probabilities(document, word, bootstrap, numbered(counted[QUERY_ID], clusters))
        rows += [(run, cutoff, counted.height, *probability) for probability in five]
    return pl.DataFrame(rows, schema=tables.DUAL, orient="row")


def _proportion(
    name: str, events: Mask, clusters: Ints | None, bootstrap: Bootstrap
) -> Probability:
    nan = float("nan")
    if len(events) == 0:
        return Probability(name, nan, nan, nan, "undefined: the condition never occurs")
    value = int(events.sum()) / len(events)
    if not bootstrap.resamples:
        return Probability(name, value, nan, nan, "")
    low, high = mean_interval(events.astype(np.float64), bootstrap.confidence, clusters)
    return Probability(name, value, low, high, "")
