"""Articles cut into passages: pieces of some number of words, or recursively by characters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import polars as pl

from engine import tables
from engine.messages.characters import count_letters, words_within
from engine.messages.checked import CheckedSettings, Natural, Positive
from engine.messages.errors import InputError
from engine.messages.extras import require
from engine.sources.articles.read import Article

_WORDS = 100
_OVERLAP = 20


@dataclass(frozen=True, kw_only=True)
class CutSettings(CheckedSettings):
    """How texts are cut into passages.

    Attributes:
        words: Maximum of words per passage; 100 by default. In Chinese, Japanese, Thai and other scripts without
            spaces between words, each letter is a word.
        characters: Cut recursively into passages of at most this many characters instead.
        overlap: Characters that a passage may share with the one before it; 20 by default.
    """

    words: Positive | None = None
    characters: Positive | None = None
    overlap: Natural | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.words is not None and self.characters is not None:
            raise InputError("`words` and `characters`", "use one of them", "settings.lengths")
        if self.overlap is not None and self.characters is None:
            raise InputError("`overlap` without `characters`", "use both", "settings.overlap")
        if self.characters is not None and self.overlap_or_default >= self.characters:
            problem = f"`characters` is {self.characters}, `overlap` {self.overlap_or_default}"
            raise InputError(problem, "use a smaller overlap", "settings.cutting")
        if self.characters is not None:
            require("`characters`", "articles", "langchain_text_splitters")

    @property
    def overlap_or_default(self) -> int:
        return _OVERLAP if self.overlap is None else self.overlap


def cut(text: str, cutting: CutSettings) -> list[str]:
    """Cut a text into pieces; a text of only white space gives none."""
    if cutting.characters is None:
        return cut_words(text, cutting.words or _WORDS)
    return cut_characters(text, cutting.characters, cutting.overlap_or_default)


def cut_words(text: str, words: int) -> list[str]:
    """Cut a text into pieces of ``words`` words; the last may be shorter (Karpukhin et al. 2020).

    Words are separated by white space; the pieces together have exactly the text's words. Letters of scripts without
    spaces between words count as words if the text has more such letters than words, or a word has more than ``words``;
    a name in an English text is not cut.
    """
    tokens = text.split()
    letters = count_letters(text)
    if letters > len(tokens) or (letters > words and max(map(count_letters, tokens)) > words):
        tokens = words_within(text)
        starts = range(0, len(tokens), words)
        return ["".join(tokens[start : start + words]).lstrip() for start in starts]
    return [" ".join(tokens[start : start + words]) for start in range(0, len(tokens), words)]


def cut_characters(text: str, characters: int, overlap: int) -> list[str]:
    """Cut a text recursively: at empty lines, else at line ends, spaces, or anywhere.

    As LangChain's RecursiveCharacterTextSplitter with its default separators; no piece is empty or longer.
    """
    # 0.3 s to import, only needed for cutting by characters.
    from langchain_text_splitters import RecursiveCharacterTextSplitter as Splitter

    return Splitter(chunk_size=characters, chunk_overlap=overlap).split_text(text)


ArticleId = Literal["title", "page"]
Row = tuple[str, str, str, str]
"""A passage: the columns of the corpus table."""


def passages(
    articles: Iterable[Article],
    *,
    cutting: CutSettings = CutSettings(),
    article_id: ArticleId | None = None,
) -> pl.DataFrame:
    """The corpus table of the articles' passages; articles without prose have none."""
    rows = [row for article in articles for row in article_passages(article, cutting, article_id)]
    return pl.DataFrame(rows, schema=tables.CORPUS, orient="row")


def article_passages(
    article: Article, cutting: CutSettings, article_id: ArticleId | None = None
) -> Iterator[Row]:
    """Yield the passages of an article; a passage never crosses articles.

    ``doc_id`` is the page id and the passage's number from 0. ``article_id`` identifies an article in provenance: its
    title or its page id; by default the source decides, nearly always for the title.
    """
    name = (article_id is None and article.name) or article.title or article.page_id
    if article_id == "page":
        name = article.page_id
    for number, text in enumerate(cut(article.text, cutting)):
        yield f"{article.page_id}-{number}", article.title, text, name
