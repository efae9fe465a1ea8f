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
        runs: the run table of several systems; a query may be missing from some of them.
        constant: the k of the literature, 0 or more; 60 (Cormack, Clarke & Büttcher 2009).
        one_corpus: whether all runs are known to be of the same queries and corpus, so that they may differ in all.

    Raises:
        InputError: a run shares no query with any other run, or no document of the same query.
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
    for what, keys, same in (
        ("query", [QUERY_ID], "of the same queries"),
        ("document that it lists for a query", [QUERY_ID, DOC_ID], "over one corpus"),
    ):
        listed = runs.select(RUN, *keys).unique(maintain_order=True)
        shared = listed.filter(pl.struct(keys).is_duplicated())[RUN].unique()
        if listed[RUN].n_unique() < 2 or shared.len() == listed[RUN].n_unique():
            continue
        run = listed.filter(~pl.col(RUN).is_in(shared.implode()))[RUN][0]
        own, others = listed.filter(pl.col(RUN) == run), listed.filter(pl.col(RUN) != run)
        if len(keys) > 1:  # of the same query
            others = others.join(own, on=QUERY_ID, how="semi", maintain_order="left")
            own = own.join(others.head(1), on=QUERY_ID, how="semi", maintain_order="left")
        has, other, has_other = own[keys[-1]][0], others[RUN][0], others[keys[-1]][0]
        raise InputError(
            f"the run {quoted(run)} has no {what} in common with another run "
            f"(it has {quoted(has)}, {quoted(other)} has {quoted(has_other)})",
            f"give runs {same}, under the same ids",
        )
