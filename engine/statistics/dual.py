"""The five probabilities of document and word labels, with bootstrap intervals over queries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from engine import tables
from engine.statistics.correlation import Bootstrap
from engine.statistics.intervals import interval
from engine.statistics.resampling import Counts, distinct_rows, for_each_block
from engine.tables import DOC_ID, DOCUMENT_LABEL, QUERY_ID, RANK, RUN, WORD_LABEL

Floats = npt.NDArray[np.float64]

PROBABILITIES = ("P(Doc)", "P(Word)", "P(Doc ∩ Word)", "P(Doc | Word)", "P(Word | Doc)")


@dataclass(frozen=True)
class Probability:
    """A probability with its interval.

    ``value`` in [0, 1], NaN where the condition never occurs; bounds are NaN where none were asked for
    or none are defined, and then ``note`` says why.
    """

    name: str
    value: float
    low: float
    high: float
    note: str


def dual_probabilities(
    document: npt.NDArray[np.bool_], word: npt.NDArray[np.bool_], bootstrap: Bootstrap
) -> list[Probability]:
    """The probabilities of two events over queries, in the order of ``PROBABILITIES``.

    ``P(Doc | Word) = P(Doc ∩ Word) / P(Word)`` and the other way round; both events are resampled
    together, so that the interval of a ratio is that of the ratio.

    Args:
        document, word: shape (n,), whether the event occurred for a query.
    """
    columns = np.stack([document, word, document & word]).astype(np.float64)
    n = columns.shape[1]
    estimates = _five(columns.sum(axis=1)[:, None], n)[:, 0]
    replicates = np.full((len(PROBABILITIES), bootstrap.resamples), np.nan)
    rows, row_of = distinct_rows(columns)

    def fill(first: int, weights: Counts) -> None:
        replicates[:, first : first + len(weights)] = _five((weights @ rows).T, n)

    for_each_block(
        row_of,
        len(rows),
        fill,
        resamples=bootstrap.resamples,
        seed=bootstrap.seed,
        threads=bootstrap.threads,
    )
    without = None
    if bootstrap.interval == "bca" and bootstrap.resamples:
        without = _five(columns.sum(axis=1)[:, None] - columns, n - 1)
    return [
        _described(name, float(estimates[i]), replicates[i], without, i, bootstrap)
        for i, name in enumerate(PROBABILITIES)
    ]


def dual_table(
    runs: pl.DataFrame,
    both: pl.DataFrame,
    query_ids: Sequence[str],
    cutoffs: Sequence[int],
    bootstrap: Bootstrap,
    *,
    skip_missing: bool = False,
) -> pl.DataFrame:
    """The dual table: the five probabilities of every run at every cutoff.

    At cutoff k an event occurs for a query if it does for any passage within the first k: Doc where
    some passage is of a gold document, Word where some passage holds an answer, and Doc ∩ Word where
    both occur, even in different passages. (``Success@k`` of the annotator ``dual`` requires them in
    one passage.)

    Args:
        runs: the run table.
        both: the dual labels table; passages without labels have neither.
        query_ids: the queries of the evaluation.
        cutoffs: 1 or more each.
        skip_missing: leave queries that a run lists nothing for out of its figures; else neither event
            occurs for them.
    """
    frames = [
        pl.DataFrame(
            [(run, cutoff, len(document), p.name, p.value, p.low, p.high, p.note) for p in five],
            schema=tables.DUAL,
            orient="row",
        )
        for run, cutoff, document, word in _events(runs, both, query_ids, cutoffs, skip_missing)
        for five in [dual_probabilities(document, word, bootstrap)]
    ]
    return pl.concat([tables.empty(tables.DUAL), *frames])


def _events(
    runs: pl.DataFrame,
    both: pl.DataFrame,
    query_ids: Sequence[str],
    cutoffs: Sequence[int],
    skip_missing: bool,
) -> Iterator[tuple[str, int, npt.NDArray[np.bool_], npt.NDArray[np.bool_]]]:
    """Run, cutoff, and whether each event occurred, by query in the order of their ids."""
    queries = pl.DataFrame({QUERY_ID: sorted(query_ids)}, schema={QUERY_ID: pl.String()})
    labelled = runs.join(both, on=[QUERY_ID, DOC_ID], how="left")
    for name in runs[RUN].unique(maintain_order=True):
        of_run = labelled.filter(pl.col(RUN) == name)
        counted = queries.join(of_run, on=QUERY_ID, how="semi") if skip_missing else queries
        for cutoff in cutoffs:
            hits = (
                of_run.filter(pl.col(RANK) <= cutoff)
                .group_by(QUERY_ID)
                .agg(pl.col(DOCUMENT_LABEL, WORD_LABEL).fill_null(False).any())
            )
            events = counted.join(hits, on=QUERY_ID, how="left").sort(QUERY_ID)
            document, word = (
                events[column].fill_null(False).to_numpy()
                for column in (DOCUMENT_LABEL, WORD_LABEL)
            )
            yield name, cutoff, document, word


def _five(sums: Floats, n: int) -> Floats:
    """(5, B) probabilities from (3, B) numbers of queries with Doc, Word and both; 0/0 is NaN."""
    document, word, both = sums
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.stack([document / n, word / n, both / n, both / word, both / document])


def _described(
    name: str,
    estimate: float,
    replicates: Floats,
    without: Floats | None,
    row: int,
    bootstrap: Bootstrap,
) -> Probability:
    nan = float("nan")
    if np.isnan(estimate):
        return Probability(name, nan, nan, nan, "undefined: the condition never occurs")
    if not bootstrap.resamples:
        return Probability(name, estimate, nan, nan, "")
    low, high, note = interval(
        estimate,
        replicates,
        None if without is None else without[row],
        method=bootstrap.interval,
        confidence=bootstrap.confidence,
    )
    for side in ("one side is constant", "a side is constant"):
        note = note.replace(side, "the condition never occurs")
    return Probability(name, estimate, low, high, note)
