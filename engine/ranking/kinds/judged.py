"""Measures of judgments: Bpref, and the share of a list that is judged."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from engine.ranking.kinds.base import Floats, Lists, Measure, Names, added, hits, ratio


def misses(of: Lists, threshold: float) -> Iterator[Floats]:
    """The number of passages that are judged and not relevant."""
    return added(of, of.known - of.relevant(threshold))


def preferences(of: Lists, threshold: float) -> Iterator[Floats]:
    """For each relevant passage, the share of the judged others that are not before it."""
    relevant = of.judged(hits, threshold)
    others = np.minimum(of.judged(misses, threshold), relevant)
    rows = zip(of.relevant(threshold), misses(of, threshold), strict=True)
    return added(of, (row * (1 - ratio(np.minimum(n, relevant), others)) for row, n in rows))


class BinaryPreference(Measure):
    """Bpref: the mean over relevant passages of 1 - (judged others before it) / (all judged others).

    Both counts are limited to N, the number of relevant passages. Unjudged passages do not count.
    """

    kind = "Bpref"
    citation = "Buckley & Voorhees 2004"
    references = Names("bpref")
    reads = "judged"
    has_cutoff = has_budget = False

    def value(self, of: Lists) -> Floats:
        return ratio(of.at(None, preferences, self.threshold), of.judged(hits, self.threshold))


def judged(of: Lists) -> Iterator[Floats]:
    return added(of, of.known)


class Judged(Measure):
    """Judged@k: judged among the first k, over k or the list's length if that is less."""

    kind = "Judged"
    labels = "presence"
    reads = "none"
    of_one_list = trivial_on_list = True

    def value(self, of: Lists) -> Floats:
        return ratio(of.at(self.cutoff, judged), np.minimum(of.lengths, of.depth(self.cutoff)))
