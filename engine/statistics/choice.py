"""Which run to choose, and how certain that is: the run that is best end to end, and its leads.

This is not a new statistic: leads are differences of means, with the interval and the corrected
p-value of ``run_pairs``. A choice also needs to know which differences are certain, about how many
queries would settle the others, and whether the annotators' measures agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import polars as pl

from engine.statistics.correlation import DECIMALS, Bootstrap
from engine.statistics.differences import mean_differences, queries_needed
from engine.statistics.intervals import holm
from engine.tables import (
    ANNOTATOR,
    DIFFERENCE,
    MEASURE,
    QUERY_ID,
    RUN,
    RUN_B,
    TAU,
    VALUE,
    high_of,
    low_of,
    p_holm_of,
)

_DEVIATION = "deviation"  # of differences, beside the columns of ``run_pairs``


@dataclass(frozen=True, kw_only=True)
class Lead:
    """How far the mean of a run is above that of another, on the same queries.

    Attributes:
        difference: 0 or more.
        low, high, p_holm: as in ``run_pairs``, NaN without resamples.
        significant: p_holm is below 1 - confidence, and the interval is above 0.
        queries_needed: about how many queries would show such a difference
            (``differences.queries_needed``). None where it is significant, where the number is
            meaningless (no difference, or no more queries than there are), and for measures.
    """

    run: str
    over: str
    difference: float
    low: float
    high: float
    p_holm: float
    significant: bool
    queries_needed: int | None = None


@dataclass(frozen=True)
class Opinion:
    """Which run one measure of an annotator favours.

    Attributes:
        measure: the one with the highest tau, averaged over runs; the first where none is defined.
        best: the run with its highest mean.
        lead: of ``best`` over the chosen run; over the runner-up where ``best`` is the chosen run.
            Its p-value is corrected for all measures (``run_pairs``).
    """

    annotator: str
    measure: str
    best: str
    lead: Lead


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The run with the best mean of the score that decides, and how certain that is.

    Attributes:
        annotator, measure: the score that decides; both None for the end-to-end score.
        n: queries that all runs have.
        means: of every run on these, the best first.
        best: the run to choose.
        leads: of ``best`` over each other run, in the order of ``means``.
        opinions: of the annotators that score the best run, except the one that decides, in order.
    """

    annotator: str | None
    measure: str | None
    n: int
    means: dict[str, float]
    best: str
    leads: tuple[Lead, ...]
    opinions: tuple[Opinion, ...]

    @property
    def undecided(self) -> tuple[str, ...]:
        """Runs that the data do not distinguish from the best one."""
        return tuple(lead.over for lead in self.leads if not lead.significant)


def choose(
    query_scores: pl.DataFrame,
    downstream: pl.DataFrame,
    correlations: pl.DataFrame,
    run_pairs: pl.DataFrame,
    bootstrap: Bootstrap,
) -> Choice | None:
    """Choose by the end-to-end score; without one, by the first annotator's first measure.

    Args:
        correlations, run_pairs: of the same scores.

    Returns:
        None where there is only one run, or no query that all runs have.
    """
    if run_pairs.is_empty():
        return None
    annotator, measure = None, None
    scored = downstream
    if downstream.is_empty():
        annotator, measure = run_pairs.select(ANNOTATOR, MEASURE).row(0)
        scored = query_scores.filter(
            (pl.col(ANNOTATOR) == annotator) & (pl.col(MEASURE) == measure)
        )
    by_run = {
        str(run): dict(of_run.select(QUERY_ID, VALUE).iter_rows())
        for (run,), of_run in scored.group_by([RUN], maintain_order=True)
    }
    shared = sorted(set.intersection(*map(set, by_run.values())))
    if len(by_run) < 2 or not shared:
        return None
    values = np.array([[scores[query_id] for query_id in shared] for scores in by_run.values()])
    values = values.round(DECIMALS)
    runs = list(by_run)
    means = dict(zip(runs, values.mean(axis=1).round(DECIMALS).tolist(), strict=True))
    means = dict(sorted(means.items(), key=lambda item: -item[1]))  # equal ones stay in order
    best, *others = means
    differences = mean_differences(values, bootstrap)
    pairs = [
        {
            RUN: run,
            RUN_B: run_b,
            DIFFERENCE: differences.value[place],
            low_of(DIFFERENCE): differences.low[place],
            high_of(DIFFERENCE): differences.high[place],
            p_holm_of(DIFFERENCE): p_holm,
            _DEVIATION: differences.deviation[place],
        }
        for place, ((run, run_b), p_holm) in enumerate(
            zip(combinations(runs, 2), holm(differences.p.tolist()), strict=True)
        )
    ]
    leads = [_lead(pairs, best, other, bootstrap, len(shared)) for other in others]
    opinions: list[Opinion] = []
    for name in run_pairs[ANNOTATOR].unique(maintain_order=True):
        favourite = best_measure(name, correlations, run_pairs)
        pairs_of = run_pairs.filter((pl.col(ANNOTATOR) == name) & (pl.col(MEASURE) == favourite))
        # A run may lack every query of an annotator (failed reads left out).
        scored_runs = {*pairs_of[RUN], *pairs_of[RUN_B]}
        order = [run for run in means if run in scored_runs]
        if name != annotator and best in order:
            opinions.append(_opinion(name, favourite, pairs_of.to_dicts(), order, bootstrap))
    return Choice(
        annotator=annotator,
        measure=measure,
        n=len(shared),
        means=means,
        best=best,
        leads=tuple(leads),
        opinions=tuple(opinions),
    )


