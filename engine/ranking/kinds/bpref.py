"""Binary preference."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from engine.ranking.kinds.base import Floats, Lists, Measure, Names, hits, ratio


def misses(of: Lists, threshold: float) -> Iterator[Floats]:
    """How many passages are judged and not relevant."""
    total = np.zeros(len(of.lengths))
    for known, relevant in zip(of.known, of.relevant(threshold), strict=True):
        total += known - relevant
        yield total


def preferences(of: Lists, threshold: float) -> Iterator[Floats]:
    """For each relevant passage, the share of the judged others that are not before it."""
    total, found = np.zeros(len(of.lengths)), of.judged(hits, threshold)
    others = np.minimum(of.judged(misses, threshold), found)
    for relevant, before in zip(of.relevant(threshold), misses(of, threshold), strict=True):
        total += relevant * (1 - ratio(np.minimum(before, found), others))
        yield total


class BinaryPreference(Measure):
    """Bpref: the mean over relevant passages of 1 - (judged others before it) / (all judged others).

    Both counts are of N at most, the number of the relevant. What is not judged does not count.
    """

    kind = "Bpref"
    citation = "Buckley & Voorhees 2004"
    references = Names("bpref")
    reads = "judged"
    has_cutoff = has_budget = False

    def value(self, of: Lists) -> Floats:
        return ratio(of.at(None, preferences, self.threshold), of.judged(hits, self.threshold))
