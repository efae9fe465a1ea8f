"""The arithmetic of ranking measures, over flat arrays of labels in rank order.

One pass down the ranks gives every measure at every cutoff. Lists are taken in blocks, longest with
longest, as matrices of rank by list: each step is then a vector operation over the lists of a block.
Every list is summed from its first rank to its last whatever block it falls in, so equal lists get
equal values to the last bit, for any number of threads. The floor is one read of each label (8
bytes) and about ten operations on it per threshold.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.ranking.measures import Measure

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

# Cells of a block's matrix: its rows stay in a core's cache while the accumulators pass over them.
_BLOCK_CELLS = 2**18
_BLOCK_LISTS = 4096


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
    """Whether some label is no whole number; NaN does not count."""
    return bool(np.any(labels % 1 > 0))


def measure_lists(
    ranked: RankedLabels,
    measures: Sequence[Measure],
    *,
    real_valued: bool,
    threads: int | None = None,
) -> Floats:
    """Every measure of every list: shape (n_measures, n_lists), as ``engine.ranking.scores`` defines.

    Args:
        real_valued: whether P, R, F1 and Success without threshold take the labels as they are
            (``is_real_valued``), rather than count those of 1 or more.
        threads: None for all of this process's cores; the result does not depend on it.
    """
    plan = _plan(measures, real_valued)
    workers = threads or len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(workers) as pool:
        ideal = _ideals(ranked, plan, pool)
        values = np.zeros((len(measures), len(ranked.offsets) - 1))

        def measure_block(block: Ints) -> None:
            own = ranked.judged_set[block]
            against = {key: column[own] for key, column in ideal.items()}
            matrix = _matrix(ranked.labels, ranked.offsets, block)
            lengths = ranked.offsets[block + 1] - ranked.offsets[block]
            sums = _accumulate(matrix, plan, against)
            for row, measure in enumerate(measures):
                values[row, block] = _value(measure, plan, sums, against, lengths)

        for _ in pool.map(measure_block, _blocks(ranked.offsets)):
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


def _blocks(offsets: Ints) -> Iterator[Ints]:
    """Indices of lists, longest first, in blocks whose matrix has a bounded number of cells."""
    lengths = np.diff(offsets)
    # Lists of one length, the usual case, stay in their order and are read front to back.
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        width = max(1, int(lengths[order[start]]))
        size = max(1, min(_BLOCK_LISTS, _BLOCK_CELLS // width))
        yield order[start : start + size]
        start += size


def _matrix(flat: Floats, offsets: Ints, block: Ints) -> Floats:
    """The labels of some lists as a matrix of rank by list; 0 beyond a list's end."""
    starts, ends = offsets[block], offsets[block + 1]
    lengths = ends - starts
    width = int(lengths.max(initial=0))
    if lengths.min(initial=width) == width and ends[-1] - starts[0] == width * len(block):
        return np.ascontiguousarray(flat[starts[0] : ends[-1]].reshape(len(block), width).T)
    ranks = np.arange(width)[:, None]
    inside = ranks < lengths
    return np.where(inside, flat[np.where(inside, starts + ranks, 0)], 0.0)


def _discounts(depth: int) -> Floats:
    return np.asarray(1 / np.log2(np.arange(2, depth + 2)))


def _ideals(ranked: RankedLabels, plan: _Plan, pool: ThreadPoolExecutor) -> _Sums:
    """Of every judged set: how many are relevant, the label mass, the best DCG at each cutoff."""
    flat, offsets = ranked.judged, ranked.judged_offsets
    binary = bool(np.all((flat == 0) | (flat == 1)))
    n_sets = len(offsets) - 1
    depths: list[int | None] = [None, *plan.cutoffs]
    gains = [name for name in ("log2", "exp-log2") if name in plan.kinds]
    counted = {*plan.thresholds, 1.0} if gains and binary else {*plan.thresholds}
    result: _Sums = {("hits", threshold, None): np.zeros(n_sets) for threshold in counted}
    if "mass" in plan.kinds:
        result["mass", None, None] = np.zeros(n_sets)
    result |= {(name, None, depth): np.zeros(n_sets) for name in gains for depth in depths}

    def fill(block: Ints) -> None:
        matrix = _matrix(flat, offsets, block)
        for threshold in counted:
            result["hits", threshold, None][block] = np.count_nonzero(matrix >= threshold, axis=0)
        if "mass" in plan.kinds:
            result["mass", None, None][block] = matrix.sum(axis=0)
        if not gains:
            return
        width = len(matrix)
        discounts = _discounts(width)
        if binary:
            # Ones first: the best DCG is a running sum of discounts, looked up by their number.
            best = np.concatenate([[0.0], np.cumsum(discounts)])
            ones = result["hits", 1.0, None][block].astype(np.int64)
            for depth in depths:
                at = best[ones if depth is None else np.minimum(ones, depth)]
                for name in gains:
                    result[name, None, depth][block] = at
            return
        # Sorted list by list, where the labels of one list lie side by side.
        best_first = np.ascontiguousarray(np.sort(np.ascontiguousarray(matrix.T))[:, ::-1].T)
        for name in gains:
            sums = _accumulate(
                best_first, _Plan((), frozenset({name}), plan.cutoffs, plan.real_valued), {}
            )
            for depth in depths:
                result[name, None, depth][block] = sums[name, None, depth]

    for _ in pool.map(fill, _blocks(offsets)):
        pass
    return result


