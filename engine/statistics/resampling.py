"""Bootstrap resamples of queries, shared by everything that is computed on the same queries."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from engine.statistics.arrays import Floats, Ints, Signs
from engine.statistics.pairs import (
    FEW_CELLS,
    Counts,
    PairTable,
    leave_one_out,
    pair_table,
    pair_weights,
    tau_and_rho,
)
from engine.tables import give_back_freed_memory

# Resamples per random stream. Fixed: the draws must not depend on threads or memory. A larger number is not faster and
# takes memory.
_BLOCK = 32
# Orders per random stream. Their processing has more and shorter steps than that of a resample, so that few queries
# gain from larger blocks.
_ORDER_BLOCK = 64
# Most signs or orders in the cache, for the next measure of few queries: 8 MiB.
_REMEMBERED = 2**20
# Distinguish the streams of signs and of orders from resamples' streams.
_SIGNS = 1
_ORDERS = 2
# Cost of drawing a row's multiplicity (binomial), relative to drawing a query.
_BINOMIAL_COST = 20
# Queries drawn, or ordered, at a time: 4 MiB.
_DRAWN = 2**19
# Memory of concurrent blocks together, and of a block per query: multiplicities, by query and again by pair; for
# orders, some at a time with their results.
_BLOCKS_BYTES = 2**28
_BYTES_OF_BLOCK = 12 * _BLOCK
_BYTES_OF_ORDER = 10 * 8
# Larger blocks leave so much freed memory that the C library returns it to the system.
_LARGE = 2**24


class Replicates(NamedTuple):
    """tau and rho of some pairs of columns: on the sample, on resamples, and leaving out one query."""

    tau: Floats  # (pairs,) on the sample; NaN where undefined
    rho: Floats
    taus: Floats  # (pairs, resamples)
    rhos: Floats
    without: Floats | None  # (pairs, 2, n) without each query, or each cluster; only if requested


class Draws(NamedTuple):
    """Number of resamples, signs or orders, and their seed; threads, None for all cores, change no figure."""

    number: int
    seed: int
    threads: int | None = None


def replicate(
    columns: Floats,
    pairs: Sequence[tuple[int, int]],
    draws: Draws,
    *,
    leave_out: bool = False,
    clusters: Ints | None = None,
    table_bytes: int = 2**27,
) -> Replicates:
    """Correlate pairs of columns over the same n queries, and over bootstrap resamples.

    A resample draws n queries with replacement (Efron 1979), the same for all columns, so differences of two
    correlations are resampled jointly. Block b of 32 resamples comes from the stream
    ``SeedSequence(seed, spawn_key=(b,))``, so that the result is the same for any number of threads. If n is more than
    20 times the number of distinct queries (a column pair with few values, alone), their multiplicities are drawn
    directly, as multinomial: the same distribution, different draws.

    Args:
        columns: shape (c, n), finite.
        leave_out: whether to compute the leave-one-out values that studentized intervals need.
        clusters: (n,) the cluster of every query, numbered from 0 without gaps: clusters are drawn, and left out,
            instead of queries.
        table_bytes: limit on pair tables in memory at a time, and one more; for two continuous columns of 10,000
            queries one takes 8 MB, for 100,000 queries 50 MB.
    """
    rows, row_of = distinct_rows(columns)
    counts = np.bincount(row_of, minlength=len(rows)).astype(np.int32)
    resampled = np.empty((2, len(pairs), draws.number))
    sample: list[Floats] = []
    units = len(row_of) if clusters is None else int(clusters.max(initial=-1)) + 1
    without = np.empty((len(pairs), 2, units)) if leave_out else None
    for tables in _tables_that_fit(rows, pairs, table_bytes):
        fill = partial(_fill, tables, resampled[:, len(sample) :])
        for_each_block(row_of, len(rows), fill, draws, clusters)
        if without is not None:
            for pair, table in enumerate(tables, len(sample)):
                without[pair] = _without(table, counts, row_of, clusters)
        sample += [tau_and_rho([table], counts[None, :])[:, 0, 0] for table in tables]
        tables.clear()  # before the next tables need memory
    tau, rho = np.array(sample).reshape(-1, 2).T
    taus, rhos = resampled
    return Replicates(tau, rho, taus, rhos, without)


def _tables_that_fit(
    rows: Floats, pairs: Sequence[tuple[int, int]], table_bytes: int
) -> Iterator[list[PairTable]]:
    """The pairs' tables in order, as many at a time as memory allows: draws depend only on the seed."""
    tables: list[PairTable] = []
    for i, j in pairs:
        tables.append(pair_table(rows[:, i], rows[:, j]))
        if sum(table.bytes for table in tables) > table_bytes:
            yield tables
            tables = []
    if tables:
        yield tables


