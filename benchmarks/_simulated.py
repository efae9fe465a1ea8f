"""Queries with known true correlations: what the studies of intervals and tests draw from.

Measure and outcome of a query are functions of two standard normal variables with correlation r. An
outcome is right (1) for a given share of the queries. True tau-b and rho follow by numerical
integration, and r from the true tau wanted.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import ndtr, ndtri

Floats = npt.NDArray[np.float64]

MEASURES = ("Success", "R", "P@10", "nDCG")
# Queries without any relevant passage.
_MISSES = 0.06
# Of the strongest association that a measure and an outcome allow, what a true correlation may reach.
MOST = 0.6
_POINTS = 20_000


def measure_of(name: str, quantiles: Floats) -> Floats:
    """Values of a measure at quantiles in (0, 1) of its variable.

    - Success: 0 for 6%, else 1.
    - R: 0 for 6%, 0.5 for 6%, else 1.
    - P@10: 0 for 30%, the other ten values up to 1 evenly over the normal variable's range.
    - nDCG: 0 for 6%, 1 for 25%, all different between.
    - hit 0.2: 1 for a fifth, else 0; any share.
    """
    if name.startswith("hit "):
        return (quantiles >= 1 - float(name.removeprefix("hit "))).astype(np.float64)
    if name == "Success":
        return (quantiles >= _MISSES).astype(np.float64)
    if name == "R":
        return np.searchsorted([_MISSES, 2 * _MISSES], quantiles, side="right") / 2.0
    if name == "P@10":
        return np.searchsorted(ndtri(np.linspace(0.3, 0.97, 10)), ndtri(quantiles)) / 10.0
    if name == "nDCG":
        inner = np.clip((quantiles - _MISSES) / (0.75 - _MISSES), 0, 1)
        return np.asarray(inner)
    raise ValueError(name)


def draw(
    rng: np.random.Generator, n: int, measure: str, share: float, r: float
) -> tuple[Floats, Floats]:
    """A measure and a binary outcome of n queries; ``share`` of them are right."""
    outcome = rng.normal(size=n)
    own = r * outcome + np.sqrt(1 - r**2) * rng.normal(size=n)
    return measure_of(measure, ndtr(own)), (outcome > ndtri(1 - share)).astype(np.float64)


def true_correlations(measure: str, share: float, r: float) -> tuple[float, float]:
    """tau-b and rho of all queries (error below 0.0002)."""
    quantiles = (np.arange(_POINTS) + 0.5) / _POINTS
    right = ndtr((r * ndtri(quantiles) - ndtri(1 - share)) / np.sqrt(1 - r**2)) / _POINTS
    _, value_of = np.unique(measure_of(measure, quantiles), return_inverse=True)
    wrong = np.bincount(value_of, 1 / _POINTS - right)
    right = np.bincount(value_of, right)
    return of_table(np.stack([wrong, right]))


def of_table(shares: Floats) -> tuple[float, float]:
    """tau-b and rho of a (2, K) table of shares of queries, by outcome and by measure."""
    shares = shares / shares.sum()
    wrong, right = shares
    net = float(right @ (np.cumsum(wrong) - wrong) - wrong @ (np.cumsum(right) - right))
    by_value = wrong + right
    ranks = np.cumsum(by_value) - by_value / 2 - 0.5
    p = right.sum()
    free = (1 - (by_value**2).sum()) / 2
    return (
        net / np.sqrt(p * (1 - p) * free),
        float(right @ ranks) / np.sqrt(p * (1 - p) * (by_value @ ranks**2)),
    )


@cache
def correlation_for(measure: str, share: float, tau: float, most: float = MOST) -> float:
    """The r at which the true tau-b is ``tau``, or ``most`` of the greatest possible if that is less."""
    if tau == 0:
        return 0.0
    greatest = true_correlations(measure, share, 0.9999)[0]
    wanted = min(tau, most * greatest)
    return float(brentq(lambda r: true_correlations(measure, share, r)[0] - wanted, 0, 0.9999))
