"""Query coverage: topics of user queries without an evaluation query; measured, printed, and as JSON.

Evaluation queries and a sample of user queries are clustered together by the directions of their vectors, by spherical
k-means of FAISS, the same on every run. The centroid of a cluster is its mean direction, and a vector belongs to the
centroid of highest cosine (Dhillon & Modha 2001).

A cluster without an evaluation query is uncovered, and so are its user queries. With few evaluation queries, some
clusters are uncovered for any choice of queries. So every figure is compared with its expectation if, for fixed
clusters, the evaluation queries were a random sample of all queries without replacement: their number in a cluster is
then hypergeometric.

Cluster boundaries are partly arbitrary, so the same queries are clustered several times, and figures are means over the
clusterings. For fixed clusterings, every statement here also holds for the mean.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
from rich.table import Table

from engine import tables
from engine.inputs.files import table_sha256
from engine.messages.errors import InputError
from engine.messages.extras import require
from engine.messages.wording import counted, cut
from engine.report import layout
from engine.report.layout import Grid, terminal_table
from engine.report.summary import Origin, audit_of, jsonable, versions
from engine.statistics.arrays import Ints, Mask
from engine.statistics.bounded import binomial_interval, holm
from engine.tables import CLUSTER, EVALUATION_QUERIES, P_HOLM, QUERY, QUERY_ID, SOURCE, USER_QUERIES

EVALUATION, USER = "evaluation", "user"
_EXAMPLES = 5
_ROW = "row"
Vectors = npt.NDArray[np.float32]

# Starts of k-means. On 1,362 questions and 37 clusters, the sums of cosines of single starts differ by 1.5%, the sums
# of the best of ten starts by 0.4%.
STARTS = 10
DRAWS = 4_999
CONFIDENCE = 0.95

_PACKAGES = ("faiss-cpu", "faiss-gpu", "torch", "transformers", "polars", "scipy", "numpy")
_ALPHA = 0.05
_UNCOVERED = "User queries without an evaluation query in their cluster"
_SPARSE = "Clusters with fewer evaluation queries than expected by chance"
# Limits of the printed lines; the files hold everything.
_CLUSTERS = 10
_EXAMPLES_SHOWN = 3
_CHARACTERS = 60


@dataclass(frozen=True)
class Clusters:
    """Non-empty clusters."""

    centroids: Vectors  # (clusters, dimensions), of length 1
    cluster: Ints  # (vectors,) the row of the centroid that each vector belongs to
    similarity: Vectors  # (vectors,) its cosine to that centroid


def unit(vectors: Vectors) -> Vectors:
    """Vectors (n, dimensions) scaled to length 1; vectors of length 0 are unchanged."""
    import faiss

    scaled = np.array(vectors, dtype=np.float32, order="C")
    faiss.normalize_L2(scaled)
    return scaled


def clusterings(vectors: Vectors, count: int, *, seed: int, starts: int = STARTS) -> list[Clusters]:
    """Spherical k-means of unit ``vectors`` (n, dimensions) from several starts, the highest sum of cosines first.

    ``count`` is 1 to n: for n there is only one clustering, and if many vectors are equal, there may be fewer clusters.
    FAISS trains on at most 256 vectors per cluster, drawn at random; all vectors are assigned.
    """
    starts = starts if count < len(vectors) else 1
    seeds = np.random.SeedSequence(seed).generate_state(starts) >> 1  # FAISS's seeds are signed
    with _one_thread():
        runs = [_clustering(vectors, count, int(start)) for start in seeds]
    return sorted(runs, key=lambda clusters: -float(clusters.similarity.sum()))


def _clustering(vectors: Vectors, count: int, seed: int) -> Clusters:
    import faiss

    # A minimum of points for each centroid would only cause a warning on standard error.
    options = {"spherical": True, "seed": seed, "min_points_per_centroid": 1}
    means: Any = faiss.Kmeans(vectors.shape[1], count, **options)
    means.train(vectors)
    similarity, nearest = means.assign(vectors)
    rows, cluster = np.unique(nearest, return_inverse=True)
    return Clusters(means.centroids[rows], cluster, np.minimum(similarity, 1))


def nearest_of(vectors: Vectors, queries: Vectors) -> tuple[Ints, Vectors]:
    """The row of the vector of highest cosine for each query, all of length 1, and the cosine."""
    import faiss

    with _one_thread():
        similarity, rows = faiss.knn(queries, vectors, 1, metric=faiss.METRIC_INNER_PRODUCT)
    return rows[:, 0], np.minimum(similarity[:, 0], 1)


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Run FAISS on one thread: k-means magnifies rounding errors, which depend on the number of threads."""
    import faiss

    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)
    try:
        yield
    finally:
        faiss.omp_set_num_threads(threads)