def best_measure(annotator: str, correlations: pl.DataFrame, run_pairs: pl.DataFrame) -> str:
    """The annotator's measure with the highest tau, averaged over the runs; the first of equal ones.

    Where no measure's tau is defined on all runs, the first measure.
    """
    averaged = (
        correlations.filter(pl.col(ANNOTATOR) == annotator)
        .group_by(MEASURE, maintain_order=True)
        .agg(pl.col(TAU).mean().round(DECIMALS))
        .filter(pl.col(TAU).is_not_nan())
        .sort(TAU, descending=True, maintain_order=True)
    )
    compared = run_pairs.filter(pl.col(ANNOTATOR) == annotator)[MEASURE]
    ranked = [name for name in averaged[MEASURE] if name in compared]
    return str((ranked or compared)[0])


def _opinion(
    annotator: str,
    measure: str,
    pairs: Sequence[Mapping[str, Any]],
    order: Sequence[str],
    bootstrap: Bootstrap,
) -> Opinion:
    """Which of the runs in ``order`` a measure favours; the chosen run comes first."""
    above = dict.fromkeys(order, 0.0)
    for row in pairs:  # sums of differences order the runs as their means do
        above[row[RUN]] += row[DIFFERENCE]
        above[row[RUN_B]] -= row[DIFFERENCE]
    best = max(order, key=lambda run: round(above[run], DECIMALS))
    lead = _lead(pairs, best, order[1] if best == order[0] else order[0], bootstrap)
    return Opinion(annotator, measure, best, lead)


def _lead(
    pairs: Sequence[Mapping[str, Any]], run: str, over: str, bootstrap: Bootstrap, n: int = 0
) -> Lead:
    """The lead of a run over another, whichever way round ``run_pairs`` has the two.

    Args:
        n: the number of queries; 0 to leave ``queries_needed`` out.
    """
    row, turned = next(
        (row, row[RUN] == over) for row in pairs if {row[RUN], row[RUN_B]} == {run, over}
    )
    difference, low, high = (
        float(row[column]) for column in (DIFFERENCE, low_of(DIFFERENCE), high_of(DIFFERENCE))
    )
    if turned:
        difference, low, high = -difference, -high, -low
    p_holm = float(row[p_holm_of(DIFFERENCE)])
    # Both: with few queries, hardly any resamples differ, and an interval can miss 0 by that alone.
    significant = low > 0 and p_holm < 1 - bootstrap.confidence
    needed = None
    if n and not significant:
        needed = queries_needed(
            difference,
            float(row[_DEVIATION]),
            confidence=bootstrap.confidence,
            comparisons=len(pairs),
        )
        if needed is not None and needed <= n:
            needed = None  # so few queries that the normal approximation does not hold
    # Adding 0.0 turns -0.0 into 0.0, which is printed without its sign.
    return Lead(
        run=run,
        over=over,
        difference=difference + 0.0,
        low=low + 0.0,
        high=high + 0.0,
        p_holm=p_holm,
        significant=significant,
        queries_needed=needed,
    )
