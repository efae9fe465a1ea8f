"""Clusters of vectors by their direction: spherical k-means, the same on every run.

The centroid of a cluster is its mean direction, and a vector belongs to the centroid of highest
cosine (Dhillon & Modha 2001). FAISS trains the centroids; exact search (``flat``) assigns vectors
to them, so no vector changes its cluster because of the rounding of a matrix product.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from engine.retrieval import flat
from engine.retrieval.flat import QUERY_ROW, Doubles, Places, Singles
from engine.retrieval.index_shards import Block
from engine.tables import DOC_ID, SCORE

_ITERATIONS = 25
# Each from different random points. On 1,362 questions and 37 clusters, the sums of cosines of
# single starts differ by 1.5%, those of the best of ten by 0.4%.
STARTS = 10


@dataclass(frozen=True)
class Clusters:
    """Clusters, none of which is empty.

    Attributes:
        centroids: (clusters, dimensions), of length 1.
        cluster: (vectors,) the row of the centroid that each vector belongs to.
        similarity: (vectors,) its cosine to that centroid.
    """

    centroids: Singles
    cluster: Places
    similarity: Doubles


def unit(vectors: Singles) -> Singles:
    """Vectors (n, dimensions) scaled to length 1; vectors of length 0 are unchanged."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    return (vectors / np.where(lengths == 0, 1, lengths)).astype(np.float32)


def clusterings(vectors: Singles, count: int, *, seed: int, starts: int = STARTS) -> list[Clusters]:
    """Spherical k-means of unit vectors from several starts, the highest sum of cosines first.

    k-means ends in one of many local optima, so differences between starts are not properties of
    the data. If many vectors are equal, there may be fewer clusters than ``count``. FAISS trains on
    at most 256 vectors per cluster, drawn at random; all vectors are assigned.

    Args:
        vectors: (n, dimensions).
        count: clusters, 1 to n; for n there is only one clustering.
        seed: of the starts, 0 or more.
        starts: their number, 1 or more.
    """
    if count == len(vectors):  # FAISS would copy them too, with a warning on standard error
        return [_assign(vectors, vectors)]
    seeds = np.random.SeedSequence(seed).generate_state(starts) >> 1  # FAISS's seeds are signed
    with _one_thread():
        runs = [_assign(_train(vectors, count, int(start)), vectors) for start in seeds]
    return sorted(runs, key=lambda clusters: -float(clusters.similarity.sum()))


def nearest_of(vectors: Singles, queries: Singles) -> tuple[Places, Doubles]:
    """The row of the vector of highest inner product for each query, and the product.

    Among equal products, the first row is taken.
    """
    names = pl.Series(DOC_ID, [f"{row:012d}" for row in range(len(vectors))], dtype=pl.String)
    best = flat.search_flat([Block(names, vectors)], queries, k=1).sort(QUERY_ROW)
    rows: npt.NDArray[np.int64] = best[DOC_ID].cast(pl.Int64).to_numpy()
    return rows, best[SCORE].to_numpy()


def _assign(centroids: Singles, vectors: Singles) -> Clusters:
    nearest, similarity = nearest_of(centroids, vectors)
    kept, cluster = np.unique(nearest, return_inverse=True)
    return Clusters(centroids[kept], cluster.reshape(-1).astype(np.int64), similarity)


def _train(vectors: Singles, count: int, seed: int) -> Singles:
    import faiss

    means: Any = faiss.Kmeans(
        vectors.shape[1],
        count,
        niter=_ITERATIONS,
        spherical=True,
        seed=seed,
        min_points_per_centroid=1,  # fewer would only cause a warning on standard error
    )
    means.train(np.ascontiguousarray(vectors, dtype=np.float32))
    return unit(means.centroids)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Run FAISS on one thread.

    How a matrix product is divided among threads can change its last bits, and k-means magnifies
    such differences. Even on one thread, clustering is faster than encoding.
    """
    import faiss

    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(threads)
