"""``erag index``: make a corpus searchable."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import polars as pl
from cyclopts import App, Parameter

from engine.errors import InputError
from engine.machine.device import Dtype
from engine.retrieval import bm25 as lexical
from engine.retrieval import dense as vectors
from engine.retrieval.encoders import BUNDLED, Pooling, specify
from engine.retrieval.morphemes import Tokenizer
from engine.retrieval.shards import Storage
from engine.sources.io.files import require_output
from engine.sources.io.skipping import SkipBad
from engine.sources.passages.read import scan_corpus
from engine.wording import counted
from jobs._command import ConfigFile, run_app
from jobs._progress import shown_progress
from jobs._sizes import convert_bytes

app = App(name="index", help="Build an index of a corpus.")


@app.command
def bm25(
    *,
    corpus: str,
    out: Path,
    language: str = "en",
    tokenizer: Tokenizer | None = None,
    threads: int | None = None,
    skip_bad: int = 0,
    config: ConfigFile = None,
) -> None:
    """Index a corpus for BM25 with Lucene.

    Parameters
    ----------
    corpus
        The passages: Parquet (a file or a directory of shards), JSONL, BEIR's or DPR's layout.
    out
        Directory of the index; an index that stands there is replaced.
    language
        Whose analyzer cuts texts into words: ar bn da de en es fa fi fr hi hu id it ja ko nl no pl pt
        ru sv te th tr uk zh.
    tokenizer
        Cuts texts instead; kiwi cuts Korean into morphemes (needs the extra korean).
    threads
        Indexing threads; all CPUs by default.
    skip_bad
        Bad records to tolerate.
    """
    require_output(out, directory=True)
    _require_least("threads", threads, 1)
    _require_least("skip-bad", skip_bad, 0)
    skipped = SkipBad(skip_bad)
    index = lexical.build_index(
        scan_corpus(corpus, skip_bad=skipped, distinct=True),
        out,
        language=language,
        tokenizer=tokenizer,
        threads=threads,
    )
    print(f"{counted(index.passages, 'passage[|s]')} indexed -> {out}")
    _tell(skipped)


@app.command
def dense(
    *,
    corpus: str,
    out: Path,
    encoder: str = BUNDLED,
    preset: str | None = None,
    pooling: Pooling | None = None,
    query_prefix: str | None = None,
    passage_prefix: str | None = None,
    dtype: Dtype | None = None,
    storage: Storage = "fp32",
    factory: str | None = None,
    actors: int | None = None,
    memory: Annotated[int, Parameter(converter=convert_bytes)] = 0,
    skip_bad: int = 0,
    config: ConfigFile = None,
) -> None:
    """Encode a corpus into vectors and index them with FAISS; an interrupted build goes on.

    Parameters
    ----------
    corpus
        The passages: Parquet (a file or a directory of shards), JSONL, BEIR's or DPR's layout.
    out
        Directory of the index; one that stands there keeps what is still of use.
    encoder
        A Hugging Face id that is in the cache, a directory, or "bundled" (all-MiniLM-L6-v2).
    preset
        How it is used: contriever, e5, bge, minilm; mean or cls for others. By default what its own
        sentence-transformers files say.
    pooling
        mean or cls, instead of the preset's.
    query_prefix
        Written before queries, instead of the preset's.
    passage_prefix
        Written before passages, instead of the preset's.
    dtype
        The encoder's precision; by default the fastest of this machine.
    storage
        Precision in which vectors are kept.
    factory
        FAISS's factory string for approximate search beside the exact one (IVF1024,Flat; HNSW32).
    actors
        Actors that encode, on Ray: by default one a GPU, or as many as CPUs and memory allow. 0
        encodes in this process.
    memory
        What one actor may take (1.5GiB).
    skip_bad
        Bad records to tolerate.
    """
    require_output(out, directory=True)
    _require_least("actors", actors, 0)
    _require_least("skip-bad", skip_bad, 0)
    spec = specify(
        encoder,
        preset=preset,
        pooling=pooling,
        query_prefix=query_prefix,
        passage_prefix=passage_prefix,
        dtype=dtype,
        memory=memory,
    )
    skipped = SkipBad(skip_bad)

    def scan() -> Iterator[pl.DataFrame]:
        nonlocal skipped
        skipped = SkipBad(skip_bad)  # each time the corpus is read, its bad records count anew
        return scan_corpus(corpus, skip_bad=skipped, distinct=True)

    with shown_progress("encoding", "shards") as on_progress:
        index = vectors.build_index(
            scan,
            out,
            spec,
            storage=storage,
            factory=factory,
            actors=actors,
            on_progress=on_progress,
        )
    indexed = counted(index.passages, "passage[|s]")
    print(f"{indexed} indexed ({spec.dimensions} dimensions, {storage}) -> {out}")
    _tell(skipped)


def _tell(skipped: SkipBad) -> None:
    if skipped.count:
        print(skipped.described())


def _require_least(name: str, value: int | None, least: int) -> None:
    if value is not None and value < least:
        raise InputError(None, None, f"--{name} is {value}", f"use {least} or more")


if __name__ == "__main__":
    run_app(app)
