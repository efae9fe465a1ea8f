"""Rank-biased precision."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from engine.ranking.kinds.base import Floats, Lists, Measure, added, equal_labels, number_in, option


def seen(of: Lists, p: float, threshold: float | None) -> Iterator[Floats]:
    """Labels, or hits at a threshold, times p ** (rank - 1)."""
    found = of.labels if threshold is None else of.relevant(threshold)
    return added(of, (row * p**place for place, row in enumerate(found)))


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
