"""Measures of a user who may stop at each rank: RBP, ERR."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from engine.ranking.kinds.base import Floats, Lists, Measure, added, equal_labels, number_in, option
from engine.ranking.kinds.gains import exponential


def seen(of: Lists, p: float, threshold: float | None) -> Iterator[Floats]:
    """Labels, or hits at a threshold, times p ** (rank - 1)."""
    gains = of.labels if threshold is None else of.relevant(threshold)
    return added(of, (row * p**place for place, row in enumerate(gains)))


@dataclass(frozen=True)
class RankBiasedPrecision(Measure):
    """RBP@k: (1 - p) times the sum over relevant i <= k of p ** (i - 1), where p is the chance to go on to the next rank.

    Real-valued labels without ``rel`` count as they are, as the paper's gains between 0 and 1.
    """

    kind = "RBP"
    citation = "Moffat & Zobel 2008"
    labels = "shares"
    reads = "cutoff"
    of_one_list = True

    p: float = option(
        0.8, "the chance to go on to the next passage", "p=…", number_in(0, 1),
        "persistence", "use a number between 0 and 1, as in p=0.8",
    )  # fmt: skip

    def value(self, of: Lists) -> Floats:
        threshold = None if self.takes_labels(of.real_valued) else self.threshold
        return (1 - self.p) * of.at(self.cutoff, seen, self.p, threshold)

    def largest(self, k: int, label: float) -> float:
        return float(self.value(equal_labels(max(1.0, self.threshold), self.cutoff or k))[0])


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
