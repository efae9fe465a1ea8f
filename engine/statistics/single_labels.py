"""Estimates about whole lists from labels of single passages: a list's score, and mean scores if few lists are read.

The ceiling is the greatest tau-b between list scores of 0 and 1 and any function of a list's ordered labels. Lists with
the same labels form a group, which no function can tell apart. Fitted to the queries at hand it is an upper bound: the
more groups, the higher by chance alone. It has no interval, since resamples of a maximum do not hold it.

If only n of N lists are read, all lists' labels help to estimate the mean. A difference estimator (Cassel, Särndal &
Wretman 1976; prediction-powered inference: Angelopoulos et al. 2023) predicts a score f for each of the N queries: the
mean is the mean of f over all queries, plus the mean of y - f over the n read lists. It is unbiased for any f; the
closer f is to y, the narrower the interval. f is a shrunken linear function of a list's ranking measures, fitted
without the queries that it is subtracted from.

The interval of the mean of y - f is that of a mean from a bounded range (``bounded``), as for leads: if scores are 0
and 1 and predictions constant, it is Clopper & Pearson's. For other queries like these, it is combined with the
interval of the mean of f (Zou & Donner 2008, "Construction of confidence limits about effect measures", Statistics in
Medicine 27); for these N queries it shrinks with the fraction of lists read.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
import polars as pl
import scipy as sp

from engine import tables
from engine.statistics.arrays import Floats, Ints
from engine.statistics.bounded import WeightedRows, lower_bound, mean_interval, weighed
from engine.statistics.comparison import Cell, Clusters, correlate_cells, numbered
from engine.statistics.correlation import DECIMALS, Bootstrap
from engine.statistics.leads import Differences
from engine.statistics.runs import RunScores
from engine.statistics.until import least_enough
from engine.tables import LABEL, PLACE, QUERY_ID, RHO, RUN, VALUE, K, N, high_of, low_of

# The least score that counts as right, for scores and labels between 0 and 1.
SUCCESS = 0.5
# The figures: shares of the queries, and tau of the best function of the labels.
RIGHT_UNSEEN, WRONG_DESPITE = "right_without_label", "wrong_despite_label"
RIGHT_CLOSED = "right_without_passage"
CEILING = "tau_ceiling"
# Of lists: whether a label is right, and all are known; and a number that equal labels share.
_SOME, _WHOLE, _GROUP = "some", "whole", "group"


def unseen(
    label_lists: pl.DataFrame,
    downstream: pl.DataFrame,
    bootstrap: Bootstrap,
    clusters: Clusters,
    known: pl.DataFrame | None = None,
) -> pl.DataFrame:
    """The table ``unseen``: per run, lists that are right without a right label, or wrong despite one; the ceiling.

    If the reader was also run without passages: also the lists of queries that it answers right without any.

    Args:
        label_lists: ``tables.LABEL_LISTS``. If some labels are missing, the others decide, or the list is left out.
        bootstrap: shares have exact intervals (``bounded.mean_interval``) if it has resamples.
        known: ``tables.HARM_OUTCOMES``; None if the reader was not run without passages.
    """
    rows: list[tuple[object, ...]] = []

    def add_share(cell: tuple[object, ...], lists: pl.DataFrame, name: str) -> None:
        event, low, high = lists[name].cast(pl.Float64).to_numpy(), math.nan, math.nan
        if bootstrap.resamples:
            codes = numbered(lists[QUERY_ID], clusters)
            low, high = mean_interval(event, bootstrap.confidence, codes)
        rows.append((*cell, lists.height, name, event.mean(), low, high, ""))

    # From here on without the labels, whose copies would be the most of the memory.
    marked = label_lists.with_row_index(_GROUP).select(
        RUN,
        QUERY_ID,
        pl.col(LABEL).list.eval(pl.element() >= SUCCESS).list.any().fill_null(False).alias(_SOME),
        (~pl.col(LABEL).list.contains(None)).alias(_WHOLE),
        pl.col(_GROUP).first().over(LABEL),
    )
    scored = marked.join(downstream, on=[RUN, QUERY_ID]).filter(pl.col(_SOME) | pl.col(_WHOLE))
    right = pl.col(VALUE) >= SUCCESS
    events = {RIGHT_UNSEEN: right & ~pl.col(_SOME), WRONG_DESPITE: ~right & pl.col(_SOME)}
    scored = scored.with_columns(**events).sort(QUERY_ID)
    for cell, lists in scored.group_by([RUN, K], maintain_order=True):
        for name in events:
            add_share(cell, lists, name)
        tau, note = _at_best(lists)
        rows.append((*cell, lists.height, CEILING, tau, math.nan, math.nan, note))
    if known is not None:
        closed = known.rename({tables.KNOWN: RIGHT_CLOSED})
        answered = downstream.join(closed, on=QUERY_ID).sort(QUERY_ID)
        for cell, lists in answered.group_by([RUN, K], maintain_order=True):
            add_share(cell, lists, RIGHT_CLOSED)
    return pl.DataFrame(rows, schema=tables.UNSEEN, orient="row")


def _at_best(lists: pl.DataFrame) -> tuple[float, str]:
    y = lists[VALUE].to_numpy()
    reasons = {
        "labels were made only as far as measures need them": not lists[_WHOLE].all(),
        "end-to-end scores are not 0 and 1 alone": not np.isin(y, (0, 1)).all(),
        f"the end-to-end score is {y[0]:g} for every query": (y == y[0]).all(),
        "the labels are the same for every query": lists[_GROUP].n_unique() < 2,
    }
    if note := next((f"undefined: {why}" for why, holds in reasons.items() if holds), ""):
        return math.nan, note
    groups = lists.group_by(_GROUP).agg(pl.len().alias(N), pl.col(VALUE).sum())
    best = ceiling(groups[N].to_numpy(), groups[VALUE].to_numpy())
    return best, f"upper bound, fitted; {groups.height} combinations of labels"


def ceiling(size: Ints, right: Floats) -> float:
    """The greatest tau-b with y (0 or 1) of any function of the group, from groups' sizes and sums of y, of shape (g,).

    This function rises with the mean score of a group. An exact search finds the neighbours that share a level: tau is
    ``N / sqrt(D Y)`` for N concordant less discordant pairs, D pairs on two levels and Y pairs of two scores, and
    ``N^2 / D`` is convex, so that it is greatest at a corner of the convex hull of all (D, N). NaN if y does not vary.
    """
    means, level = np.unique(right / size, return_inverse=True)
    by_level = (np.bincount(level, side, len(means)) for side in (right, size))
    ones, sizes = (np.append(0.0, np.cumsum(side)) for side in by_level)
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
    """(D, N) of the levels that maximize ``N - price D``, from running sums of ordered groups."""
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
    """The table ``by_place``: Spearman's rho of list scores and labels at each place, over the lists that reach it.

    Arguments as for ``unseen``; ``label`` is the mean. No rows if some labels are missing.
    """
    cells, rows = _at_places(label_lists, downstream.select(RUN, QUERY_ID, K, VALUE), clusters)
    for row, result in zip(rows, correlate_cells(cells, bootstrap), strict=True):
        figures = result.correlation
        row |= {RHO: figures.rho, low_of(RHO): figures.rho_low, high_of(RHO): figures.rho_high}
        note = figures.note.replace("the measure", "the label")
        row |= {tables.METHOD: figures.method, tables.NOTE: note}
    return pl.DataFrame(rows, schema=tables.BY_PLACE)


def _at_places(
    label_lists: pl.DataFrame, downstream: pl.DataFrame, clusters: Clusters
) -> tuple[list[Cell], list[dict[str, Any]]]:
    """A cell and the first columns for each place: resamples need the memory of the lists."""
    scored = label_lists.join(downstream, on=[RUN, QUERY_ID]).filter(pl.col(LABEL).list.len() > 0)
    cells, rows = list[Cell](), list[dict[str, Any]]()
    if scored[LABEL].explode().null_count():
        return cells, rows
    scored = scored.sort(RUN, QUERY_ID)
    shared: dict[tuple[str, ...], tuple[str, ...]] = {}
    for (run, k), lists in scored.group_by([RUN, K], maintain_order=True):
        ids: tuple[str, ...] = ()
        # A place at a time: a row for each label would be ten times the lists.
        for place in range(1, lists[LABEL].list.len().to_numpy().max() + 1):
            label = lists[LABEL].list.get(place - 1, null_on_oob=True)
            x = label.drop_nulls().round(DECIMALS).to_numpy()
            if len(x) != len(ids):  # else these lists reach the place above, too
                reaching = lists.filter(label.is_not_null())
                ids, y = tuple(reaching[QUERY_ID]), reaching[VALUE].round(DECIMALS).to_numpy()
                ids = shared.setdefault(ids, ids)
            cells.append(Cell(str(run), "", "", None, ids, x, y, numbered(ids, clusters)))
            rows.append({RUN: run, K: k, PLACE: place, tables.N: len(x), LABEL: x.mean()})
    return cells, rows


# With fewer lists, no valid interval is narrow enough to be useful.
LEAST_LISTS = 20
# Lists of the first round to a width.
FIRST_LISTS = 40
# Folds of the fit.
_FOLDS = 10
# The logarithm of the least p-value, and the steps of the search for p-values.
_LEAST_LOG_P, _HALVINGS = -30.0, 24
# Standard errors of a 90% upper bound.
_DOUBT = 1.28
# Columns of bounds for other queries, and for these.
_BOUNDS = (low_of(VALUE), high_of(VALUE), "low_these_queries", "high_these_queries")


@dataclass(frozen=True, eq=False)
class Estimate:
    """A mean over N queries, n with a read list."""

    known: Floats  # (n,) the scores of the lists read
    foretold: Floats  # (n,) their predictions, each fitted without its own score
    f: Floats  # (N,) predictions for all queries
    low: float = 0.0  # the range of scores
    high: float = 1.0

    def less(self, other: Estimate) -> Estimate:
        """The difference of two runs' means on the same queries, with the same lists read."""
        parts = self.known - other.known, self.foretold - other.foretold, self.f - other.f
        return Estimate(*parts, self.low - other.high, self.high - other.low)

    @property
    def value(self) -> float:
        """The estimate; NaN if no list was read."""
        if not self.n:
            return math.nan
        return float(self.f.mean() + (self.known - self.foretold).mean())

    @property
    def rho(self) -> float:
        """Correlation of predictions and scores on the lists read; 0 if either is constant."""
        varies = self.n and np.ptp(self.known) > 0 and np.ptp(self.foretold) > 0
        return float(np.corrcoef(self.known, self.foretold)[0, 1]) if varies else 0.0

    @property
    def n(self) -> int:
        """Number of lists read."""
        return len(self.known)

    def interval(self, level: float, *, here: bool = False) -> tuple[float, float]:
        """The interval of the mean; NaN with fewer than ``LEAST_LISTS`` lists.

        Args:
            level: 1 less the confidence, divided among intervals that hold together.
            here: for the mean of just these queries; else for the mean of others like these.
        """
        if self.n < LEAST_LISTS:
            return math.nan, math.nan
        of = len(self.f)
        reach, unread = self.reaches(level, self.n, of), 1 - self.n / of
        least, most = self.low, self.high
        if here:
            below, above = (part * math.sqrt(unread) for part, _ in reach)
            least, most = (float(self.known.sum()) / of + unread * end for end in (least, most))
        else:
            below, above = (math.hypot(*parts) for parts in reach)
        # All scores are at an end of the range: the mean may be there.
        low = least if (self.known == self.low).all() else max(least, self.value - below)
        high = most if (self.known == self.high).all() else min(most, self.value + above)
        return low, high

    def reaches(
        self, level: float, n: int, of: int, doubt: float = 0.0
    ) -> tuple[tuple[float, float], tuple[float, float]]:
        """Distances of the interval's ends below and above the mean, for n of so many lists: from y - f, and from f.

        The variance of y - f may exceed that of the lists read by ``doubt`` standard errors.
        """
        residuals, ends, tail = self.known - self.foretold, self._ends(), level / 2
        mean, each = float(residuals.mean()), n / self.n
        f_reach = (
            -float(sp.special.stdtrit(of - 1, tail)) * float(self.f.std(ddof=1)) / math.sqrt(of)
        )
        below = mean - _bound(residuals, float(ends[0]), tail, each)
        above = -mean - _bound(-residuals, -float(ends[1]), tail, each)
        apart = np.append(residuals, ends) - mean
        second, fourth = float((apart**2).mean()), float((apart**4).mean())
        wider = math.sqrt(1 + doubt * math.sqrt((fourth / second**2 - 1) / len(apart)))
        return (wider * below, f_reach), (wider * above, f_reach)

    def p_value(self, comparisons: int) -> float:
        """1 less the confidence at which the interval just reaches 0, for all comparisons; NaN without an interval."""
        if self.n < LEAST_LISTS:
            return math.nan
        most, step = 0.0, _LEAST_LOG_P
        for _ in range(_HALVINGS):
            step /= 2
            low, high = self.interval(math.exp(most + step))
            if not low <= 0 <= high:
                most += step
        return min(1.0, comparisons * math.exp(most))

    def _ends(self) -> Floats:
        """The least and the largest residual; for a pair, cut to a query's largest contribution to a lead.

        The uncut extremes are runs that differ maximally, contrary to the prediction: they widened intervals of pairs
        by 1% to 6% in replays, without holding more often.
        """
        return np.clip(np.array([self.low - self.f.max(), self.high - self.f.min()]), -1.0, 1.0)


