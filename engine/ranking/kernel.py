"""The arithmetic of ranking measures, over flat arrays of labels in rank order.

One pass down the ranks gives every measure at every cutoff. Lists are taken in blocks, longest with longest, as
matrices of rank by list: each step is then a vector operation over the lists of a block. Every list is summed from its
first rank to its last, so equal lists get equal values to the last bit, for any blocks and number of threads.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from engine.ranking.kinds.base import Floats, Ints, Lists, Measure, SetSums


class Split(NamedTuple):
    """How scoring is split into steps. It affects time and memory, but no value.

    The ideal order follows from the counts of grades up to the highest of ``grades``, in sets of up to ``counted``
    labels; (counted + 1) ** grades is below 2^63.
    """

    threads: int | None = None  # all of this process's cores
    rows: int = 1_000_000  # approximate, of runs and labels per join: bounds memory
    cells: int = 2**19  # of a block's matrix: its rows stay in a core's cache during the sums
    lists: int = 8192  # most of a block
    grades: int = 7
    counted: int = 500


USUAL = Split()


class RankedLabels(NamedTuple):
    """Labels of ranked lists, and of their judged sets; all at least 0, or NaN if not judged."""

    labels: Floats  # (n_labels,) list after list, best rank first
    offsets: Ints  # (n_lists + 1,) where each list begins; the last is n_labels
    judged: Floats  # (n_judged,) judged set after set, in any order within a set
    judged_offsets: Ints  # (n_sets + 1,)
    judged_set: Ints  # (n_lists,) the set of every list

    @classmethod
    def own_lists(cls, labels: Floats, offsets: Ints) -> RankedLabels:
        """Every list is measured against its own labels."""
        return cls(labels, offsets, labels, offsets, np.arange(len(offsets) - 1))


def is_real_valued(labels: Floats) -> bool:
    """Whether some label is not a whole number; NaN does not count."""
    chunks = (labels[i : i + USUAL.cells] for i in range(0, len(labels), USUAL.cells))
    return any(bool(((chunk != np.rint(chunk)) & ~np.isnan(chunk)).any()) for chunk in chunks)


def measure_lists(
    ranked: RankedLabels, measures: Sequence[Measure], *, real_valued: bool, split: Split = USUAL
) -> Floats:
    """Every measure of every list: shape (n_measures, n_lists), as ``engine.ranking.scores`` defines.

    Args:
        real_valued: whether P, R, F1 and Success without threshold use the labels unchanged (``is_real_valued``),
            rather than count labels of 1 or more.
    """
    values = np.zeros((len(measures), len(ranked.offsets) - 1))
    cutoffs = frozenset(measure.cutoff for measure in measures if measure.cutoff is not None)
    grades = _grades(ranked, split)

    def lists_of(flat: Floats, offsets: Ints, block: Ints, sums: SetSums | None = None) -> Lists:
        lengths = offsets[block + 1] - offsets[block]
        return Lists(_matrix(flat, offsets, block), lengths, real_valued, cutoffs, grades, sums)

    set_sums: dict[tuple[Any, ...], Floats] = {}
    if not (own_lists := ranked.judged is ranked.labels):
        # Values of an empty block show which sums over judged sets the measures read.
        def read_none(key: tuple[Any, ...]) -> Floats:
            return set_sums.setdefault(key, np.zeros(len(ranked.judged_offsets) - 1))[:0]

        nothing, lengths = np.zeros((0, 0)), np.zeros(0, dtype=np.int64)
        none = Lists(nothing, lengths, real_valued, cutoffs, grades, read_none)
        for measure in measures:
            measure.value(none)

    def sum_sets(block: Ints) -> None:
        lists = lists_of(ranked.judged, ranked.judged_offsets, block)
        for key, column in set_sums.items():
            column[block] = key[0](lists, *key[1:])

    def measure_block(block: Ints) -> None:
        sets, at = ranked.judged_set[block], _as_slice(block)
        read = None if own_lists else lambda key: set_sums[key][sets]
        lists = lists_of(ranked.labels, ranked.offsets, block, read)
        for row, measure in enumerate(measures):
            values[row, at] = measure.value(lists)

    with ThreadPoolExecutor(split.threads or len(os.sched_getaffinity(0))) as pool:
        # Taking the results raises the exception of a block.
        list(pool.map(sum_sets, _blocks(ranked.judged_offsets, split) if set_sums else ()))
        list(pool.map(measure_block, _blocks(ranked.offsets, split)))
    return values


def _blocks(offsets: Ints, split: Split) -> Iterator[Ints]:
    """Indices of lists, longest first, in blocks whose matrix has a bounded number of cells."""
    lengths = np.diff(offsets)
    # Lists of equal length, the usual case, stay in their order and are read front to back.
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        width = max(1, int(lengths[order[start]]))
        size = max(1, min(split.lists, split.cells // width))
        yield order[start : start + size]
        start += size


def _as_slice(block: Ints) -> Ints | slice:
    """Lists in a row as a slice, which is read and written much faster."""
    in_a_row = bool((np.diff(block) == 1).all())
    return slice(int(block[0]), int(block[-1]) + 1) if in_a_row else block


def _matrix(flat: Floats, offsets: Ints, block: Ints) -> Floats:
    """The labels of some lists as a matrix of rank by list; 0 beyond a list's end."""
    starts, ends = offsets[block], offsets[block + 1]
    lengths = ends - starts
    width = int(lengths.max(initial=0))
    if lengths.min(initial=width) == width and isinstance(_as_slice(block), slice):
        return np.ascontiguousarray(flat[starts[0] : ends[-1]].reshape(len(block), width).T)
    ranks = np.arange(width)[:, None]
    inside = ranks < lengths
    return np.where(inside, flat[np.where(inside, starts + ranks, 0)], 0.0)


