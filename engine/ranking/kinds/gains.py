"""Measures that take labels as gains: DCG, nDCG; and for utilities, UDCG."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from engine.ranking.kinds.base import Floats, Lists, Measure, Names, option, ratio


def exponential(of: Lists) -> Iterator[Floats]:
    """2 ** label - 1 at each rank, always in one array."""
    scratch = np.empty(len(of.lengths))
    for labels in of.labels:
        if of.real_valued:  # keeps the digits of small labels
            yield np.expm1(np.multiply(labels, np.log(2), out=scratch), out=scratch)
        else:  # exact
            yield np.subtract(np.exp2(labels, out=scratch), 1, out=scratch)


def discounts(depth: int) -> Floats:
    return np.asarray(1 / np.log2(np.arange(2, depth + 2)))


def gains(of: Lists, dcg: str) -> Iterator[Floats]:
    """Gains over log2(rank + 1)."""
    total, scratch = np.zeros((2, len(of.lengths)))
    rows = exponential(of) if dcg == "exp-log2" else of.labels
    for row, discount in zip(rows, discounts(len(of.labels)), strict=True):
        total += np.multiply(row, discount, out=scratch)
        yield total


def _dcg(text: str) -> str:
    if text not in ("log2", "exp-log2"):
        raise ValueError(text)
    return text


@dataclass(frozen=True)
class _Gain(Measure):
    labels = "gains"
    citation = "Järvelin & Kekäläinen 2002; exp-log2: Burges et al. 2005"

    dcg: str = option(
        "log2", "the gains: labels (log2), or 2 ** label - 1",
        "dcg='exp-log2'", _dcg, "unknown dcg", "use log2 or exp-log2",
    )  # fmt: skip

    @property
    def largest_label(self) -> float:
        return 1e3 if self.dcg == "exp-log2" else 1e15


class DCG(_Gain):
    """DCG@k: the sum over i <= k of l_i / log2(i + 1); with ``dcg='exp-log2'`` of (2 ** l_i - 1) / log2(i + 1)."""

    kind = "DCG"
    references = Names(ranx="dcg", ir_measures=False)
    reads = "cutoff"
    of_one_list = True

    def value(self, of: Lists) -> Floats:
        return of.at(self.cutoff, gains, self.dcg)

    def largest(self, k: int, label: float) -> float:
        gain = 2**label - 1 if self.dcg == "exp-log2" else label
        return gain * sum(1 / math.log2(rank + 1) for rank in range(1, (self.cutoff or k) + 1))


class NDCG(_Gain):
    """nDCG@k: DCG@k over the DCG@k of the judged passages in their best order."""

    kind = "nDCG"
    synonyms = "ndcg_cut"
    variants = (("ndcg_burges", "dcg='exp-log2'"),)
    references = Names("ndcg", "ndcg_cut_{}", "ndcg")
    reads = "judged"
    has_best = True

    def value(self, of: Lists) -> Floats:
        best = of.best(self.cutoff, gains, self.dcg)
        return ratio(of.at(self.cutoff, gains, self.dcg), best)


class UDCG(Measure):
    """UDCG@k: the sigmoid of the mean utility of the first k; of tables, in ``engine.ranking.scores.score_utility``."""

    kind = "UDCG"
    references = Names(ir_measures=False)
    labels = "utilities"
    has_budget = False

    def value(self, of: Lists) -> Floats:
        raise NotImplementedError("scores.score_utility takes utilities from tables")