def estimate(y: Floats, features: Floats) -> Estimate:
    """The mean of a score between 0 and 1.

    Args:
        y: (N,) per query, NaN if its list was not read. The lists read are a random sample.
        features: (N, p) predictors for all queries.
    """
    read = np.flatnonzero(~np.isnan(y))
    n = len(read)
    foretold, f = np.empty(n), np.zeros(len(y))
    if len(y) == 0:
        return Estimate(foretold, foretold, f)
    columns = features[:, np.ptp(features, axis=0) > 0]
    columns = (columns - columns.mean(axis=0)) / columns.std(axis=0)
    for fold in range(min(_FOLDS, n)):
        apart = np.arange(n) % _FOLDS == fold
        others = read[~apart] if n > 1 else read
        predicted = _fitted(columns[others], y[others], columns)
        foretold[apart] = predicted[read[apart]]
        f += predicted * float(apart.mean())
    return Estimate(y[read], foretold, f)


def means(downstream: pl.DataFrame, query_scores: pl.DataFrame, level: float) -> pl.DataFrame:
    """The mean end-to-end score per run over all queries: its estimate, both intervals, and rho.

    Args:
        downstream: scores of the lists read, at least one; a run without scores has no row.
        query_scores: of all queries; the first annotator's measures predict scores.
    """
    rows: list[dict[str, Any]] = []
    for run, table in _tables(downstream, query_scores).items():
        mean = estimate(table[VALUE].to_numpy(), table.drop(QUERY_ID, VALUE).to_numpy())
        if mean.n:
            bounds = (*mean.interval(level), *mean.interval(level, here=True))
            figures = {VALUE: mean.value, N: mean.n, "of": len(mean.f), "rho": mean.rho}
            figures |= dict(zip(_BOUNDS, bounds, strict=True))
            rows.append({RUN: run, K: downstream[K][0]} | figures)
    return pl.DataFrame(rows)


