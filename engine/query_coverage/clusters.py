"""Clusters of vectors by their direction: spherical k-means, the same on every run.

The mean direction of a cluster is its centroid, and a vector belongs to the centroid of highest cosine
(Dhillon & Modha 2001). FAISS trains; the assignment is that of exact search (``flat``), so no vector
changes its cluster by the rounding of a matrix product.
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
from engine.retrieval.shards import Block
from engine.tables import DOC_ID, SCORE

_ITERATIONS = 25
# From other random points each. On 1,362 questions and 37 clusters, the sums of cosines that single
# starts reach differ by 1.5%, those of the best of ten by 0.4%.
STARTS = 10


@dataclass(frozen=True)
class Clusters:
    """Clusters, none of them empty.

    Attributes:
        centroids: (clusters, dimensions), of length 1.
        cluster: (vectors,) the row of the centroid that each vector belongs to.
        similarity: (vectors,) its cosine to that centroid.
    """

    centroids: Singles
    cluster: Places
    similarity: Doubles


def unit(vectors: Singles) -> Singles:
    """Vectors (n, dimensions) brought to length 1; those of length 0 stay."""
    lengths = np.linalg.norm(vectors.astype(np.float64), axis=1, keepdims=True)
    return (vectors / np.where(lengths == 0, 1, lengths)).astype(np.float32)


def clusterings(vectors: Singles, count: int, *, seed: int, starts: int = STARTS) -> list[Clusters]:
    """Spherical k-means of vectors of length 1 from several starts, that of the highest cosines first.

    k-means ends in the nearest of many local optima, so what differs between starts is not in the data.
    Where many vectors are equal there may be fewer clusters than asked for. FAISS learns from 256
    vectors a cluster at most, drawn at random; all are assigned.

    Args:
        vectors: (n, dimensions).
        count: clusters, 1 to n; where they are n there is one clustering.
        seed: of the starts, 0 or more.
        starts: how many, 1 or more.
    """
    if count == len(vectors):  # FAISS copies them too, and says so on standard error
        return [_assign(vectors, vectors)]
    seeds = np.random.SeedSequence(seed).generate_state(starts) >> 1  # FAISS's have a sign
    with _one_thread():
        found = [_assign(_train(vectors, count, int(one)), vectors) for one in seeds]
    return sorted(found, key=lambda one: -float(one.similarity.sum()))


def nearest_of(vectors: Singles, queries: Singles) -> tuple[Places, Doubles]:
    """For each query (n, dimensions) the row of the vector of highest inner product, and that product.

    Of equal ones the first row counts.
    """
    names = pl.Series(DOC_ID, [f"{row:012d}" for row in range(len(vectors))], dtype=pl.String)
    best = flat.search([Block(names, vectors)], queries, k=1).sort(QUERY_ROW)
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
        min_points_per_centroid=1,  # fewer is a warning on standard error, no more
    )
    means.train(np.ascontiguousarray(vectors, dtype=np.float32))
    return unit(means.centroids)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """FAISS on one thread: how a matrix product is cut among threads may decide its last bits, and
    k-means magnifies them. Encoding takes longer than this does on one thread."""
    import faiss

    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(threads)
