"""Kendall's tau-b and Spearman's rho of a sample under any multiplicities of its rows.

A bootstrap replicate repeats each row of the sample some number of times. So the m distinct (x, y) pairs are arranged
once, and a block of B replicates is a matrix of multiplicities (m, B), whose short rows are ordered and summed as a
whole:

- concordant less discordant pairs are the quadratic form sum_ij w_i w_j sgn(x_i - x_j) sgn(y_i - y_j) / 2. Its matrix
  is cut at blocks of neighbouring x and neighbouring y: pairs apart in both are counted by running sums over the table
  of block totals, the others inside their block as matrix products. About 4 m s + c (m / s)^2 operations a replicate
  for blocks of s pairs, least at s = (c m / 2)^(1/3): O(m^(4/3)), and O(m) on the table alone if a side has few values.
- rho is Pearson's r of the mid-ranks, which are running sums of multiplicities.
- If a side has two values, such as exact match, both follow from the ranks on the other side: with
  r_i = sum_j w_j sgn(x_i - x_j), the score is the sum of r over the rows of the greater value
  (Mann & Whitney's U, centred), since r cancels within them. O(m).

All counts are whole numbers. Up to 100,000 rows every sum of their products stays below 2^53, so neither the order of
summation nor the number of threads changes a bit; beyond, rho's last digits may round. If no replicate has more than
32,767 rows, multiplicities and their running sums have 16 bits, and products 32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from engine.statistics.arrays import Floats, Ints, Signs

Singles = npt.NDArray[np.float32]
# Multiplicities: 16 bits if no total exceeds 32,767, else 32.
Counts = npt.NDArray[np.signedinteger[Any]]
Wide = type[np.int32] | type[np.float64]

# A side with at most this many values gets a block for each, so that no pair is left inside a block.
_FEW_VALUES = 64
# Cost of a cell of two blocks relative to a product of signs inside them (measured on an AMD EPYC of 2024, where 8 to
# 40 take about as long).
_CELL_COST = 16
# Multiplicities per step, beyond four replicates, and signs per product: arrays of 4 MiB.
_CELLS = 2**20
_SIGNS = 2**20
# Least multiplicities per step, whatever the number of replicates: NumPy's overhead exceeds the work on fewer.
FEW_CELLS = 2**14
# Columns are folded into long rows of this number for summation.
_FOLDED = 64
# Largest product for which OpenBLAS stays on a single thread: its threads would wait for resampling's. The same holds
# for its products of vectors of more than 10,000, hence einsum.
_PRODUCT = 2**18
# Most signs held in single precision, as products need them; otherwise they are stored as bytes.
_HELD_SIGNS = 2**21


class _Side(NamedTuple):
    codes: Ints  # (m,) rank of every pair's value among the v distinct values
    order: Ints  # (m,) pairs by value
    starts: Ints  # (v,) where each value begins in ``order``


class _Blocks(NamedTuple):
    """Blocks of neighbouring values of a side."""

    block_of: Ints  # (m,) the block of every pair
    order: Ints  # (m,) pairs by value
    members: Ints  # (g, s) places in ``order`` per block with several values, filled up with m
    whole: bool  # whether these are all places in their order, as without ties
    # (g, s, s) products of signs for every two pairs in a block, 0 if counted elsewhere; bytes if many.
    signs: Singles | Signs


class _Grid(NamedTuple):
    """The blocks of both sides, and the cells in which they cross."""

    x: _Blocks
    y: _Blocks
    by_cell: Ints  # (m,) pairs by x-block, and within each by y-block
    # (x-blocks + 1, y-blocks + 1) where each cell begins in ``by_cell``, and where the x-block ends; zeros come first.
    edges: Ints


class PairTable(NamedTuple):
    """The distinct (x, y) pairs of some rows, arranged for ``tau_and_rho``."""

    pair_of: Ints  # (rows,) the pair of every row
    row_order: Ints  # rows by pair
    pair_starts: Ints  # where each of the m pairs begins among them
    x: _Side
    y: _Side
    grid: _Grid | None  # None if a side has at most two values

    @property
    def bytes(self) -> int:
        """Approximate bytes of the table."""
        grid = self.grid
        arrays = [grid.x.signs, grid.y.signs, grid.edges] if grid is not None else []
        plain = 8 * (2 * len(self.pair_of) + 11 * len(self.pair_starts))
        return plain + sum(array.nbytes for array in arrays)


def pair_table(x: Floats, y: Floats) -> PairTable:
    """Arrange the rows (x_i, y_i), both of shape (rows,)."""
    x_values, y_values = (np.unique(side, return_inverse=True)[1].reshape(-1) for side in (x, y))
    joint = x_values.astype(np.int64) * (y_values.max(initial=0) + 1) + y_values
    _, first, pair_of = np.unique(joint, return_index=True, return_inverse=True)
    pair_of = pair_of.reshape(-1)
    row_order = np.argsort(pair_of, kind="stable")
    pair_starts = np.searchsorted(pair_of[row_order], np.arange(len(first)))
    x_side, y_side = (_side(codes[first]) for codes in (x_values, y_values))
    grid = None if min(len(x_side.starts), len(y_side.starts)) <= 2 else _grid(x_side, y_side)
    return PairTable(pair_of, row_order, pair_starts, x_side, y_side, grid)


def _grid(x: _Side, y: _Side) -> _Grid:
    m, sizes = len(x.codes), (len(x.starts), len(y.starts))
    x_block = _block_of(x.codes, _block_size(m, *sizes))
    y_block = _block_of(y.codes, _block_size(m, *reversed(sizes)))
    rows, columns = int(x_block.max()) + 1, int(y_block.max()) + 1
    cells = x_block * columns + y_block
    by_cell = np.argsort(cells, kind="stable")
    firsts = np.arange(rows)[:, None] * columns + np.arange(columns + 1)
    edges = np.zeros((rows + 1, columns + 1), dtype=np.intp)
    edges[1:] = np.searchsorted(cells[by_cell], firsts)
    # The x-blocks count pairs that share an x-block.
    return _Grid(_blocks(x, y, x_block, None), _blocks(y, x, y_block, x_block), by_cell, edges)


def _block_size(pairs: int, values: int, values_across: int) -> int:
    """Pairs per block; 0 for a block per value."""
    if values <= _FEW_VALUES:
        return 0
    if values_across <= _FEW_VALUES:
        return round((_CELL_COST * values_across) ** 0.5)
    return max(8, round((_CELL_COST * pairs) ** (1 / 3)))


def _block_of(codes: Ints, size: int) -> Ints:
    """Blocks of neighbouring values with about ``size`` pairs; equal values share a block."""
    if size == 0:
        return codes
    counts = np.bincount(codes)
    blocks = np.empty(len(counts), dtype=np.intp)
    block, filled = 0, 0
    for value, count in enumerate(counts.tolist()):
        # A value that fills a block stands alone: ties need no signs.
        if filled and filled + count > size:
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
    """Multiplicities of the pairs (m, B) from multiplicities of the rows (rows, B)."""
    return _sums(_in_order(weights, table.row_order), table.pair_starts)


def _in_order(weights: Counts, order: Ints) -> Counts:
    ordered = (order[1:] > order[:-1]).all()  # as pairs by x are
    return weights if ordered else np.take(weights, order, axis=0)


def _sums(ordered: Counts, starts: Ints) -> Counts:
    """Sums of neighbouring rows, with a new sum at each start."""
    if len(starts) == len(ordered):
        return ordered
    words = _words(ordered)
    return np.add.reduceat(words, starts, axis=0, dtype=words.dtype).view(ordered.dtype)


def _upto(weights: Counts) -> Counts:
    upto = np.zeros((len(weights) + 1, weights.shape[1]), dtype=weights.dtype)
    words = _words(upto)
    np.cumsum(_words(weights), axis=0, dtype=words.dtype, out=words[1:])
    return upto


def _words(weights: Counts) -> Counts | Ints:
    """Multiplicities as words of 64 bits, with two or four columns each, for faster sums.

    No sum overflows into its neighbour in the word: its column's total, which the type holds, bounds it.
    """
    return weights.view(np.int64) if weights.shape[1] * weights.itemsize % 8 == 0 else weights


def tau_and_rho(tables: Sequence[PairTable], weights: Counts) -> Floats:
    """tau-b (Kendall 1945) and rho under each row of multiplicities (B, rows): (2, tables, B); NaN where undefined.

    Equal to ``scipy.stats.kendalltau`` and ``spearmanr`` of the rows written out. The type of ``weights`` must hold the
    total of every row; 16 bits, if sufficient, are faster.
    """
    values = np.empty((2, len(tables), len(weights)))
    cells = max(1, weights.shape[1])
    step = max(4, min(32, _CELLS // cells // 4 * 4), FEW_CELLS // cells)
    for start in range(0, len(weights), step):
        at = slice(start, start + step)
        columns = np.ascontiguousarray(weights[at].T)
        for place, table in enumerate(tables):
            correlate = _by_ranks if table.grid is None else _by_grid
            values[:, place, at] = correlate(table, pair_weights(table, columns))
    return values


def _by_grid(table: PairTable, weights: Counts) -> tuple[Floats, Floats]:
    grid = table.grid
    assert grid is not None
    kind = _wide(weights)
    running = _running(grid, weights)
    score = _dot(weights, _net_between(running, grid.x.block_of, grid.y.block_of), kind)
    by_x, by_y = (_in_order(weights, side.order) for side in (table.x, table.y))
    score += (_inside(grid.x, by_x) + _inside(grid.y, by_y)) / 2
    x, y = _sums(by_x, table.x.starts), _sums(by_y, table.y.starts)
    x_ranks, n = _ranks(x)
    x_own = _untied(x, n)
    # If all values differ, both sides have the same multiplicities, in two orders.
    y_own = x_own if len(x) == len(y) == len(weights) else _untied(y, n)
    product = np.multiply(weights, np.take(x_ranks, table.x.codes, axis=0), dtype=kind)
    shared = _dot(product, np.take(_ranks(y)[0], table.y.codes, axis=0), np.float64)
    return _quotient(score, x_own[0], y_own[0]), _quotient(shared, x_own[1], y_own[1])


def _by_ranks(table: PairTable, weights: Counts) -> tuple[Floats, Floats]:
    """tau-b and rho if a side has at most two values."""
    two, side = (table.y, table.x) if len(table.y.starts) <= 2 else (table.x, table.y)
    counts = _sums(_in_order(weights, side.order), side.starts)
    ranks, n = _ranks(counts)
    greater = np.flatnonzero(two.codes == 1)
    amounts = np.take(weights, greater, axis=0)
    score = _dot(amounts, np.take(ranks, side.codes[greater], axis=0), _wide(weights))
    count = amounts.sum(axis=0, dtype=np.float64)
    free, spread = _untied(counts, n)
    # The greater value ranks at the number of rows with the smaller, and the reverse.
    pairs = count * (n - count)
    return _quotient(score, free, pairs), _quotient(score * n, spread, pairs * n)


def _wide(weights: Counts) -> Wide:
    """A type for the square of a total n, and so for every sum of multiplicities times values in [-n, n]."""
    return np.int32 if weights.dtype == np.int16 else np.float64


def _dot(a: npt.NDArray[Any], b: npt.NDArray[Any], kind: Wide) -> Floats:
    """Sums of products down the columns of two arrays (rows, B), added up in ``kind``, which must hold them: (B,)."""
    a, b = a.astype(kind, copy=False), b.astype(kind, copy=False)
    # Row by row, NumPy would add only B products at a time, which is slow.
    whole = len(a) - len(a) % _FOLDED
    long = np.einsum("ab,ab->b", *(side[:whole].reshape(_FOLDED, -1) for side in (a, b)))
    left = np.einsum("ab,ab->b", a[whole:], b[whole:])
    return (long.reshape(-1, a.shape[1]).sum(axis=0, dtype=kind) + left).astype(np.float64)


def _ranks(counts: Counts) -> tuple[Counts, Floats]:
    """Twice every value's mid-rank less the mean rank: rows below less rows above. (v, B), and totals (B,)."""
    upto = _upto(counts)
    ranks = upto[1:] + upto[:-1]  # up to 2 n, which may wrap around; ranks lie in [-n, n] again
    ranks -= upto[-1]
    return ranks, upto[-1].astype(np.float64)


