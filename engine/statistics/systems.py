"""System-level agreement: does a measure order the runs as the end-to-end score orders them?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from engine.statistics.arrays import Floats, Ints
from engine.statistics.correlation import DECIMALS, Bootstrap
from engine.statistics.intervals import interval
from engine.statistics.pairs import Counts
from engine.statistics.resampling import for_each_block, weighted_sums


@dataclass(frozen=True)
class SystemAgreement:
    """How a measure and the end-to-end score order s runs, by their means over the same n queries.

    Attributes:
        tau: tau-b over the runs; NaN where one side has all runs equal, and then ``note`` says so.
        tau_low, tau_high: percentile interval over resampled queries; NaN where there is none.
        agreement: (p,) for the p = s (s - 1) / 2 pairs of runs in the order of ``numpy.triu_indices``,
            the share of the resamples in which both name the same winner (a tie names none); NaN
            without resamples.
    """

    tau: float
    tau_low: float
    tau_high: float
    agreement: Floats
    note: str


def system_agreement(
    scores: Floats, end_to_end: Floats, bootstrap: Bootstrap, clusters: Ints | None = None
) -> SystemAgreement:
    """Compare the orders that two scores give the runs.

    The runs are fixed and the queries are resampled, so the interval says how far the order of these
    runs depends on the queries drawn, not how the measure would do on other runs. The interval is
    always a percentile one: with few runs tau takes few values, and a correction would mean nothing.

    Args:
        scores, end_to_end: shape (s, n), the same queries in both, s >= 2.
        clusters: (n,) the cluster of each query, from 0 without gaps, where clusters are resampled.
    """
    runs, n = scores.shape
    first, second = np.triu_indices(runs, 1)
    taus = np.full(bootstrap.resamples, np.nan)
    agreed = np.zeros((bootstrap.resamples, len(first)), dtype=bool)

    def signs(weights: Counts) -> list[Floats]:
        values: list[Floats] = []
        for columns in (scores, end_to_end):
            # Clusters differ in size, and so do resamples of them.
            means = weighted_sums(weights, columns) / weights.sum(axis=1, keepdims=True)
            values.append(np.sign(np.round(means[:, first] - means[:, second], DECIMALS)))
        return values

    def fill(start: int, weights: Counts) -> None:
        by_measure, by_outcome = signs(weights)
        at = slice(start, start + len(weights))
        taus[at] = _tau_b(by_measure, by_outcome)
        agreed[at] = by_measure * by_outcome > 0

    by_measure, by_outcome = signs(np.ones((1, n), dtype=np.int32))
    tau = float(_tau_b(by_measure, by_outcome)[0])
    low = high = nan = float("nan")
    agreement = np.full(len(first), nan)
    note = ""
    if np.isnan(tau):
        sides = (("measure", by_measure), ("end-to-end score", by_outcome))
        flat = [what for what, sign in sides if not sign.any()]
        note = f"undefined: all runs have the same mean {' and '.join(flat)}"
    if n < 2 and not note:
        note = "one query alone: no interval"
    if bootstrap.resamples and n > 1:
        for_each_block(
            np.arange(n),
            n,
            fill,
            clusters,
            resamples=bootstrap.resamples,
            seed=bootstrap.seed,
            threads=bootstrap.threads,
        )
        agreement = agreed.mean(axis=0)
        if not note:
            low, high, note = interval(
                tau, taus, None, method="percentile", confidence=bootstrap.confidence
            )
            note = note.replace("one side is constant", "all runs have one mean")
    return SystemAgreement(tau, low, high, agreement, note)


def soft_pairwise_accuracy(by_measure: Floats, by_outcome: Floats) -> float:
    """Whether a measure is as certain of every pair of runs as the end-to-end score is.

    SPA, the mean over the pairs of ``1 - |p_outcome - p_measure|`` (Thompson, Mathur, Deutsch & Khayrallah,
    WMT 2024, "Improving Statistical Significance in Human Evaluation of Automatic Metrics via Soft
    Pairwise Accuracy"). A pair that both find certain counts 1 where they name the same run and 0 where they do
    not; one that both find undecided counts nearly 1, whichever run is ahead.

    Args:
        by_measure, by_outcome: (p,) one-sided p-values of the pairs of runs in the same order
            (``differences.chances_above``). There equal draws count half, so that SPA
            does not depend on the order of the runs.

    Returns:
        In [0, 1]; NaN where p-values are.
    """
    return float((1 - np.abs(by_outcome - by_measure)).mean())


def _tau_b(x: Floats, y: Floats) -> Floats:
    """tau-b of each row, from the signs of all pairs: (B, p) and (B, p)."""
    x_free, y_free = ((sign != 0).sum(axis=1) for sign in (x, y))
    defined = (x_free > 0) & (y_free > 0)
    below = np.sqrt(np.where(defined, x_free * y_free, 1))
    return np.where(defined, (x * y).sum(axis=1) / below, np.nan)
