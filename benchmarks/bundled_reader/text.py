"""Training text: separate articles for training, development and test, and questions made from their sentences."""

from __future__ import annotations

import hashlib
import random
import re
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Literal, get_args

import polars as pl

from benchmarks.bundled_reader.questions import ask
from benchmarks.bundled_reader.spans import Span, sentences, spans
from engine import tables
from engine.retrieval.bm25 import build_index, search
from engine.scoring.normalize import normalize_answer
from engine.sources.articles.read import Article
from engine.sources.passages.cut import cut_words, passages
from engine.tables import ANSWERS, ARTICLE_ID, DOC_ID, DOC_IDS, QUERY_ID, RANK, TEXT, TITLE

Part = Literal["train", "dev", "test"]

# The passage behind a question.
GOLD = "gold"
# Held-out shares of the articles.
_TEST, _DEV = 0.15, 0.06
# Offsets, in words, of further cuts into passages: a sentence then stands in several, at other places.
_OFFSETS = (0, 25, 50, 75)
# Passages to search for some that lack the answer.
_SEARCHED = 50


@dataclass(frozen=True, eq=False)
class Text:
    """The articles, and their passages, by part."""

    articles: Mapping[Part, Sequence[Article]]
    corpora: Mapping[Part, pl.DataFrame]


@dataclass(frozen=True)
class Asked:
    """A possible answer: a span of a sentence of a passage."""

    title: str
    passage: str
    sentence: str
    span: Span

    @property
    def answer(self) -> str:
        """The span's text."""
        return self.span.of(self.sentence)

    def around(self, before: int, after: int) -> str:
        """The sentence with some words of the passage before and after it."""
        left, found, right = self.passage.partition(self.sentence)
        if not found:
            return self.passage
        kept = left.split()
        return " ".join([*kept[max(0, len(kept) - before) :], found, *right.split()[:after]])


def in_parts(articles: Iterable[Article]) -> Text:
    """Articles and their passages in parts, by the hash of the title: parts share no article."""
    known = list(articles)
    titles = {article.title for article in known}
    ranked = sorted(titles, key=lambda title: hashlib.sha256(title.encode()).digest())
    test, dev = round(_TEST * len(ranked)), round((_TEST + _DEV) * len(ranked))
    of_parts = zip(get_args(Part), (ranked[dev:], ranked[test:dev], ranked[:test]), strict=True)
    split = {part: [one for one in known if one.title in own] for part, own in of_parts}
    return Text(split, {part: passages(split[part]) for part in split})


def asked_in(title: str, passage: str) -> Iterator[Asked]:
    """Spans of all whole sentences of a passage."""
    for sentence in sentences(passage):
        for span in spans(sentence):
            yield Asked(title, passage, sentence, span)


def asked(articles: Iterable[Article]) -> Iterator[Asked]:
    """Possible answers in articles, cut four times, a quarter of a passage apart."""
    for article in articles:
        words = article.text.split()
        for offset in _OFFSETS:
            for passage in cut_words(" ".join(words[offset:]), 100):
                yield from asked_in(article.title, passage)


def exchanged(text: str, old: str, new: str) -> str:
    """A text with every whole-word occurrence of an answer replaced by another."""
    return re.sub(rf"(?<!\w){re.escape(old)}(?!\w)", lambda _: new, text)


def holds(text: str, answer: str) -> bool:
    """Whether a text contains an answer, with the metric's normalization."""
    return f" {normalize_answer(answer)} " in f" {normalize_answer(text)} "


def made_queries(corpus: pl.DataFrame, count: int, seed: int) -> pl.DataFrame:
    """Questions made from passages, with different sentences as far as possible: ``QUERIES``, and ``gold``."""
    rng = random.Random(f"questions {seed}")
    found = [
        (doc_id, article, one)
        for doc_id, title, text, article in corpus.select(DOC_ID, TITLE, TEXT, ARTICLE_ID).rows()
        for one in asked_in(title, text)
    ]
    rng.shuffle(found)
    # One question of every sentence first.
    seen, turns = Counter[str](), defaultdict[int, list[tuple[str, str, Asked]]](list)
    for row in found:
        turns[seen[row[-1].sentence]].append(row)
        seen[row[-1].sentence] += 1
    rows: list[tuple[str, str, list[str], list[str], str]] = []
    for doc_id, article, one in chain(*turns.values()):
        if len(rows) == count:
            break
        text = ask(one.sentence, one.span, one.title, rng)
        if not holds(text, one.answer):
            rows.append((f"made-{len(rows) + 1:05}", text, [one.answer], [article], doc_id))
    return pl.DataFrame(rows, schema={**tables.QUERIES, GOLD: pl.String}, orient="row")


def others(queries: pl.DataFrame, corpus: pl.DataFrame, count: int) -> dict[str, list[str]]:
    """For each question, the highest BM25 passages that lack its answer."""
    texts = {one: f"{title} {text}" for one, title, text in corpus[[DOC_ID, TITLE, TEXT]].rows()}
    with tempfile.TemporaryDirectory(prefix="erag-made-") as directory:
        build_index(corpus, Path(directory, "index"))
        run = search(Path(directory, "index"), queries, k=_SEARCHED)
    answers = dict(queries.select(QUERY_ID, ANSWERS).rows())
    found: dict[str, list[str]] = {query_id: [] for query_id in answers}
    for query_id, doc_id in run.sort(QUERY_ID, RANK).select(QUERY_ID, DOC_ID).rows():
        if len(found[query_id]) < count and not holds(texts[doc_id], answers[query_id][0]):
            found[query_id].append(doc_id)
    return found


def lists(
    queries: pl.DataFrame, others: Mapping[str, Sequence[str]], lengths: Sequence[int], seed: int
) -> pl.DataFrame:
    """For each question its passage among others, at any place, in lists of random lengths: ``query_id``, ``doc_ids``."""
    rng = random.Random(f"lists {seed}")
    rows = []
    for query_id, gold in queries.select(QUERY_ID, GOLD).rows():
        chosen = list(others.get(query_id, ())[: rng.choice(lengths) - 1])
        chosen.insert(rng.randint(0, len(chosen)), gold)
        rows.append((query_id, chosen))
    return pl.DataFrame(rows, {QUERY_ID: pl.String, DOC_IDS: pl.List(pl.String)}, orient="row")
