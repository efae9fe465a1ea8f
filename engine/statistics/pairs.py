"""Kendall's tau-b and Spearman's rho of a sample under any multiplicities of its rows.

A bootstrap replicate is the sample with each row taken some number of times. So the m distinct (x, y)
pairs are arranged once, and a block of B replicates is a matrix of multiplicities (B, m):

- concordant less discordant pairs are the quadratic form sum_ij w_i w_j sgn(x_i - x_j) sgn(y_i - y_j) / 2.
  Its matrix is cut at blocks of neighbouring x and neighbouring y: pairs apart in both are counted on
  the table of block totals, the others inside their block, all as matrix products. About 4 m s + 4 (m / s)^3
  operations a replicate for blocks of s pairs, least at s = 1.3 sqrt(m): O(m^1.5), and where a side
  has few values O(m) on the table alone.
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

import numpy as np
import numpy.typing as npt

from engine.statistics.arrays import Floats, Ints, Signs

Singles = npt.NDArray[np.float32]

# A side with at most this many values gets a block for each, so that no pair is left inside a block.
_FEW_VALUES = 64
# Multiplicities that are ranked at a time, and signs that are multiplied: arrays of 1 MiB and 4 MiB.
_CELLS = 2**17
_SIGNS = 2**20
# Signs that are held in single precision, as they are multiplied; more take a byte each until they are.
_HELD_SIGNS = 2**22


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
        count: how many blocks there are.
        members: (g, s) the pairs of each block that has several values, filled up with m.
        signs: (g, s, s) products of signs of each two pairs of these blocks, 0 where counted elsewhere; in
            single precision, or in a byte each where they are many.
    """

    block_of: Ints
    count: int
    members: Ints
    signs: Singles | Signs


@dataclass(frozen=True)
class PairTable:
    """The distinct (x, y) pairs of some rows, arranged for ``tau_and_rho``.

    Attributes:
        pair_of: (rows,) the pair of each row.
        row_order, pair_starts: rows by pair, and where each of the m pairs begins among them.
        x, y: the two sides.
        blocks: of x and of y; None where a side has at most two values.
    """

    pair_of: Ints
    row_order: Ints
    pair_starts: Ints
    x: _Side
    y: _Side
    blocks: tuple[_Blocks, _Blocks] | None

    @property
    def bytes(self) -> int:
        """About what the table holds."""
        of_pairs = 8 * (2 * len(self.pair_of) + 7 * len(self.pair_starts))
        return of_pairs + sum(side.signs.nbytes for side in self.blocks or ())


def pair_table(x: Floats, y: Floats) -> PairTable:
    """Arrange the rows (x_i, y_i), both of shape (rows,)."""
    x_values, y_values = (np.unique(side, return_inverse=True)[1].reshape(-1) for side in (x, y))
    joint = x_values.astype(np.int64) * (y_values.max(initial=0) + 1) + y_values
    _, first, pair_of = np.unique(joint, return_index=True, return_inverse=True)
    pair_of = pair_of.reshape(-1)
    row_order = np.argsort(pair_of, kind="stable")
    pair_starts = np.searchsorted(pair_of[row_order], np.arange(len(first)))
    sides = [_side(codes[first]) for codes in (x_values, y_values)]
    sizes = [len(side.starts) for side in sides]
    blocks = None
    if min(sizes) > 2:
        x_codes, y_codes = (side.codes for side in sides)
        x_blocks = _block_of(x_codes, _block_size(len(first), *sizes))
        y_blocks = _block_of(y_codes, _block_size(len(first), *reversed(sizes)))
        blocks = (
            _blocks(x_codes, y_codes, x_blocks, None),
            # Pairs of one x-block are counted there.
            _blocks(y_codes, x_codes, y_blocks, x_blocks),
        )
    return PairTable(pair_of, row_order, pair_starts, sides[0], sides[1], blocks)


def _block_size(pairs: int, values: int, values_across: int) -> int:
    """Pairs per block of a side with ``values`` values; 0 for a block per value."""
    if values <= _FEW_VALUES:
        return 0
    if values_across <= _FEW_VALUES:
        return max(
            8, round((2 * values_across * pairs) ** (1 / 3))
        )  # least work with so small a table
    return max(8, round(1.3 * pairs**0.5))


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


def _blocks(codes: Ints, other: Ints, block_of: Ints, apart: Ints | None) -> _Blocks:
    count = int(block_of.max()) + 1
    by_block = np.argsort(block_of, kind="stable")
    edges = np.searchsorted(block_of[by_block], np.arange(count + 1))
    inside = [by_block[a:b] for a, b in pairwise(edges.tolist())]
    mixed = [pairs for pairs in inside if (codes[pairs] != codes[pairs[0]]).any()]
    width = max((len(pairs) for pairs in mixed), default=0)
    members = np.full((len(mixed), width), len(codes), dtype=np.intp)
    few = len(mixed) * width**2 <= _HELD_SIGNS
    signs = np.zeros((len(mixed), width, width), dtype=np.float32 if few else np.int8)
    for row, pairs in enumerate(mixed):
        members[row, : len(pairs)] = pairs
        product = np.sign(codes[pairs, None] - codes[pairs]) * np.sign(
            other[pairs, None] - other[pairs]
        )
        if apart is not None:
            product *= apart[pairs, None] != apart[pairs]
        signs[row, : len(pairs), : len(pairs)] = product
    return _Blocks(block_of, count, members, signs)


