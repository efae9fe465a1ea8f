"""What is evaluated after what, where ``benchmarks.efficiency`` measures savings."""

from __future__ import annotations

FIRST, SECOND, SWAPPED, METRIC = (
    "first retriever",
    "second retriever",
    "swapped passage",
    "second metric",
)
# Nothing is evaluated before: reads end as soon as they are decided, or do not.
EARLY_DECISION = "early decision"
CHANGES = (FIRST, SECOND, SWAPPED, METRIC, EARLY_DECISION)


def listed(change: str, k: int) -> list[int]:
    """The passages that are listed for a query, by number: the first retriever has 0 to ``k - 1``."""
    if change == SECOND:
        return list(range(k // 2, k // 2 + k))
    return [*range(k - 1), k if change == SWAPPED else k - 1]
