"""What is evaluated after what, and in which ways, where ``benchmarks.efficiency`` measures savings."""

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
    """How an evaluation is done.

    Attributes:
        shares: what reads have in common is computed once.
        keeps: a store has the reads of the first retriever.
        early: reads of single passages end as soon as they are decided.
    """

    shares: bool
    keeps: bool
    early: bool

    @property
    def name(self) -> str:
        """What is switched on, in words."""
        names = ("sharing", "store", "early ends")
        on = [name for name, value in zip(names, self, strict=True) if value]
        return " and ".join(filter(None, [", ".join(on[:-1]), *on[-1:]])) or "none"


def ways(change: str, *, early: bool) -> list[Way]:
    """All ways to do an evaluation, the one with nothing switched on first.

    Nothing is stored before the first retriever. The second metric is one by which no read may end early: early
    ends matter there only for what the store has.

    Args:
        early: whether reads may end early at all.
    """
    found = [
        Way(shares, keeps, ends)
        for shares in (False, True)
        for keeps in ((False, True) if change != FIRST else (False,))
        for ends in ((False, True) if early else (False,))
        if keeps or not (ends and change == METRIC)
    ]
    return sorted(found, key=sum)


def listed(change: str, k: int) -> Sequence[int]:
    """The passages that are listed for a query, by number: the first retriever has 0 to ``k - 1``."""
    if change == SECOND:
        return range(k // 2, k // 2 + k)
    return [*range(k - 1), k if change == SWAPPED else k - 1]


def passages_of(k: int) -> int:
    """How many passages of a query are listed in all."""
    return k + k // 2 + 1