@dataclass(frozen=True)
class Figures:
    """Figures of the coverage, counts of queries and clusters; from ``clusters`` on, of the first clustering."""

    user_queries: int
    evaluation_queries: int
    share: float  # of user queries that are uncovered, in [0, 1]; the mean over the clusterings
    low: float  # end of the share's interval, for fixed clusterings
    high: float
    confidence: float
    shares: tuple[float, ...]  # (clusterings,) the share by clustering
    expected_share: float  # of a random sample of as many evaluation queries; exact
    p: float  # the probability that a random sample leaves as many uncovered, or more
    draws: int  # random samples from which ``p`` is computed
    seed: int
    clusters: int
    uncovered_clusters: int  # without an evaluation query
    uncovered_queries: int  # user queries in these
    expected_clusters: float  # uncovered by a random sample; exact
    unasked_clusters: int  # without a user query
    unasked_queries: int  # evaluation queries in these


@dataclass(frozen=True)
class Coverage:
    """The share of user queries that an evaluation covers."""

    clusters: pl.DataFrame  # ``tables.COVERAGE``, of the first clustering
    assignments: pl.DataFrame  # ``tables.ASSIGNMENTS``: first the evaluation queries, in order
    figures: Figures
    clusters_requested: int  # there are fewer if texts share a vector
    texts: int  # distinct ones among all queries
    user_texts: int  # distinct ones among the user queries


def measure(
    evaluation: pl.DataFrame,
    users: pl.DataFrame,
    encode: Callable[[list[str]], Vectors],
    *,
    clusters: int | None = None,
    seed: int = 0,
) -> Coverage:
    """Cluster queries by the directions of their vectors, and find the clusters that are covered.

    A text that occurs several times (ignoring white space around it) is one point for the clustering, but
    every figure counts each occurrence. The result does not depend on the order of the rows.

    Args:
        evaluation, users: ``query_id`` and ``query``, at least one row.
        encode: returns the vectors (n, dimensions) of distinct texts.
        clusters: their number; None for the square root of the number of distinct user queries: a cluster
            then holds, on average, as many user queries as there are clusters, so both grow with a log.

    Raises:
        InputError: there are fewer distinct texts than ``clusters``, or FAISS is not installed.
    """
    require("a clustering of queries", "retrieval", "faiss")
    pooled = pl.concat(
        queries.select(pl.lit(source).alias(SOURCE), QUERY_ID, pl.col(QUERY).str.strip_chars())
        for source, queries in ((EVALUATION, evaluation), (USER, users))
    )
    # Sorted, so that the order of rows and of the two files does not change the starts of k-means.
    texts = pooled[QUERY].unique().sort()
    user_texts = users[QUERY].str.strip_chars().n_unique()
    if clusters is not None and clusters > len(texts):
        problem = f"`clusters` is {clusters}, for {len(texts)} distinct queries"
        raise InputError(problem, f"use {len(texts)} or fewer", "settings.clusters")
    requested = clusters or min(len(texts), max(2, round(math.sqrt(user_texts))))
    vectors = unit(encode(texts.to_list()))
    starts = clusterings(vectors, requested, seed=seed)
    rows = texts.search_sorted(pooled[QUERY]).to_numpy()
    cluster_of_query = np.stack([start.cluster[rows] for start in starts])
    is_evaluation = (pooled[SOURCE] == EVALUATION).to_numpy()
    assignments = pooled.with_columns(
        pl.Series(_ROW, rows),
        pl.Series(CLUSTER, cluster_of_query[0]),
        pl.Series(tables.SIMILARITY, starts[0].similarity[rows].astype(np.float64)),
        pl.Series(tables.UNCOVERED, uncovered(cluster_of_query, is_evaluation).mean(axis=0)),
    )
    # The cluster with the most user queries is number 1; on a tie, the cluster with the first text.
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
        clusters_requested=requested,
        texts=len(texts),
        user_texts=user_texts,
    )


