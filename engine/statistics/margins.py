"""What a correlation's two margins allow: the AUC of a binary score, and how far tau-b can go."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.statistics.arrays import Floats


@dataclass(frozen=True)
class Margins:
    """A measure beside an end-to-end score, and what the values that each of them has allow.

    Attributes:
        auc: share of the pairs of a right and a wrong query in which the measure is higher for the right
            one, ties counting half: the area under the ROC curve, and (1 + d) / 2 for Somers' d of the
            measure given the score. In [0, 1]; NaN unless the scores are 0 and 1, with both among them.
        tau_min, tau_max: the least and the greatest tau-b of these values of the measure with these scores,
            were they assigned to queries in any way. NaN where tau is undefined.
        tau_reached: tau as a share of the farthest that it could go: of ``tau_max`` from 0 on, of
            ``tau_min`` below, with tau's sign. In [-1, 1]; NaN where tau is undefined.
    """

    auc: float
    tau_min: float
    tau_max: float
    tau_reached: float


def margins(x: Floats, y: Floats, tau: float) -> Margins:
    """What the values of a measure (x) and of the end-to-end score (y) allow.

    tau-b is greatest where both are sorted the same way, and least where one is reversed: to exchange the
    scores of two queries that stand in the other order never adds to tau's numerator, and leaves its
    denominator alone. With ties in other places on both sides that is less than 1: exact match with few
    right answers and a measure with few misses cannot agree, however good the measure is.

    Args:
        x, y: shape (n,), finite.
        tau: tau-b of the two; NaN where it is undefined.
    """
    auc = _auc(x, y)
    if math.isnan(tau):
        return Margins(auc, math.nan, math.nan, math.nan)
    upwards, outcomes = np.sort(x), np.sort(y)
    tau_max, tau_min = _farthest(upwards, outcomes), -_farthest(upwards, outcomes[::-1])
    reached = tau / (tau_max if tau >= 0 else -tau_min)
    # Both are rounded: 1 may come out a bit above.
    return Margins(auc, tau_min, tau_max, min(max(reached, -1.0), 1.0))


def _auc(x: Floats, y: Floats) -> float:
    """The share of pairs of a right and a wrong query that x orders (Mann & Whitney 1947)."""
    right, wrong = y == 1, y == 0
    if not right.any() or not wrong.any() or not (right | wrong).all():
        return math.nan
    values, place = np.unique(x, return_inverse=True)
    rights, wrongs = (np.bincount(place[side], minlength=len(values)) for side in (right, wrong))
    lower = np.cumsum(wrongs) - wrongs
    twice_ordered = int((rights * (2 * lower + wrongs)).sum())
    return twice_ordered / (2 * int(right.sum()) * int(wrong.sum()))


def _farthest(x: Floats, y: Floats) -> float:
    """tau-b of two sorted columns, either way round, without its sign: no two pairs disagree."""
    x_new, y_new = (np.append(True, values[1:] != values[:-1]) for values in (x, y))
    pairs = _pairs(np.array([len(x)]))
    x_tied, y_tied, both = (
        _pairs(np.diff(np.append(np.flatnonzero(new), len(x))))
        for new in (x_new, y_new, x_new | y_new)
    )
    return (pairs - x_tied - y_tied + both) / math.sqrt((pairs - x_tied) * (pairs - y_tied))


def _pairs(sizes: npt.NDArray[np.int64]) -> int:
    """The number of pairs within groups of these sizes."""
    return int((sizes.astype(np.int64) * (sizes.astype(np.int64) - 1) // 2).sum())
