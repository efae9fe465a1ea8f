"""The text that the bundled reader learns from: articles apart for training, development and test."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from engine.sources.articles.article import Article
from engine.sources.passages.splitting import cut_words
from jobs.bundled_reader.spans import Span, sentences, spans

Part = Literal["train", "dev", "test"]

# Shares of the articles that are held out.
_TEST, _DEV = 0.15, 0.06
# Passages are cut again from here on, in words: a sentence then stands in several, in other places of them.
_OFFSETS = (0, 25, 50, 75)
WORDS = 100


@dataclass(frozen=True)
class Asked:
    """A span of a sentence of a passage.

    Attributes:
        title: of the article.
        passage: the text.
        sentence: one of its sentences.
        span: where in the sentence the answer is.
    """

    title: str
    passage: str
    sentence: str
    span: Span

    @property
    def answer(self) -> str:
        """The span's text."""
        return self.span.of(self.sentence)


def parts(titles: Iterable[str]) -> dict[str, Part]:
    """Which part each article belongs to, by the hash of its title: no part has text of another's articles."""
    ranked = sorted(set(titles), key=lambda title: hashlib.sha256(title.encode()).digest())
    test, dev = round(_TEST * len(ranked)), round((_TEST + _DEV) * len(ranked))
    return {
        title: "test" if place < test else "dev" if place < dev else "train"
        for place, title in enumerate(ranked)
    }


def asked_in(title: str, passage: str) -> Iterator[Asked]:
    """Everything that can be asked for in a passage: each span of each of its whole sentences."""
    for sentence in sentences(passage):
        for span in spans(sentence):
            yield Asked(title, passage, sentence, span)


def asked(articles: Iterable[Article]) -> Iterator[Asked]:
    """Everything that can be asked for in articles, cut four times, a quarter of a passage apart."""
    for article in articles:
        words = article.text.split()
        for offset in _OFFSETS:
            for passage in cut_words(" ".join(words[offset:]), WORDS):
                yield from asked_in(article.title, passage)


def around(asked: Asked, before: int, after: int) -> str:
    """The sentence with some words of the passage before and after it."""
    place = asked.passage.find(asked.sentence)
    if place < 0:
        return asked.passage
    left = asked.passage[:place].split()
    right = asked.passage[place + len(asked.sentence) :].split()
    return " ".join([*left[max(0, len(left) - before) :], asked.sentence, *right[:after]])


def exchanged(text: str, old: str, new: str) -> str:
    """A text with another answer in the place of each occurrence of one, where it stands as whole words."""
    return re.sub(rf"(?<!\w){re.escape(old)}(?!\w)", lambda _: new, text)
