"""What reads cost, by kind: single passages, by which annotators label, against lists that are read whole."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from rich.table import Table

from engine.evaluation.settings import Settings
from engine.labels.annotator import READER
from engine.reading.costs import SINGLE, WHOLE, KindCosts, ReadingCosts
from engine.report import layout

# Names of roles and kinds in the table; any other role reads single passages.
_WHOLE_NAME = "end to end: whole lists"
_NAMES = {SINGLE: "single passages", WHOLE: "whole lists"}


class Labelling(NamedTuple):
    """The annotator whose labels are the reader's own outcomes, and the role in which single passages are read for it."""

    annotator: str
    role: str


def labelling(settings: Settings) -> Labelling | None:
    """What whole lists are compared with; None where no annotator asks for the reader's outcomes."""
    own = [known.name for known in settings.annotators_in_use() if known.is_the_readers]
    return next(
        (Labelling(name, ask.role.name) for name, ask in settings.asks().items() if name in own),
        None,
    )


class _Row(NamedTuple):
    """One kind of reads of one role."""

    role: str
    kind: str
    costs: KindCosts


def table(roles: Mapping[str, ReadingCosts], base: Labelling | None) -> Table | None:
    """What the reads of each role and kind cost, and how much that is; None for one kind alone.

    Args:
        roles: costs by the name of the role.
        base: whose reads of single passages the others are compared with.
    """
    rows = [
        _Row(role, kind, costs.kinds[kind])
        for role, costs in roles.items()
        for kind in (SINGLE, WHOLE)
        if kind in costs.kinds
    ]
    if len(rows) < 2 or not any(row.costs.done for row in rows):
        return None
    of_base = next(
        (r.costs for r in rows if base and (r.role, r.kind) == (base.role, SINGLE)), None
    )
    padded = any(row.costs.padded_tokens > row.costs.computed_tokens for row in rows)
    split = any(row.costs.split_seconds for row in rows)
    heads = ["done", "stored", "prompt tokens", "shared", *(["padding"] if padded else [])]
    heads += ["generated", "reader s (~ by tokens)" if split else "reader s", "wall s"]
    ratios = [_ratio(row.costs, of_base) if of_base else "" for row in rows]
    compared = any(ratios)
    heads += [f"to {base.annotator}"] if compared and base else []
    result = layout.plain_table(["cost of reads"], heads)
    for row, ratio in zip(rows, ratios, strict=True):
        values = _values(row.costs, padded=padded) + ([ratio] if compared else [])
        layout.add_rows(result, [((_name(row, base),), values)])
    return result


def _name(row: _Row, base: Labelling | None) -> str:
    if (row.role, row.kind) == (READER.name, WHOLE):
        return _WHOLE_NAME
    named = base.annotator if base and row.role == base.role else row.role
    return f"{named}: {_NAMES[row.kind]}"


def _values(costs: KindCosts, *, padded: bool) -> list[str]:
    shared = 1 - costs.computed_tokens / costs.prompt_tokens if costs.prompt_tokens else 0.0
    padding = 1 - costs.computed_tokens / costs.padded_tokens if costs.padded_tokens else 0.0
    about = "~" if costs.split_seconds else ""
    return [
        f"{costs.done:,}",
        f"{costs.reused:,}",
        f"{costs.prompt_tokens:,}",
        f"{max(0.0, shared):.0%}" if costs.done else "",
        *([f"{padding:.0%}" if costs.done else ""] if padded else []),
        f"{costs.output_tokens:,}",
        f"{about}{costs.reader_seconds:,.1f}",
        f"{about}{costs.seconds:,.1f}",
    ]


def _ratio(costs: KindCosts, base: KindCosts) -> str:
    """Reader seconds for those of eRAG's reads, where both were done now and none came from the store."""
    if costs.reused or base.reused or not (costs.reader_seconds and base.reader_seconds):
        return ""
    return f"{costs.reader_seconds / base.reader_seconds:.2f}"
