"""The arithmetic of ranking measures, over flat arrays of labels in rank order.

One pass down the ranks gives every measure at every cutoff. Lists are taken in blocks, longest with
longest, as matrices of rank by list: each step is then a vector operation over the lists of a block.
Every list is summed from its first rank to its last whatever block it falls in, so equal lists get
equal values to the last bit, for any number of threads. The floor is one read of each label (8
bytes) and about ten operations on it per threshold.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from engine.ranking.measures import Measure

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Split(NamedTuple):
    """How scoring is split into steps. No value depends on it, only time and memory.

    Attributes:
        threads: None for all of this process's cores.
        rows: of runs and labels that are joined at a time, about: bounds memory beside the input.
        cells: of a block's matrix: its rows stay in a core's cache while the accumulators pass over them.
        lists: of a block, at most.
        grades, counted: the ideal order follows from the counts of grades up to the highest of
            ``grades``, in sets of up to ``counted`` labels; (counted + 1) ** grades is below 2^63.
    """

    threads: int | None = None
    rows: int = 1_000_000
    cells: int = 2**19
    lists: int = 8192
    grades: int = 7
    counted: int = 500


USUAL = Split()


@dataclass(frozen=True)
class RankedLabels:
    """Labels of ranked lists, and of the judged sets that they are measured against.

    Attributes:
        labels: (n_labels,) list after list, best rank first, at least 0; NaN where not judged.
        offsets: (n_lists + 1,) where each list begins; the last is n_labels.
        judged: (n_judged,) judged set after set, in any order within a set, at least 0.
        judged_offsets: (n_sets + 1,).
        judged_set: (n_lists,) the set of each list.
    """

    labels: Floats
    offsets: Ints
    judged: Floats
    judged_offsets: Ints
    judged_set: Ints

    @classmethod
    def own_lists(cls, labels: Floats, offsets: Ints) -> RankedLabels:
        """Every list is measured against its own labels."""
        return cls(labels, offsets, labels, offsets, np.arange(len(offsets) - 1))


@dataclass(frozen=True)
class _Plan:
    """What one pass accumulates: the sums that some measure needs, and where it reads them off."""

    thresholds: tuple[float, ...]
    kinds: frozenset[str]
    cutoffs: tuple[int, ...]
    real_valued: bool


_Sums = dict[tuple[str, float | None, int | None], Floats]


def is_real_valued(labels: Floats) -> bool:
    """Whether some label is not a whole number; NaN does not count."""
    chunks = (labels[i : i + USUAL.cells] for i in range(0, len(labels), USUAL.cells))
    return any(bool(((chunk != np.rint(chunk)) & ~np.isnan(chunk)).any()) for chunk in chunks)


def measure_lists(
    ranked: RankedLabels, measures: Sequence[Measure], *, real_valued: bool, split: Split = USUAL
) -> Floats:
    """Every measure of every list: shape (n_measures, n_lists), as ``engine.ranking.scores`` defines.

    Args:
        real_valued: whether P, R, F1 and Success without threshold take the labels as they are
            (``is_real_valued``), rather than count those of 1 or more.
    """
    plan = _plan(measures, real_valued)
    workers = split.threads or len(os.sched_getaffinity(0))
    grades = _grades(ranked, split)
    values = np.zeros((len(measures), len(ranked.offsets) - 1))
    with ThreadPoolExecutor(workers) as pool:
        own_lists = ranked.judged is ranked.labels
        ideals = {} if own_lists else _ideals(ranked, plan, grades, split, pool)

        def measure_block(block: Ints) -> None:
            matrix = _matrix(ranked.labels, ranked.offsets, block)
            if own_lists:
                against = _ideal(matrix, plan, grades)
            else:
                sets = ranked.judged_set[block]
                against = {key: column[sets] for key, column in ideals.items()}
            lengths = ranked.offsets[block + 1] - ranked.offsets[block]
            sums = _accumulate(matrix, plan, against, lengths)
            at = _as_slice(block)
            for row, measure in enumerate(measures):
                values[row, at] = _value(measure, plan, sums, against, lengths)

        for _ in pool.map(measure_block, _blocks(ranked.offsets, split)):
            pass  # exceptions surface here
    return values


def _plan(measures: Sequence[Measure], real_valued: bool) -> _Plan:
    kinds: set[str] = set()
    for measure in measures:
        gains = measure.dcg if measure.kind in ("DCG", "nDCG") else None
        if gains is not None:
            kinds.add(gains)
        elif measure.takes_labels(real_valued):
            kinds.add("max" if measure.kind == "Success" else "mass")
        else:
            kinds.add(measure.kind if measure.kind in ("AP", "RR", "Rprec", "Judged") else "hits")
    counting = [m for m in measures if m.kind in ("AP", "RR", "Rprec", "R", "F1", "P", "Success")]
    thresholds = {m.threshold for m in counting if not m.takes_labels(real_valued)}
    cutoffs = {m.cutoff for m in measures if m.cutoff is not None}
    return _Plan(tuple(sorted(thresholds)), frozenset(kinds), tuple(sorted(cutoffs)), real_valued)


def _blocks(offsets: Ints, split: Split) -> Iterator[Ints]:
    """Indices of lists, longest first, in blocks whose matrix has a bounded number of cells."""
    lengths = np.diff(offsets)
    # Lists of one length, the usual case, stay in their order and are read front to back.
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


def _discounts(depth: int) -> Floats:
    return np.asarray(1 / np.log2(np.arange(2, depth + 2)))


def _ideals(
    ranked: RankedLabels, plan: _Plan, grades: int, split: Split, pool: ThreadPoolExecutor
) -> _Sums:
    blocks = list(_blocks(ranked.judged_offsets, split))

    def of_block(block: Ints) -> _Sums:
        return _ideal(_matrix(ranked.judged, ranked.judged_offsets, block), plan, grades)

    result: _Sums = {}
    for block, sums in zip(blocks, pool.map(of_block, blocks), strict=True):
        for key, column in sums.items():
            if key not in result:
                result[key] = np.zeros(len(ranked.judged_offsets) - 1)
            result[key][block] = column
    return result


def _ideal(matrix: Floats, plan: _Plan, grades: int) -> _Sums:
    """Of the judged sets in a block: how many are relevant, the label mass, the best DCG at each cutoff."""
    result: _Sums = {
        ("hits", threshold, None): _count(matrix >= threshold).astype(np.float64)
        for threshold in plan.thresholds
    }
    if "mass" in plan.kinds:
        alone = replace(plan, thresholds=(), kinds=frozenset({"mass"}), cutoffs=())
        result["mass", None, None] = _mass(_accumulate(matrix, alone, {}), None)
    gains = plan.kinds & {"log2", "exp-log2"}
    if not gains:
        return result
    spread: Ints | slice = slice(None)
    if grades:
        # Sets with the same number of each grade have the same best order: sort one of each.
        kind = np.zeros(matrix.shape[1], dtype=np.int64)
        for grade in range(1, grades + 1):
            kind = kind * (len(matrix) + 1) + _count(matrix >= grade)
        _, one_of_each, spread = np.unique(kind, return_index=True, return_inverse=True)
        matrix = matrix[:, one_of_each]
    # Sorted list by list, where the labels of one list lie side by side.
    best_first = np.ascontiguousarray(np.sort(np.ascontiguousarray(matrix.T))[:, ::-1].T)
    sums = _accumulate(best_first, replace(plan, thresholds=(), kinds=frozenset(gains)), {})
    return result | {key: column[spread] for key, column in sums.items()}


def _grades(ranked: RankedLabels, split: Split) -> int:
    """The highest grade where sets are short and labels few whole numbers, so that counts tell all; else 0."""
    highest = ranked.judged.max(initial=0)
    longest = np.diff(ranked.judged_offsets).max(initial=0)
    few = 1 <= highest <= split.grades and longest <= split.counted
    return int(highest) if few and not is_real_valued(ranked.judged) else 0


def _count(which: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint32]:
    return np.add.reduce(which.view(np.uint8), axis=0, dtype=np.uint32)


def _accumulate(matrix: Floats, plan: _Plan, against: _Sums, lengths: Ints | None = None) -> _Sums:
    """Sums down the ranks (rows) of a block, read off at the cutoffs and, as None, at the end."""
    width, size = matrix.shape
    if "Judged" in plan.kinds and lengths is not None:
        # What pads a list to the block's width is not judged.
        judged = ~np.isnan(matrix) & (np.arange(width)[:, None] < lengths)
    matrix = np.nan_to_num(matrix, nan=0.0) if np.isnan(matrix).any() else matrix
    running: dict[tuple[str, float | None], Floats] = {}
    for kind in plan.kinds & {"mass", "max", "log2", "exp-log2", "Judged"}:
        running[kind, None] = np.zeros(size)
    if "mass" in plan.kinds:
        running["lost", None] = np.zeros(size)
    for threshold in plan.thresholds:
        running["hits", threshold] = np.zeros(size)
        for kind in plan.kinds & {"AP", "RR", "Rprec"}:
            running[kind, threshold] = np.zeros(size)
    discounts = _discounts(width)
    sums: _Sums = {}
    scratch = np.empty(size)
    hit = {threshold: (matrix >= threshold).astype(np.float64) for threshold in plan.thresholds}
    for rank in range(1, width + 1):
        labels = matrix[rank - 1]
        if "mass" in plan.kinds:
            _add_exactly(running["mass", None], running["lost", None], labels)
        if "max" in plan.kinds:
            np.maximum(running["max", None], labels, out=running["max", None])
        if "log2" in plan.kinds:
            running["log2", None] += np.multiply(labels, discounts[rank - 1], out=scratch)
        if "exp-log2" in plan.kinds:
            if plan.real_valued:  # keeps the digits of small labels
                np.expm1(np.multiply(labels, np.log(2), out=scratch), out=scratch)
            else:  # exact
                np.subtract(np.exp2(labels, out=scratch), 1, out=scratch)
            running["exp-log2", None] += np.multiply(scratch, discounts[rank - 1], out=scratch)
        if "Judged" in plan.kinds:
            running["Judged", None] += judged[rank - 1]
        for threshold in plan.thresholds:
            relevant = hit[threshold][rank - 1]
            hits = running["hits", threshold]
            hits += relevant
            if "AP" in plan.kinds:
                np.multiply(relevant, hits, out=scratch)
                running["AP", threshold] += np.divide(scratch, rank, out=scratch)
            if "RR" in plan.kinds:
                # The first relevant rank has the largest reciprocal.
                np.divide(relevant, rank, out=scratch)
                np.maximum(running["RR", threshold], scratch, out=running["RR", threshold])
            if "Rprec" in plan.kinds:
                running["Rprec", threshold] += np.where(
                    against["hits", threshold, None] >= rank, relevant, 0.0
                )
        if rank in plan.cutoffs:
            sums |= {(kind, t, rank): column.copy() for (kind, t), column in running.items()}
    for depth in (None, *plan.cutoffs):
        if depth is None or depth > width:
            sums |= {(kind, t, depth): column for (kind, t), column in running.items()}
    return sums


def _add_exactly(total: Floats, lost: Floats, labels: Floats) -> None:
    """Add labels to a total in place, and to ``lost`` what rounding takes from it (Knuth's two-sum).

    So the mass of labels does not depend on their order, and a list of all the judged has all of it.
    """
    before = total.copy()
    total += labels
    added = total - before
    lost += (before - (total - added)) + (labels - added)


def _mass(sums: _Sums, cutoff: int | None) -> Floats:
    return sums["mass", None, cutoff] + sums["lost", None, cutoff]


def _value(
    measure: Measure, plan: _Plan, sums: _Sums, against: _Sums, lengths: Ints
) -> Floats | np.float64:
    kind, k = measure.kind, measure.cutoff
    depth = lengths if k is None else k
    if kind in ("DCG", "nDCG"):
        dcg = sums[measure.dcg, None, k]
        return dcg if kind == "DCG" else _ratio(dcg, against[measure.dcg, None, k])
    if kind == "Judged":
        return _ratio(sums["Judged", None, k], np.minimum(lengths, depth))
    if measure.takes_labels(plan.real_valued):
        if kind == "Success":
            return sums["max", None, k]
        found, total = _mass(sums, k), against["mass", None, None]
    else:
        found = sums["hits", measure.threshold, k]
        total = against["hits", measure.threshold, None]
    if kind == "P":
        return _ratio(found, depth)
    if kind == "R":
        return _ratio(found, total)
    if kind == "F1":
        # The harmonic mean of found / depth and found / total.
        return np.where(found > 0, _ratio(2 * found, depth + total), 0.0)
    if kind in ("AP", "Rprec"):
        return _ratio(sums[kind, measure.threshold, k], total)
    if kind == "RR":
        return sums["RR", measure.threshold, k]
    return np.minimum(found, 1.0)  # Success


def _ratio(numerator: Floats, denominator: Floats | Ints | int) -> Floats:
    """The quotient; 0 where the denominator is, as the numerator then is 0 too."""
    if isinstance(denominator, int):
        return numerator / denominator
    return np.asarray(numerator / np.where(denominator > 0, denominator, 1))


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
