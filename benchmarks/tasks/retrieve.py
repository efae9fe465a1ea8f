"""The retrievers of every task: BM25, dense vectors, their fusion, and passages drawn at random, the deliberately bad one."""

from __future__ import annotations

import random
from pathlib import Path

import polars as pl

from engine import tables
from engine.retrieval import bm25, dense
from engine.retrieval.encoders import EncoderOptions, specify
from engine.retrieval.fusion import reciprocal_rank
from engine.tables import DOC_ID, QUERY_ID, RANK, RUN

# Passages of each list that are fused.
_FUSED = 100


def retrieve(corpus: pl.DataFrame, queries: pl.DataFrame, *, k: int, indexes: Path) -> pl.DataFrame:
    """The runs ``bm25``, ``dense`` (the bundled encoder), ``rrf`` (both fused) and ``random``, in one table.

    Args:
        corpus, queries: the passages, and what is asked.
        k: passages per query.
        indexes: the folder of the corpus' indexes; those that are there are used.
    """
    if not (indexes / "bm25").exists():
        bm25.build_index(corpus, indexes / "bm25")
    if not (indexes / "dense").exists():
        dense.build_index(lambda: iter([corpus]), indexes / "dense", specify(EncoderOptions()))
    first = bm25.search(indexes / "bm25", queries, k=_FUSED)
    second = dense.search(indexes / "dense", queries, dense.SearchOptions(k=_FUSED))
    fused = reciprocal_rank(pl.concat([first, second]), k=k)
    best = [run.filter(pl.col(RANK) <= k) for run in (first, second, fused)]
    ids = queries[QUERY_ID].to_list()
    return pl.concat([*best, drawn(corpus[DOC_ID].to_list(), ids, k=k)])


def drawn(doc_ids: list[str], query_ids: list[str], *, k: int) -> pl.DataFrame:
    """A run of passages drawn at random, for each query by its id."""
    rows = [
        (query_id, doc_id, rank, 1 / rank)
        for query_id in query_ids
        for rank, doc_id in enumerate(random.Random(query_id).sample(doc_ids, k), 1)
    ]
    columns = {name: kind for name, kind in tables.RUNS.items() if name != RUN}
    run = pl.DataFrame(rows, schema=columns, orient="row")
    return run.with_columns(pl.lit("random").alias(RUN)).select(list(tables.RUNS))
