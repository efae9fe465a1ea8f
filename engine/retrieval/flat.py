"""Exact search by inner product, block by block: an index may be larger than any memory.

The score of a query and a passage depends only on their two vectors: products in double precision, which represents a
product of two singles exactly, are added in one fixed order. A matrix product cannot guarantee that, since BLAS adds in
an order that depends on shapes and threads. So FAISS finds candidates by matrix products, with a margin that their
rounding errors cannot exceed, and the scores of the candidates are then computed in the fixed order. The results are
the same passages with the same scores in the same order, however vectors are divided into shards and blocks, and
wherever they are searched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from engine.machine.watch import OnEvent, silent
from engine.messages.errors import EncodeError
from engine.messages.wording import counted
from engine.retrieval.encode import Block
from engine.sources.io.parallel import mapped
from engine.tables import DOC_ID, SCORE

Singles = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
# A search: (queries, vectors, k) to scores and positions, (queries, k) each, best first.
Nearest = Callable[[Singles, Singles, int], tuple[Singles, Places]]

QUERY_ROW = "query_row"
_CANDIDATES = {QUERY_ROW: pl.Int64, DOC_ID: pl.String, SCORE: pl.Float64}
# Candidates beyond k of the first search in a block; if they are too few, the search is repeated.
_BEYOND = 16
# Numbers in the temporary tables of a step.
_STEP = 2**22
# The most neighbours that FAISS returns on GPUs.
_GPU_MOST = 2048


class RoundoffUnits(NamedTuple):
    """Unit roundoffs of a matrix product: of its inputs, before they are multiplied, and of a sum."""

    inputs: float
    sums: float


# A CPU multiplies and adds in fp32, and rounds to nearest.
CPU_ROUNDING = RoundoffUnits(0.0, 2.0**-24)
# A GPU may first round or cut inputs to TF32, whose significand has 11 bits. Assumed of its sums: that each loses
# less than two units of fp32's last place, since tensor cores add several products at a time, each cut to the
# exponent of the largest (Fasi, Higham, Mikaitis and Pranesh 2021, PeerJ CS 7:e330). `candidates` checks that its
# errors are within the bound.
GPU_ROUNDING = RoundoffUnits(2.0**-10, 2.0**-22)


class BlockCandidates(NamedTuple):
    """The candidates of a block, and the number of queries that the CPU searched in the GPU's place."""

    candidates: pl.DataFrame
    on_cpu: int


# Takes blocks, queries, k and the queries' floors, which may rise meanwhile; yields the candidates of blocks, in any
# order: ``candidates`` wherever it runs.
Searcher = Callable[[Iterable[Block], Singles, int, Doubles], Iterator[BlockCandidates]]


def search_flat(
    blocks: Iterable[Block],
    queries: Singles,
    *,
    k: int,
    searcher: Searcher | None = None,
    on_event: OnEvent = silent,
) -> pl.DataFrame:
    """The ``k`` passages of highest inner product for each query; all passages if there are fewer.

    Args:
        blocks: the vectors, divided and ordered in any way.
        queries: (queries, dimensions).
        searcher: finds the candidates of blocks; None for this process's CPUs.
        on_event: called when the CPU first does the work of a GPU, and at the end with the amount.

    Returns:
        ``query_row`` (position in ``queries``), ``doc_id`` and ``score``, by query, descending
        score, and ascending document id for equal scores.

    Raises:
        EncodeError: as ``candidates``.
    """
    queries = np.ascontiguousarray(queries, dtype=np.float32)
    best = Best(len(queries), k)
    if not len(queries):
        return best.table
    on_cpus = 0
    for rows, on_the_cpu in (searcher or on_cpu)(blocks, queries, k, best.floor):
        best.add(rows)
        if on_the_cpu and not on_cpus:
            on_event(
                f"queries that need more than the {_GPU_MOST:,} neighbours that FAISS returns on a GPU "
                "are searched on the CPU, which is slower"
            )
        on_cpus += on_the_cpu
    if on_cpus:
        on_event(f"{counted(on_cpus, '[search|searches]')} of a block went to the CPU")
    return best.table


class Best:
    """The best candidates of every query so far.

    Attributes:
        table: the ``k`` best, as ``search_flat`` returns them.
        floor: (queries,) the ``k``-th best score, -inf if there are fewer so far; it is raised in place.
    """

    def __init__(self, queries: int, k: int) -> None:
        self.k = k
        self.table = pl.DataFrame(schema=_CANDIDATES)
        self.floor: Doubles = np.full(queries, -np.inf)

    def add(self, candidates: pl.DataFrame) -> None:
        """Take further candidates."""
        rows = pl.concat([self.table, candidates])
        rows = rows.sort(QUERY_ROW, SCORE, DOC_ID, descending=[False, True, False])
        rank = pl.int_range(pl.len()).over(QUERY_ROW)
        self.table = rows.filter(rank < self.k)
        last = rows.filter(rank == self.k - 1)
        self.floor[last[QUERY_ROW].to_numpy()] = last[SCORE].to_numpy()


def on_cpu(
    blocks: Iterable[Block], queries: Singles, k: int, floor: Doubles
) -> Iterator[BlockCandidates]:
    """A ``Searcher`` of this process's CPUs."""
    for block in blocks:
        yield candidates(block, queries, k, floor, nearest_on_cpu, CPU_ROUNDING)


