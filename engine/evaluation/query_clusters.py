"""Cluster queries that share an article and are therefore not independent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

import polars as pl

from engine.messages.notes import Note
from engine.statistics.cells import shares_much
from engine.statistics.correlation import ARTICLE
from engine.tables import CLUSTER, PROVENANCE, QUERY, QUERY_ID

# Code of the note on queries that share much although nobody asked for clusters.
SHARED = "queries_share_articles"


def with_clusters(
    queries: pl.DataFrame, groups: Mapping[str, str], cluster: str | None
) -> tuple[pl.DataFrame, Note]:
    """The queries, with their ``cluster`` (from 0, in the order of the queries); and a note on these.

    By article, a query belongs to its gold article, where other queries name it as well: of several articles to
    that which most queries name. Without such an article it belongs to its context, or to its text,
    where other queries have the same. All others are clusters by themselves.

    Args:
        queries: with their titles matched.
        groups: ``QuerySet.groups``, for ``cluster``.
        cluster: a column of the queries file, "article", or None for these by article, of which no figure makes use.
    """
    by_article = cluster in (None, ARTICLE)
    keys = (
        list(_shared(queries, groups)) if by_article else list(map(groups.get, queries[QUERY_ID]))
    )
    numbers: dict[object, int] = {}
    codes = [
        numbers.setdefault(place if key is None else ("", key), len(numbers))
        for place, key in enumerate(keys)
    ]
    clustered = queries.with_columns(pl.Series(CLUSTER, codes, dtype=pl.Int64))
    text = f"{queries.height} queries are in {len(numbers)} clusters"
    if cluster is not None:
        by = f"{text} by `cluster` {cluster}: intervals and p-values take these as independent"
        return clustered, Note("clusters", len(numbers), by)
    return clustered, Note(
        SHARED,
        len(numbers) if shares_much(codes) else 0,
        f"{text} of a common gold article, context or text, but intervals and p-values assume independent "
        f"queries, and may be too narrow: `cluster` {ARTICLE} takes clusters as independent",
    )


def column_of(cluster: str | None) -> str | None:
    """The column of the queries file that is needed for clusters, if any is."""
    return None if cluster == ARTICLE else cluster


def _shared(queries: pl.DataFrame, groups: Mapping[str, str]) -> Iterator[tuple[str, str] | None]:
    """What each query shares with others; None where it shares nothing."""
    naming = Counter(name for names in queries[PROVENANCE] for name in set(names))
    having = Counter(groups.get(query_id) for query_id in queries[QUERY_ID])
    asking = Counter(queries[QUERY])
    rows = queries.select(QUERY_ID, QUERY, PROVENANCE).iter_rows()
    for query_id, query, names in rows:
        article = max(names, key=naming.__getitem__, default=None)
        context = groups.get(query_id)
        if article is not None and naming[article] > 1:
            yield PROVENANCE, article
        elif context is not None and having[context] > 1:
            yield "", context
        else:
            yield (QUERY, query) if asking[query] > 1 else None
