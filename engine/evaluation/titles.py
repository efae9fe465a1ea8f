"""Gold articles that a queries file names by title alone, matched with the articles of the corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import polars as pl

from engine.tables import ARTICLE_ID, PROVENANCE, QUERY_ID, TITLE


def match_titles(
    queries: pl.DataFrame, titles: Mapping[str, Sequence[str]], passages: pl.DataFrame
) -> pl.DataFrame:
    """The queries, with the ids of the listed articles that have these titles in ``provenance``.

    Of several articles with one title, all are gold. A title that no listed passage has stays, and
    stands for the article that the corpus calls so, as where article ids are titles and passages are
    headed otherwise; a title of digits does not, since another article may have it as its page id.

    Args:
        queries: the queries table; ``provenance`` holds titles beside ids.
        titles: those that are titles, by query id.
        passages: the listed passages, of the corpus table.
    """
    if not titles:
        return queries
    articles_of: dict[str, list[str]] = {}
    headed: set[str] = set()
    named = passages.select(ARTICLE_ID, pl.col(TITLE).str.strip_chars()).unique(maintain_order=True)
    for article, title in named.iter_rows():
        if title:
            articles_of.setdefault(title, []).append(article)
            headed.add(article)

    def articles(query_id: str, name: str) -> Sequence[str]:
        if name not in titles.get(query_id, ()):
            return (name,)
        if name in articles_of:
            return articles_of[name]
        return () if name.isdecimal() and name in headed else (name,)

    gold = [
        list(dict.fromkeys(article for name in names for article in articles(query_id, name)))
        for query_id, names in queries.select(QUERY_ID, PROVENANCE).iter_rows()
    ]
    return queries.with_columns(pl.Series(PROVENANCE, gold, dtype=pl.List(pl.String)))


def without_titles(
    queries: pl.DataFrame, titles: Mapping[str, Sequence[str]], passages: pl.DataFrame
) -> tuple[str, ...]:
    """Ids of the queries whose titles cannot be matched, since the corpus names articles otherwise.

    None where some listed passage has a title, or some article is called like a title.
    """
    of_queries = {q: titles[q] for q in queries[QUERY_ID] if q in titles}
    articles = set(passages[ARTICLE_ID])
    if (passages[TITLE].str.strip_chars() != "").any() or any(
        articles.intersection(names) for names in of_queries.values()
    ):
        return ()
    return tuple(of_queries)
