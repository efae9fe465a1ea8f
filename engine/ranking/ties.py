"""Equal scores: the measures if passages that share a score were in another order.

An evaluation orders lists as ``sources.runs`` does: TREC text and dictionaries of scores by document id descending,
like trec_eval, and other layouts by their ranks. Neither order is the retriever's judgment, so a measure that depends
on it is reported with the other value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import polars as pl

from engine import tables
from engine.messages.notes import Note
from engine.messages.wording import counted, number
from engine.tables import ANNOTATOR, DOC_ID, MEASURE, ORDER, QUERY_ID, RANK, RUN, SCORE, VALUE

# Scores of lists with their equal scores in another order.
REORDERED: tables.Schema = {**tables.QUERY_SCORES, ORDER: pl.String()}
# Orders of document ids that share a score: whether they descend, and the tools that use them.
_ORDERS = {
    "trec_eval's order (by document id, descending)": True,
    "ir_measures' order for RR@k (by document id, ascending)": False,
}
_GROUP, _OTHER = "group", "other"
_CELL = [RUN, ANNOTATOR, MEASURE]


def score_reordered(
    runs: pl.DataFrame,
    query_ids: Sequence[str],
    score: Callable[[pl.DataFrame, Sequence[str]], pl.DataFrame],
) -> pl.DataFrame:
    """Scores of lists with equal scores (in single precision), in every order but their own.

    Ranks decide which passages are adjacent: equal scores apart from each other do not change places. The table
    ``REORDERED`` has only lists that an order changes.

    Args:
        score: computes query scores of some queries, by a run table.
    """
    parts = [tables.empty(REORDERED)]
    for name, lists, changed in reordered_lists(runs):
        affected = set(changed[QUERY_ID])
        queries = [query for query in query_ids if query in affected]
        if queries:
            scores = score(lists.filter(pl.col(QUERY_ID).is_in(queries)), queries)
            scores = scores.join(changed, on=[RUN, QUERY_ID], how="semi", maintain_order="left")
            parts.append(scores.with_columns(pl.lit(name).alias(ORDER)))
    return pl.concat(parts)


def reordered_lists(runs: pl.DataFrame) -> Iterator[tuple[str, pl.DataFrame, pl.DataFrame]]:
    """Per order of equal scores: its name, the reordered run table, and ``run`` and ``query_id`` of changed lists."""
    group = pl.struct(RUN, QUERY_ID, pl.col(SCORE).cast(pl.Float32)).rle_id().alias(_GROUP)
    ranked = runs.sort(RUN, QUERY_ID, RANK).with_columns(group)
    if ranked[_GROUP].n_unique() == ranked.height:
        return
    for name, descends in _ORDERS.items():
        other = ranked.sort(_GROUP, DOC_ID, descending=[False, descends])
        changed = other.filter(other[DOC_ID] != ranked[DOC_ID]).select(RUN, QUERY_ID).unique()
        yield name, other.with_columns(ranked[RANK]).drop(_GROUP), changed


def tie_notes(scores: pl.DataFrame, reordered: pl.DataFrame) -> Iterator[Note]:
    """For each run with a mean that another order of equal scores moves, as printed: both values.

    The other order is trec_eval's if that moves a mean, else that of ir_measures.
    """
    several = scores[ANNOTATOR].n_unique() > 1
    for run in reordered[RUN].unique().sort():
        for order in _ORDERS:
            other = reordered.filter(pl.col(RUN) == run, pl.col(ORDER) == order)
            other = other.select(*_CELL, QUERY_ID, pl.col(VALUE).alias(_OTHER))
            both = (
                scores.filter(pl.col(RUN) == run)
                .join(other, on=[*_CELL, QUERY_ID], how="left", maintain_order="left")
                .with_columns(pl.col(_OTHER).fill_null(pl.col(VALUE)))
            )
            cells = both.group_by(ANNOTATOR, MEASURE, maintain_order=True).agg(
                pl.col(VALUE, _OTHER).sort().mean(),
                pl.col(QUERY_ID).filter(pl.col(VALUE) != pl.col(_OTHER)),
            )
            here, there, lists = [], [], set()
            for annotator, measure, *means, queries in cells.iter_rows():
                value, otherwise = map(number, means)
                if value != otherwise:
                    name = f"{annotator} {measure}" if several else measure
                    here.append(f"{name} {value}")
                    there.append(f"{name} {otherwise}")
                    lists |= set(queries)
            if lists:
                what = f"[list|lists] of {run} [has|have] tied scores, and the order of ties changes means"
                values = f"{', '.join(here)}; in {order} {', '.join(there)}"
                yield Note(
                    "tied_scores", len(lists), f"{counted(len(lists), what)}: {values}", (run,)
                )
                break
