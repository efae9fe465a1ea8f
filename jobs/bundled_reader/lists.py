"""Made-up questions as the tables of an evaluation: queries, and the lists that a reader is given for them."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import polars as pl

from engine import tables
from engine.retrieval.bm25 import build_index, search
from engine.sources.io.temporary import temporary_directory
from engine.tables import ANSWERS, ARTICLE_ID, DOC_ID, DOC_IDS, QUERY_ID, RANK, TEXT, TITLE
from jobs.bundled_reader.drills import holds
from jobs.bundled_reader.questions import ask
from jobs.bundled_reader.text import asked_in

# The passage that a question was made of.
GOLD = "gold"
# Passages that are looked at for some that lack the answer.
_SEARCHED = 50


def made_queries(corpus: pl.DataFrame, count: int, seed: int) -> pl.DataFrame:
    """Questions made of passages, each of another sentence as long as there are enough: ``QUERIES``, and ``gold``.

    Args:
        corpus: the passages.
        count: how many questions.
        seed: draws which, and how they are asked.
    """
    rng = random.Random(f"questions {seed}")
    found = [
        (doc_id, article, one)
        for doc_id, title, text, article in corpus.select(DOC_ID, TITLE, TEXT, ARTICLE_ID).rows()
        for one in asked_in(title, text)
    ]
    rng.shuffle(found)
    # One of each sentence first.
    seen: dict[str, int] = {}
    turns = []
    for item in found:
        turns.append(seen.get(item[2].sentence, 0))
        seen[item[2].sentence] = turns[-1] + 1
    rows: list[tuple[str, str, list[str], list[str], str]] = []
    for place in sorted(range(len(found)), key=turns.__getitem__):
        if len(rows) == count:
            break
        doc_id, article, one = found[place]
        text = ask(one.sentence, one.span, one.title, rng)
        if not holds(text, one.answer):
            rows.append((f"made-{len(rows) + 1:05}", text, [one.answer], [article], doc_id))
    return pl.DataFrame(rows, schema={**tables.QUERIES, GOLD: pl.String}, orient="row")


def others(queries: pl.DataFrame, corpus: pl.DataFrame, count: int) -> dict[str, list[str]]:
    """For each question, the passages that BM25 ranks highest of those that lack its answer.

    Args:
        queries: as from ``made_queries``.
        corpus: what is searched.
        count: passages per question at most.
    """
    texts = {
        doc_id: f"{title} {text}" for doc_id, title, text in corpus[[DOC_ID, TITLE, TEXT]].rows()
    }
    with temporary_directory(Path(tempfile.gettempdir(), "erag-made")) as directory:
        build_index(corpus, directory / "index")
        run = search(directory / "index", queries, k=_SEARCHED)
    listed = run.sort(QUERY_ID, RANK).group_by(QUERY_ID, maintain_order=True).agg(DOC_ID)
    found: Mapping[str, list[str]] = dict(listed.rows())
    return {
        query_id: [
            doc_id for doc_id in found.get(query_id, []) if not holds(texts[doc_id], answers[0])
        ][:count]
        for query_id, answers in queries.select(QUERY_ID, ANSWERS).rows()
    }


def lists(
    queries: pl.DataFrame, others: Mapping[str, Sequence[str]], lengths: Sequence[int], seed: int
) -> pl.DataFrame:
    """For each question its passage among others, anywhere: ``query_id``, ``doc_ids``.

    Args:
        queries: as from ``made_queries``.
        others: passages that lack the answer, best first.
        lengths: of the lists; one is drawn for each.
        seed: draws lengths and places.
    """
    rng = random.Random(f"lists {seed}")
    rows = []
    for query_id, gold in queries.select(QUERY_ID, GOLD).rows():
        chosen = list(others.get(query_id, ())[: rng.choice(lengths) - 1])
        chosen.insert(rng.randint(0, len(chosen)), gold)
        rows.append((query_id, chosen))
    return pl.DataFrame(
        rows, schema={QUERY_ID: pl.String, DOC_IDS: pl.List(pl.String)}, orient="row"
    )