def _untied(counts: Counts, n: Floats) -> tuple[Floats, Floats]:
    """Numbers of untied pairs and sums of squares of ``_ranks``, from counts of rows per value (v, B), n in all."""
    most = int(counts.max(initial=0))
    kind = np.int32 if most**2 * n.max(initial=0) < 2**31 else np.float64
    values: npt.NDArray[Any] = counts.astype(kind)
    squares = values * values
    free = (n**2 - _dot(values, values, kind)) / 2
    return free, (n**3 - _dot(squares, values, kind)) / 3


def _quotient(shared: Floats, x_own: Floats, y_own: Floats) -> Floats:
    defined = (x_own > 0) & (y_own > 0)
    below = np.sqrt(np.where(defined, x_own, 1)) * np.sqrt(np.where(defined, y_own, 1))
    return np.where(defined, np.clip(shared / below, -1, 1), np.nan)


def _running(grid: _Grid, weights: Counts) -> Counts:
    """Sums, over the x-blocks before each, of the rows that precede each cell in the order of cells.

    Shape (x-blocks + 1, y-blocks + 1, B). They wrap around, which ``_net_between`` undoes.
    """
    upto = _upto(_in_order(weights, grid.by_cell))
    running = np.take(upto, grid.edges.ravel(), axis=0).reshape(*grid.edges.shape, -1)
    for before, sums in pairwise(running):
        sums += before
    return running