def from_labels(
    whole: RunScores, downstream: pl.DataFrame, query_scores: pl.DataFrame, bootstrap: Bootstrap
) -> RunScores:
    """Scores of some lists with means and differences of all queries; differences are for other queries like these.

    All use the queries that every run has; for each query all lists were read, or none.
    """
    by_run, pairs = compared(downstream, query_scores)
    assert tuple(by_run) == whole.runs
    level = (1 - bootstrap.confidence) / len(pairs)
    rows = [[pair.value, *pair.interval(level), pair.p_value(len(pairs))] for pair in pairs]
    *figures, p = np.array(rows).T
    value, low, high = np.round(figures, DECIMALS) + 0.0
    means = tuple(mean.value for mean in by_run.values())
    return replace(whole, means=means, differences=Differences(value, low, high, p))


def compared(
    downstream: pl.DataFrame, query_scores: pl.DataFrame
) -> tuple[dict[str, Estimate], list[Estimate]]:
    """The mean per run with scores, over the queries common to these runs, and the lead for every two runs."""
    tables_by_run = _tables(downstream, query_scores)
    runs = [run for run in downstream[RUN].unique(maintain_order=True) if run in tables_by_run]
    frames = [tables_by_run[run] for run in runs]
    for other in frames:
        frames = [
            table.join(other, on=QUERY_ID, how="semi", maintain_order="left") for table in frames
        ]
    y = np.array([table[VALUE].to_numpy() for table in frames])
    y[:, np.isnan(y).any(axis=0)] = np.nan
    features = (table.drop(QUERY_ID, VALUE).to_numpy() for table in frames)
    means = [estimate(scores, known) for scores, known in zip(y, features, strict=True)]
    pairs = [mean.less(other) for mean, other in combinations(means, 2)]
    return dict(zip(runs, means, strict=True)), pairs


