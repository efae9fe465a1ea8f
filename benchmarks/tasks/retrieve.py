"""The retrievers of every task: BM25, dense vectors, their fusion, and late ranks of BM25, the deliberately bad one."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from engine import tables
from engine.retrieval import bm25, dense
from engine.retrieval.encoders import EncoderOptions, specify
from engine.retrieval.fusion import reciprocal_rank
from engine.tables import RANK, RUN

# Number of passages per list to fuse; and the rank of BM25's list at which the bad run begins.
_FUSED = 100
LATE = 21


def retrieve(
    corpus: pl.DataFrame, queries: pl.DataFrame, *, k: int, indexes: Path, begin: int = LATE
) -> pl.DataFrame:
    """The runs ``bm25``, ``dense`` (the bundled encoder), ``rrf`` (both fused) and ``late``, in one table.

    Args:
        corpus, queries: the passages, and the questions.
        k: passages per query.
        indexes: the folder of the corpus' indexes; existing indexes are used.
        begin: the rank of BM25 at which ``late`` begins.
    """
    if not (indexes / "bm25").exists():
        bm25.build_index(corpus, indexes / "bm25")
    if not (indexes / "dense").exists():
        dense.build_index(lambda: iter([corpus]), indexes / "dense", specify(EncoderOptions()))
    first = bm25.search(indexes / "bm25", queries, k=_FUSED)
    second = dense.search(indexes / "dense", queries, dense.SearchOptions(k=_FUSED))
    fused = reciprocal_rank(pl.concat([first, second]), k=k)
    best = [run.filter(pl.col(RANK) <= k) for run in (first, second, fused)]
    return pl.concat([*best, late(first, k=k, begin=begin)])


def late(run: pl.DataFrame, *, k: int, begin: int) -> pl.DataFrame:
    """A run of the passages that another run ranks from ``begin`` on, for each query."""
    rank = pl.col(RANK) - begin + 1
    kept = run.with_columns(rank, pl.lit("late").alias(RUN)).filter(pl.col(RANK).is_between(1, k))
    return kept.select(list(tables.RUNS))
