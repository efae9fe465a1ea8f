"""Changes between evaluations, and ways to do them, for the savings in ``benchmarks.efficiency``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

FIRST, SECOND, SWAPPED, METRIC = (
    "first retriever",
    "second retriever",
    "swapped passage",
    "second metric",
)
CHANGES = (FIRST, SECOND, SWAPPED, METRIC)


class Way(NamedTuple):
    """A way to do an evaluation.

    Attributes:
        shares: whether common parts of reads are computed once.
        keeps: whether a store has the reads of the first retriever.
    """

    shares: bool
    keeps: bool

    @property
    def name(self) -> str:
        """The features switched on, in words."""
        on = [name for name, value in zip(("sharing", "store"), self, strict=True) if value]
        return " and ".join(on) or "none"


def ways(change: str) -> list[Way]:
    """All ways to do an evaluation, the one with nothing switched on first.

    Nothing is stored before the first retriever.
    """
    found = [
        Way(shares, keeps)
        for shares in (False, True)
        for keeps in ((False, True) if change != FIRST else (False,))
    ]
    return sorted(found, key=sum)


def listed(change: str, k: int) -> Sequence[int]:
    """Numbers of the listed passages of a query: the first retriever has 0 to ``k - 1``."""
    if change == SECOND:
        return range(k // 2, k // 2 + k)
    return [*range(k - 1), k if change == SWAPPED else k - 1]


def passages_of(k: int) -> int:
    """Number of listed passages of a query in all."""
    return k + k // 2 + 1
