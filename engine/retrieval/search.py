"""Searching an index of either kind."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import polars as pl

from engine.machine.watch import OnEvent, silent
from engine.messages.checked import Amount, Checked, Positive, Share
from engine.retrieval import approximate, bm25, dense, manifest
from engine.sources.runs.checks import without_identical
from engine.tables import RANK

# Queries whose approximate lists are compared with the exact ones.
_RECALL_QUERIES = 100


@dataclass(frozen=True, kw_only=True)
class SearchOptions(Checked):
    """How indexes are searched.

    Attributes:
        k: Passages per query.
        threads: CPU threads; all by default.
        k1: BM25's saturation of term frequency.
        b: BM25's normalization by length, from 0 to 1.
        encoder: Where the encoder of a dense index is now, if it has moved since the index was
            built.
        approximate: Search the approximate part of a dense index that was built with a factory
            string, with these FAISS parameters ("nprobe=16"; "" for FAISS's defaults), and print
            the share of the exact results that it finds. By default the search is exact.
        ignore_identical_ids: Leave out passages that have the id of their query, as BEIR does (ArguAna, Quora).
        trust_remote_code: Run Python code that comes with the encoder of a dense index that was built
            with it. That code can do whatever you can: read it first.
    """

    k: Positive = 10
    threads: Positive | None = None
    k1: Amount = 0.9
    b: Share = 0.4
    encoder: str | None = None
    approximate: str | None = None
    ignore_identical_ids: bool = False
    trust_remote_code: bool = False


def search_index(
    directory: Path,
    queries: pl.DataFrame,
    *,
    name: str,
    options: SearchOptions,
    on_event: OnEvent = silent,
) -> pl.DataFrame:
    """The run table of the best passages for each query.

    Args:
        directory: an index.
        queries: ``query_id`` and ``query``.
        name: the system's name in the run.
        options: those of the other kind of index are ignored.
        on_event: as in ``dense.search``.

    Raises:
        InputError: as ``bm25.search`` and ``dense.search``.
    """
    if options.ignore_identical_ids:
        deeper = replace(options, k=options.k + 1, ignore_identical_ids=False)
        found = search_index(directory, queries, name=name, options=deeper, on_event=on_event)
        return without_identical(found).filter(pl.col(RANK) <= options.k)
    if manifest.read(directory).kind == "bm25":
        return bm25.search(
            directory,
            queries,
            k=options.k,
            name=name,
            k1=options.k1,
            b=options.b,
            threads=options.threads,
        )
    return dense.search(
        directory,
        queries,
        k=options.k,
        name=name,
        encoder=options.encoder,
        parameters=options.approximate,
        threads=options.threads or 0,
        trust_remote_code=options.trust_remote_code,
        on_event=on_event,
    )


@dataclass(frozen=True)
class SampledRecall:
    """The share of exact results, in [0, 1], that approximate lists contain; over some queries."""

    value: float
    queries: int


def approximate_recall(
    run: pl.DataFrame, directory: Path, queries: pl.DataFrame, options: SearchOptions
) -> SampledRecall:
    """The recall of an approximate run of a dense index, over the first queries.

    Args:
        run: what ``search_index`` returned for the other arguments.
        directory, queries, options: as in ``search_index``.
    """
    sample = queries.head(_RECALL_QUERIES)
    exactly = replace(options, approximate=None)
    exact = search_index(directory, sample, name="exact", options=exactly)
    return SampledRecall(approximate.recall(run, exact), sample.height)