def _table(assignments: pl.DataFrame, centroids: Vectors, vectors: Vectors) -> pl.DataFrame:
    user = pl.col(SOURCE) == USER
    # Sorted, so that sums are added in one order, and the queries nearest to their centroid come first.
    assignments = assignments.sort(
        tables.SIMILARITY, QUERY, QUERY_ID, descending=[True, False, False]
    )
    examples = (
        pl.struct(QUERY, tables.SIMILARITY).filter(user).unique(maintain_order=True).head(_EXAMPLES)
    )
    clusters = (
        assignments.group_by(CLUSTER, maintain_order=True)
        .agg(
            user.sum().alias(USER_QUERIES),
            (~user).sum().alias(EVALUATION_QUERIES),
            pl.col(tables.SIMILARITY, tables.UNCOVERED).filter(user).mean().fill_null(float("nan")),
            examples.struct.field(QUERY).alias(tables.EXAMPLES),
            examples.struct.field(tables.SIMILARITY).alias(tables.EXAMPLE_SIMILARITIES),
        )
        .sort(CLUSTER)
    )
    users, evaluations = (clusters[n].cast(pl.Int64) for n in (USER_QUERIES, EVALUATION_QUERIES))
    chance = sampled((users + evaluations).to_numpy(), int(evaluations.sum()))
    p = np.minimum(chance.cdf(evaluations.to_numpy()), 1.0).tolist()
    evaluation = assignments.filter(~user).unique(_ROW, keep="first", maintain_order=True)
    nearest, similarity = nearest_of(vectors[evaluation[_ROW].to_numpy()], centroids)
    return clusters.with_columns(
        pl.Series(tables.P, p),
        pl.Series(P_HOLM, holm(p)),
        evaluation[QUERY_ID].gather(nearest).alias(tables.NEAREST_ID),
        evaluation[QUERY].gather(nearest).alias(tables.NEAREST),
        pl.Series(tables.NEAREST_SIMILARITY, similarity),
    ).select(pl.col(name).cast(kind) for name, kind in tables.COVERAGE.items())


def figures(clusters: Ints, evaluation: Mask, *, seed: int, draws: int = DRAWS) -> Figures:
    """The figures of clusterings: (clusterings, queries) each query's non-empty cluster, and (queries,) ``evaluation``.

    A cluster of n among N queries has none of a random sample of m with probability C(N-n, m) / C(N, m),
    and all its queries are then uncovered. The interval is that of a proportion (``binomial_interval``),
    with the mean number of uncovered queries as successes. A query's mean over clusterings varies less
    than a yes or no, so the interval is rather too wide than too narrow.
    """
    sample, users = int(evaluation.sum()), int((~evaluation).sum())
    missed = uncovered(clusters, evaluation).sum(axis=1)
    low, high = binomial_interval(missed.mean(), users, CONFIDENCE)
    sizes = [np.bincount(clustering) for clustering in clusters]
    without = [sampled(counts, sample).pmf(0) for counts in sizes]
    expected = [float(counts @ none) for counts, none in zip(sizes, without, strict=True)]
    evaluations = np.bincount(clusters[0][evaluation], minlength=len(sizes[0]))
    unasked = evaluations == sizes[0]
    return Figures(
        user_queries=users,
        evaluation_queries=sample,
        share=float(missed.mean()) / users,
        low=low,
        high=high,
        confidence=CONFIDENCE,
        shares=tuple(float(count) / users for count in missed),
        expected_share=sum(expected) / len(expected) / users,
        p=chance_of_as_many(clusters, sample, int(missed.sum()), draws=draws, seed=seed),
        draws=draws,
        seed=seed,
        clusters=len(evaluations),
        uncovered_clusters=int((evaluations == 0).sum()),
        uncovered_queries=int(missed[0]),
        expected_clusters=float(without[0].sum()),
        unasked_clusters=int(unasked.sum()),
        unasked_queries=int(evaluations[unasked].sum()),
    )