def on_gpu(
    blocks: Iterable[Block], queries: Singles, k: int, floor: Doubles
) -> Iterator[BlockCandidates]:
    """A ``Searcher`` of this process's GPU; the next block is read while it searches."""
    nearest = nearest_on_gpu()

    def search(block: Block) -> BlockCandidates:
        return candidates(block, queries, k, floor, nearest, GPU_ROUNDING)

    return mapped(search, blocks, to_the_end=True)


def candidates(
    block: Block,
    queries: Singles,
    k: int,
    floor: Doubles,
    nearest: Nearest,
    rounding: RoundoffUnits,
) -> BlockCandidates:
    """Every passage of a block that can be among the ``k`` best of a query, with its exact score.

    A sum of d rounded products errs by at most s/(1-s) of the product of the vectors' lengths, where s = d·u + 2v
    (Higham 2002, section 3.1), u is the unit roundoff of sums and v that of inputs. Let e be that bound. The k-th best
    exact score of the block is at least the k-th approximate score minus e, so any passage among the k best has an
    approximate score of at least the k-th minus 2e. Likewise, any passage that exceeds ``floor``, the k-th exact score
    so far, has an approximate score of at least ``floor`` minus e.

    Args:
        queries: (queries, dimensions).
        floor: (queries,), -inf for fewer than k passages so far.
        nearest: returns the best passages by approximate score.
        rounding: of ``nearest``; for a GPU's, the CPU searches queries with more neighbours than a GPU returns.

    Raises:
        EncodeError: an approximate score errs by more than e, or a query lacks candidates: impossible unless
            ``rounding`` is wrong or vectors are not finite.
    """
    count = len(block.vectors)
    share = queries.shape[1] * rounding.sums + 2 * rounding.inputs
    if not 0 < share < 1:
        raise EncodeError(f"vectors of {queries.shape[1]:,} dimensions cannot be searched exactly")
    lengths = np.linalg.norm(queries.astype(np.float64), axis=1)
    longest = float(np.sqrt(np.einsum("ij,ij->i", block.vectors, block.vectors).max(initial=0.0)))
    # A thousandth more, for the rounding of the bound itself.
    error = 1.001 * share / (1 - share) * lengths * longest + np.finfo(np.float32).tiny
    # Rows of queries, places in the block, and approximate scores of candidates.
    pieces: list[tuple[Places, Places, Singles]] = []
    on_cpu = 0
    pending = np.arange(len(queries))
    fetch = min(count, k + _BEYOND)
    while len(pending):
        incomplete: list[Places] = []
        if rounding == GPU_ROUNDING and fetch > _GPU_MOST:
            nearest, on_cpu = nearest_on_cpu, on_cpu or len(pending)
        step = max(1, _STEP // fetch)
        for start in range(0, len(pending), step):
            part = pending[start : start + step]
            scores, positions = nearest(queries[part], block.vectors, fetch)
            least = floor[part] - error[part]
            if count >= k:
                least = np.maximum(least, scores[:, k - 1] - 2 * error[part])
            complete = (scores[:, -1] < least) | (fetch == count)
            incomplete.append(part[~complete])
            keep = complete[:, None] & (scores >= least[:, None])
            pieces.append((np.repeat(part, keep.sum(axis=1)), positions[keep], scores[keep]))
        pending = np.concatenate(incomplete)
        fetch = min(count, 4 * fetch)
    row, place, approximate = (np.concatenate(p) for p in zip(*pieces, strict=True))
    exactly = exact(queries, block.vectors, row, place)
    within = np.abs(approximate - exactly) <= error[row]
    lacking = (np.bincount(row, minlength=len(queries)) < min(k, count)) & (floor == -np.inf)
    if lacking.any() or not within.all():
        raise EncodeError(
            f"exact search found no certain results in the block of document {block.doc_ids[0]!r}: "
            "vectors are not finite, or FAISS rounds more than is assumed of it"
        )
    columns = {QUERY_ROW: row, DOC_ID: block.doc_ids.gather(place), SCORE: exactly}
    return BlockCandidates(pl.DataFrame(columns, schema=_CANDIDATES), on_cpu)


def exact(queries: Singles, vectors: Singles, row: Places, place: Places) -> Doubles:
    """The exact scores of pairs of query ``row[i]`` and vector ``place[i]``; see the module."""
    scores = np.empty(len(row))
    step = max(1, _STEP // queries.shape[1])
    for start in range(0, len(row), step):
        part = slice(start, start + step)
        products = queries[row[part]].astype(np.float64)
        products *= vectors[place[part]]
        np.add.reduce(products, axis=1, out=scores[part])
    return scores


def nearest_on_cpu(queries: Singles, vectors: Singles, k: int) -> tuple[Singles, Places]:
    import faiss

    return faiss.knn(queries, vectors, k, metric=faiss.METRIC_INNER_PRODUCT)


def nearest_on_gpu() -> Nearest:
    """Search for at most 2,048 neighbours on this process's first GPU; vectors are split if they exceed its memory."""
    import faiss

    resources = faiss.StandardGpuResources()

    def nearest(queries: Singles, vectors: Singles, k: int) -> tuple[Singles, Places]:
        return faiss.knn_gpu(
            resources, queries, vectors, k, metric=faiss.METRIC_INNER_PRODUCT, device=0
        )

    return nearest


def gpu_count() -> int:
    """The number of GPUs that this build of FAISS can search on."""
    import faiss

    return int(faiss.get_num_gpus()) if is_gpu_build() else 0


def is_gpu_build() -> bool:
    """Whether this build of FAISS can search on GPUs, here or on nodes that have the same one."""
    import faiss

    return hasattr(faiss, "StandardGpuResources")
