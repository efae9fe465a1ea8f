"""Lucene's work, done in a process of its own: ``python -m engine.retrieval.lucene``.

A JVM in the driver would share its signals with Ray: both install a handler for SIGSEGV, which the
JVM raises and catches in normal work. A test process with both died of a fatal signal once; since they
are apart, none has. A process of its own also gives the JVM's memory back, and keeps Pyserini's many
imports, and what stands in for some of them (see ``java``), out of the driver.

A corpus passes as a stream of Arrow batches through standard input, so that neither side ever holds
more than a few of them; queries and results pass as Parquet files, options as one JSON argument.
"""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import polars as pl
import pyarrow as pa

from engine import tables
from engine.retrieval.java import (
    allow_long_queries,
    find_java,
    pyserini,
    whitespace_analyzer,
)
from engine.tables import DOC_ID, QUERY, QUERY_ID

CONTENTS = "contents"
_CORPUS = pa.schema({DOC_ID: pa.large_string(), CONTENTS: pa.large_string()})
# Passages that cross over at a time.
_BATCH = 10_000
_ENGLISH = "en"


def index(
    batches: Iterable[pl.DataFrame],
    directory: Path,
    *,
    language: str,
    pretokenized: bool,
    threads: int,
) -> None:
    """Index passages in a process of its own.

    Args:
        batches: ``doc_id`` and ``contents``.
        directory: of the Lucene index.
        language: whose analyzer cuts texts into words (Anserini's ``-language``).
        pretokenized: texts are words between spaces already; the language is not looked at.
        threads: that index.

    Raises:
        InputError: there is no Java 21.
        RuntimeError: the process failed; the message ends with what it wrote last.
    """
    options = {"language": language, "pretokenized": pretokenized, "threads": threads}

    def feed(stream: IO[bytes]) -> None:
        with pa.ipc.new_stream(stream, _CORPUS) as writer:
            for batch in batches:
                for part in batch.select(DOC_ID, CONTENTS).iter_slices(_BATCH):
                    writer.write_table(part.to_arrow().cast(_CORPUS))

    _run("index", feed, directory=str(directory), **options)


def search(queries: pl.DataFrame, directory: Path, **options: Any) -> pl.DataFrame:
    """The run of queries in a process of its own.

    Args:
        queries: ``query_id`` and ``query``.
        directory: of the Lucene index.
        options: those of ``_search``.

    Raises:
        InputError: there is no Java 21.
        RuntimeError: the process failed; the message ends with what it wrote last.
    """
    with tempfile.TemporaryDirectory(prefix="erag-lucene-") as work:
        queries.select(QUERY_ID, QUERY).write_parquet(Path(work) / "in.parquet")
        _run("search", lambda stream: None, work=work, directory=str(directory), **options)
        return pl.read_parquet(Path(work) / "out.parquet")


def _run(task: str, feed: Callable[[IO[bytes]], None], **options: Any) -> None:
    find_java()  # an error that the user can mend is raised here, not in the other process
    arguments = json.dumps({"task": task, **options})
    # A file, since a pipe that nobody reads meanwhile would fill up and stop the process.
    with tempfile.TemporaryFile() as told:
        process = subprocess.Popen(
            [sys.executable, "-m", "engine.retrieval.lucene", arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=told,
        )
        assert process.stdin is not None
        try:
            # Where the process has failed, its own message says more than the broken pipe.
            with contextlib.suppress(BrokenPipeError), process.stdin as stream:
                feed(stream)
        except BaseException:
            process.kill()
            raise
        finally:
            status = process.wait()
        told.seek(0)
        lines = told.read().decode(errors="replace").strip().splitlines() or ["no message"]
    if status:
        errors = [line for line in lines if re.match(r"[\w.$]*(Error|Exception)\b", line.strip())]
        raise RuntimeError(
            f"Lucene failed ({task}, status {status}): {(errors or lines)[-1].strip()}"
        )


def _index(*, directory: str, language: str, pretokenized: bool, threads: int) -> None:
    lucene = pyserini("pyserini.index.lucene")
    # One or the other: Anserini looks at the language first, and would cut morphemes once more.
    how = ["-pretokenized"] if pretokenized else ["-language", language]
    arguments = ["-index", directory, *how]
    indexer = lucene.LuceneIndexer(args=arguments, threads=threads)
    for batch in _batches():
        indexer.add_batch_dict(batch)
    indexer.close()


def _batches() -> Iterator[list[dict[str, str]]]:
    with pa.ipc.open_stream(sys.stdin.buffer) as reader:
        for batch in reader:
            ids, contents = batch.column(0).to_pylist(), batch.column(1).to_pylist()
            yield [
                {"id": doc_id, "contents": text} for doc_id, text in zip(ids, contents, strict=True)
            ]


def _search(
    *,
    work: str,
    directory: str,
    k: int,
    name: str,
    k1: float,
    b: float,
    threads: int,
    language: str,
    pretokenized: bool,
) -> None:
    """Search, and leave the run in ``work``."""
    lucene = pyserini("pyserini.search.lucene")
    queries = pl.read_parquet(Path(work) / "in.parquet")
    searcher = lucene.LuceneSearcher(directory)
    searcher.set_bm25(k1, b)
    allow_long_queries()
    if pretokenized:
        searcher.set_analyzer(whitespace_analyzer())
    elif language != _ENGLISH:
        searcher.set_language(language)
    ids = queries[QUERY_ID].to_list()
    hits = searcher.batch_search(queries[QUERY].to_list(), ids, k=k, threads=threads)
    searcher.close()
    rows = [
        (query_id, hit.docid, rank, float(hit.score), name)
        for query_id in ids
        for rank, hit in enumerate(hits.get(query_id, ()), 1)
    ]
    frame = pl.DataFrame(rows, schema=tables.RUNS, orient="row")
    frame.write_parquet(Path(work) / "out.parquet")


def _main() -> None:
    options = json.loads(sys.argv[1])
    if options.pop("task") == "index":
        _index(**options)
    else:
        _search(**options)


if __name__ == "__main__":
    _main()