def uncovered(clusters: Ints, evaluation: Mask) -> Mask:
    """(clusterings, queries): whether a query's cluster has no evaluation query; arguments as in ``figures``."""
    return np.stack([~np.isin(row, row[evaluation]) for row in clusters])


def chance_of_as_many(
    clusters: Ints, sample: int, queries: int, *, draws: int = DRAWS, seed: int
) -> float:
    """Probability that a random sample leaves ``queries`` queries uncovered or more, summed over the clusterings.

    A Monte Carlo test, never 0 (Davison & Hinkley 1997, section 4.2): its standard error is 0.003 at p = 0.05.
    """
    rng = np.random.default_rng(seed)
    # One table for all clusterings, in which their clusters have different numbers.
    first = np.cumsum([0, *(clustering.max() + 1 for clustering in clusters)])
    numbered = np.ascontiguousarray((clusters + first[:-1, None]).T)
    numbered = numbered[np.lexsort(numbered.T)]  # the draws must not depend on the order of queries
    sizes = np.bincount(numbered.ravel(), minlength=first[-1])
    as_many = 0
    for _ in range(draws):
        drawn = numbered[rng.choice(len(numbered), sample, replace=False, shuffle=False)]
        counts = np.bincount(drawn.ravel(), minlength=first[-1])
        as_many += int(sizes[counts == 0].sum()) >= queries
    return (1 + as_many) / (1 + draws)


def sampled(sizes: Ints, sample: int) -> Any:
    """The number of queries of a random sample in each cluster, as a distribution of SciPy."""
    from scipy.stats import hypergeom  # takes a second to import, which other commands are spared

    return hypergeom(sizes.sum(), sizes, sample)


def shown_tables(coverage: Coverage) -> list[Table]:
    """The largest clusters without evaluation queries, and clusters with fewer than by chance."""
    is_covered = pl.col(EVALUATION_QUERIES) > 0
    gaps = {
        _UNCOVERED: ~is_covered & (pl.col(USER_QUERIES) > 0),
        _SPARSE: is_covered & (pl.col(P_HOLM) < _ALPHA),
    }
    rows_of = ((title, coverage.clusters.filter(gap)) for title, gap in gaps.items())
    return [_gaps(title, rows, coverage.figures) for title, rows in rows_of if not rows.is_empty()]


def _gaps(title: str, rows: pl.DataFrame, f: Figures) -> Table:
    if rows.height > _CLUSTERS:
        title += f", the {_CLUSTERS} largest of {rows.height}"
    head = ["cluster", "user\nqueries", "evaluation\nqueries", "in other\nstarts"]
    head += [f"p (Holm,\n{f.clusters} tests)", "queries nearest\nto its centroid", "cosine"]
    cells = []
    for row in rows.head(_CLUSTERS).iter_rows(named=True):
        share = row[USER_QUERIES] / f.user_queries
        others, starts = "", len(f.shares) - 1
        if starts and not row[EVALUATION_QUERIES]:  # so it is uncovered in the first start
            others = f"{max(0.0, row[tables.UNCOVERED] * (starts + 1) - 1) / starts:.0%}"
        about = [str(row[CLUSTER]), f"{row[USER_QUERIES]} ({share:.1%})"]
        about += [str(row[EVALUATION_QUERIES]), others, layout.p_value(row[P_HOLM])]
        texts = [cut(text, _CHARACTERS) for text in row[tables.EXAMPLES][:_EXAMPLES_SHOWN]]
        texts.append(f"evaluation: {cut(row[tables.NEAREST], _CHARACTERS)}")
        cosines = row[tables.EXAMPLE_SIMILARITIES][:_EXAMPLES_SHOWN]
        cosines.append(row[tables.NEAREST_SIMILARITY])
        # One row each, so that a cosine stays beside its text in a narrow terminal.
        both = zip(texts, cosines, strict=True)
        cells += [[*about, text, f"{cosine:.2f}"] for text, cosine in both]
    return terminal_table(Grid("gaps", "", head, cells, names=6, title=title))