def _fill(tables: Sequence[PairTable], values: Floats, first: int, weights: Counts) -> None:
    values[:, : len(tables), first : first + len(weights)] = tau_and_rho(tables, weights)


def _without(table: PairTable, counts: Counts, row_of: Ints, clusters: Ints | None) -> Floats:
    by_pair = np.stack(leave_one_out(table, pair_weights(table, counts[:, None])[:, 0]))
    values = by_pair[:, table.pair_of[row_of]]
    if clusters is None:
        return values
    order = np.argsort(clusters, kind="stable")
    sizes = np.bincount(clusters)
    starts = np.cumsum(sizes) - sizes
    without = values[:, order[starts]]  # for clusters of a single query
    several = np.flatnonzero(sizes > 1)
    for first in range(0, len(several), _BLOCK):
        block = several[first : first + _BLOCK]
        left = np.tile(counts, (len(block), 1))
        for weights, cluster in zip(left, block, strict=True):
            members = order[starts[cluster] : starts[cluster] + sizes[cluster]]
            np.subtract.at(weights, row_of[members], 1)
        without[:, block] = tau_and_rho([table], left)[:, 0]
    return without


def distinct_rows(columns: Floats) -> tuple[Floats, Ints]:
    """The distinct queries: their values (rows, c), and the row per query (n,); unchanged if all are distinct."""
    n = columns.shape[1]
    if n == 0:
        return columns.T, np.zeros(0, dtype=np.intp)
    rows, row_of = np.unique(columns.T, axis=0, return_inverse=True)
    return (columns.T, np.arange(n)) if len(rows) == n else (rows, row_of.reshape(-1))


def for_each_block(
    row_of: Ints,
    rows: int,
    use: Callable[[int, Counts], None],
    draws: Draws,
    clusters: Ints | None = None,
) -> None:
    """Draw resamples of n queries, and pass every block's multiplicities of rows (B, rows) to ``use``.

    Args:
        row_of: (n,) the row that each query counts for.
        use: called with the number of the block's first resample and its multiplicities, from several threads at once.
        clusters: (n,) per query: draws as many whole clusters as there are. None to draw queries.
    """
    if len(row_of) == 0:
        return

    def draw(rng: np.random.Generator, first: int) -> Iterator[Counts]:
        # Always a whole block, so that the first resamples are the same for any number.
        yield _draw(rng, row_of, rows, clusters)

    _keep_freed_memory()
    _in_blocks(draw, use, len(row_of), _BYTES_OF_BLOCK * len(row_of), draws)


def for_each_block_of_signs(n: int, use: Callable[[int, Signs], None], draws: Draws) -> None:
    """Draw a sign for each of n queries, + and - as likely, and pass each block (B, n) to ``use``.

    A randomization test applies them to paired differences (Fisher 1935): if the two are alike, the signs of the
    differences are arbitrary. The streams differ from resamples' streams.
    """

    def draw(rng: np.random.Generator, first: int) -> Iterator[Signs]:
        yield 2 * rng.integers(0, 2, size=(_BLOCK, n), dtype=np.int8) - 1

    _in_blocks(draw, use, n, _BYTES_OF_BLOCK * n, draws, kind=(_SIGNS,))


