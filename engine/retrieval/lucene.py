"""Lucene's work, done in a process of its own: ``python -m engine.retrieval.lucene``.

A JVM in the driver would share its signals with Ray: both install a handler for SIGSEGV, which the
JVM raises and catches in normal work. A test process with both died of a fatal signal once; since they
are apart, none has. A process of its own also gives the JVM's memory back, and keeps Pyserini's many
imports, and what it takes to get them through (see ``java``), out of the driver.

Tables pass as Parquet files, options as one JSON argument.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import polars as pl

from engine import tables
from engine.retrieval.java import find_java, pyserini
from engine.tables import DOC_ID, QUERY, QUERY_ID, TEXT, TITLE

_BATCH = 10_000


def run(task: str, table: pl.DataFrame, **options: Any) -> pl.DataFrame:
    """Do ``task`` (``index`` or ``search``) with ``table`` in a process of its own; its result table.

    Raises:
        InputError: there is no Java 21.
        RuntimeError: the process failed; the message ends with what it wrote last.
    """
    find_java()  # an error that the user can mend is raised here, not in the other process
    with tempfile.TemporaryDirectory(prefix="erag-lucene-") as work:
        table.write_parquet(Path(work) / "in.parquet")
        arguments = json.dumps({"task": task, "work": work, **options})
        done = subprocess.run(
            [sys.executable, "-m", "engine.retrieval.lucene", arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if done.returncode:
            lines = done.stderr.strip().splitlines() or ["no message"]
            told = [line for line in lines if re.match(r"[\w.$]*(Error|Exception)\b", line.strip())]
            raise RuntimeError(
                f"Lucene failed ({task}, status {done.returncode}): {(told or lines)[-1].strip()}"
            )
        return pl.read_parquet(Path(work) / "out.parquet")


def _index(corpus: pl.DataFrame, *, directory: str) -> pl.DataFrame:
    lucene = pyserini("pyserini.index.lucene")
    # One thread: the order of documents in the index, and so every search, is then the same each
    # time. 4,500 passages take under two seconds.
    indexer = lucene.LuceneIndexer(directory, threads=1)
    for part in corpus.select(DOC_ID, TITLE, TEXT).iter_slices(_BATCH):
        indexer.add_batch_dict(
            [
                {"id": doc_id, "contents": f"{title}\n{text}" if title else text}
                for doc_id, title, text in part.iter_rows()
            ]
        )
    indexer.close()
    return pl.DataFrame()


def _search(
    queries: pl.DataFrame, *, directory: str, k: int, name: str, k1: float, b: float, threads: int
) -> pl.DataFrame:
    lucene = pyserini("pyserini.search.lucene")
    searcher = lucene.LuceneSearcher(directory)
    searcher.set_bm25(k1, b)
    ids = queries[QUERY_ID].to_list()
    hits = searcher.batch_search(queries[QUERY].to_list(), ids, k=k, threads=threads)
    searcher.close()
    rows = [
        (query_id, hit.docid, rank, float(hit.score), name)
        for query_id in ids
        for rank, hit in enumerate(hits.get(query_id, ()), 1)
    ]
    return pl.DataFrame(rows, schema=tables.RUNS, orient="row")


def _main() -> None:
    options = json.loads(sys.argv[1])
    work = Path(options.pop("work"))
    table = pl.read_parquet(work / "in.parquet")
    indexing = options.pop("task") == "index"
    result = _index(table, **options) if indexing else _search(table, **options)
    result.write_parquet(work / "out.parquet")


if __name__ == "__main__":
    _main()
