"""BM25 with Pyserini on Lucene: building an index from a corpus table, and searching it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import polars as pl

from engine import tables
from engine.errors import InputError
from engine.retrieval.java import pyserini
from engine.sources.files import write_text
from engine.tables import DOC_ID, QUERY, QUERY_ID, TEXT, TITLE

_MANIFEST = "erag-index.json"
_BATCH = 10_000


@dataclass(frozen=True)
class Bm25Index:
    """What an index directory holds: its kind, the number of passages, and its directory of files."""

    kind: str
    passages: int


def build_index(corpus: pl.DataFrame, directory: str | Path) -> Bm25Index:
    """Index title and text of every passage with Lucene's English analyzer (Pyserini's default).

    The index appears in ``directory`` when it is complete; an index that stands there is replaced.

    Raises:
        InputError: ``directory`` holds something that is no index of ours, or there is no Java 21.
    """
    directory = Path(directory)
    if (
        directory.exists()
        and not (directory / _MANIFEST).exists()
        and (not directory.is_dir() or any(directory.iterdir()))
    ):
        raise InputError(
            directory, None, "exists and is not an index", "give another --out, or remove it"
        )
    lucene = pyserini("pyserini.index.lucene")
    directory.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        # One thread: the order of documents in the index, and so every search, is then the same
        # each time. 4,500 passages take under two seconds.
        indexer = lucene.LuceneIndexer(str(work), threads=1)
        for part in corpus.select(DOC_ID, TITLE, TEXT).iter_slices(_BATCH):
            indexer.add_batch_dict(
                [
                    {"id": doc_id, "contents": f"{title}\n{text}" if title else text}
                    for doc_id, title, text in part.iter_rows()
                ]
            )
        indexer.close()
        index = Bm25Index(kind="bm25", passages=corpus.height)
        write_text(json.dumps(asdict(index)), work / _MANIFEST)
        if directory.exists():
            shutil.rmtree(directory)
        os.replace(work, directory)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return index


def search(
    directory: str | Path,
    queries: pl.DataFrame,
    *,
    k: int,
    name: str = "bm25",
    k1: float = 0.9,
    b: float = 0.4,
    threads: int | None = None,
) -> pl.DataFrame:
    """The run table of the best ``k`` passages for each query; queries without any hit have no rows.

    Equal scores are ordered by document id, as Anserini does.

    Args:
        directory: an index made by ``build_index``.
        queries: ``query_id`` and ``query``.
        k: passages per query, 1 or more.
        name: the system's name in the run.
        k1, b: BM25's parameters (Robertson et al. 1994; defaults are Anserini's).
        threads: search threads; None for every CPU.

    Raises:
        InputError: ``directory`` is not an index.
    """
    directory = Path(directory)
    if not (directory / _MANIFEST).is_file():
        raise InputError(
            directory, None, "is not an index", "build one with 'erag index bm25 --corpus C --out DIR'"
        )
    lucene = pyserini("pyserini.search.lucene")
    searcher = lucene.LuceneSearcher(str(directory))
    try:
        searcher.set_bm25(k1, b)
        ids = queries[QUERY_ID].to_list()
        hits = searcher.batch_search(
            queries[QUERY].to_list(), ids, k=k, threads=threads or os.cpu_count() or 1
        )
    finally:
        searcher.close()
    rows = [
        (query_id, hit.docid, rank, float(hit.score), name)
        for query_id in ids
        for rank, hit in enumerate(hits.get(query_id, ()), 1)
    ]
    return pl.DataFrame(rows, schema=tables.RUNS, orient="row")
