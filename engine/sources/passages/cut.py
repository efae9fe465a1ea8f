"""Articles cut into passages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal

import polars as pl

from engine import tables
from engine.sources.articles.article import Article
from engine.sources.passages.splitting import Cutting, cut

ArticleId = Literal["title", "page"]
Row = tuple[str, str, str, str]
"""A passage: the columns of the corpus table."""


def passages(
    articles: Iterable[Article],
    *,
    cutting: Cutting = Cutting(),  # noqa: B008 - it is frozen
    article_id: ArticleId | None = None,
) -> pl.DataFrame:
    """The corpus table of the articles' passages; articles without prose have none."""
    rows = [row for article in articles for row in article_passages(article, cutting, article_id)]
    return pl.DataFrame(rows, schema=tables.CORPUS, orient="row")


def article_passages(
    article: Article, cutting: Cutting, article_id: ArticleId | None = None
) -> Iterator[Row]:
    """Yield the passages of one article; a passage never crosses an article.

    ``doc_id`` is the page id and the passage's number from 0. ``article_id`` is what identifies an article in
    provenance: its title or its page id. By default the source decides, which is the title for nearly all
    sources.
    """
    name = (article_id is None and article.name) or article.title or article.page_id
    if article_id == "page":
        name = article.page_id
    for number, text in enumerate(cut(article.text, cutting)):
        yield f"{article.page_id}-{number}", article.title, text, name