def next_lists(
    leads: Sequence[Estimate], width: float, level: float, of: int, *, labelled: bool
) -> tuple[int, bool]:
    """Total of lists to reach next, and whether with all queries' labels: the number read so far if it suffices.

    First, half of the estimated number of lists is read with only their own queries' labels. Their scores then decide
    the total: the number needed if scores spread as far as plausible. ``of`` counts queries.
    """
    n = leads[0].n
    if labelled and half_width(leads, level, n, of) <= width:
        return n, True

    def needed(doubt: float) -> int:
        return least_enough(lambda m: half_width(leads, level, m, of, doubt) <= width, n, of)

    if not labelled and n < (half := needed(0.0) // 2):
        return half, False
    return needed(_DOUBT), True


def half_width(
    leads: Sequence[Estimate], level: float, n: int, of: int, doubt: float = 0.0
) -> float:
    """Half the width of the widest interval for ``of`` other queries, from n lists; ``level`` covers all together."""
    reaches = (lead.reaches(level / len(leads), n, of, doubt) for lead in leads)
    return max((math.hypot(*below) + math.hypot(*above)) / 2 for below, above in reaches)


def _tables(downstream: pl.DataFrame, query_scores: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Per run, a row for each query: the score of its list, or null, and the first annotator's measures."""
    first = query_scores.filter(pl.col(tables.ANNOTATOR) == pl.col(tables.ANNOTATOR).first())
    measures = first.pivot(tables.MEASURE, index=[RUN, QUERY_ID], values=VALUE)
    scores = downstream.select(RUN, QUERY_ID, VALUE)
    table = measures.join(scores, on=[RUN, QUERY_ID], how="left").sort(RUN, QUERY_ID)
    return {str(run): rows.drop(RUN) for (run,), rows in table.group_by(RUN, maintain_order=True)}


def _fitted(columns: Floats, y: Floats, every: Floats) -> Floats:
    """Ridge regression of ``y``, for all queries; the penalty is the square root of the number of queries.

    In replays the residuals spread less than with a fixed penalty of 4: by 1% in the mean, in nearly all cells.
    """
    middle, mean = columns.mean(axis=0), float(y.mean())
    centred = columns - middle
    square = centred.T @ centred + math.sqrt(len(y)) * np.identity(columns.shape[1])
    return np.asarray(mean + (every - middle) @ np.linalg.solve(square, centred.T @ (y - mean)))


def _bound(residuals: Floats, end: float, tail: float, each: float) -> float:
    """The lower bound of the mean, with ``each`` copies of all residuals, and one at the lower end of the range."""
    sums, sizes, amounts = weighed(residuals, np.ones(len(residuals)))
    rows = WeightedRows(np.append(sums, end), np.append(sizes, 1.0), np.append(amounts * each, 1.0))
    return lower_bound(rows, tail)
