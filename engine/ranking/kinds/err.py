"""Expected reciprocal rank."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from engine.ranking.kinds.base import Floats, Lists, Measure, equal_labels, number_in, option
from engine.ranking.kinds.gains import exponential


def stopped(of: Lists, highest: float) -> Iterator[Floats]:
    """The chance to stop at each rank, over the rank."""
    total, reached = np.zeros(len(of.lengths)), np.ones(len(of.lengths))
    for rank, gain in enumerate(exponential(of), 1):
        stops = gain / 2**highest
        total += stops * reached / rank
        reached *= 1 - stops
        yield total


@dataclass(frozen=True)
class ExpectedReciprocalRank(Measure):
    """ERR@k: the sum over i <= k of r_i / i times the product over j < i of 1 - r_j, where r is (2 ** l - 1) / 2 ** max_rel.

    ``max_rel`` is the highest grade of the scale: 4 as in gdeval, which fixes it. Larger labels are refused.
    """

    kind = "ERR"
    citation = "Chapelle et al. 2009"
    labels = "gains"
    reads = "cutoff"
    of_one_list = True

    max_rel: float = option(
        4.0, "the highest grade of the scale", "max_rel=…", number_in(0, 1e3),
        "highest grade", "use a number above 0 and below 1,000, as in max_rel=3",
    )  # fmt: skip

    def value(self, of: Lists) -> Floats:
        return of.at(self.cutoff, stopped, self.max_rel)

    @property
    def largest_label(self) -> float:
        return self.max_rel

    @property
    def for_larger(self) -> str:
        return f", or give {self} the highest grade of the scale, as in ERR(max_rel=5)@20"

    def largest(self, k: int, label: float) -> float:
        return float(self.value(equal_labels(min(label, self.max_rel), self.cutoff or k))[0])
