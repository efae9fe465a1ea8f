"""What labels of single passages say of the score of a whole list, at best and by place, and what they cannot see.

The ceiling is the greatest tau-b that any function of a list's labels, in their order, has with the scores of the
lists, where these are 0 and 1. Lists with the same labels are a group that no function tells apart. Fitted to the queries
at hand it is an upper bound: the more groups, the higher by chance alone. It has no interval, since resamples of a
maximum do not hold it.
"""

from __future__ import annotations

import math

import numpy as np
import polars as pl

from engine import tables
from engine.statistics.arrays import Floats, Ints
from engine.statistics.bounded import mean_interval
from engine.statistics.cells import Cell, Clusters, numbered
from engine.statistics.comparison import correlate_cells
from engine.statistics.correlation import DECIMALS, Bootstrap
from engine.tables import (
    KNOWN,
    LABEL,
    METHOD,
    NOTE,
    PLACE,
    QUERY_ID,
    RHO,
    RUN,
    VALUE,
    K,
    high_of,
    low_of,
)

# The least score that is right, of scores and labels between 0 and 1.
SUCCESS = 0.5
# The figures: shares of the queries, and tau of the best function of the labels.
RIGHT_UNSEEN, WRONG_DESPITE = "right_without_label", "wrong_despite_label"
RIGHT_CLOSED = "right_without_passage"
CEILING = "tau_ceiling"


