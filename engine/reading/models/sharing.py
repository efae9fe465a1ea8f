"""Find what token sequences begin with in common, so that it is computed once.

Pure functions of token lists; nothing here knows of torch.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

# Below this many tokens a separate segment costs more in bookkeeping than it saves.
LEAST_SHARED = 8


@dataclass(frozen=True)
class Segment:
    """Tokens that several sequences, or one, have from ``start`` to ``end``, behind those of ``parent``.

    Attributes:
        parent: index of the segment that ends at ``start``; -1 where none does.
        start, end: positions in the sequence, end exclusive; ``start < end``.
        sample: a sequence that has these tokens.
        whole: whether this is the rest of ``sample``, so that its answer follows.
    """

    parent: int
    start: int
    end: int
    sample: int
    whole: bool


def common_length(first: Sequence[int], second: Sequence[int]) -> int:
    """How many tokens two sequences begin with in common."""
    same = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        same += 1
    return same


def segments(
    sequences: Sequence[Sequence[int]], done: Sequence[int], least: int = LEAST_SHARED
) -> list[Segment]:
    """Cut sequences into segments such that what some begin with in common is there once.

    Every sequence ends in a segment of its own (``whole``), at least one token long, since its
    answer follows from its last token. Parents come before their children.

    Args:
        sequences: token lists, none empty.
        done: for each, how many of its first tokens need not be computed; less than its length.
    """
    segments: list[Segment] = []
    order = sorted(range(len(sequences)), key=lambda i: (done[i], list(sequences[i])))

    def shared(i: int, j: int) -> int:
        length = common_length(sequences[i], sequences[j])
        # The last token of each is its own.
        return min(length, len(sequences[i]) - 1, len(sequences[j]) - 1)

    def split(members: list[int], depth: int, parent: int) -> None:
        if len(members) == 1:
            (member,) = members
            segments.append(Segment(parent, depth, len(sequences[member]), member, True))
            return
        lengths = [shared(a, b) for a, b in itertools.pairwise(members)]
        together = min(lengths)
        if together - depth >= least:
            segments.append(Segment(parent, depth, together, members[0], False))
            parent, depth = len(segments) - 1, together
        cuts = [i + 1 for i, length in enumerate(lengths) if length - depth < least]
        for first, last in zip([0, *cuts], [*cuts, len(members)], strict=True):
            split(members[first:last], depth, parent)

    start = 0
    for i in range(1, len(order) + 1):
        if i == len(order) or done[order[i]] != done[order[start]]:
            split(order[start:i], done[order[start]], -1)
            start = i
    return segments
