"""Exact search by inner product, block by block: an index may be larger than any memory.

The score of a query and a passage is a function of their two vectors alone: products in double
precision, which holds a product of two singles exactly, added in one fixed order. A matrix product
cannot give that, since BLAS adds in an order that depends on the shapes and threads at hand. So FAISS
finds the candidates with it, with a margin that its rounding cannot exceed, and their scores are then
computed in the fixed way. The same passages come out with the same scores and in the same order,
however the vectors are cut into shards and blocks, and wherever they are searched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
import polars as pl

from engine.retrieval.shards import Block
from engine.tables import DOC_ID, SCORE

Singles = npt.NDArray[np.float32]
Doubles = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
# (queries, vectors, k) to scores and positions, (queries, k) each, best first.
Nearest = Callable[[Singles, Singles, int], tuple[Singles, Places]]

QUERY_ROW = "query_row"
_CANDIDATES = {QUERY_ROW: pl.Int64, DOC_ID: pl.String, SCORE: pl.Float64}
# Candidates beyond k that a block is first asked for; where that is too few, it is asked again.
_BEYOND = 16
# Numbers in the temporary tables of a step.
_STEP = 2**22
# faiss on GPUs gives no more than so many neighbours.
_GPU_MOST = 2048
# Unit roundoff of what a matrix product computes with: fp32 on a CPU; a GPU may round to TF32 first.
_CPU_ROUNDOFF = 2.0**-24
_GPU_ROUNDOFF = 2.0**-11


def search(blocks: Iterable[Block], queries: Singles, *, k: int, gpus: int = 0) -> pl.DataFrame:
    """The ``k`` passages of highest inner product for each query; all of them where there are fewer.

    Args:
        blocks: the vectors, in any cut and order.
        queries: (queries, dimensions).
        k: passages per query, 1 or more.
        gpus: GPUs to search on, each with blocks of its own; 0 for the CPU.

    Returns:
        ``query_row`` (position in ``queries``), ``doc_id`` and ``score``, by query, descending score,
        and ascending document id where scores are equal.
    """
    queries = np.ascontiguousarray(queries, dtype=np.float32)
    best = pl.DataFrame(schema=_CANDIDATES)
    if not len(queries):
        return best
    floor = np.full(len(queries), -np.inf)
    for found in _each(blocks, queries, k, gpus, floor):
        best = _best(pl.concat([best, found]), k)
        _raise_floor(floor, best, k)
    return best


def _each(
    blocks: Iterable[Block], queries: Singles, k: int, gpus: int, floor: Doubles
) -> Iterator[pl.DataFrame]:
    """Candidates of each block, in any order; ``floor`` may rise meanwhile, which only saves work."""
    if not gpus:
        for block in blocks:
            yield candidates(block, queries, k, floor, nearest_on_cpu, _CPU_ROUNDOFF)
        return
    # One thread a GPU; a block waits for the GPU that is free, and no more than one more is read.
    with ThreadPoolExecutor(gpus) as pool:
        free = list(range(gpus))
        running: dict[Future[pl.DataFrame], int] = {}
        for block in blocks:
            if not free:
                done = next(iter(running))
                free.append(running.pop(done))
                yield done.result()
            gpu = free.pop()
            nearest = nearest_on_gpu(gpu)
            running[pool.submit(candidates, block, queries, k, floor, nearest, _GPU_ROUNDOFF)] = gpu
        for done in running:
            yield done.result()


def candidates(
    block: Block, queries: Singles, k: int, floor: Doubles, nearest: Nearest, roundoff: float
) -> pl.DataFrame:
    """Every passage of a block that can be among the ``k`` best of a query, with its exact score.

    A sum of d rounded products errs by at most d·u/(1-d·u) of the product of the vectors' lengths
    (Higham 2002, section 3.1), u being the unit roundoff; inputs that are rounded first add 2u more.
    Let e be that bound. The k-th best of the block scores at least what the k-th approximate score
    is, less e; what is to be among the best therefore has an approximate score of no less than the
    k-th, less 2e. Likewise, what is to pass ``floor``, the k-th exact score so far, has no less than
    that less e.

    Args:
        floor: (queries,), -inf where fewer than k passages are known.
        nearest: gives the best by approximate score.
        roundoff: of ``nearest``.
    """
    count = len(block.vectors)
    share = (queries.shape[1] + 2) * roundoff
    lengths = np.linalg.norm(queries.astype(np.float64), axis=1)
    longest = float(np.sqrt(np.einsum("ij,ij->i", block.vectors, block.vectors).max(initial=0.0)))
    # A thousandth more, for the rounding of this very bound.
    error = 1.001 * share / (1 - share) * lengths * longest + np.finfo(np.float32).tiny
    rows: list[Places] = []
    places: list[Places] = []
    pending = np.arange(len(queries))
    fetch = min(count, k + _BEYOND)
    while len(pending):
        again: list[Places] = []
        step = max(1, _STEP // fetch)
        for start in range(0, len(pending), step):
            part = pending[start : start + step]
            scores, found = nearest(queries[part], block.vectors, fetch)
            least = floor[part] - error[part]
            if count >= k:
                least = np.maximum(least, scores[:, k - 1] - 2 * error[part])
            whole = (scores[:, -1] < least) | (fetch == count)
            again.append(part[~whole])
            keep = whole[:, None] & (scores >= least[:, None])
            rows.append(np.repeat(part, keep.sum(axis=1)))
            places.append(found[keep])
        pending = np.concatenate(again)
        fetch = min(count, 4 * fetch)
    row, place = np.concatenate(rows), np.concatenate(places)
    return pl.DataFrame(
        {
            QUERY_ROW: row,
            DOC_ID: block.doc_ids.gather(place),
            SCORE: exact(queries, block.vectors, row, place),
        },
        schema=_CANDIDATES,
    )


def exact(queries: Singles, vectors: Singles, row: Places, place: Places) -> Doubles:
    """Scores of pairs: of query ``row[i]`` and vector ``place[i]``; see above."""
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

    found: tuple[Singles, Places] = faiss.knn(
        queries, vectors, k, metric=faiss.METRIC_INNER_PRODUCT
    )
    return found


def nearest_on_gpu(gpu: int) -> Nearest:
    """Search on one GPU, which takes the vectors in pieces where they do not fit it."""
    import faiss

    resources = faiss.StandardGpuResources()

    def nearest(queries: Singles, vectors: Singles, k: int) -> tuple[Singles, Places]:
        if k > _GPU_MOST:
            return nearest_on_cpu(queries, vectors, k)
        found: tuple[Singles, Places] = faiss.knn_gpu(
            resources, queries, vectors, k, metric=faiss.METRIC_INNER_PRODUCT, device=gpu
        )
        return found

    return nearest


def gpu_count() -> int:
    """GPUs that this build of faiss can search on."""
    import faiss

    return int(faiss.get_num_gpus()) if hasattr(faiss, "StandardGpuResources") else 0


def _best(found: pl.DataFrame, k: int) -> pl.DataFrame:
    ordered = found.sort(QUERY_ROW, SCORE, DOC_ID, descending=[False, True, False])
    return ordered.filter(pl.int_range(pl.len()).over(QUERY_ROW) < k)


def _raise_floor(floor: Doubles, best: pl.DataFrame, k: int) -> None:
    full = (
        best.group_by(QUERY_ROW)
        .agg(pl.len().alias("n"), pl.col(SCORE).min())
        .filter(pl.col("n") == k)
    )
    floor[full[QUERY_ROW].to_numpy()] = full[SCORE].to_numpy()
