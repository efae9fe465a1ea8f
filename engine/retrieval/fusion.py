"""Reciprocal rank fusion: one run from the lists of several."""

from __future__ import annotations

import polars as pl

from engine import tables
from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.tables import DOC_ID, QUERY_ID, RANK, RUN, SCORE

RRF_K = 60


def reciprocal_rank(
    runs: pl.DataFrame,
    *,
    k: int,
    name: str = "rrf",
    constant: int = RRF_K,
    one_corpus: bool = False,
) -> pl.DataFrame:
    """Fuse runs: ``score(q, d) = sum over runs that list d of 1 / (constant + rank(q, d))``.

    The runs' scores matter only through the ranks. Equal sums are ordered by document id. The
    result does not depend on the order of the runs: terms are added in ascending order.

    Args:
        runs: the run table of several systems; a query may be missing from some systems.
        constant: the k of the literature, 0 or more; 60 (Cormack, Clarke & Büttcher 2009).
        one_corpus: whether all runs certainly have the same queries and corpus, so that they may share no document.

    Raises:
        InputError: a run shares no document of the same query with any other run.
    """
    if not one_corpus:
        _refuse_strangers(runs)
    term = (1 / (constant + pl.col(RANK))).alias(SCORE)
    return (
        runs.select(QUERY_ID, DOC_ID, term)
        .sort(QUERY_ID, DOC_ID, SCORE)
        .group_by(QUERY_ID, DOC_ID, maintain_order=True)
        .agg(pl.col(SCORE).sum())
        .sort(QUERY_ID, SCORE, DOC_ID, descending=[False, True, False])
        .with_columns(
            pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over(QUERY_ID).alias(RANK),
            pl.lit(name).alias(RUN),
        )
        .filter(pl.col(RANK) <= k)
        .select(list(tables.RUNS))
    )


def _refuse_strangers(runs: pl.DataFrame) -> None:
    """Refuse a run to whose lists no other run adds anything."""
    shared = runs.filter(pl.struct(QUERY_ID, DOC_ID).is_duplicated())
    strangers = runs.join(shared, on=RUN, how="anti", maintain_order="left")
    if strangers.is_empty() or runs[RUN].n_unique() < 2:
        return
    run, query, document = strangers.select(RUN, QUERY_ID, DOC_ID).row(0)
    others = runs.select(RUN, QUERY_ID, DOC_ID).filter(pl.col(RUN) != run)
    same = others.filter(pl.col(QUERY_ID) == query)
    names = map(quoted, (document, query, *(others if same.is_empty() else same).row(0)[::-1]))
    raise InputError(
        f"the run {quoted(run)} has no document in common with another run's list of the same query "
        "({} of query {} there, {} of query {} in {})".format(*names),
        "give runs of the same queries over one corpus, under the same ids",
        "runs.disjoint",
    )
