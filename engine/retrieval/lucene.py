"""Lucene's work, done in a separate process: ``python -m engine.retrieval.lucene``.

A JVM in the driver would share its signals with Ray: both install a handler for SIGSEGV, which the
JVM raises and catches in normal operation. A test process with both once died of a fatal signal;
since they were separated, none has. A separate process also returns the JVM's memory, and keeps
Pyserini's many imports, and the replacements for some of them (see ``java``), out of the driver.

A corpus is streamed as Arrow batches through standard input, so that neither side ever holds more
than a few of them; queries and results are passed as Parquet files, settings as one JSON argument.
"""

from __future__ import annotations

import contextlib
import errno
import json
import re
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

import polars as pl
import pyarrow as pa

from engine import tables
from engine.messages.errors import InputError
from engine.retrieval.java import find_java, pyserini, whitespace_analyzer
from engine.sources.io.parallel import mapped
from engine.tables import DOC_ID, QUERY, QUERY_ID

CONTENTS = "contents"
_CORPUS = pa.schema({DOC_ID: pa.large_string(), CONTENTS: pa.large_string()})
# Passages sent at a time.
_BATCH = 10_000
_ENGLISH = "en"
# The files that an index is made of, and what ends each (org.apache.lucene.codecs.CodecUtil.writeFooter).
_FILE = re.compile(r"segments_\w+|_\w+\.\w+")
_CHECKSUM = 8
_AT_ONCE = 2**22
# What Java says of files that are gone, or of another version.
_OF_FILES = re.compile(r"(java\.n?io|org\.apache\.lucene\.index)\.[\w.]*(Exception|Error)[^\n]*")
_AGAIN = "build the index again, with the same `erag index`"
# What Java says of a full disk, in an error that another one may follow.
_FULL = "No space left on device"


@dataclass(frozen=True)
class Analysis:
    """How texts are split into words: by a language's analyzer, unless they are words separated by spaces already."""

    language: str
    pretokenized: bool


@dataclass(frozen=True)
class Ranking:
    """How passages are ranked for a query."""

    k: int
    k1: float
    b: float
    name: str


def index(
    batches: Iterable[pl.DataFrame], directory: Path, analysis: Analysis, *, threads: int
) -> None:
    """Index passages, ``doc_id`` and ``contents``, in a separate process.

    Raises:
        InputError: there is no Java 21.
        RuntimeError: the process failed; the message ends with the last error that it wrote.
    """

    def feed(stream: IO[bytes]) -> None:
        with pa.ipc.new_stream(stream, _CORPUS) as writer:
            for batch in batches:
                for part in batch.select(DOC_ID, CONTENTS).iter_slices(_BATCH):
                    writer.write_table(part.to_arrow().cast(_CORPUS))

    _run("index", feed, directory=str(directory), analysis=asdict(analysis), threads=threads)


def search_lucene(
    queries: pl.DataFrame, directory: Path, analysis: Analysis, ranking: Ranking, *, threads: int
) -> pl.DataFrame:
    """Search in a separate process; the run of the queries.

    Raises:
        InputError: there is no Java 21; a file of the index is damaged or gone.
        RuntimeError: the process failed; the message ends with the last error that it wrote.
    """
    files = [path for path in directory.iterdir() if _FILE.fullmatch(path.name)]
    for path, is_whole in zip(files, mapped(_is_whole, files), strict=True):
        if not is_whole:
            raise InputError(f"{path.name} is damaged", _AGAIN, path=directory)
    with tempfile.TemporaryDirectory(prefix="erag-lucene-") as work:
        queries.select(QUERY_ID, QUERY).write_parquet(Path(work) / "in.parquet")
        settings = {"analysis": asdict(analysis), "ranking": asdict(ranking), "threads": threads}
        try:
            _run("search", lambda stream: None, work=work, directory=str(directory), **settings)
        except RuntimeError as error:
            if refused := _OF_FILES.search(str(error)):
                problem = f"cannot be read ({refused[0][:160]})"
                raise InputError(problem, _AGAIN, path=directory) from None
            raise
        return pl.read_parquet(Path(work) / "out.parquet")


