"""Whether a candidate is worse than a baseline by more than a margin, or not: a test of non-inferiority.

The difference d is the candidate's mean less the baseline's, on the same queries. Two one-sided hypotheses are
tested, each at one level: d is -margin or less, and d is -margin or more. Where the first is rejected the candidate
is not worse by more than the margin, where the second is, it is worse by more; else the data do not decide (Piaggio
et al. 2012, "Reporting of noninferiority and equivalence randomized trials", figure 1). A loss within the margin is
allowed, also one that is significant: a candidate that is allowed fails as rarely as the level says. Bounds are the ends of the one interval of a pair
(``leads.paired_intervals``) at twice the level.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from engine.statistics.arrays import Floats, Ints
from engine.statistics.correlation import DECIMALS
from engine.statistics.leads import paired_intervals
from engine.statistics.power import queries_needed

# Of each of the two tests.
LEVEL = 0.05
Decision = Literal["not worse", "worse", "undecided"]


@dataclass(frozen=True)
class NonInferiority:
    """What a test of non-inferiority says of one pair.

    Attributes:
        decision: about the candidate: worse is worse by more than the margin.
        difference, low, high: candidate less baseline, and one-sided bounds; -1 and 1 of one query.
        queries_needed: of ``n``, to decide with a power of 80% (``power``); None where these decide.
    """

    decision: Decision
    difference: float
    low: float
    high: float
    n: int
    queries_needed: int | None


def non_inferiority(
    differences: Floats, margin: float, *, family: int = 1, clusters: Ints | None = None
) -> NonInferiority:
    """Test one pair.

    Args:
        differences: (n,) of scores in [0, 1], candidate less baseline, query by query; n >= 1.
        margin: the loss that is allowed, in (0, 1).
        family: pairs that are tested together. All must be not worse (an intersection-union test, Berger 1982, at the
            same level), or any one be worse (Bonferroni's level).
        clusters: (n,) the cluster of each query, from 0; None where queries are independent.
    """
    paired = np.round(differences, DECIMALS)
    low, high, two_sided = -1.0, 1.0, 1 - 2 * LEVEL
    if len(paired) > 1 and (clusters is None or clusters.max() > 0):
        one, several = (
            paired_intervals(
                paired[None], 1.0, confidence=two_sided, comparisons=m, clusters=clusters
            )
            for m in (1, family)
        )
        low, high = float(one.low[0]), float(several.high[0])
    decision: Decision = (
        "not worse" if low > -margin else "worse" if high < -margin else "undecided"
    )
    difference, needed = float(paired.mean()), None
    if decision == "undecided":
        comparisons = 1 if difference > -margin else family
        needed = queries_needed(
            paired,
            1.0,
            confidence=two_sided,
            comparisons=comparisons,
            clusters=clusters,
            of_mean=-margin,
        )
    needed = needed and max(needed, len(paired) + 1)
    return NonInferiority(decision, difference + 0.0, low + 0.0, high + 0.0, len(paired), needed)