def lines(coverage: Coverage) -> list[str]:
    """The lines below the tables: figures, expectations by chance, and notes on reading them."""
    f, texts = coverage.figures, counted(coverage.texts, "distinct text[|s]")
    grain = f"{counted(f.clusters, 'cluster[|s]')} of {texts}"
    if f.clusters < coverage.clusters_requested:
        grain += f" ({coverage.clusters_requested} requested; some texts share a vector)"
    starts = ""
    if len(f.shares) > 1:
        low, high = f"{min(f.shares):.1%}", f"{max(f.shares):.1%}"
        each = f"{low} in each" if low == high else f"from {low} to {high}"
        starts = f" (mean of {len(f.shares)} starts of k-means, {each})"
    evaluation = counted(f.evaluation_queries, "evaluation [query|queries]")
    users = counted(f.user_queries, "user [query|queries]")
    missed = counted(f.uncovered_queries, "user [query|queries]")
    by_chance = f"{f.expected_share:.1%}; {layout.p_text(f.p)}"
    clusters = f"{counted(f.uncovered_clusters, 'cluster[|s]')} ({f.expected_clusters:.1f} expected by chance)"
    return [
        f"{evaluation}, {users} ({coverage.user_texts} distinct); {grain}",
        f"{_UNCOVERED}: {f.share:.1%} [{f.low:.1%}, {f.high:.1%}]{starts}",
        f"Expected if as many evaluation queries were drawn at random from both: {by_chance}",
        f"In the tightest clustering, which is shown: {missed}, in {clusters}",
        *(f"note: {note}" for note in notes(coverage)),
    ]


def notes(coverage: Coverage) -> Iterator[str]:
    """Notes on the meaning and the limits of the figures."""
    f = coverage.figures
    if f.clusters == 1:
        yield "a single cluster is always covered; use two or more clusters"
    elif not f.share:
        finer = "; more clusters would show finer gaps" * (f.clusters < coverage.texts)
        yield f"every cluster has an evaluation query{finer}"
    elif f.p < _ALPHA:
        yield "the gaps are larger than chance explains: the evaluation is not representative of what users ask"
    else:
        chance = f"the gaps could be due to chance ({layout.p_text(f.p)})"
        yield f"{chance}; more evaluation queries, or fewer clusters, could show a difference"
    if f.unasked_clusters:
        queries = counted(f.unasked_queries, "evaluation [query is|queries are]")
        yield f"{queries} in {counted(f.unasked_clusters, 'cluster[|s]')} without a user query"


def summarize(
    coverage: Coverage,
    encoder: Mapping[str, Any],
    files: dict[str, Any],
    unanswerable: dict[str, int],
    origin: Origin | None = None,
) -> dict[str, Any]:
    """The result as JSON-ready values; ``files`` and ``unanswerable`` (questions left out) have the same names."""
    f = coverage.figures
    sources = {"queries": EVALUATION, "user_queries": USER}
    queries = {name: coverage.assignments.filter(source=s) for name, s in sources.items()}
    digests = {name: table_sha256(own, (QUERY_ID, QUERY)) for name, own in queries.items()}
    content = {
        "configuration": {**files, "clusters": coverage.clusters_requested, "seed": f.seed},
        "encoder": encoder,
        "counts": {
            "evaluation_queries": f.evaluation_queries,
            "user_queries": f.user_queries,
            "distinct_user_queries": coverage.user_texts,
            "distinct_texts": coverage.texts,
            "unanswerable": unanswerable,
        },
        "figures": asdict(f),
        "clusters": coverage.clusters.to_dicts(),
        "versions": versions(_PACKAGES),
        "audit": audit_of(origin or Origin(), digests),
    }
    return dict(jsonable(content))
