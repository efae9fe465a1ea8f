"""Name the passages whose labels are needed next, so that measures come out as if all labels were known.

A decider: a pure function of lists and of the labels so far. Reading goes in rounds (``shard_plans.Planner``):
what is named is read, and the decider is asked again, until it names nothing. No label that is left out can
change a measure then, whatever its value in [0, 1].
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import polars as pl

from engine.ranking.measures import DEFAULT_REL, Measure
from engine.tables import DOC_ID, LABEL, QUERY_ID, RANK, RUN

_LIST = [RUN, QUERY_ID]
_PLACE = "place"  # of a passage in its list, from 1


@dataclass(frozen=True)
class Pace:
    """How many labels a round asks for.

    Attributes:
        least: reads at least, where so many may be needed: lists that are few go several ranks at a time.
        doubles: whether each list asks for as many passages as it has read; fewer rounds, where each
            starts processes.
    """

    least: int = 1
    doubles: bool = False


def next_pairs(
    lists: Sequence[pl.DataFrame],
    known: pl.DataFrame,
    measures: Sequence[Measure],
    *,
    own_list: bool,
    pace: Pace | None = None,
) -> pl.DataFrame:
    """``query_id`` and ``doc_id`` of the passages to label next; none once all measures are settled.

    Where one list of a query does not need a passage, another may: the needs of all are united.

    - Success and R over the list's own passages: rank by rank to the first useful passage.
    - RR: the same; all ranks before it are known then.
    - P and DCG: all ranks within the cutoff. Judged: none, since every passage would be.
    - R, F1, AP, nDCG and Rprec: first all ranks within the cutoff. Where none of them counts, the score is 0.
      Else all that is judged (the best order, or the number of the relevant); but nDCG no more than as
      many passages with the largest label, 1, as its cutoff has ranks.

    Args:
        lists: run tables: first the one that is scored, then lists of the same passages in other orders.
        known: ``query_id``, ``doc_id``, ``label`` in [0, 1].
        own_list: whether the list's own passages are judged, rather than those of all runs.
    """
    pace = pace or Pace()
    places = [
        runs.select(
            *_LIST, DOC_ID, pl.col(RANK).rank("ordinal").over(_LIST).cast(pl.Int64).alias(_PLACE)
        )
        .join(known, on=[QUERY_ID, DOC_ID], how="left", maintain_order="left")
        .sort(*_LIST, _PLACE)
        for runs in lists
    ]
    judged = places[0].select(QUERY_ID, DOC_ID, LABEL).unique([QUERY_ID, DOC_ID])
    needed = [
        rows.select(QUERY_ID, DOC_ID)
        for ranked in places
        for measure in measures
        for rows in _needed(ranked, measure, None if own_list else judged, pace)
    ]
    return pl.concat([judged.select(QUERY_ID, DOC_ID).clear(), *needed]).unique()


def _needed(
    ranked: pl.DataFrame, measure: Measure, pool: pl.DataFrame | None, pace: Pace
) -> Iterator[pl.DataFrame]:
    """The rows that a measure needs next."""
    kind, cutoff = measure.kind, measure.cutoff
    if kind == "Judged":
        return
    inside = ranked if cutoff is None else ranked.filter(pl.col(_PLACE) <= cutoff)
    lacking = pl.col(LABEL).is_null()
    if kind in ("P", "DCG"):
        yield inside.filter(lacking)
        return
    useful = (pl.col(LABEL) >= (measure.rel or DEFAULT_REL)).fill_null(False)
    if kind in ("Success", "RR"):
        yield _in_turn(inside, useful, pace, to_first=kind == "RR")
        return
    by = _LIST if pool is None else [QUERY_ID]
    total = (ranked if pool is None else pool).group_by(by).len("judged")
    whole = (
        inside.group_by(_LIST).len().join(total, on=by).filter(pl.col("len") == pl.col("judged"))
    )
    if kind == "R":  # all that is relevant was found, or nothing
        yield _in_turn(inside.join(whole, on=_LIST, how="semi"), useful, pace)
        inside = inside.join(whole, on=_LIST, how="anti")
    unknown = inside.filter(lacking)
    yield unknown
    counts = pl.col(LABEL) > 0 if measure.rel is None else useful
    open_lists = inside.filter(counts).join(unknown, on=_LIST, how="anti").select(_LIST).unique()
    if pool is None:
        rest = ranked.join(open_lists, on=_LIST, how="semi")
    else:
        rest = pool.join(open_lists, on=QUERY_ID, how="semi")
    if kind == "nDCG" and cutoff is not None:
        best = (pl.col(LABEL) >= 1).fill_null(False).sum().over(by)
        rest = rest.filter(best < cutoff)
    yield rest.filter(lacking)


def _in_turn(
    inside: pl.DataFrame, useful: pl.Expr, pace: Pace, *, to_first: bool = False
) -> pl.DataFrame:
    """The next passages of each list without a useful one; ``to_first``: or with others before that."""
    first = pl.col(_PLACE).filter(useful).min().over(_LIST)
    left = (pl.col(_PLACE) < first).fill_null(True) if to_first else first.is_null()
    rows = inside.with_columns(pl.col(LABEL).count().over(_LIST).alias("read")).filter(
        pl.col(LABEL).is_null() & left
    )
    width = -(-pace.least // max(1, rows.select(_LIST).n_unique()))
    most = pl.max_horizontal("read", pl.lit(width)) if pace.doubles else pl.lit(width)
    return rows.filter(pl.int_range(pl.len()).over(_LIST) < most)
