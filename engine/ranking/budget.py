"""Ranking measures at a budget of tokens, so that lists of short and of long passages have equal room in a prompt.

The passages within T tokens are the first ones of a list that T tokens hold as a whole: the first passage that does
not fit ends them. None is cut, since a label is of a whole passage; a reader that is given T tokens of a list
(``ReaderSettings.end_to_end_k``) is given the same passages. With n of them, a measure @Ttok is the measure @n, so
that equal lengths give what the measure at the rank gives; but

- P@Ttok: the tokens of relevant passages among the n, over T (of real-valued labels: each label times its passage's
  tokens). A token is what a rank is to P@k: what is left empty counts as not relevant. INEX's measures of focused
  retrieval count text in place of passages, too, and divide by what was retrieved (Kamps et al., INEX 2007).
- nDCG@Ttok: DCG@n over the most that T tokens could hold of the judged passages. The gain at rank i of that order is
  the largest label that i passages have at least which fit into T together; where all labels are 0 or 1, the
  relevant ones stand in the order of their lengths. The lengths of all judged passages must be known.
- F1, Rprec and UDCG are not defined.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.ranking.kernel import Floats, Ints, RankedLabels, Split, measure_lists
from engine.ranking.measures import Measure


class Lengths(NamedTuple):
    """Tokens of passages: in the order of ``RankedLabels.labels``, and of ``RankedLabels.judged``."""

    listed: Ints
    judged: Ints


def within_budget(tokens: Ints, offsets: Ints, budget: int) -> npt.NDArray[np.bool_]:
    """Which passages of some lists are within a budget.

    Args:
        tokens: (n_passages,) list after list, best rank first, at least 0.
        offsets: (n_lists + 1,) where each list begins; the last is n_passages.
    """
    sums = np.concatenate([[0], np.cumsum(tokens)])
    return np.asarray(sums[1:] - np.repeat(sums[offsets[:-1]], np.diff(offsets)) <= budget)


def measure_within(
    ranked: RankedLabels,
    lengths: Lengths,
    measures: Sequence[Measure],
    *,
    real_valued: bool,
    split: Split,
) -> Floats:
    """Every measure of every list, as ``kernel.measure_lists``, where some have a budget of tokens."""
    values = np.zeros((len(measures), len(ranked.offsets) - 1))
    for budget in {measure.tokens for measure in measures}:
        rows = [row for row, measure in enumerate(measures) if measure.tokens == budget]
        own = [measures[row] for row in rows]
        if budget is None:
            values[rows] = measure_lists(ranked, own, real_valued=real_valued, split=split)
            continue
        inside = within_budget(lengths.listed, ranked.offsets, budget)
        offsets = np.concatenate([[0], np.cumsum(inside)])[ranked.offsets]
        cut = replace(ranked, labels=ranked.labels[inside], offsets=offsets)
        ideal = [row for row in rows if measures[row].kind == "nDCG"]
        others = [row for row in rows if row not in ideal]
        for some, against in ((others, cut), (ideal, _against_best(cut, lengths.judged, budget))):
            plain = [replace(measures[row], tokens=None) for row in some]
            values[some] = measure_lists(against, plain, real_valued=real_valued, split=split)
        for row in rows:
            if measures[row].kind == "P":
                found = _useful_tokens(cut, lengths.listed[inside], measures[row], real_valued)
                values[row] = found / budget
    return values


def _against_best(cut: RankedLabels, tokens: Ints, budget: int) -> RankedLabels:
    """The lists against the best that the budget can hold of their judged sets."""
    best = [
        list(_best(cut.judged[start:end], tokens[start:end], budget))
        for start, end in zip(cut.judged_offsets[:-1], cut.judged_offsets[1:], strict=True)
    ]
    offsets = np.concatenate([[0], np.cumsum(list(map(len, best)), dtype=np.int64)])
    judged = np.array([label for labels in best for label in labels], dtype=np.float64)
    return replace(cut, judged=judged, judged_offsets=offsets)


def _best(labels: Floats, tokens: Ints, budget: int) -> Iterator[float]:
    """The gains of the best order of a judged set, rank by rank."""
    # Of the passages so far as many as fit, negative: the longest one first.
    longest: list[int] = []
    total = 0
    for place in np.argsort(-labels, kind="stable"):
        heapq.heappush(longest, -int(tokens[place]))
        total += int(tokens[place])
        if total > budget:
            total += heapq.heappop(longest)
        else:
            yield float(labels[place])


def _useful_tokens(
    cut: RankedLabels, tokens: Ints, measure: Measure, real_valued: bool
) -> npt.NDArray[np.float64]:
    labels = np.nan_to_num(cut.labels, nan=0.0)
    useful = labels if measure.takes_labels(real_valued) else labels >= measure.threshold
    lists = len(cut.offsets) - 1
    of_list = np.repeat(np.arange(lists), np.diff(cut.offsets))
    return np.asarray(np.bincount(of_list, useful * tokens, minlength=lists))
