"""Cutting articles into passages of a fixed number of words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

import polars as pl

from engine import tables
from engine.errors import InputError
from engine.sources.lines import read_json_lines
from engine.sources.mediawiki import Article, read_articles


def cut_words(text: str, words: int) -> list[str]:
    """Cut a text into passages of ``words`` words, the last one shorter (Karpukhin et al. 2020).

    Words are what white space separates; joined again, the passages give the text's words.
    """
    tokens = text.split()
    return [" ".join(tokens[start : start + words]) for start in range(0, len(tokens), words)]


def passages(
    articles: Iterable[Article], *, words: int = 100, article_id: Literal["title", "page"] = "title"
) -> pl.DataFrame:
    """The corpus table of the articles' passages; articles without prose give none.

    A passage never crosses an article. ``doc_id`` is the page id and the passage's number from 0.

    Args:
        articles: the articles, in order.
        words: words per passage at most, 1 or more.
        article_id: what identifies an article in provenance, its title or its page id.
    """

    def rows() -> Iterator[tuple[str, str, str, str]]:
        for article in articles:
            name = article.title if article_id == "title" else article.page_id
            for number, text in enumerate(cut_words(article.text, words)):
                yield f"{article.page_id}-{number}", article.title, text, name

    return pl.DataFrame(list(rows()), schema=tables.CORPUS, orient="row")


def read_source(path: str | Path) -> Iterator[Article]:
    """Articles from a MediaWiki dump (``.xml``, ``.xml.bz2``) or JSONL with id, title and text.

    Raises:
        InputError: unreadable, or an article without id or text.
    """
    path = Path(path)
    if path.name.endswith((".xml", ".xml.bz2", ".bz2")):
        yield from read_articles(path)
        return
    seen: dict[str, int] = {}
    for number, record in read_json_lines(path, "a MediaWiki dump or a JSONL file of articles"):
        ids = (record.get(name) for name in ("id", "doc_id", "_id"))
        page_id = next((value for value in ids if value not in (None, "")), None)
        text = record.get("text")
        if page_id is None or not isinstance(text, str):
            raise InputError(path, number, "an article without id or text", 'add "id" and "text"')
        if str(page_id) in seen:
            raise InputError(
                path,
                number,
                f"article id {page_id!r} stands in line {seen[str(page_id)]} already",
                "give every article an id of its own",
            )
        seen[str(page_id)] = number
        yield Article(str(page_id), str(record.get("title") or page_id), text)