def for_each_block_of_orders(n: int, use: Callable[[int, Ints], None], draws: Draws) -> None:
    """Draw orders of n queries, all as likely, and pass some at a time (B, n) to ``use``.

    A permutation test applies them to outcomes (Fisher 1935): if outcomes are independent of the measures, their
    assignment to queries is arbitrary. The streams differ from those of the resamples.
    """

    def draw(rng: np.random.Generator, first: int) -> Iterator[Ints]:
        # Processing an order takes some ten times its memory. Draws continue the stream.
        last, step = min(first + _ORDER_BLOCK, draws.number), max(1, _DRAWN // max(1, n))
        for start in range(first, last, step):
            whole = np.tile(np.arange(n, dtype=np.intp), (min(step, last - start), 1))
            yield rng.permuted(whole, axis=1)

    _keep_freed_memory()
    size = _BYTES_OF_ORDER * min(_ORDER_BLOCK * n, max(n, _DRAWN))
    _in_blocks(draw, use, n, size, draws, _ORDER_BLOCK, (_ORDERS,))


@lru_cache(maxsize=4)
def _known(*_: int) -> dict[tuple[int, int], list[Any]]:
    return {}  # draws by the first and their number, under a kind, n, seed and number of resamples


def _in_blocks(
    draw: Callable[[np.random.Generator, int], Iterator[Any]],
    use: Callable[[int, Any], None],
    n: int,
    size: int,
    draws: Draws,
    block: int = _BLOCK,
    kind: tuple[int, ...] = (),
) -> None:
    """Draw and use blocks of ``size`` bytes, several at a time for few queries (n); those of a kind are remembered."""
    resamples, seed, threads = draws
    together = max(1, FEW_CELLS // (max(1, n) * block)) * block
    known = _known(*kind, n, seed, resamples) if kind and n * resamples <= _REMEMBERED else None

    def stream_of(start: int) -> np.random.Generator:
        key = (start // block, *kind)
        return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=key))

    def drawn(first: int) -> Iterable[Any]:
        blocks = range(first, min(first + together, resamples), block)
        parts = (part for start in blocks for part in draw(stream_of(start), start))
        return parts if len(blocks) == 1 else [np.concatenate(list(parts))]

    def work(first: int) -> None:
        at = first, together
        if known is not None and at not in known:
            known[at] = list(drawn(first))
        for part in drawn(first) if known is None else known[at]:
            use(first, part[: resamples - first])
            first += len(part)

    if threads is None:
        threads = max(1, min(len(os.sched_getaffinity(0)), _BLOCKS_BYTES // max(1, size)))
    if threads == 1 or resamples <= together:  # thread overhead exceeds the work
        for first in range(0, resamples, together):
            work(first)
        return
    with ThreadPoolExecutor(threads) as pool:
        for _ in pool.map(work, range(0, resamples, together)):
            pass  # exceptions surface here
    if size > _LARGE:
        give_back_freed_memory()


def _draw(
    rng: np.random.Generator, row_of: Ints, rows: int, clusters: Ints | None = None
) -> Counts:
    n = len(row_of)
    most = n if clusters is None else (clusters.max() + 1) * np.bincount(clusters).max()
    # Large enough for the total of a resample, as correlations need.
    kind = np.int16 if most < 2**15 else np.int32
    if clusters is not None:
        drawn = _draw(rng, np.arange(clusters.max() + 1), int(clusters.max()) + 1)
        counts = [np.bincount(row_of, amounts[clusters], minlength=rows) for amounts in drawn]
        return np.stack(counts).astype(kind)
    if rows * _BINOMIAL_COST < n:
        return rng.multinomial(n, np.bincount(row_of, minlength=rows) / n, size=_BLOCK).astype(kind)
    weights = np.empty((_BLOCK, rows), dtype=kind)
    # Several at once: a call for 32 rows takes half the time of 32 calls, with the same draws.
    step = max(1, _DRAWN // n)
    in_order = np.array_equal(row_of, np.arange(rows))
    for start in range(0, _BLOCK, step):
        part = weights[start : start + step]
        for row, drawn in zip(part, rng.integers(0, n, size=(len(part), n)), strict=True):
            row[:] = np.bincount(drawn if in_order else row_of[drawn], minlength=rows)
    return weights


def weighted_sums(block: Counts | Signs, columns: Floats) -> Floats:
    """(B, c) sums of columns (c, n), with every query weighted by its multiplicity or sign in a block (B, n).

    For many queries, only some resamples at a time are in double precision, by fours.
    """
    rows, n = block.shape
    step = max(4, _DRAWN // max(1, n) // 4 * 4)
    parts = (block[start : start + step].astype(np.float64) for start in range(0, rows, step))
    return np.concatenate([part @ columns.T for part in parts])


def _keep_freed_memory() -> None:
    """Have the C library keep freed arrays for the next block: newly mapped pages make blocks 1.6 times as slow.

    glibc raises its thresholds to the largest freed array (up to 32 MiB), and a block's arrays exceed the first.
    """
    np.empty(31 * 2**20, dtype=np.uint8)
