"""What edits of a run cost, in a line."""

from __future__ import annotations

from engine.evaluation.edited import EditedReads


def line(found: EditedReads) -> str:
    """How many edits there were, and which of the edited run's reads its original does not have."""
    said = [
        f"{found.edits} edit{'s' * (found.edits != 1)} in {found.queries} "
        f"{'query' if found.queries == 1 else 'queries'}"
    ]
    if found.passages is not None and found.new_passages is not None:
        said.append(
            f"{found.passages - found.new_passages} of its {found.passages} single-passage reads "
            f"are reads of {found.original} too, {_new(found.new_passages)}"
        )
    if found.lists is not None and found.new_lists is not None:
        said.append(f"of {found.lists} whole lists {_new(found.new_lists)}")
    return f"{found.run}: {'; '.join(said)}"


def _new(amount: int) -> str:
    return f"{amount} {'is' if amount == 1 else 'are'} new"
