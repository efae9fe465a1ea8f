"""Whether a candidate is worse than a baseline by more than a margin, or not: a test of non-inferiority.

The difference d is the candidate's mean less the baseline's, on the same queries. Two one-sided hypotheses are
tested, each at one level: d is -margin or less, and d is -margin or more. Where the first is rejected the candidate
is not worse by more than the margin, where the second is, it is worse by more; else the data do not decide (Piaggio
et al. 2012, "Reporting of noninferiority and equivalence randomized trials", figure 1). A loss within the margin is
allowed, also one that is significant: a candidate that is allowed fails as rarely as the level says.

Bounds are the ends of the one interval of a pair (``leads.paired_intervals``) at twice the level.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from engine.statistics.correlation import DECIMALS
from engine.statistics.leads import Floats, Ints, paired_intervals
from engine.statistics.power import queries_needed

# Of each of the two tests.
LEVEL = 0.05
Decision = Literal["not worse", "worse", "undecided"]


@dataclass(frozen=True)
class NonInferiority:
    """What a test of non-inferiority says of one pair.

    Attributes:
        decision: about the candidate: worse is worse by more than the margin.
        difference: of the means, candidate less baseline.
        low, high: one-sided bounds of it; of one query -1 and 1.
        n: the queries.
        queries_needed: how many would decide with a power of 80%, if others differ as these do (``power``); None
            where these decide, or the difference is the margin itself.
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
        family: how many pairs are tested together. All must be not worse for the family to be, which needs no
            correction (an intersection-union test, Berger 1982); any one that is worse makes it so, so that the
            level of "worse" is divided by their number (Bonferroni).
        clusters: (n,) the cluster of each query, from 0; None where queries are independent.
    """
    paired = np.round(differences, DECIMALS)
    low, high = -1.0, 1.0
    if len(paired) > 1 and (clusters is None or clusters.max() > 0):
        several = {1, family}
        found = {
            number: paired_intervals(
                paired[None], 1.0, confidence=1 - 2 * LEVEL, comparisons=number, clusters=clusters
            )
            for number in several
        }
        low, high = float(found[1].low[0]), float(found[family].high[0])
    decision: Decision = "undecided"
    if low > -margin:
        decision = "not worse"
    elif high < -margin:
        decision = "worse"
    difference, needed = float(paired.mean()), None
    if decision == "undecided":
        needed = queries_needed(
            paired,
            1.0,
            confidence=1 - 2 * LEVEL,
            comparisons=1 if difference > -margin else family,
            clusters=clusters,
            of_mean=-margin,
        )
    return NonInferiority(decision, difference + 0.0, low + 0.0, high + 0.0, len(paired), needed)
