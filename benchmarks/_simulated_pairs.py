"""Pairs of measures with known true correlations, on the same queries with one right-or-wrong outcome.

Both measures follow normal variables. Given the outcome's variable, their own noises correlate at 0.5. What
is true of the two:

- none: both true tau-b are 0. equal: both are 0.3, or what both margins allow if that is less.
- apart: the first is 0, the second 0.3 or what its margins allow.
- spread: both are as under "equal", and the first measure's variable has twice the standard deviation
  among right answers that it has among wrong ones. spread none: the same, and both are 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

from benchmarks._simulated import (
    MOST,
    correlation_for,
    measure_of,
    of_table,
    true_correlations,
)

Floats = npt.NDArray[np.float64]

WANTED_TAU = 0.3
_NOISE = 0.5
_SPREAD = 2.0
_POINTS = 20_000


@dataclass(frozen=True)
class Case:
    """A cell of the study; ``share`` of right answers in (0, 1)."""

    n: int
    share: float
    first: str
    second: str
    truth: str


@dataclass(frozen=True)
class Exact(Case):
    """A cell in which every sample has exactly n times ``share`` right answers, the first of its queries."""


def true_taus(case: Case) -> tuple[float, float]:
    """The true tau-b of both measures."""
    if case.truth in ("none", "spread none"):
        return 0.0, 0.0
    allowed = [
        MOST * true_correlations(name, case.share, 0.9999)[0] for name in (case.first, case.second)
    ]
    if case.truth == "apart":
        return 0.0, min(WANTED_TAU, allowed[1])
    return (min(WANTED_TAU, *allowed),) * 2


def draw(rng: np.random.Generator, case: Case, samples: int) -> tuple[Floats, Floats, Floats]:
    """Two measures and the outcome of ``samples`` samples: each (samples, n)."""
    shape = (samples, case.n)
    own = rng.normal(size=shape)
    other = _NOISE * own + np.sqrt(1 - _NOISE**2) * rng.normal(size=shape)
    taus = true_taus(case)
    if case.truth.startswith("spread"):
        right = rng.random(shape) < case.share
        if isinstance(case, Exact):
            right = _exactly(case, samples)
        x_a, x_b = (
            _spread_measure(name, case.share, tau, spread, noise, right)
            for name, tau, spread, noise in zip(
                (case.first, case.second), taus, (_SPREAD, 1.0), (own, other), strict=True
            )
        )
        return x_a, x_b, right.astype(np.float64)
    outcome = rng.normal(size=shape)
    if isinstance(case, Exact):
        ranks = rng.random(shape) * np.where(_exactly(case, samples), case.share, 1 - case.share)
        outcome = ndtri(np.where(_exactly(case, samples), 1 - case.share, 0) + ranks)
    measures = []
    for name, tau, noise in zip((case.first, case.second), taus, (own, other), strict=True):
        r = correlation_for(name, case.share, tau)
        measures.append(measure_of(name, ndtr(r * outcome + np.sqrt(1 - r**2) * noise)))
    return measures[0], measures[1], (outcome > ndtri(1 - case.share)).astype(np.float64)


def _exactly(case: Case, samples: int) -> npt.NDArray[np.bool_]:
    return np.tile(np.arange(case.n) < round(case.share * case.n), (samples, 1))


def _spread_measure(
    name: str, share: float, tau: float, spread: float, noise: Floats, right: npt.NDArray[np.bool_]
) -> Floats:
    shift = _shift_for(name, share, tau, spread)
    variable = np.where(right, shift + spread * noise, noise)
    return measure_of(name, np.clip(_quantiles(variable, share, shift, spread), 1e-12, 1 - 1e-12))


def _quantiles(variable: Floats, share: float, shift: float, spread: float) -> Floats:
    """Of a variable that is N(shift, spread^2) for right answers and N(0, 1) for wrong ones."""
    return np.asarray(share * ndtr((variable - shift) / spread) + (1 - share) * ndtr(variable))


def _of_spread(name: str, share: float, shift: float, spread: float) -> tuple[float, float]:
    """tau-b and rho of all queries."""
    grid = np.linspace(-8 * spread, 8 * spread + abs(shift), 40_001)
    quantiles = (np.arange(_POINTS) + 0.5) / _POINTS
    variable = np.interp(quantiles, _quantiles(grid, share, shift, spread), grid)
    density = share * np.exp(-(((variable - shift) / spread) ** 2) / 2) / spread
    right = density / (density + (1 - share) * np.exp(-(variable**2) / 2)) / _POINTS
    value_of = np.unique(measure_of(name, quantiles), return_inverse=True)[1]
    return of_table(
        np.stack([np.bincount(value_of, 1 / _POINTS - right), np.bincount(value_of, right)])
    )


@cache
def _shift_for(name: str, share: float, tau: float, spread: float) -> float:
    return float(brentq(lambda shift: _of_spread(name, share, shift, spread)[0] - tau, -4, 8))


def true_differences(case: Case) -> tuple[float, float]:
    """Of tau-b and of rho, the first measure's less the second's."""
    found = []
    for name, tau, spread in zip(
        (case.first, case.second), true_taus(case), (_SPREAD, 1.0), strict=True
    ):
        if case.truth.startswith("spread"):
            shift = _shift_for(name, case.share, tau, spread)
            found.append((tau, _of_spread(name, case.share, shift, spread)[1]))
        elif tau == 0:
            found.append((0.0, 0.0))
        else:
            r = correlation_for(name, case.share, tau)
            found.append((tau, true_correlations(name, case.share, r)[1]))
    (tau_a, rho_a), (tau_b, rho_b) = found
    # Numerical integration leaves a little where both are the same.
    return round(tau_a - tau_b, 6), round(rho_a - rho_b, 6)
