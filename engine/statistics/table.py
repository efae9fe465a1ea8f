"""The statistics of an evaluation, as tables, and the run to choose by them.

Leads of the run that is best end to end are differences of means, with the intervals and p-values of all pairs of runs
together, as in ``run_pairs``: the best run is a choice among all. A choice also needs the number of queries that would
settle uncertain leads, and the agreement of the annotators' measures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from operator import eq

import polars as pl

from engine import tables
from engine.statistics import comparison
from engine.statistics.correlation import DECIMALS, Bootstrap, margins
from engine.statistics.runs import Compare, RunScores, compare_runs, comparer, unit
from engine.statistics.single_labels import from_labels
from engine.tables import ANNOTATOR, BEST, MEASURE, QUERY_ID, RUN, TAU, K


@dataclass(frozen=True)
class Statistics:
    """The tables of an evaluation, ``unseen`` and ``by_place`` by ``single_labels``, and the choice of a run.

    ``choice`` is None if there is only one run.
    """

    correlations: pl.DataFrame
    comparisons: pl.DataFrame
    systems: pl.DataFrame
    run_pairs: pl.DataFrame
    choice: Choice | None
    unseen: pl.DataFrame = field(default_factory=lambda: tables.empty(tables.UNSEEN))
    by_place: pl.DataFrame = field(default_factory=lambda: tables.empty(tables.BY_PLACE))


def analyse(
    query_scores: pl.DataFrame,
    downstream: pl.DataFrame,
    bootstrap: Bootstrap,
    *,
    undefined: pl.DataFrame | None = None,
    comparable: comparison.Comparable = eq,
    largest: Callable[[str, str], float] = unit,
    clusters: comparison.Clusters = None,
) -> Statistics:
    """Every statistic of an evaluation, as the tables ``correlations``, ``comparisons``, ``systems`` and ``run_pairs``.

    Correlations are of every (run, annotator, measure) with the run's end-to-end score, and comparisons of two of them
    that differ in the annotator or the run. With several runs, systems say whether a measure orders them as the
    end-to-end score does, and run pairs have the differences of their means, by measure alone without ``downstream``.

    Queries are matched by ``query_id``; queries that one side lacks are left out (``n`` tells). ``k`` is the number of
    passages in the end-to-end reader's prompt.

    Args:
        downstream: the end-to-end scores; empty if no whole list was read.
        undefined: cells without a meaning (``tables.UNDEFINED``): ``correlations`` has their reason, and n = 0.
        comparable: which measures of two annotators are compared within a run; by default only equal ones.
        largest: the largest difference of two runs on a query, by annotator and measure; 1 end to end.
    """
    compared = list(comparison.read_cells(query_scores, downstream, clusters))
    cells = [] if downstream.is_empty() else compared
    fixed = bootstrap.at_fixed_n
    results = comparison.correlate_cells(cells, fixed)
    rows = [
        {RUN: cell.run, ANNOTATOR: cell.annotator, MEASURE: cell.measure, K: cell.k}
        | asdict(result.correlation)
        | asdict(margins(cell.x, cell.y, result.correlation.tau))
        for cell, result in zip(cells, results, strict=True)
    ]
    correlations = _with_best(pl.DataFrame(rows, schema=tables.CORRELATIONS))

    compare = comparer(bootstrap, largest, clusters)
    whole = compare(downstream, None, None)
    if bootstrap.lists and whole is not None:
        whole = from_labels(whole, downstream, query_scores, bootstrap)
    systems, run_pairs = compare_runs(compared, whole, compare, fixed)
    return Statistics(
        pl.concat([correlations, _empty_cells(undefined, downstream)]),
        comparison.compare_cells(cells, results, fixed, comparable=comparable),
        systems,
        run_pairs,
        choose(query_scores, whole, downstream, run_pairs, compare, bootstrap),
    )


def _empty_cells(undefined: pl.DataFrame | None, downstream: pl.DataFrame) -> pl.DataFrame:
    if undefined is None:
        return tables.empty(tables.CORRELATIONS)
    floats = [name for name, kind in tables.CORRELATIONS.items() if kind == pl.Float64()]
    empty = dict.fromkeys(floats, math.nan) | {tables.N: 0, BEST: False, tables.METHOD: ""}
    cells = downstream.select(RUN, K).unique(maintain_order=True).join(undefined, how="cross")
    return pl.DataFrame([empty | cell for cell in cells.to_dicts()], schema=tables.CORRELATIONS)


def _with_best(correlations: pl.DataFrame) -> pl.DataFrame:
    """Mark, per run and annotator, the first measure with the highest tau: post hoc, so no headline rests on it."""
    tau = pl.col(TAU).round(DECIMALS).fill_nan(None)
    highest = (tau == tau.max().over(RUN, ANNOTATOR)).fill_null(False)
    is_first = highest.cum_sum().over(RUN, ANNOTATOR) == 1
    return correlations.with_columns((highest & is_first).alias(BEST))


@dataclass(frozen=True)
class Lead:
    """A run's lead in mean over another, on the same queries.

    Its interval holds together with those of all pairs of runs (``leads.paired_intervals``), so that it also holds
    after the choice of the best run; NaN without resamples, or with one query. Needed queries are None for a
    significant lead, without information (runs alike), for measures, and with sampled lists.
    """

    run: str
    over: str
    n: int  # queries that both have
    difference: float
    low: float
    high: float
    p: float  # adjusted for all pairs of runs; the level at which the interval just reaches 0
    significant: bool  # the interval is above 0, and p below 1 - confidence
    alike: bool = False  # both runs have the same score on every query that both have
    queries_needed: int | None = None  # to show a difference as small as is likely (``until``)
    queries_as_here: int | None = None  # to show a difference like this one; None also if it is 0


@dataclass(frozen=True)
class Opinion:
    """The run that one measure of an annotator favours.

    It leads over the chosen run; over the runner-up if it is the chosen run.
    """

    annotator: str
    measure: str  # the annotator's primary one (``primary_measures``)
    best: str  # the run with its highest mean
    lead: Lead  # of ``best``, adjusted for all pairs of runs by this measure


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The run with the best mean of the deciding score, and the certainty of that choice.

    ``most_lost`` is, by the intervals of all pairs, the most by which any run that is not excluded may be behind the
    truly best run; NaN if one run is left, or there are no intervals.
    """

    annotator: str | None  # of the deciding score; None for the end-to-end score
    measure: str | None
    n: int  # queries that all runs have; read ``until`` a verdict, that any run has
    pairs: int  # of runs, that intervals and p-values are adjusted for
    means: dict[str, float]  # of all runs on their queries among these, the best first
    best: str  # the run to choose
    leads: tuple[Lead, ...]  # of ``best`` over each other run, in the order of ``means``
    opinions: tuple[Opinion, ...]  # of the annotators that score ``best``, but for the deciding one
    most_lost: float = math.nan

    @property
    def undecided(self) -> tuple[str, ...]:
        """Runs that the data do not distinguish from the best one."""
        return tuple(lead.over for lead in self.leads if not lead.significant)


