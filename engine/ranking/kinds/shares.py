"""Measures of which labels a list has, wherever: P, R, F1, Success.

On real-valued labels and without ``rel`` they take shares: P is the mean label and Success the largest (the eRAG
reference's definitions), R the label mass of the list over that of the judged.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from engine.ranking.kinds.base import Floats, Lists, Measure, Names, hits, mass, ratio


class _Share(Measure):
    labels = "shares"

    def _listed(self, of: Lists) -> Floats:
        if self.takes_labels(of.real_valued):
            return of.at(self.cutoff, mass)
        return of.at(self.cutoff, hits, self.threshold)

    def _all(self, of: Lists) -> Floats:
        if self.takes_labels(of.real_valued):
            return of.judged(mass)
        return of.judged(hits, self.threshold)


class Precision(_Share):
    """P@k: relevant among the first k, over k (over k also where the list is shorter)."""

    kind = "P"
    synonyms = "prec precision"
    references = Names("set_P", "P_{}", "precision")
    reads = "cutoff"
    of_one_list = counts_tokens = True

    def value(self, of: Lists) -> Floats:
        return ratio(self._listed(of), of.depth(self.cutoff))


class Recall(_Share):
    """R@k: relevant among the first k, over all that are relevant."""

    kind = "R"
    synonyms = "recall"
    references = Names("set_recall", "recall_{}", "recall")
    reads = "recall"

    def value(self, of: Lists) -> Floats:
        return ratio(self._listed(of), self._all(of))


class F1(_Share):
    """F1@k: the harmonic mean of P@k and R@k."""

    kind = "F1"
    references = Names("set_F", "", "f1", ir_measures=False)
    reads = "judged"
    has_budget = False

    def value(self, of: Lists) -> Floats:
        listed = self._listed(of)
        return np.where(listed > 0, ratio(2 * listed, of.depth(self.cutoff) + self._all(of)), 0.0)


def largest(of: Lists) -> Iterator[Floats]:
    """The largest label."""
    total = np.zeros(len(of.lengths))
    for labels in of.labels:
        yield np.maximum(total, labels, out=total)


class Success(_Share):
    """Success@k: 1 if some of the first k is relevant, else 0."""

    kind = "Success"
    synonyms = "hit hit_rate hitrate"
    references = Names("", "success_{}", "hit_rate")
    reads = "found"
    of_one_list = True

    def value(self, of: Lists) -> Floats:
        if self.takes_labels(of.real_valued):
            return of.at(self.cutoff, largest)
        return np.minimum(self._listed(of), 1.0)