def _is_whole(path: Path) -> bool:
    """Whether the last eight bytes of a file are the CRC-32 of those before them, as Lucene writes every file.

    Lucene itself compares few of them: a search would find other passages.
    """
    checksum = 0
    with contextlib.suppress(OSError), path.open("rb") as file:
        size = path.stat().st_size - _CHECKSUM
        for start in range(0, size, _AT_ONCE):
            checksum = zlib.crc32(file.read(min(_AT_ONCE, size - start)), checksum)
        return file.read() == checksum.to_bytes(_CHECKSUM, "big")
    return False


# Modules are looked for where this process finds them: with -m, a folder called engine in the current
# directory would come first.
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); "
    "from engine.retrieval.lucene import main; main()"
)


def _run(task: str, feed: Callable[[IO[bytes]], None], **settings: Any) -> None:
    find_java()  # an error that the user can fix is raised here, not in the other process
    arguments = json.dumps({"task": task, **settings})
    # A file, since a pipe that is not read meanwhile would fill up and block the process.
    with tempfile.TemporaryFile() as messages:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, arguments, json.dumps(sys.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=messages,
        )
        assert process.stdin is not None
        try:
            # If the process has failed, its message says more than the broken pipe.
            with contextlib.suppress(BrokenPipeError), process.stdin as stream:
                feed(stream)
            status = process.wait()
        except BaseException:  # an interruption among them, also while it is waited for
            process.kill()
            process.wait()
            raise
        messages.seek(0)
        lines = messages.read().decode(errors="replace").strip().splitlines() or ["no message"]
    if status:
        errors = [line for line in lines if re.match(r"[\w.$]*(Error|Exception)\b", line.strip())]
        if full := [line for line in lines if _FULL in line]:
            raise OSError(errno.ENOSPC, full[-1].strip())
        last = (errors or lines)[-1].strip()
        raise RuntimeError(f"Lucene failed ({task}, status {status}): {last}")


def _index(*, directory: str, analysis: Analysis, threads: int) -> None:
    lucene = pyserini("pyserini.index.lucene")
    # Only one of the two: Anserini looks at the language first, and would split morphemes again.
    how = ["-pretokenized"] if analysis.pretokenized else ["-language", analysis.language]
    indexer = lucene.LuceneIndexer(args=["-index", directory, *how], threads=threads)
    with pa.ipc.open_stream(sys.stdin.buffer) as reader:
        for batch in reader:
            rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
            indexer.add_batch_dict([{"id": doc_id, "contents": text} for doc_id, text in rows])
    indexer.close()


def _search(
    *, work: str, directory: str, analysis: Analysis, ranking: Ranking, threads: int
) -> None:
    """Search, and leave the run in ``work``."""
    lucene = pyserini("pyserini.search.lucene")
    queries = pl.read_parquet(Path(work) / "in.parquet")
    searcher = lucene.LuceneSearcher(directory)
    searcher.set_bm25(ranking.k1, ranking.b)
    if analysis.pretokenized:
        searcher.set_analyzer(whitespace_analyzer())
    elif analysis.language != _ENGLISH:
        searcher.set_language(analysis.language)
    ids = queries[QUERY_ID].to_list()
    hits = searcher.batch_search(queries[QUERY].to_list(), ids, k=ranking.k, threads=threads)
    searcher.close()
    rows = [
        (query_id, hit.docid, rank, float(hit.score), ranking.name)
        for query_id in ids
        for rank, hit in enumerate(hits.get(query_id, ()), 1)
    ]
    pl.DataFrame(rows, schema=tables.RUNS, orient="row").write_parquet(Path(work) / "out.parquet")


def main() -> None:
    """Do the task that the command line of this process has."""
    settings = json.loads(sys.argv[1])
    task = settings.pop("task")
    settings["analysis"] = Analysis(**settings["analysis"])
    if task == "index":
        _index(**settings)
    else:
        settings["ranking"] = Ranking(**settings["ranking"])
        _search(**settings)
