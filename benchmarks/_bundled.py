"""Inputs of benchmarks: a folder, or the bundled articles, whose passages are cut once for all benchmarks of a page."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import polars as pl

from engine.sources.articles.read import read_source
from engine.sources.bundled import questions, wikipedia_dump
from engine.sources.io.files import write_parquet
from engine.sources.passages.cut import passages
from engine.sources.passages.read import read_corpus
from engine.sources.queries.read import read_queries

# Variable with the path of their file, for later processes; parsing the articles takes ten seconds.
KEPT_IN = "ERAG_BENCHMARKS_CORPUS"


@functools.cache
def bundled_corpus() -> pl.DataFrame:
    """The corpus table; if ``KEPT_IN`` names a file, from that file, which is written if missing."""
    kept = os.environ.get(KEPT_IN)
    if kept and Path(kept).exists():
        return pl.read_parquet(kept)
    corpus = passages(read_source(wikipedia_dump()))
    if kept:
        write_parquet(corpus, Path(kept))
    return corpus


def read_data(data: Path | None) -> tuple[pl.DataFrame, pl.DataFrame]:
    """The passages and the queries of a folder (``corpus.jsonl``, ``queries.jsonl``); the bundled ones for None."""
    if data is None:
        return bundled_corpus(), read_queries(questions("short-answer"))
    return read_corpus(data / "corpus.jsonl"), read_queries(data / "queries.jsonl")