def _accumulate(matrix: Floats, plan: _Plan, against: _Sums) -> _Sums:
    """Sums down the ranks (rows) of a block, read off at the cutoffs and, as None, at the end."""
    width, size = matrix.shape
    if "Judged" in plan.kinds:
        judged = np.where(np.isnan(matrix), 0.0, 1.0)
    matrix = np.nan_to_num(matrix, nan=0.0) if np.isnan(matrix).any() else matrix
    running: dict[tuple[str, float | None], Floats] = {}
    for kind in plan.kinds & {"mass", "max", "log2", "exp-log2", "Judged"}:
        running[kind, None] = np.zeros(size)
    for threshold in plan.thresholds:
        running["hits", threshold] = np.zeros(size)
        for kind in plan.kinds & {"AP", "RR", "Rprec"}:
            running[kind, threshold] = np.zeros(size)
    discounts = _discounts(width)
    sums: _Sums = {}
    scratch = np.empty(size)
    relevant = np.empty(size)
    for rank in range(1, width + 1):
        labels = matrix[rank - 1]
        if "mass" in plan.kinds:
            running["mass", None] += labels
        if "max" in plan.kinds:
            np.maximum(running["max", None], labels, out=running["max", None])
        if "log2" in plan.kinds:
            running["log2", None] += np.multiply(labels, discounts[rank - 1], out=scratch)
        if "exp-log2" in plan.kinds:
            np.subtract(np.exp2(labels, out=scratch), 1, out=scratch)
            running["exp-log2", None] += np.multiply(scratch, discounts[rank - 1], out=scratch)
        if "Judged" in plan.kinds:
            running["Judged", None] += judged[rank - 1]
        for threshold in plan.thresholds:
            np.greater_equal(labels, threshold, out=relevant, casting="unsafe")
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
                np.multiply(relevant, against["hits", threshold, None] >= rank, out=scratch)
                running["Rprec", threshold] += scratch
        if rank in plan.cutoffs:
            sums |= {(kind, t, rank): column.copy() for (kind, t), column in running.items()}
    for depth in (None, *plan.cutoffs):
        if depth is None or depth > width:
            sums |= {(kind, t, depth): column for (kind, t), column in running.items()}
    return sums


def _value(
    measure: Measure, plan: _Plan, sums: _Sums, against: _Sums, lengths: Ints
) -> Floats | np.float64:
    """One measure of the lists of a block, from their sums and those of their judged sets."""
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
        found, total = sums["mass", None, k], against["mass", None, None]
    else:
        found, total = (
            sums["hits", measure.threshold, k],
            against["hits", measure.threshold, None],
        )
    if kind == "P":
        return _ratio(found, depth)
    if kind == "R":
        return _ratio(found, total)
    if kind == "F1":
        # The harmonic mean of found / depth and found / total.
        return np.where(found > 0, _ratio(2 * found, depth + total), 0.0)
    if kind == "AP":
        return _ratio(sums["AP", measure.threshold, k], total)
    if kind == "Rprec":
        return _ratio(sums["Rprec", measure.threshold, k], total)
    if kind == "RR":
        return sums["RR", measure.threshold, k]
    return np.minimum(found, 1.0)  # Success


def _ratio(numerator: Floats, denominator: Floats | Ints | int) -> Floats:
    """The quotient; 0 where nothing divides."""
    below = np.broadcast_to(np.asarray(denominator, dtype=np.float64), numerator.shape)
    return np.divide(numerator, below, out=np.zeros_like(numerator), where=below > 0)
