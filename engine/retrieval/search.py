"""Searching an index of either kind."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl

from engine.machine.watch import OnEvent, silent
from engine.retrieval import bm25, dense, manifest
from engine.retrieval.dense import SearchOptions
from engine.sources.runs.read import without_identical
from engine.tables import DOC_ID, QUERY_ID, RANK

# Queries whose approximate lists are compared with the exact ones.
_RECALL_QUERIES = 100


def search_index(
    directory: Path,
    queries: pl.DataFrame,
    *,
    name: str,
    options: SearchOptions,
    on_event: OnEvent = silent,
) -> pl.DataFrame:
    """The run table of the best passages for each query; options of the other kind of index are ignored.

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
    return dense.search(directory, queries, options, name=name, on_event=on_event)


def approximate_recall(
    run: pl.DataFrame, directory: Path, queries: pl.DataFrame, options: SearchOptions
) -> tuple[float, int]:
    """The share of exact results, in [0, 1], that a run of ``search_index`` has, and over how many queries."""
    sample = queries.head(_RECALL_QUERIES)
    exactly = replace(options, approximate=None)
    exact = search_index(directory, sample, name="exact", options=exactly)
    shared = exact.join(run, on=[QUERY_ID, DOC_ID], how="semi").height
    return shared / exact.height if exact.height else 1.0, sample.height
