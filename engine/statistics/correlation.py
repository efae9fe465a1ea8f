"""Kendall's tau-b and Spearman's rho of two scores, with bootstrap intervals over queries."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.errors import InputError, require_least
from engine.statistics.intervals import IntervalMethod, interval
from engine.statistics.resampling import Replicates, replicate

Floats = npt.NDArray[np.float64]

# Decimals at which scores are compared: sums of the same labels in another order differ in the last
# bits, and must not rank.
DECIMALS = 12
# Fewer cannot hold the tails of an interval.
LEAST_RESAMPLES = 100


@dataclass(frozen=True)
class Bootstrap:
    """How intervals and p-values are made.

    Attributes:
        resamples: Bootstrap resamples of each interval, 100 or more; 0 for no intervals.
        interval: Percentile, or BCa (corrected for bias and acceleration).
        confidence: Level of the intervals, between 0 and 1.
        seed: Seed of the resamples, and of every other random draw; 0 or more.
        threads: that resample; None for all cores. Changes no figure.

    Raises:
        InputError: a value out of range.
    """

    resamples: int = 10_000
    interval: IntervalMethod = "percentile"
    confidence: float = 0.95
    seed: int = 0
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.resamples < 0 or 0 < self.resamples < LEAST_RESAMPLES:
            raise InputError(
                None,
                None,
                f"`resamples` is {self.resamples}",
                f"use {LEAST_RESAMPLES} or more, or 0 for no intervals",
            )
        if not 0 < self.confidence < 1:
            raise InputError(
                None, None, f"`confidence` is {self.confidence}", "use a share such as 0.95"
            )
        require_least("seed", self.seed, 0)


@dataclass(frozen=True, kw_only=True)
class Correlation:
    """A correlation with its interval.

    ``tau``, ``rho`` in [-1, 1]; NaN where undefined, and then ``note`` says why. Interval bounds are
    NaN where none was asked for or none is defined (``note``).
    """

    n: int
    tau: float = math.nan
    tau_low: float = math.nan
    tau_high: float = math.nan
    rho: float = math.nan
    rho_low: float = math.nan
    rho_high: float = math.nan
    note: str = ""


def correlate(x: Floats, y: Floats, bootstrap: Bootstrap) -> Correlation:
    """Correlate two scores of the same n queries: a measure (x) and the end-to-end score (y).

    tau-b (Kendall 1945) and rho equal SciPy's ``kendalltau`` and ``spearmanr``.

    Args:
        x, y: shape (n,), finite.
    """
    result = replicate(
        np.stack([x, y]),
        [(0, 1)],
        resamples=bootstrap.resamples if not undefined(x, y) else 0,
        seed=bootstrap.seed,
        leave_out=needs_leave_out(bootstrap),
        threads=bootstrap.threads,
    )
    return describe(x, y, result, 0, bootstrap)


def needs_leave_out(bootstrap: Bootstrap) -> bool:
    return bootstrap.interval == "bca" and bootstrap.resamples > 0


def describe(
    x: Floats, y: Floats, result: Replicates, pair: int, bootstrap: Bootstrap
) -> Correlation:
    """The correlation of one pair of columns, from their replicates."""
    n = len(x)
    if note := undefined(x, y):
        return Correlation(n=n, note=note)
    tau, rho = float(result.tau[pair]), float(result.rho[pair])
    if bootstrap.resamples == 0:
        return Correlation(n=n, tau=tau, rho=rho)
    (tau_low, tau_high, note), (rho_low, rho_high, _) = (
        interval(
            estimate,
            replicates[pair],
            None if result.without is None else result.without[pair, row],
            method=bootstrap.interval,
            confidence=bootstrap.confidence,
        )
        for row, (estimate, replicates) in enumerate(((tau, result.taus), (rho, result.rhos)))
    )
    # tau and rho are undefined on the same resamples, so one note serves both.
    return Correlation(
        n=n,
        tau=tau,
        tau_low=tau_low,
        tau_high=tau_high,
        rho=rho,
        rho_low=rho_low,
        rho_high=rho_high,
        note=note,
    )


def undefined(x: Floats, y: Floats) -> str:
    """Why no correlation of x (the measure) and y (the end-to-end score) is defined; or nothing."""
    if len(x) < 2:
        return "undefined: fewer than two queries"
    constant = [
        f"the {what} is {values[0]:g} for every query"
        for what, values in (("measure", x), ("end-to-end score", y))
        if (values == values[0]).all()
    ]
    return f"undefined: {' and '.join(constant)}" if constant else ""
