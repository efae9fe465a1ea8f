"""What is evaluated after what, where ``benchmarks.efficiency`` measures savings."""

from __future__ import annotations

from dataclasses import fields

from engine.reading.settings import ReaderSettings, RunningSettings

FIRST, SECOND, SWAPPED, METRIC = (
    "first retriever",
    "second retriever",
    "swapped passage",
    "second metric",
)
EARLY_DECISION = "early decision"
DECIDE = "decide"  # the setting by which reads stop when they are decided


def changes() -> list[str]:
    """All of them; early decision only where the engine has that setting."""
    return [FIRST, SECOND, SWAPPED, METRIC] + [EARLY_DECISION] * has_setting(DECIDE)


def has_setting(name: str) -> bool:
    """Whether a field of the settings of reading has this name."""
    return any(
        field.name == name for part in (ReaderSettings, RunningSettings) for field in fields(part)
    )


def listed(change: str, k: int) -> list[int]:
    """The passages that are listed for a query, by number: the first retriever has 0 to ``k - 1``."""
    if change == SECOND:
        return list(range(k // 2, k // 2 + k))
    return [*range(k - 1), k if change == SWAPPED else k - 1]
