"""Kendall's tau-b and Spearman's rho of a sample under any multiplicities of its rows.

A bootstrap replicate is the sample with each row taken some number of times. So the m distinct (x, y)
pairs are arranged once, and a block of B replicates is a matrix of multiplicities (B, m):

- concordant less discordant pairs are the quadratic form sum_ij w_i w_j sgn(x_i - x_j) sgn(y_i - y_j) / 2.
  Its matrix is cut at blocks of neighbouring x and neighbouring y: pairs apart in both are counted by
  running sums over the table of block totals, the others inside their block as matrix products. About
  4 m s + c (m / s)^2 operations a replicate for blocks of s pairs, least at s = (c m / 2)^(1/3): O(m^(4/3)), and
  where a side has few values O(m) on the table alone.
- rho is Pearson's r of the mid-ranks, which are running sums of multiplicities.
- Where a side has two values, as exact match has, both follow from the ranks on the other side: with
  r_i = sum_j w_j sgn(x_i - x_j), the score is the sum of r over the rows of the greater value
  (Mann & Whitney's U, centred), since r cancels within them. O(m).

All counts are whole numbers. Up to 100,000 rows every sum of their products stays below 2^53, so neither
the order of summation nor the number of threads changes a bit; beyond, rho's last digits may round.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from engine.statistics.arrays import Floats, Ints, Signs

Singles = npt.NDArray[np.float32]
Counts = npt.NDArray[np.int32]
_Number = TypeVar("_Number", np.int32, np.float64)

# A side with at most this many values gets a block for each, so that no pair is left inside a block.
_FEW_VALUES = 64
# How many times as much a cell of two blocks costs as a product of signs inside them (measured
# on AVX2, where 60 to 200 take about as long).
_CELL_COST = 60
# Multiplicities that are ranked at a time, and signs that are multiplied: arrays of 1 MiB and 4 MiB.
_CELLS = 2**17
_SIGNS = 2**20
# Multiplications of a product beyond which OpenBLAS takes threads, for which those of resampling would wait, as
# they would in its products of vectors of more than 10,000: these are einsum's.
_PRODUCT = 2**18
# Signs that are held in single precision, as they are multiplied; more take a byte each until they are.
_HELD_SIGNS = 2**21


@dataclass(frozen=True)
class _Side:
    """One variable of the pairs.

    Attributes:
        codes: (m,) rank of each pair's value among the v distinct values.
        order: (m,) pairs by value.
        starts: (v,) where each value begins in ``order``.
    """

    codes: Ints
    order: Ints
    starts: Ints


@dataclass(frozen=True)
class _Blocks:
    """Neighbouring values of one side, taken together.

    Attributes:
        block_of: (m,) the block of each pair.
        order: (m,) pairs by value.
        members: (g, s) the places in ``order`` of each block that has several values, filled up with m.
        whole: whether these are all places in their order, as without ties.
        signs: (g, s, s) products of signs of each two pairs of these blocks, 0 where counted elsewhere; in
            single precision, or in a byte each where they are many.
    """

    block_of: Ints
    order: Ints
    members: Ints
    whole: bool
    signs: Singles | Signs


@dataclass(frozen=True)
class _Grid:
    """The blocks of both sides, and the cells in which they cross.

    Attributes:
        by_cell: (m,) pairs by x-block, and within each by y-block.
        edges: (x-blocks, y-blocks + 1) where each cell begins in ``by_cell``, and where the x-block ends.
    """

    x: _Blocks
    y: _Blocks
    by_cell: Ints
    edges: Ints


@dataclass(frozen=True)
class PairTable:
    """The distinct (x, y) pairs of some rows, arranged for ``tau_and_rho``.

    Attributes:
        pair_of: (rows,) the pair of each row.
        row_order, pair_starts: rows by pair, and where each of the m pairs begins among them.
        x, y: the two sides.
        across: (m,) the x of each pair, in the order of y.
        grid: of their blocks; None where a side has at most two values.
    """

    pair_of: Ints
    row_order: Ints
    pair_starts: Ints
    x: _Side
    y: _Side
    across: Ints
    grid: _Grid | None

    @property
    def bytes(self) -> int:
        """About what the table holds."""
        grid = self.grid
        arrays = [grid.x.signs, grid.y.signs, grid.edges] if grid is not None else []
        of_pairs = 8 * (2 * len(self.pair_of) + 11 * len(self.pair_starts))
        return of_pairs + sum(array.nbytes for array in arrays)


def pair_table(x: Floats, y: Floats) -> PairTable:
    """Arrange the rows (x_i, y_i), both of shape (rows,)."""
    x_values, y_values = (np.unique(side, return_inverse=True)[1].reshape(-1) for side in (x, y))
    joint = x_values.astype(np.int64) * (y_values.max(initial=0) + 1) + y_values
    _, first, pair_of = np.unique(joint, return_index=True, return_inverse=True)
    pair_of = pair_of.reshape(-1)
    row_order = np.argsort(pair_of, kind="stable")
    pair_starts = np.searchsorted(pair_of[row_order], np.arange(len(first)))
    of_x, of_y = (_side(codes[first]) for codes in (x_values, y_values))
    grid = None if min(len(of_x.starts), len(of_y.starts)) <= 2 else _grid(of_x, of_y)
    return PairTable(pair_of, row_order, pair_starts, of_x, of_y, of_x.codes[of_y.order], grid)


def _grid(x: _Side, y: _Side) -> _Grid:
    m, sizes = len(x.codes), (len(x.starts), len(y.starts))
    of_x = _block_of(x.codes, _block_size(m, *sizes))
    of_y = _block_of(y.codes, _block_size(m, *reversed(sizes)))
    rows, columns = int(of_x.max()) + 1, int(of_y.max()) + 1
    cells = of_x * columns + of_y
    by_cell = np.argsort(cells, kind="stable")
    firsts = np.arange(rows)[:, None] * columns + np.arange(columns + 1)
    edges = np.searchsorted(cells[by_cell], firsts)
    # Pairs of one x-block are counted there.
    return _Grid(_blocks(x, y, of_x, None), _blocks(y, x, of_y, of_x), by_cell, edges)


def _block_size(pairs: int, values: int, values_across: int) -> int:
    """Pairs per block of a side with ``values`` values; 0 for a block per value."""
    if values <= _FEW_VALUES:
        return 0
    if values_across <= _FEW_VALUES:
        return round((_CELL_COST * values_across) ** 0.5)
    return max(8, round((_CELL_COST * pairs) ** (1 / 3)))


def _block_of(codes: Ints, size: int) -> Ints:
    """Blocks of neighbouring values with about ``size`` pairs; equal values share a block."""
    counts = np.bincount(codes)
    if size == 0:
        return codes
    blocks = np.empty(len(counts), dtype=np.intp)
    block, filled = 0, 0
    for value, count in enumerate(counts.tolist()):
        # A value that fills a block stands alone: ties need no signs.
        if filled and (filled + count > size):
            block, filled = block + 1, 0
        blocks[value] = block
        filled += count
    return np.asarray(blocks[codes])


def _side(codes: Ints) -> _Side:
    order = np.argsort(codes, kind="stable")
    return _Side(codes, order, np.flatnonzero(np.diff(codes[order], prepend=-1)))


def _blocks(side: _Side, other: _Side, block_of: Ints, apart: Ints | None) -> _Blocks:
    codes, across = side.codes[side.order], other.codes[side.order]
    edges = np.searchsorted(block_of[side.order], np.arange(block_of.max() + 2))
    inside = [slice(a, b) for a, b in pairwise(edges.tolist())]
    mixed = [at for at in inside if codes[at.start] != codes[at.stop - 1]]
    width = max((at.stop - at.start for at in mixed), default=0)
    members = np.full((len(mixed), width), len(codes), dtype=np.intp)
    few = len(mixed) * width**2 <= _HELD_SIGNS
    signs = np.zeros((len(mixed), width, width), dtype=np.float32 if few else np.int8)
    for row, at in enumerate(mixed):
        size = at.stop - at.start
        members[row, :size] = np.arange(at.start, at.stop)
        product = np.sign(codes[at, None] - codes[at]) * np.sign(across[at, None] - across[at])
        if apart is not None:
            elsewhere = apart[side.order[at]]
            product *= elsewhere[:, None] != elsewhere
        signs[row, :size, :size] = product
    whole = np.array_equal(members.ravel()[: len(codes)], np.arange(len(codes)))
    return _Blocks(block_of, side.order, members, whole, signs)


def pair_weights(table: PairTable, weights: Counts) -> Counts:
    """Multiplicities of the pairs (B, m) from those of the rows (B, rows)."""
    return _sums(_in_order(weights, table.row_order), table.pair_starts)


def _in_order(weights: Counts, order: Ints) -> Counts:
    """The columns of ``weights`` in another order, or themselves where it is theirs, as of pairs by x."""
    if (order[1:] > order[:-1]).all():
        return weights
    return np.take(weights, order, axis=1)


def _sums(ordered: npt.NDArray[_Number], starts: Ints) -> npt.NDArray[_Number]:
    """Sums of neighbouring columns, a new one beginning at each of ``starts``."""
    if len(starts) == ordered.shape[1]:
        return ordered
    return np.add.reduceat(ordered, starts, axis=1)


def tau_and_rho(table: PairTable, weights: Counts) -> tuple[Floats, Floats]:
    """tau-b (Kendall 1945) and rho of each row of pair multiplicities (B, m); NaN where undefined.

    Equal to ``scipy.stats.kendalltau`` and ``spearmanr`` of the rows written out. Some rows are ranked at a
    time, so that beside ``weights`` it takes some two to three times as much as these, however many pairs
    there are.
    """
    tau, rho = np.empty((2, len(weights)))
    by_x, by_y = (_in_order(weights, side.order) for side in (table.x, table.y))
    if table.grid is not None:
        score = _inside(table.grid.x, by_x) + _inside(table.grid.y, by_y)
    rows = max(1, _CELLS // max(1, weights.shape[1]))
    for start in range(0, len(weights), rows):
        at = slice(start, start + rows)
        if table.grid is None:
            tau[at], rho[at] = _of_two_values(table, weights[at])
        else:
            score[at] += _between(_running(table.grid, weights[at]))
            tau[at], rho[at] = _from_ranks(table, by_x[at], by_y[at], score[at])
    return tau, rho


def _from_ranks(
    table: PairTable, by_x: Counts, by_y: Counts, score: Floats
) -> tuple[Floats, Floats]:
    """tau-b and rho of multiplicities in both orders, given the concordant less the discordant pairs."""
    x, y = _sums(by_x, table.x.starts), _sums(by_y, table.y.starts)
    x_own = _untied(x)
    # Where all values differ, both have the same multiplicities, in two orders.
    y_own = x_own if x.shape == y.shape == by_x.shape else _untied(y)
    # Summed by values of y, whose ranks so need not be taken for every pair.
    product = np.take(_ranks(x), table.across, axis=1).astype(np.float64)
    product *= by_y
    shared = np.einsum("bm,bm->b", _sums(product, table.y.starts), _ranks(y), dtype=np.float64)
    return _quotient(score, x_own[0], y_own[0]), _quotient(shared, x_own[1], y_own[1])


def _of_two_values(table: PairTable, weights: Counts) -> tuple[Floats, Floats]:
    """tau-b and rho, where a side has at most two values."""
    two, side = (table.y, table.x) if len(table.y.starts) <= 2 else (table.x, table.y)
    counts = _sums(_in_order(weights, side.order), side.starts)
    greater = np.flatnonzero(two.codes == 1)
    ranks = np.take(_ranks(counts), side.codes[greater], axis=1).astype(np.float64)
    of_greater = np.take(weights, greater, axis=1).astype(np.float64)
    score = np.einsum("bm,bm->b", ranks, of_greater)
    n, count = weights.sum(axis=1, dtype=np.float64), of_greater.sum(axis=1)
    free, spread = _untied(counts)
    # The greater value ranks at the number of rows with the smaller, and the reverse.
    pairs = count * (n - count)
    return _quotient(score, free, pairs), _quotient(score * n, spread, pairs * n)


def _ranks(counts: Counts) -> Counts:
    """Twice the mid-rank of each value less the mean rank: rows below less rows above. (B, v), as ``counts``."""
    upto = np.cumsum(counts, axis=1, dtype=np.int32)
    return 2 * upto - counts - upto[:, -1:]


def _untied(counts: Counts) -> tuple[Floats, Floats]:
    """Of rows with each value (B, v): pairs of rows that are not tied, and the sum of squares of ``_ranks``."""
    values = counts.astype(np.float64)
    n = values.sum(axis=1)
    squares = values * values
    free = (n**2 - squares.sum(axis=1)) / 2
    np.subtract((n**2)[:, None], squares, out=squares)
    # (n^3 - the sum of cubes) / 3, without its rounding
    return free, np.einsum("bv,bv->b", squares, values) / 3


def _quotient(shared: Floats, x_own: Floats, y_own: Floats) -> Floats:
    defined = (x_own > 0) & (y_own > 0)
    below = np.sqrt(np.where(defined, x_own, 1)) * np.sqrt(np.where(defined, y_own, 1))
    return np.where(defined, np.clip(shared / below, -1, 1), np.nan)


def _running(grid: _Grid, weights: Counts) -> Counts:
    """Of each x-block, the weight in the y-blocks before each one, and in all: (B, x-blocks, y-blocks + 1)."""
    upto = np.zeros((len(weights), weights.shape[1] + 1), dtype=np.int32)
    np.cumsum(_in_order(weights, grid.by_cell), axis=1, out=upto[:, 1:])
    found = np.take(upto, grid.edges.ravel(), axis=1).reshape(len(weights), *grid.edges.shape)
    found -= found[:, :, :1]
    return found


def _between(running: Counts) -> Floats:
    """Concordant less discordant pairs of rows whose blocks differ on both sides."""
    # Of T[a, b] in the cells, with L[a, b] = T[a, 0] + ... + T[a, b] and A[a, b] = L[0, b] + ... + L[a, b],
    # concordant and discordant weights of each cell telescope to L[a, b] A[a-1, b-1] - L[a, b-1] A[a-1, b].
    # As flat rows these are two products at a distance: a row's first L is 0, its last A[a-1] meets it.
    width = running.shape[2]
    own = running.reshape(len(running), -1).astype(np.float64)
    below = np.cumsum(running, axis=1, dtype=np.int32).reshape(len(running), -1).astype(np.float64)
    concordant = np.einsum("bm,bm->b", own[:, width + 1 :], below[:, : -width - 1])
    discordant = np.einsum("bm,bm->b", own[:, width - 1 :], below[:, : 1 - width])
    return np.asarray(concordant - discordant)


def _inside(side: _Blocks, ordered: Counts) -> Floats:
    """Concordant less discordant pairs of rows that are counted in blocks of a side."""
    twice = np.zeros(len(ordered))
    for _, own, net in _inside_blocks(side, ordered):
        twice += np.einsum("bgs,gbs->b", own, net, dtype=np.float64)
    return twice / 2


def _inside_blocks(side: _Blocks, ordered: Counts) -> Iterator[tuple[Ints, Singles, Singles]]:
    """Of some blocks at a time: their members (g, s), the weights of these (B, g, s), and of each member the
    net concordance in its block (g, B, s)."""
    size, m = ordered.shape
    # Single precision: whole numbers up to 2^24 are exact in it, and no total exceeds n.
    groups, width = side.members.shape
    padded = np.zeros((size, max(m + 1, groups * width)), dtype=np.float32)
    padded[:, :m] = ordered
    step = max(1, _SIGNS // max(1, width**2))
    for start in range(0, groups, step):
        members = side.members[start : start + step]
        at = slice(start * width, (start + len(members)) * width)
        own = padded[:, at] if side.whole else np.take(padded, members.ravel(), axis=1)
        own = own.reshape(size, *members.shape)
        signs = side.signs[start : start + step].astype(np.float32, copy=False)
        net = np.empty((len(members), size, width), dtype=np.float32)
        rows = max(1, _PRODUCT // max(1, width**2))
        for row in range(0, size, rows):  # the product is symmetric, so it may stand on the right
            part = slice(row, row + rows)
            np.matmul(own[part].transpose(1, 0, 2), signs, out=net[:, part])
        yield members, own, net


def leave_one_out(table: PairTable, counts: Counts) -> tuple[Floats, Floats]:
    """tau-b and rho without one row of each pair: two arrays of shape (m,), NaN where undefined.

    Closed forms, for all pairs together: removing row i takes its own net concordance from the score,
    and moves every centred mid-rank by half the sign of its distance from row i.
    """
    net = _net_concordance(table, counts)
    score = (counts * net).sum() / 2 - net
    n = float(counts.sum())
    free, ranks, left = [], [], []
    for side in (table.x, table.y):
        by_value = _sums(counts[None, side.order], side.starts)
        whole_free, whole_spread = _untied(by_value)
        equal = by_value[0, side.codes].astype(np.float64)  # rows with the value of each pair
        own = _ranks(by_value)[0, side.codes] / 2
        # The row removed took part in n - 1 pairs, of which all but equal - 1 were free.
        free.append(whole_free[0] - (n - equal))
        ranks.append(own)
        moved = _above_less_below(counts * own, side)
        left.append(whole_spread[0] / 4 - own**2 - moved + (n - equal) / 4)
    shared = (
        (counts * ranks[0] * ranks[1]).sum()
        - ranks[0] * ranks[1]
        - _above_less_below(counts * ranks[1], table.x) / 2
        - _above_less_below(counts * ranks[0], table.y) / 2
        + net / 4
    )
    tau = _quotient(score, *free)
    return tau, np.where(np.isnan(tau), np.nan, _quotient(shared, *left))


def _net_concordance(table: PairTable, counts: Counts) -> Floats:
    """Of each pair: rows concordant with it less discordant rows."""
    if table.grid is None:
        two, wide = (table.y, table.x) if len(table.y.starts) <= 2 else (table.x, table.y)
        greater = two.codes == 1
        over_smaller = -_above_less_below(np.where(greater, 0.0, counts), wide)
        under_greater = _above_less_below(np.where(greater, counts, 0.0), wide)
        return np.where(greater, over_smaller, under_greater)
    x, y = table.grid.x, table.grid.y
    upto = _running(table.grid, counts[None, :])[0].astype(np.float64)
    # In each x-block: the y-blocks before a cell less those after it.
    by_cell = upto[:, 1:] + upto[:, :-1] - upto[:, -1:]
    above = np.cumsum(by_cell, axis=0)
    net = (2 * above - by_cell - above[-1])[x.block_of, y.block_of]
    for side in (x, y):
        for members, _, inside in _inside_blocks(side, counts[None, side.order]):
            at = members.ravel()
            net[side.order[at[at < len(counts)]]] += inside[:, 0, :].ravel()[at < len(counts)]
    return net


def _above_less_below(amounts: Floats, side: _Side) -> Floats:
    """Of each pair: the amounts of pairs with a greater value less those with a smaller one."""
    by_value = np.bincount(side.codes, amounts)
    upto = np.cumsum(by_value)
    return np.asarray((by_value.sum() - 2 * upto + by_value)[side.codes])
