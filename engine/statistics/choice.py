"""Which run to choose, and how certain that is: the run that is best end to end, and its leads.

Leads are differences of means. ``run_pairs`` has an interval for each by itself; the best run is
chosen among all of them, so its leads have intervals that hold together. A choice also needs to know
how many queries would settle what is not certain, and whether the annotators' measures agree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from engine.statistics.correlation import DECIMALS, Bootstrap
from engine.statistics.differences import mean_differences
from engine.statistics.intervals import holm
from engine.statistics.leads import largest_difference, paired_intervals
from engine.statistics.power import QueriesNeeded, queries_needed
from engine.tables import (
    ANNOTATOR,
    DIFFERENCE,
    MEASURE,
    QUERY_ID,
    RUN,
    RUN_B,
    TAU,
    VALUE,
    p_holm_of,
)

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Lead:
    """How far the mean of a run is above that of another, on the same queries.

    Attributes:
        difference: 0 or more.
        low, high: its interval, which holds together with those of all pairs of runs
            (``leads.paired_intervals``), so that it also holds after the best run was chosen. It reaches
            to 0 at least where p_holm is 1 - confidence or more. NaN without resamples, or with one query.
        p_holm: of the randomization test, as in ``run_pairs``.
        significant: the interval is above 0. Then p_holm is below 1 - confidence too.
        queries_needed: how many queries would show such a difference. None where it is significant,
            where nothing is known (no difference), and for measures.
    """

    run: str
    over: str
    difference: float
    low: float
    high: float
    p_holm: float
    significant: bool
    queries_needed: QueriesNeeded | None = None


@dataclass(frozen=True)
class Opinion:
    """Which run one measure of an annotator favours.

    Attributes:
        measure: the one with the highest tau, averaged over runs; the first where none is defined.
        best: the run with its highest mean.
        lead: of ``best`` over the chosen run; over the runner-up where ``best`` is the chosen run.
            Its interval holds together with those of all pairs of runs by this measure; its p-value
            is corrected for all measures (``run_pairs``).
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
    found = _scores(scored)
    if found is None:
        return None
    values = found.values
    means = dict(zip(found.runs, values.mean(axis=1).round(DECIMALS).tolist(), strict=True))
    means = dict(sorted(means.items(), key=lambda item: -item[1]))  # equal ones stay in order
    best, *others = means
    p_holm = dict(
        zip(
            map(frozenset, combinations(found.runs, 2)),
            holm(mean_differences(values, bootstrap).p.tolist()),
            strict=True,
        )
    )
    opinions: list[Opinion] = []
    for name in run_pairs[ANNOTATOR].unique(maintain_order=True):
        if name == annotator:
            continue
        favourite = best_measure(name, correlations, run_pairs)
        of_measure = (pl.col(ANNOTATOR) == name) & (pl.col(MEASURE) == favourite)
        scores = query_scores.filter(of_measure).select(RUN, QUERY_ID, VALUE)
        if not downstream.is_empty():
            scores = scores.join(downstream, on=[RUN, QUERY_ID], how="semi", maintain_order="left")
        opinion = _opinion(
            _scores(scores),
            list(means),
            {
                frozenset((run, run_b)): p
                for run, run_b, p in run_pairs.filter(of_measure)
                .select(RUN, RUN_B, p_holm_of(DIFFERENCE))
                .iter_rows()
            },
            bootstrap,
        )
        if opinion is not None:
            opinions.append(Opinion(name, favourite, *opinion))
    return Choice(
        annotator=annotator,
        measure=measure,
        n=values.shape[1],
        means=means,
        best=best,
        leads=tuple(_lead(found, best, other, p_holm, bootstrap, plan=True) for other in others),
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


class _Scores(NamedTuple):
    """The scores (runs, n) of some runs on the queries that all of them have."""

    runs: tuple[str, ...]
    values: Floats


def _scores(scored: pl.DataFrame) -> _Scores | None:
    """The scores by run and query; None where there is only one run, or no query that all have."""
    by_run = {
        str(run): of_run.select(QUERY_ID, VALUE)
        for (run,), of_run in scored.group_by([RUN], maintain_order=True)
    }
    if len(by_run) < 2:
        return None
    shared = next(iter(by_run.values())).select(QUERY_ID).sort(QUERY_ID)
    for of_run in by_run.values():
        shared = shared.join(of_run, on=QUERY_ID, how="semi", maintain_order="left")
    if shared.is_empty():
        return None
    values = np.stack(
        [
            shared.join(of_run, on=QUERY_ID, how="left", maintain_order="left")[VALUE].to_numpy()
            for of_run in by_run.values()
        ]
    )
    return _Scores(tuple(by_run), values.round(DECIMALS))


def _opinion(
    found: _Scores | None,
    ranked: Sequence[str],
    p_holm: Mapping[frozenset[str], float],
    bootstrap: Bootstrap,
) -> tuple[str, Lead] | None:
    """The run that a measure favours, and its lead; None where it does not score the chosen run.

    Args:
        found: the measure's scores. A run may lack every query (failed reads left out).
        ranked: all runs, the chosen one first.
    """
    if found is None or ranked[0] not in found.runs:
        return None
    order = [run for run in ranked if run in found.runs]
    means = dict(zip(found.runs, found.values.mean(axis=1).round(DECIMALS).tolist(), strict=True))
    best = max(order, key=means.__getitem__)
    over = order[1] if best == order[0] else order[0]
    return best, _lead(found, best, over, p_holm, bootstrap)


def _lead(
    found: _Scores,
    run: str,
    over: str,
    p_holm: Mapping[frozenset[str], float],
    bootstrap: Bootstrap,
    *,
    plan: bool = False,
) -> Lead:
    """The lead of a run over another, and with ``plan`` the queries that it needs."""
    differences = np.round(
        found.values[found.runs.index(run)] - found.values[found.runs.index(over)], DECIMALS
    )
    difference = round(float(differences.mean()), DECIMALS)
    p, level = p_holm[frozenset((run, over))], 1 - bootstrap.confidence
    scale = round(largest_difference(found.values), DECIMALS)
    confidence, comparisons = bootstrap.confidence, math.comb(len(found.runs), 2)
    low = high = math.nan
    if bootstrap.resamples and len(differences) > 1:
        (low,), (high,) = paired_intervals(
            differences[None], scale, confidence=confidence, comparisons=comparisons
        )
        # The test is exact however few queries differ, the interval nearly so: a lead takes both.
        low = low if p < level else min(low, 0.0)
    significant = bool(low > 0)
    needed = None
    if plan and bootstrap.resamples and not significant:
        needed = queries_needed(differences, scale, confidence=confidence, comparisons=comparisons)
    # Adding 0.0 turns -0.0 into 0.0, which is printed without its sign.
    return Lead(
        run=run,
        over=over,
        difference=difference + 0.0,
        low=float(low) + 0.0,
        high=float(high) + 0.0,
        p_holm=p,
        significant=significant,
        queries_needed=needed,
    )