def pair_weights(table: PairTable, weights: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Multiplicities of the pairs (B, m) from those of the rows (B, rows)."""
    ordered = np.take(weights, table.row_order, axis=1)
    return _sums(ordered, table.pair_starts)


def _sums(ordered: npt.NDArray[np.int32], starts: Ints) -> npt.NDArray[np.int32]:
    """Sums of neighbouring columns, a new one beginning at each of ``starts``."""
    if len(starts) == ordered.shape[1]:
        return ordered
    return np.add.reduceat(ordered, starts, axis=1)


def tau_and_rho(table: PairTable, weights: npt.NDArray[np.int32]) -> tuple[Floats, Floats]:
    """tau-b (Kendall 1945) and rho of each row of pair multiplicities (B, m); NaN where undefined.

    Equal to ``scipy.stats.kendalltau`` and ``spearmanr`` of the rows written out. Some rows are ranked at a
    time, so that beside ``weights`` it takes about as much as these, however many pairs there are.
    """
    tau, rho = np.empty((2, len(weights)))
    score = None if table.blocks is None else _quadratic_form(table.blocks, weights) / 2
    rows = max(1, _CELLS // max(1, weights.shape[1]))
    for start in range(0, len(weights), rows):
        at = slice(start, start + rows)
        tau[at], rho[at] = _from_ranks(table, weights[at], None if score is None else score[at])
    return tau, rho


def _from_ranks(
    table: PairTable, weights: npt.NDArray[np.int32], score: Floats | None
) -> tuple[Floats, Floats]:
    """tau-b and rho, with the concordant less the discordant pairs where the ranks do not give them."""
    x, y = (_ranked(side, weights) for side in (table.x, table.y))
    if score is not None:
        product = np.take(x.ranks, table.x.codes, axis=1)
        product *= np.take(y.ranks, table.y.codes, axis=1)
        shared = np.einsum("bm,bm->b", product, weights)
    else:
        two, wide, side = (y, x, table.x) if y.ranks.shape[1] <= 2 else (x, y, table.y)
        greater = np.flatnonzero((table.y if two is y else table.x).codes == 1)
        ranks = np.take(wide.ranks, side.codes[greater], axis=1)
        score = np.einsum("bm,bm->b", ranks, np.take(weights, greater, axis=1))
        # The greater value ranks at the number of rows with the smaller, and the reverse.
        shared = score * weights.sum(axis=1, dtype=np.float64)
    return _quotient(score, x.free, y.free), _quotient(shared, x.spread, y.spread)


@dataclass(frozen=True)
class _Ranked:
    """One side under B rows of multiplicities.

    Attributes:
        counts: (B, v) rows with each value.
        ranks: (B, v) twice the mid-rank of each value less the mean rank: rows below less rows above.
        spread: (B,) sum of the squares of these over rows.
        free: (B,) pairs of rows that are not tied.
    """

    counts: npt.NDArray[np.int32]
    ranks: Floats
    spread: Floats
    free: Floats


def _ranked(side: _Side, weights: npt.NDArray[np.int32]) -> _Ranked:
    counts = _sums(np.take(weights, side.order, axis=1), side.starts)
    n = counts.sum(axis=1, dtype=np.int32)
    ranks = np.cumsum(counts, axis=1, dtype=np.int32)
    ranks *= 2
    ranks -= counts
    ranks -= n[:, None]
    as_float, ranks_as_float = counts.astype(np.float64), ranks.astype(np.float64)
    spread = np.einsum("bv,bv,bv->b", ranks_as_float, ranks_as_float, as_float)
    squares = np.einsum("bv,bv->b", as_float, as_float)
    return _Ranked(counts, ranks_as_float, spread, (n.astype(np.float64) ** 2 - squares) / 2)


def _quotient(shared: Floats, x_own: Floats, y_own: Floats) -> Floats:
    defined = (x_own > 0) & (y_own > 0)
    below = np.sqrt(np.where(defined, x_own, 1)) * np.sqrt(np.where(defined, y_own, 1))
    return np.where(defined, np.clip(shared / below, -1, 1), np.nan)


def _quadratic_form(blocks: tuple[_Blocks, _Blocks], weights: npt.NDArray[np.int32]) -> Floats:
    """sum_ij w_i w_j sgn(x_i - x_j) sgn(y_i - y_j) of each row of ``weights``."""
    padded, totals = _block_totals(blocks, weights)
    result = np.einsum("bxy,bxy->b", totals, _between_blocks(totals), dtype=np.float64)
    for side in blocks:
        for _, own, net in _inside_blocks(side, padded):
            result += np.einsum("bgs,gbs->b", own, net, dtype=np.float64)
    return np.asarray(result)


def _block_totals(
    blocks: tuple[_Blocks, _Blocks], weights: npt.NDArray[np.int32]
) -> tuple[Singles, Singles]:
    """The weights with a column of zeros at the end, and the table (B, x-blocks, y-blocks)."""
    size, m = weights.shape
    # Single precision: whole numbers up to 2^24 are exact in it, and no total exceeds n.
    padded = np.zeros((size, m + 1), dtype=np.float32)
    padded[:, :m] = weights
    x, y = blocks
    cells = x.block_of * y.count + y.block_of
    order = np.argsort(cells, kind="stable")
    starts = np.flatnonzero(np.diff(cells[order], prepend=-1))
    totals = np.zeros((size, x.count * y.count), dtype=np.float32)
    totals[:, cells[order][starts]] = _sums(np.take(weights, order, axis=1), starts)
    return padded, totals.reshape(size, x.count, y.count)


def _between_blocks(totals: Singles) -> Singles:
    """Of each cell: the total weight of cells concordant with it less that of discordant ones."""
    _, rows, columns = totals.shape
    x_signs, y_signs = (
        np.sign(np.arange(k)[:, None] - np.arange(k)).astype(np.float32) for k in (rows, columns)
    )
    return np.matmul(x_signs, np.matmul(totals, y_signs.T))


def _inside_blocks(side: _Blocks, padded: Singles) -> Iterator[tuple[Ints, Singles, Singles]]:
    """Of some blocks at a time: their pairs (g, s), the weights of these (B, g, s), and of each pair the net
    concordance in its block (g, B, s)."""
    groups, width = side.members.shape
    step = max(1, _SIGNS // max(1, width**2))
    for start in range(0, groups, step):
        members = side.members[start : start + step]
        own = np.take(padded, members.ravel(), axis=1).reshape(len(padded), *members.shape)
        signs = side.signs[start : start + step].astype(np.float32, copy=False)
        # The product is symmetric, so it may stand on the right.
        yield members, own, np.matmul(own.transpose(1, 0, 2), signs)


def leave_one_out(table: PairTable, counts: npt.NDArray[np.int32]) -> tuple[Floats, Floats]:
    """tau-b and rho without one row of each pair: two arrays of shape (m,), NaN where undefined.

    Closed forms, for all pairs together: removing row i takes its own net concordance from the score,
    and moves every centred mid-rank by half the sign of its distance from row i.
    """
    net = _net_concordance(table, counts)
    score = (counts * net).sum() / 2 - net
    x, y = (_ranked(side, counts[None, :]) for side in (table.x, table.y))
    n = float(counts.sum())
    free, ranks, left = [], [], []
    for side, whole in ((table.x, x), (table.y, y)):
        equal = whole.counts[0, side.codes]  # rows with the value of each pair
        own = whole.ranks[0, side.codes] / 2
        # The row removed took part in n - 1 pairs, of which all but equal - 1 were free.
        free.append(whole.free[0] - (n - equal))
        ranks.append(own)
        moved = _above_less_below(counts * own, side)
        left.append(whole.spread[0] / 4 - own**2 - moved + (n - equal) / 4)
    shared = (
        (counts * ranks[0] * ranks[1]).sum()
        - ranks[0] * ranks[1]
        - _above_less_below(counts * ranks[1], table.x) / 2
        - _above_less_below(counts * ranks[0], table.y) / 2
        + net / 4
    )
    tau = _quotient(score, *free)
    return tau, np.where(np.isnan(tau), np.nan, _quotient(shared, *left))


def _net_concordance(table: PairTable, counts: npt.NDArray[np.int32]) -> Floats:
    """Of each pair: rows concordant with it less discordant rows."""
    if table.blocks is None:
        two, wide = (table.y, table.x) if len(table.y.starts) <= 2 else (table.x, table.y)
        greater = two.codes == 1
        over_smaller = -_above_less_below(np.where(greater, 0.0, counts), wide)
        under_greater = _above_less_below(np.where(greater, counts, 0.0), wide)
        return np.where(greater, over_smaller, under_greater)
    padded, totals = _block_totals(table.blocks, counts[None, :])
    x, y = table.blocks
    net = _between_blocks(totals)[0, x.block_of, y.block_of].astype(np.float64)
    for side in table.blocks:
        for members, _, inside in _inside_blocks(side, padded):
            at = members.ravel()
            net[at[at < len(counts)]] += inside[:, 0, :].ravel()[at < len(counts)]
    return net


def _above_less_below(amounts: Floats, side: _Side) -> Floats:
    """Of each pair: the amounts of pairs with a greater value less those with a smaller one."""
    by_value = np.bincount(side.codes, amounts)
    upto = np.cumsum(by_value)
    return np.asarray((by_value.sum() - 2 * upto + by_value)[side.codes])