def _net_between(running: Counts, x_block: Ints, y_block: Ints) -> Counts:
    """For each pair, among rows in smaller x-blocks: rows in smaller y-blocks less rows in greater ones."""
    # If C[b] rows precede y-block b of an x-block, these are C[b] - C[0] less C[-1] - C[b + 1]; then their sums over
    # x-blocks. They lie in [-n, n], so that wrapped intermediate sums do not matter.
    flat = running.reshape(-1, running.shape[2])
    at = x_block * running.shape[1] + y_block
    net = np.take(flat, at, axis=0)
    net += np.take(flat, at + 1, axis=0)
    net -= np.take(running[:, 0] + running[:, -1], x_block, axis=0)
    return net


def _inside(side: _Blocks, ordered: Counts) -> Floats:
    """Twice the concordant less discordant pairs that a side's blocks count."""
    parts = (_dot(own, net, _wide(ordered)) for _, own, net in _inside_blocks(side, ordered))
    return sum(parts, np.zeros(ordered.shape[1]))


def _inside_blocks(side: _Blocks, ordered: Counts) -> Iterator[tuple[Ints, Counts, Singles]]:
    """Batches of blocks: members (g s,), their weights (g s, B), and their net concordance in their block (g s, B)."""
    m, size = ordered.shape
    groups, width = side.members.shape
    padded = np.zeros((max(m + 1, groups * width), size), dtype=ordered.dtype)
    padded[:m] = ordered
    step = max(1, _SIGNS // max(1, width**2))
    for start in range(0, groups, step):
        members = side.members[start : start + step].ravel()
        at = slice(start * width, start * width + len(members))
        own = padded[at] if side.whole else np.take(padded, members, axis=0)
        signs = side.signs[start : start + step].astype(np.float32, copy=False)
        # Single precision: whole numbers up to 2^24 are exact in it, and no total exceeds n.
        weights = own.reshape(len(signs), width, size).astype(np.float32)
        net = np.empty_like(weights)
        columns = max(1, _PRODUCT // max(1, width**2))
        for column in range(0, size, columns):
            part = slice(column, column + columns)
            np.matmul(signs, weights[..., part], out=net[..., part])
        yield members, own, net.reshape(own.shape)


def leave_one_out(table: PairTable, counts: Counts) -> tuple[Floats, Floats]:
    """tau-b and rho without one row of every pair: two arrays of shape (m,), NaN where undefined.

    Closed forms, for all pairs together: removing row i removes its own net concordance from the score, and moves every
    centred mid-rank by half the sign of its distance from row i.
    """
    net = _net_concordance(table, counts)
    score = (counts * net).sum() / 2 - net
    n = float(counts.sum())
    free, ranks, left = [], [], []
    for side in (table.x, table.y):
        by_value = _sums(counts[side.order, None], side.starts)
        by_rank, total = _ranks(by_value)
        whole_free, whole_spread = _untied(by_value, total)
        equal = by_value[side.codes, 0].astype(np.float64)  # rows with every pair's value
        own = by_rank[side.codes, 0] / 2
        # The removed row took part in n - 1 pairs, of which all but equal - 1 were free.
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
    if table.grid is None:
        two, wide = (table.y, table.x) if len(table.y.starts) <= 2 else (table.x, table.y)
        greater = two.codes == 1
        over_smaller = -_above_less_below(np.where(greater, 0.0, counts), wide)
        under_greater = _above_less_below(np.where(greater, counts, 0.0), wide)
        return np.where(greater, over_smaller, under_greater)
    x, y = table.grid.x, table.grid.y
    running = _running(table.grid, counts[:, None])
    # In smaller x-blocks, and reversed in greater ones.
    last = np.full_like(x.block_of, len(running) - 1)
    before, upto, whole = (
        _net_between(running, block, y.block_of)[:, 0]
        for block in (x.block_of, x.block_of + 1, last)
    )
    net = (before + upto - whole).astype(np.float64)
    for side in (x, y):
        for members, _, inside in _inside_blocks(side, counts[side.order, None]):
            real = members < len(counts)
            net[side.order[members[real]]] += inside[real, 0]
    return net


def _above_less_below(amounts: Floats, side: _Side) -> Floats:
    by_value = np.bincount(side.codes, amounts)
    upto = np.cumsum(by_value)
    return np.asarray((by_value.sum() - 2 * upto + by_value)[side.codes])
