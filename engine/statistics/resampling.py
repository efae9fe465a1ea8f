"""Bootstrap resamples of queries, shared by everything that is computed on the same queries."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from engine.statistics.pairs import PairTable, leave_one_out, pair_table, pair_weights, tau_and_rho

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.intp]
Counts = npt.NDArray[np.int32]

# Resamples drawn from one random stream. Fixed: the draws must not depend on threads or memory. More
# than this gains nothing (measured at 3,000 and 10,000 queries) and takes memory.
_BLOCK = 32
# Drawing a row's multiplicity (binomial) costs about so many times as much as drawing a query.
_BINOMIAL_COST = 20


@dataclass(frozen=True)
class Replicates:
    """tau and rho of some pairs of columns: on the sample, on resamples, and leaving out one query.

    Attributes:
        tau, rho: (pairs,) on the sample; NaN where undefined.
        taus, rhos: (pairs, resamples).
        without: (pairs, 2, n) tau and rho without each query; only where asked for.
    """

    tau: Floats
    rho: Floats
    taus: Floats
    rhos: Floats
    without: Floats | None


def replicate(
    columns: Floats,
    pairs: Sequence[tuple[int, int]],
    *,
    resamples: int,
    seed: int,
    leave_out: bool = False,
    threads: int | None = None,
) -> Replicates:
    """Correlate pairs of columns over the same n queries, and over bootstrap resamples of them.

    A resample draws n queries with replacement (Efron 1979), the same for all columns, so
    differences of two correlations are resampled jointly. Equal queries (equal in every column) are
    drawn together: their multiplicities are multinomial. Block b of 32 resamples comes from the
    stream ``SeedSequence(seed, spawn_key=(b,))``, so that the result is the same for any number of threads.

    Args:
        columns: shape (c, n), finite.
        pairs: which columns to correlate.
        leave_out: whether to compute the leave-one-out values that BCa intervals need.
        threads: None for all cores.
    """
    rows, row_of, counts = distinct_rows(columns)
    tables = [pair_table(rows[:, i], rows[:, j]) for i, j in pairs]
    taus, rhos = np.empty((2, len(pairs), resamples))

    def fill(first: int, weights: Counts) -> None:
        at = slice(first, first + len(weights))
        for pair, table in enumerate(tables):
            taus[pair, at], rhos[pair, at] = tau_and_rho(table, pair_weights(table, weights))

    for_each_block(counts, fill, resamples=resamples, seed=seed, threads=threads)
    sample = [_on_sample(table, counts) for table in tables]
    return Replicates(
        tau=np.array([tau for tau, _ in sample]),
        rho=np.array([rho for _, rho in sample]),
        taus=taus,
        rhos=rhos,
        without=np.array([_without(table, counts, row_of) for table in tables])
        if leave_out
        else None,
    )


def _on_sample(table: PairTable, counts: Counts) -> tuple[float, float]:
    tau, rho = tau_and_rho(table, pair_weights(table, counts[None, :]))
    return float(tau[0]), float(rho[0])


def _without(table: PairTable, counts: Counts, row_of: Ints) -> Floats:
    values = leave_one_out(table, pair_weights(table, counts[None, :])[0])
    return np.stack(values)[:, table.pair_of[row_of]]


def distinct_rows(columns: Floats) -> tuple[Floats, Ints, Counts]:
    """The distinct queries: their values (rows, c), the row of each query (n,), queries per row."""
    if columns.shape[1] == 0:
        return columns.T, np.zeros(0, dtype=np.intp), np.zeros(0, dtype=np.int32)
    rows, row_of, counts = np.unique(columns.T, axis=0, return_inverse=True, return_counts=True)
    return rows, row_of.reshape(-1), counts.astype(np.int32)


def for_each_block(
    counts: Counts,
    use: Callable[[int, Counts], None],
    *,
    resamples: int,
    seed: int,
    threads: int | None = None,
) -> None:
    """Draw resamples of distinct rows, and hand each block's multiplicities (B, rows) to ``use``.

    Args:
        counts: queries per distinct row.
        use: called with the number of the block's first resample and its multiplicities, from
            several threads at once.
    """
    n = int(counts.sum())
    if n == 0:
        return

    def work(first: int) -> None:
        stream = np.random.SeedSequence(seed, spawn_key=(first // _BLOCK,))
        size = min(_BLOCK, resamples - first)
        # Always a whole block: the first resamples are the same whatever their number.
        use(first, _draw(np.random.default_rng(stream), counts, n)[:size])

    _keep_freed_memory()
    with ThreadPoolExecutor(threads or len(os.sched_getaffinity(0))) as pool:
        for _ in pool.map(work, range(0, resamples, _BLOCK)):
            pass  # exceptions surface here


def _draw(rng: np.random.Generator, counts: Counts, n: int) -> Counts:
    rows = len(counts)
    if rows * _BINOMIAL_COST < n:
        return rng.multinomial(n, counts / n, size=_BLOCK).astype(np.int32)
    row_of_query = np.repeat(np.arange(rows), counts)
    weights = np.empty((_BLOCK, rows), dtype=np.int32)
    # All at once: one call fills 32 rows in half the time of 32 calls.
    for row, drawn in zip(weights, rng.integers(0, n, size=(_BLOCK, n)), strict=True):
        row[:] = np.bincount(drawn if rows == n else row_of_query[drawn], minlength=rows)
    return weights


def _keep_freed_memory() -> None:
    """Let the C library keep freed arrays for the next block, rather than give them back each time.

    glibc raises its thresholds for doing so to the largest array freed so far (up to 32 MiB); a block's
    arrays are larger than where they start. Without this the pages of every temporary array are
    mapped anew, which made blocks 1.6 times as slow.
    """
    np.empty(31 * 2**20, dtype=np.uint8)