def _grades(ranked: RankedLabels, split: Split) -> int:
    """The highest grade if sets are short and labels few whole numbers, so that counts determine all; else 0."""
    highest = np.fmax.reduce(ranked.judged, initial=0)  # NaN if not judged
    longest = np.diff(ranked.judged_offsets).max(initial=0)
    few = 1 <= highest <= split.grades and longest <= split.counted
    return int(highest) if few and not is_real_valued(ranked.judged) else 0


class Lengths(NamedTuple):
    """Tokens of passages: in the order of ``RankedLabels.labels``, and of ``RankedLabels.judged``."""

    listed: Ints
    judged: Ints


def measure_within(
    ranked: RankedLabels,
    lengths: Lengths,
    measures: Sequence[Measure],
    *,
    real_valued: bool,
    split: Split,
) -> Floats:
    """Every measure of every list, as ``measure_lists``, with token budgets for some."""
    values = np.zeros((len(measures), len(ranked.offsets) - 1))
    for budget in {measure.tokens for measure in measures}:
        rows = [row for row, measure in enumerate(measures) if measure.tokens == budget]
        own = [measures[row] for row in rows]
        if budget is None:
            values[rows] = measure_lists(ranked, own, real_valued=real_valued, split=split)
            continue
        tokens = np.concatenate([[0], np.cumsum(lengths.listed)])
        before = np.repeat(tokens[ranked.offsets[:-1]], np.diff(ranked.offsets))
        inside = tokens[1:] - before <= budget
        offsets = np.concatenate([[0], np.cumsum(inside)])[ranked.offsets]
        cut = ranked._replace(labels=ranked.labels[inside], offsets=offsets)
        ideal = [row for row in rows if measures[row].has_best]
        others = [row for row in rows if row not in ideal]
        for some, against in ((others, cut), (ideal, _against_best(cut, lengths.judged, budget))):
            plain = [replace(measures[row], tokens=None) for row in some]
            values[some] = measure_lists(against, plain, real_valued=real_valued, split=split)
        for row in rows:
            if measures[row].counts_tokens:
                useful = _useful_tokens(cut, lengths.listed[inside], measures[row], real_valued)
                values[row] = useful / budget
    return values


def _against_best(cut: RankedLabels, tokens: Ints, budget: int) -> RankedLabels:
    """The lists against the best possible lists from their judged sets within the budget."""
    best = [
        list(_best(cut.judged[start:end], tokens[start:end], budget))
        for start, end in zip(cut.judged_offsets[:-1], cut.judged_offsets[1:], strict=True)
    ]
    offsets = np.concatenate([[0], np.cumsum(list(map(len, best)), dtype=np.int64)])
    judged = np.array([label for labels in best for label in labels], dtype=np.float64)
    return cut._replace(judged=judged, judged_offsets=offsets)


def _best(labels: Floats, tokens: Ints, budget: int) -> Iterator[float]:
    """The gains of the best order of a judged set, rank by rank."""
    # Negative lengths of the passages that fit so far: the longest one is first.
    longest: list[int] = []
    total = 0
    for place in np.argsort(-labels, kind="stable"):
        heapq.heappush(longest, -int(tokens[place]))
        total += int(tokens[place])
        if total > budget:
            total += heapq.heappop(longest)
        else:
            yield float(labels[place])


def _useful_tokens(cut: RankedLabels, tokens: Ints, measure: Measure, real_valued: bool) -> Floats:
    labels = np.nan_to_num(cut.labels, nan=0.0)
    useful = labels if measure.takes_labels(real_valued) else labels >= measure.threshold
    lists = np.arange(len(cut.offsets) - 1)
    by_passage = np.repeat(lists, np.diff(cut.offsets))
    return np.asarray(np.bincount(by_passage, useful * tokens, minlength=len(lists)))
