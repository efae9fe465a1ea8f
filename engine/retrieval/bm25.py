"""BM25 with Pyserini on Lucene: building an index from a corpus table, and searching it."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

import polars as pl

from engine.errors import InputError
from engine.retrieval import lucene
from engine.sources.files import write_text
from engine.tables import DOC_ID, QUERY, QUERY_ID, TEXT, TITLE

_MANIFEST = "erag-index.json"


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
    directory.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
    try:
        lucene.run("index", corpus.select(DOC_ID, TITLE, TEXT), directory=str(work))
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
            directory,
            None,
            "is not an index",
            "build one with 'erag index bm25 --corpus C --out DIR'",
        )
    return lucene.run(
        "search",
        queries.select(QUERY_ID, QUERY),
        directory=str(directory),
        k=k,
        name=name,
        k1=k1,
        b=b,
        threads=threads or os.cpu_count() or 1,
    )
