"""The share of a list that is judged."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from engine.ranking.kinds.base import Floats, Lists, Measure, added, ratio


def judged(of: Lists) -> Iterator[Floats]:
    """How many passages are judged."""
    return added(of, of.known)


class Judged(Measure):
    """Judged@k: judged among the first k, over k or the list's length if that is less."""

    kind = "Judged"
    labels = "presence"
    reads = "none"
    of_one_list = trivial_on_list = True

    def value(self, of: Lists) -> Floats:
        return ratio(of.at(self.cutoff, judged), np.minimum(of.lengths, of.depth(self.cutoff)))