def unseen(
    label_lists: pl.DataFrame,
    downstream: pl.DataFrame,
    bootstrap: Bootstrap,
    clusters: Clusters,
    known: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """The table ``unseen``: of each run, lists that are right though no label is, or wrong though one is; the ceiling.

    Where the reader was also asked without any passage: the lists of queries that it answers right so.

    Args:
        label_lists: ``tables.LABEL_LISTS``. Where labels were not made, those that were decide, or the list is left out.
        bootstrap: shares have exact intervals (``bounded.mean_interval``) where it has resamples.
        known: ``tables.HARM_OUTCOMES``; None where nothing was read without a passage.
    """
    rows: list[tuple[object, ...]] = []

    def add_share(of: tuple[object, ...], lists: pl.DataFrame, name: str) -> None:
        event, low, high = lists[name].cast(pl.Float64).to_numpy(), math.nan, math.nan
        if bootstrap.resamples:
            codes = numbered(lists[QUERY_ID], clusters)
            low, high = mean_interval(event, bootstrap.confidence, codes)
        rows.append((*of, lists.height, name, event.mean(), low, high, ""))

    some = pl.col(LABEL).list.eval(pl.element() >= SUCCESS).list.any().fill_null(False)
    right, made = pl.col(VALUE) >= SUCCESS, ~pl.col(LABEL).list.contains(None)
    scored = label_lists.join(downstream, on=[RUN, QUERY_ID]).filter(some | made)
    scored = scored.with_columns((right & ~some).alias(RIGHT_UNSEEN), (~right & some).alias(WRONG_DESPITE), made=made)  # fmt: skip
    for of, lists in scored.sort(QUERY_ID).group_by([RUN, K], maintain_order=True):
        for name in (RIGHT_UNSEEN, WRONG_DESPITE):
            add_share(of, lists, name)
        tau, note = _at_best(lists)
        rows.append((*of, lists.height, CEILING, tau, math.nan, math.nan, note))
    if known is not None:
        answered = downstream.join(known.rename({KNOWN: RIGHT_CLOSED}), on=QUERY_ID).sort(QUERY_ID)
        for of, lists in answered.group_by([RUN, K], maintain_order=True):
            add_share(of, lists, RIGHT_CLOSED)
    return pl.DataFrame(rows, schema=tables.UNSEEN, orient="row")


def _at_best(lists: pl.DataFrame) -> tuple[float, str]:
    y, labels = lists[VALUE].to_numpy(), lists[LABEL]
    reasons = {
        "labels were made only as far as measures need them": not lists["made"].all(),
        "end-to-end scores are not 0 and 1 alone": not np.isin(y, (0, 1)).all(),
        f"the end-to-end score is {y[0]:g} for every query": (y == y[0]).all(),
        "the labels are the same for every query": labels.n_unique() < 2,
    }
    if note := next((f"undefined: {why}" for why, holds in reasons.items() if holds), ""):
        return math.nan, note
    texts = labels.list.eval(pl.element().cast(pl.String)).list.join(" ")
    group = texts.rank("dense").to_numpy().astype(np.intp) - 1
    return ceiling(group, y), f"upper bound, fitted; {group.max() + 1} combinations of labels"


def ceiling(group: Ints, y: Floats) -> float:
    """The greatest tau-b with y that a function of the group has; NaN where y does not vary.

    That function goes up with the mean score of a group. Which neighbours share a level is found exactly: tau is
    ``N / sqrt(D Y)`` for N concordant less discordant pairs, D pairs on two levels and Y pairs of two scores, and
    ``N^2 / D`` is convex, so that it is greatest at a corner of the convex hull of all (D, N).

    Args:
        group: shape (n,), of each query, from 0 without gaps.
        y: shape (n,), 0 or 1.
    """
    size, right = np.bincount(group), np.bincount(group, y)
    means, level = np.unique(right / size, return_inverse=True)
    of_levels = (np.bincount(level, side, len(means)) for side in (right, size))
    ones, sizes = (np.append(0.0, np.cumsum(side)) for side in of_levels)
    apart = ones[-1] * (sizes[-1] - ones[-1])
    if not apart:
        return math.nan
    finest = _split(ones, sizes, -1.0)
    best, edges = finest[1] / math.sqrt(finest[0] or 1.0), [((0.0, 0.0), finest)]
    while edges:
        (pairs_a, net_a), (pairs_b, net_b) = edges.pop()
        # Between two corners none has more of N than the second, or less of D than the first.
        if pairs_a >= pairs_b or (pairs_a and net_b / math.sqrt(pairs_a) <= best):
            continue
        slope = (net_b - net_a) / (pairs_b - pairs_a)
        pairs, net = _split(ones, sizes, slope)
        if net - slope * pairs > net_a - slope * pairs_a + 1e-9 * max(1.0, net_b):
            best = max(best, net / math.sqrt(pairs))
            edges += [((pairs_a, net_a), (pairs, net)), ((pairs, net), (pairs_b, net_b))]
    return float(best / math.sqrt(apart))


def _split(ones: Floats, sizes: Floats, price: float) -> tuple[float, float]:
    """(D, N) of the levels for which ``N - price D`` is greatest, of groups in order, given as running sums."""
    pairs, nets = np.zeros(len(ones)), np.zeros(len(ones))
    for end in range(1, len(ones)):
        pair = pairs[:end] + (sizes[end] - sizes[:end]) * sizes[:end]
        net = nets[:end] + ones[end] * sizes[:end] - sizes[end] * ones[:end]
        last = np.argmax(net - price * pair)
        pairs[end], nets[end] = pair[last], net[last]
    return float(pairs[-1]), float(nets[-1])


def by_place(
    label_lists: pl.DataFrame, downstream: pl.DataFrame, bootstrap: Bootstrap, clusters: Clusters
) -> pl.DataFrame:
    """The table ``by_place``: Spearman's rho of the label at each place with the list's score, where lists reach it.

    The arguments are those of ``unseen``; ``label`` is the mean. No rows where some labels were not made.
    """
    scored = label_lists.join(downstream, on=[RUN, QUERY_ID]).filter(pl.col(LABEL).list.len() > 0)
    places = pl.int_ranges(1, pl.col(LABEL).list.len() + 1).alias(PLACE)
    placed = scored.with_columns(places).explode(PLACE, LABEL).sort(RUN, PLACE, QUERY_ID)
    cells, rows = [], []
    for (run, k, place), frame in placed.group_by([RUN, K, PLACE], maintain_order=True):
        x, y = (frame[name].round(DECIMALS).to_numpy() for name in (LABEL, VALUE))
        ids = tuple(frame[QUERY_ID])
        cells.append(Cell(str(run), "", "", None, ids, x, y, numbered(ids, clusters)))
        rows.append({RUN: run, K: k, PLACE: place, tables.N: len(x), LABEL: x.mean()})
    if placed[LABEL].null_count():
        return tables.empty(tables.BY_PLACE)
    for row, result in zip(rows, correlate_cells(cells, bootstrap), strict=True):
        found = result.correlation
        row |= {RHO: found.rho, low_of(RHO): found.rho_low, high_of(RHO): found.rho_high}
        row |= {METHOD: found.method, NOTE: found.note.replace("the measure", "the label")}
    return pl.DataFrame(rows, schema=tables.BY_PLACE)
