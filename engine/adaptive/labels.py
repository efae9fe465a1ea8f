"""Name the passages to label next, so that measures come out as if all passages were labelled.

Pure functions of lists and of the labels so far. Reading goes in rounds (``evaluation.plan.ShardPlans``): named
passages are read, and the chooser is called again, until it names none. No missing label can change a measure then,
whatever its value in [0, 1].
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import polars as pl

from engine.ranking.kinds.base import Measure
from engine.ranking.ties import reordered_lists
from engine.tables import DOC_ID, DOC_IDS, LABEL, QUERY_ID, RANK, RUN

_READ_OF = [QUERY_ID, DOC_IDS]
_LIST = [RUN, QUERY_ID]
# The place of a passage in its list, from 1; the number of needed passages before it; and of labelled ones in its list.
_PLACE, _TURN, _READ = "place", "turn", "read"
_KEYS = [QUERY_ID, DOC_ID, _TURN, _READ]


# Maps reads to reads: finished reads to needed reads, or requested reads to finished reads.
Chooser = Callable[[pl.DataFrame], pl.DataFrame]


def next_reads(
    lists: pl.DataFrame,
    singles: pl.DataFrame,
    before: pl.DataFrame | None,
    *,
    answered: Chooser,
    decide: Chooser,
    fused: bool = False,
) -> tuple[pl.DataFrame, bool]:
    """The reads of a shard in the next and earlier rounds, and whether further rounds add none.

    Whole lists are read in any case; stored labels count at once, without a round.

    Args:
        lists: ``query_id`` and ``doc_ids`` of all reads: first the ``singles``, then whole lists.
        singles: reads of single passages, each once.
        before: the reads of earlier rounds; None before the first.
        answered: maps reads to the finished or failed reads among them.
        decide: maps finished reads to the reads of single passages that are needed next.
        fused: whether a list's passages are encoded with it: a later round would have to encode them again.
    """
    whole, lists = lists.slice(singles.height), lists.unique(_READ_OF, maintain_order=True)
    new = whole if before is None else whole.join(before, on=_READ_OF, how="anti")
    if fused and new.height:
        passages = new.explode(DOC_IDS).select(QUERY_ID, pl.concat_list(DOC_IDS).alias(DOC_IDS))
        first = decide(answered(whole.clear()))
        whole = pl.concat(
            [whole, singles.join(pl.concat([passages, first]), on=_READ_OF, how="semi")]
        )
    known = whole if before is None else pl.concat([whole, before.select(whole.columns)])
    requested = lists.join(known, on=_READ_OF, how="semi", maintain_order="left")
    new, finished = requested.join(singles, on=_READ_OF, how="semi"), []
    while True:
        answers = answered(new)
        if answers.height < new.height:
            return _in_order(lists, requested), requested.height == lists.height
        finished.append(answers)
        needed = singles.join(decide(pl.concat(finished)), on=_READ_OF, how="semi")
        new = needed.join(requested, on=_READ_OF, how="anti").unique(_READ_OF)
        if new.is_empty():
            return _in_order(lists, requested), True
        requested = pl.concat([requested, new])


def _in_order(lists: pl.DataFrame, requested: pl.DataFrame) -> pl.DataFrame:
    return lists.join(requested, on=_READ_OF, how="semi", maintain_order="left")


def decider(
    runs: pl.DataFrame,
    measures: Sequence[Measure],
    value: Callable[[pl.DataFrame], pl.Series],
    *,
    own_list: bool,
    least: int,
    doubles: bool,
) -> Chooser:
    """A chooser by ``next_pairs``, which explains the other arguments; ``value`` gives the labels of reads."""
    # Results under other orders of equal scores are reported, too.
    others = reordered_lists(runs)
    lists = [runs, *(rows.join(changed, on=_LIST, how="semi") for _, rows, changed in others)]

    def decide(reads: pl.DataFrame) -> pl.DataFrame:
        document = pl.col(DOC_IDS).list.first().alias(DOC_ID)
        known = reads.select(QUERY_ID, document, value(reads).alias(LABEL))
        pairs = next_pairs(lists, known, measures, own_list=own_list, least=least, doubles=doubles)
        return pairs.select(QUERY_ID, pl.concat_list(DOC_ID).alias(DOC_IDS))

    return decide


def next_pairs(
    lists: Sequence[pl.DataFrame],
    known: pl.DataFrame,
    measures: Sequence[Measure],
    *,
    own_list: bool,
    least: int = 1,
    doubles: bool = False,
) -> pl.DataFrame:
    """``query_id`` and ``doc_id`` of the passages to label next; none once all measures are settled.

    The needs of all lists of a query are united. ``Measure.reads`` says which labels decide a measure. If all judged
    labels do, as for the best order or the number of relevant passages, passages within the cutoff go first, and the
    score is 0 if none counts; a measure of the best order needs at most as many passages with the largest label, 1,
    as its cutoff has ranks.

    Args:
        lists: run tables: first the scored table, then lists of the same passages in other orders.
        known: ``query_id``, ``doc_id``, ``label`` in [0, 1].
        own_list: whether a list's own passages are judged, rather than the passages of all runs.
        least: labels to request per round, if so many may be needed: few lists go several ranks at a time.
        doubles: whether each list requests as many passages as it has read; for fewer rounds if each starts
            processes.
    """
    place = pl.col(RANK).rank("ordinal").over(_LIST).cast(pl.Int64).alias(_PLACE)
    places = [
        runs.select(*_LIST, DOC_ID, place)
        .join(known, on=[QUERY_ID, DOC_ID], how="left", maintain_order="left")
        .sort(*_LIST, _PLACE)
        .with_columns(pl.lit(0, pl.Int64).alias(name) for name in (_TURN, _READ))
        for runs in lists
    ]
    judged = places[0].select(*_KEYS, LABEL).unique([QUERY_ID, DOC_ID])
    needed = [
        rows.select(_KEYS)
        for ranked in places
        for measure in measures
        for rows in _needed(ranked, measure, None if own_list else judged)
    ]
    requested = pl.concat([judged.select(_KEYS).clear(), *needed])
    now = requested.filter(pl.col(_TURN) == 0).n_unique([QUERY_ID, DOC_ID])
    width = pl.lit(max(1, -(-least // max(1, now))))
    most = pl.max_horizontal(_READ, width) if doubles else width
    return requested.filter(pl.col(_TURN) < most).select(QUERY_ID, DOC_ID).unique()


def _needed(
    ranked: pl.DataFrame, measure: Measure, pool: pl.DataFrame | None
) -> Iterator[pl.DataFrame]:
    reads, cutoff = measure.reads, measure.cutoff
    if reads == "none":
        return
    inside = ranked if cutoff is None else ranked.filter(pl.col(_PLACE) <= cutoff)
    lacking = pl.col(LABEL).is_null()
    if reads == "cutoff":
        yield inside.filter(lacking)
        return
    useful = (pl.col(LABEL) >= measure.threshold).fill_null(False)
    if reads in ("first", "found"):
        yield _in_turn(inside, useful, to_first=reads == "first")
        return
    if reads == "all":
        yield (ranked if pool is None else pool).filter(lacking)
        return
    by = _LIST if pool is None else [QUERY_ID]
    total = (ranked if pool is None else pool).group_by(by).len("judged")
    lengths = inside.group_by(_LIST).len()
    whole = lengths.join(total, on=by).filter(pl.col("len") == pl.col("judged"))
    if reads == "recall":  # the list has all relevant passages, or none
        yield _in_turn(inside.join(whole, on=_LIST, how="semi"), useful)
        inside = inside.join(whole, on=_LIST, how="anti")
    unknown = inside.filter(lacking)
    yield unknown
    counts = pl.col(LABEL) > 0 if measure.rel is None else useful
    open_lists = inside.filter(counts).join(unknown, on=_LIST, how="anti").select(_LIST).unique()
    rest = (ranked if pool is None else pool).join(open_lists, on=by, how="semi")
    if measure.has_best and cutoff is not None:
        best = (pl.col(LABEL) >= 1).fill_null(False).sum().over(by)
        rest = rest.filter(best < cutoff)
    yield rest.filter(lacking)


def _in_turn(inside: pl.DataFrame, useful: pl.Expr, *, to_first: bool = False) -> pl.DataFrame:
    """Unlabelled passages of lists without a useful passage; ``to_first``: also those before the first useful one."""
    first = pl.col(_PLACE).filter(useful).min().over(_LIST)
    left = (pl.col(_PLACE) < first).fill_null(True) if to_first else first.is_null()
    rows = inside.with_columns(pl.col(LABEL).count().over(_LIST).cast(pl.Int64).alias(_READ))
    rows = rows.filter(pl.col(LABEL).is_null() & left)
    return rows.with_columns(pl.int_range(pl.len()).over(_LIST).alias(_TURN))
