"""What edits of a run cost, in a line."""

from __future__ import annotations

from engine.evaluation.edited import EditedReads
from engine.wording import counted


def line(reads: EditedReads) -> str:
    """How many edits there were, and how many of the edited run's reads its original does not have."""
    edits = f"{counted(reads.edits, 'edit[|s]')} in {counted(reads.queries, '[query|queries]')}"
    new = [
        f"{fresh} of {counted(total, what)}"
        for fresh, total, what in (
            (reads.new_passages, reads.passages, "single-passage read[|s]"),
            (reads.new_lists, reads.lists, "whole-list read[|s]"),
        )
        if fresh is not None and total is not None
    ]
    if not new:
        return f"{reads.run}: {edits}"
    return f"{reads.run}: {edits}; {' and '.join(new)} are new, the rest are shared with {reads.original}"
