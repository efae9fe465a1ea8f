"""Match gold articles that a queries file names by title alone with the articles of the corpus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import polars as pl

from engine import tables
from engine.tables import ARTICLE_ID, PROVENANCE, QUERY_ID, TITLE


def with_titles(
    titles: Mapping[str, Sequence[str]], passages: Iterable[pl.DataFrame]
) -> pl.DataFrame:
    """Those of the listed passages by which ``match_titles`` and ``without_titles`` decide.

    They have one of the titles, as their title or as the id of their article; and the first that has any title.
    """
    wanted = pl.Series(list({t for names in titles.values() for t in names}), dtype=pl.String)
    title = pl.col(TITLE).str.strip_chars()
    deciding = title.is_in(wanted.implode()) | pl.col(ARTICLE_ID).is_in(wanted.implode())
    found = [tables.empty({ARTICLE_ID: pl.String(), TITLE: pl.String()})]
    is_titled = False
    for batch in passages if titles else ():
        found.append(batch.filter(deciding).unique(maintain_order=True))
        if not is_titled:
            found.append(batch.filter(title != "").head(1))
            is_titled = not found[-1].is_empty()
    return pl.concat(found)


def match_titles(
    queries: pl.DataFrame, titles: Mapping[str, Sequence[str]], passages: pl.DataFrame
) -> pl.DataFrame:
    """The queries, with the ids of the listed articles that have these titles in ``provenance``.

    Of several articles with one title, all are gold. A title that no listed passage has stays, and
    stands for the article that the corpus calls so, as where article ids are titles and passages are
    headed otherwise; a title of digits does not, since another article may have it as its page id.

    Args:
        titles: those of ``provenance`` that are titles, by query id.
        passages: the listed passages, or ``with_titles`` of them.
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