def choose(
    query_scores: pl.DataFrame,
    whole: RunScores | None,
    downstream: pl.DataFrame,
    run_pairs: pl.DataFrame,
    compare: Compare,
    bootstrap: Bootstrap,
) -> Choice | None:
    """Choose by the end-to-end score; without one, by the first annotator's primary measure.

    None if there is only one run to choose, or no query that all runs have.

    Args:
        whole: the end-to-end scores of the runs; None without any.
    """
    if run_pairs.is_empty() and downstream.is_empty():
        return None
    annotator, measure, deciding = None, None, whole
    if downstream.is_empty():
        annotator, measure = run_pairs.select(ANNOTATOR, MEASURE).row(0)
        scored = query_scores.filter(pl.col(ANNOTATOR) == annotator, pl.col(MEASURE) == measure)
        deciding = compare(scored, annotator, measure)
    if deciding is None:
        return None
    means = {run: deciding.mean(run) for run in deciding.ranked(deciding.runs)}
    best, *others = means
    opinions: list[Opinion] = []
    for name, primary in primary_measures(run_pairs.select(ANNOTATOR, MEASURE).iter_rows()).items():
        if name == annotator:
            continue
        scores = query_scores.filter(pl.col(ANNOTATOR) == name, pl.col(MEASURE) == primary)
        if not (downstream.is_empty() or bootstrap.lists):  # labels are of all queries then
            scores = scores.join(downstream, on=[RUN, QUERY_ID], how="semi", maintain_order="left")
        compared = compare(scores, name, primary)
        order = [run for run in means if compared and run in compared.runs]
        if compared and len(order) > 1 and order[0] == best:
            favourite = compared.ranked(order)[0]
            lead = _lead(compared, favourite, order[1] if favourite == best else best)
            opinions.append(Opinion(name, primary, favourite, lead))
    leads = tuple(_lead(deciding, best, other, plan=bootstrap) for other in others)
    undecided = (lead.over for lead in leads if not lead.significant)
    return Choice(
        annotator=annotator,
        measure=measure,
        n=deciding.values.shape[1],
        pairs=len(deciding.differences.value),
        means=means,
        best=best,
        leads=leads,
        opinions=tuple(opinions),
        most_lost=deciding.most_apart([best, *undecided]),
    )


def primary_measures(scored: Iterable[tuple[str, str]]) -> dict[str, str]:
    """By annotator, its primary measure for answer, page and verdict: the first that its labels have.

    That is the first of the settings' measures, fixed before any result, and the same for all annotators whose labels
    define it; other annotators (nDCG on utilities, say) use the next one that is defined.

    Args:
        scored: annotator and measure of every score, in the order of the settings' measures, as in all tables.
    """
    first: dict[str, str] = {}
    for annotator, measure in scored:
        first.setdefault(annotator, measure)
    return first


def _lead(scores: RunScores, run: str, over: str, *, plan: Bootstrap | None = None) -> Lead:
    """The lead of a run over another, and with ``plan`` the queries that it needs."""
    value, low, high, p = scores.difference(run, over)
    paired = scores.paired(run, over)
    needed: list[int | None] = [None, None]
    if plan is not None and not (low > 0 or math.isinf(scores.largest)):
        needed = [scores.needed(run, over, plan, as_here=as_here) for as_here in (False, True)]
    alike = value == 0 and not paired.any()
    n = scores.shared(run, over)
    return Lead(run, over, n, value, low, high, p, low > 0, alike, *needed)
