"""Query coverage: which parts of what users ask have no evaluation query.

Evaluation queries and a sample of user queries are embedded and clustered together; the clusters
that matter are those with user queries but without an evaluation query.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import polars as pl

from engine import tables
from engine.messages.errors import InputError
from engine.messages.extras import require
from engine.query_coverage import clusters as clustering
from engine.query_coverage.figures import Figures, figures, sampled, uncovered
from engine.retrieval.flat import Singles
from engine.statistics.intervals import holm
from engine.tables import CLUSTER, QUERY, QUERY_ID, SIMILARITY, SOURCE, UNCOVERED, USER_QUERIES

EVALUATION, USER = "evaluation", "user"
# User queries shown as examples of a cluster.
_EXAMPLES = 5
_ROW = "row"


@dataclass(frozen=True)
class Coverage:
    """How much of what users ask an evaluation covers.

    Attributes:
        clusters: the coverage table, one row per cluster.
        assignments: the assignments table, one row per query: the evaluation queries, then the user
            queries, each in their order.
        figures: the figures over the clusterings from all starts of k-means; ``clusters`` is the
            first.
        clusters_wanted: the number of clusters requested; there are fewer if texts share a vector.
        texts, user_texts: numbers of distinct texts among all queries and among the user queries.
    """

    clusters: pl.DataFrame
    assignments: pl.DataFrame
    figures: Figures
    clusters_wanted: int
    texts: int
    user_texts: int


def measure(
    evaluation: pl.DataFrame,
    users: pl.DataFrame,
    encode: Callable[[list[str]], Singles],
    *,
    clusters: int | None = None,
    seed: int = 0,
) -> Coverage:
    """Cluster queries by the directions of their vectors, and find the clusters that are covered.

    A text that occurs several times (ignoring white space around it) is one point for the
    clustering, but every figure counts each occurrence. The result does not depend on the order of
    the rows.

    Args:
        evaluation: ``query_id`` and ``query``, at least one row.
        users: the same for the user queries.
        encode: returns the vectors (n, dimensions) of distinct texts.
        clusters: their number; None for the square root of the number of distinct user queries: a cluster
            then holds, on average, as many of these as there are clusters, so that both grow with a log.

    Raises:
        InputError: there are fewer distinct texts than ``clusters``, or FAISS is not installed.
    """
    require("a clustering of queries", "retrieval", "faiss")
    both = ((EVALUATION, evaluation), (USER, users))
    pooled = pl.concat(
        [queries.select(pl.lit(source).alias(SOURCE), QUERY_ID, QUERY) for source, queries in both]
    ).with_columns(pl.col(QUERY).str.strip_chars())
    # Sorted, so that the order of rows and of the two files does not change the starts of k-means.
    texts = pooled[QUERY].unique().sort()
    user_texts = users[QUERY].str.strip_chars().n_unique()
    if clusters is not None and clusters > len(texts):
        problem = f"`clusters` is {clusters}, for {len(texts)} distinct queries"
        raise InputError(problem, f"use {len(texts)} or fewer")
    wanted = clusters or min(len(texts), max(2, round(math.sqrt(user_texts))))
    vectors = clustering.unit(encode(texts.to_list()))
    starts = clustering.clusterings(vectors, wanted, seed=seed)
    rows = texts.search_sorted(pooled[QUERY]).to_numpy()
    cluster_of_query = np.stack([start.cluster[rows] for start in starts])
    is_evaluation = (pooled[SOURCE] == EVALUATION).to_numpy()
    assignments = pooled.with_columns(
        pl.Series(_ROW, rows),
        pl.Series(CLUSTER, cluster_of_query[0]),
        pl.Series(SIMILARITY, starts[0].similarity[rows].astype(np.float64)),
        pl.Series(UNCOVERED, uncovered(cluster_of_query, is_evaluation).mean(axis=0)),
    )
    # The cluster with the most user queries is number 1; of several, that with the first text.
    order = (
        assignments.group_by(CLUSTER)
        .agg((pl.col(SOURCE) == USER).sum().alias(USER_QUERIES), pl.col(QUERY).min())
        .sort(USER_QUERIES, QUERY, descending=[True, False])[CLUSTER]
    )
    numbers = pl.int_range(1, len(order) + 1, dtype=pl.Int64, eager=True)
    assignments = assignments.with_columns(pl.col(CLUSTER).replace_strict(order, numbers))
    return Coverage(
        clusters=_table(assignments, starts[0].centroids[order.to_numpy()], vectors),
        assignments=assignments.select(list(tables.ASSIGNMENTS)),
        figures=figures(cluster_of_query, is_evaluation, seed=seed),
        clusters_wanted=wanted,
        texts=len(texts),
        user_texts=user_texts,
    )


def _table(assignments: pl.DataFrame, centroids: Singles, vectors: Singles) -> pl.DataFrame:
    """The coverage table, from queries with their cluster and the row of their vector."""
    user = pl.col(SOURCE) == USER
    # Sorted, so that sums are added in one order, and the queries nearest to their centroid come first.
    assignments = assignments.sort(SIMILARITY, QUERY, QUERY_ID, descending=[True, False, False])
    examples = pl.struct(QUERY, SIMILARITY).filter(user).unique(maintain_order=True).head(_EXAMPLES)
    found = (
        assignments.group_by(CLUSTER, maintain_order=True)
        .agg(
            user.sum().alias(USER_QUERIES),
            (~user).sum().alias(tables.EVALUATION_QUERIES),
            pl.col(SIMILARITY, UNCOVERED).filter(user).mean().fill_null(float("nan")),
            examples.struct.field(QUERY).alias(tables.EXAMPLES),
            examples.struct.field(SIMILARITY).alias(tables.EXAMPLE_SIMILARITIES),
        )
        .sort(CLUSTER)
    )
    users, evaluations = (
        found[n].cast(pl.Int64) for n in (USER_QUERIES, tables.EVALUATION_QUERIES)
    )
    chance = sampled((users + evaluations).to_numpy(), int(evaluations.sum()))
    p = np.minimum(chance.cdf(evaluations.to_numpy()), 1.0).tolist()
    evaluation = assignments.filter(~user).unique(_ROW, keep="first", maintain_order=True)
    nearest, similarity = clustering.nearest_of(vectors[evaluation[_ROW].to_numpy()], centroids)
    return found.with_columns(
        pl.Series(tables.P, p),
        pl.Series(tables.P_HOLM, holm(p)),
        evaluation[QUERY_ID].gather(nearest).alias(tables.NEAREST_ID),
        evaluation[QUERY].gather(nearest).alias(tables.NEAREST),
        pl.Series(tables.NEAREST_SIMILARITY, similarity),
    ).select(pl.col(name).cast(kind) for name, kind in tables.COVERAGE.items())
