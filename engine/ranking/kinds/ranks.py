"""Measures of relevant passages' ranks: AP, RR, Rprec. Real-valued labels need a threshold."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from engine.ranking.kinds.base import Floats, Lists, Measure, Names, added, hits, ratio


def precisions(of: Lists, threshold: float) -> Iterator[Floats]:
    """The precision at each relevant rank."""
    total, above, scratch = np.zeros((3, len(of.lengths)))
    for rank, relevant in enumerate(of.relevant(threshold), 1):
        above += relevant
        np.multiply(relevant, above, out=scratch)
        total += np.divide(scratch, rank, out=scratch)
        yield total


class AveragePrecision(Measure):
    """AP@k: the sum over relevant i <= k of P@i, over the number of relevant passages."""

    kind = "AP"
    synonyms = "map map_cut"
    references = Names("map", "map_cut_{}", "map")
    reads = "judged"

    def value(self, of: Lists) -> Floats:
        sums = of.at(self.cutoff, precisions, self.threshold)
        return ratio(sums, of.judged(hits, self.threshold))


def first(of: Lists, threshold: float) -> Iterator[Floats]:
    """1 / the first relevant rank, the largest of all relevant ones."""
    total, scratch = np.zeros((2, len(of.lengths)))
    for rank, relevant in enumerate(of.relevant(threshold), 1):
        np.divide(relevant, rank, out=scratch)
        yield np.maximum(total, scratch, out=total)


class ReciprocalRank(Measure):
    """RR@k: 1 / the first relevant rank if that is <= k, else 0."""

    kind = "RR"
    synonyms = "mrr recip_rank reciprocal_rank"
    references = Names("recip_rank", "", "mrr")
    reads = "first"
    of_one_list = True

    def value(self, of: Lists) -> Floats:
        return of.at(self.cutoff, first, self.threshold)


def hits_within(of: Lists, threshold: float) -> Iterator[Floats]:
    """The number of relevant passages within as many ranks as there are relevant ones."""
    ranks, rows = of.judged(hits, threshold), enumerate(of.relevant(threshold), 1)
    return added(of, (np.where(ranks >= rank, row, 0.0) for rank, row in rows))


class RPrecision(Measure):
    """Rprec: relevant among the first N, over N, the number of relevant passages."""

    kind = "Rprec"
    synonyms = "r-precision r_precision"
    references = Names("Rprec", "", "r-precision")
    reads = "judged"
    has_cutoff = has_budget = False

    def value(self, of: Lists) -> Floats:
        return ratio(of.at(None, hits_within, self.threshold), of.judged(hits, self.threshold))
