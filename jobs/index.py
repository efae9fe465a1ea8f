"""``erag index``: make a corpus searchable."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import polars as pl
from cyclopts import App, Parameter

from engine.errors import require_least
from engine.machine.survey import reading_dtype
from engine.retrieval import bm25 as lexical
from engine.retrieval import dense as vectors
from engine.retrieval.dense import IndexOptions
from engine.retrieval.encoders import PassageEncoderOptions, specify
from engine.retrieval.morphemes import Tokenizer
from engine.sources.io.files import require_output
from engine.sources.io.outputs import Inputs, Outputs, refuse_overlap
from engine.sources.io.skipping import SkipBad
from engine.sources.passages.read import scan_corpus
from engine.wording import counted
from jobs._command import ConfigFile, run_app, spoken
from jobs._examples import epilogue
from jobs._progress import event, shown_progress
from jobs._signals import keeps
from jobs._sizes import convert_bytes
from jobs._terminal import say, warn_of_code

app = App(name="index", help="Build an index of a corpus.", help_epilogue=epilogue("index"))


@app.command(help_epilogue=epilogue("index bm25"))
@spoken
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
        Directory of the index; an existing index is replaced.
    language
        Selects the analyzer that splits texts into words: ar bn da de en es fa fi fr hi hu id it ja
        ko nl no pl pt ru sv te th tr uk zh.
    tokenizer
        Splits texts instead of the analyzer; kiwi splits Korean into morphemes (needs the extra
        korean).
    threads
        Indexing threads; all CPUs by default.
    skip_bad
        Bad records to tolerate.
    """
    require_output(out, directory=True)
    require_least("threads", threads, 1)
    require_least("skip_bad", skip_bad, 0)
    refuse_overlap(Inputs({"corpus": corpus, "config": config}, {}), Outputs(folders=[out]))
    skipped = SkipBad(skip_bad)
    index = lexical.build_index(
        scan_corpus(corpus, skip_bad=skipped, distinct=True),
        out,
        language=language,
        tokenizer=tokenizer,
        threads=threads,
    )
    say(f"{counted(index.passages, 'passage[|s]')} indexed -> {out}")
    _print_skipped(skipped)


@app.command(help_epilogue=epilogue("index dense"))
@spoken
def dense(
    *,
    corpus: str,
    out: Path,
    encoder: Annotated[PassageEncoderOptions, Parameter(name="*")] = PassageEncoderOptions(),  # noqa: B008 - it is frozen
    options: Annotated[IndexOptions, Parameter(name="*")] = IndexOptions(),  # noqa: B008 - it is frozen
    memory: Annotated[int, Parameter(converter=convert_bytes)] = 0,
    skip_bad: int = 0,
    config: ConfigFile = None,
) -> None:
    """Encode a corpus into vectors and index them with FAISS; an interrupted build can be resumed.

    Parameters
    ----------
    corpus
        The passages: Parquet (a file or a directory of shards), JSONL, BEIR's or DPR's layout.
    out
        Directory of the index; usable vectors of an existing one are kept.
    memory
        Memory limit of one actor (1.5GiB).
    skip_bad
        Bad records to tolerate.
    """
    require_output(out, directory=True)
    require_least("skip_bad", skip_bad, 0)
    refuse_overlap(
        Inputs({"corpus": corpus, "config": config}, {"encoder": encoder.encoder}),
        Outputs(folders=[out]),
    )
    warn_of_code(encoder.trust_remote_code)
    if encoder.dtype is None:
        encoder = replace(encoder, dtype=reading_dtype(options.pool(), event))
    spec = specify(encoder, memory=memory)
    skipped = SkipBad(skip_bad)

    def scan() -> Iterator[pl.DataFrame]:
        nonlocal skipped
        skipped = SkipBad(skip_bad)  # bad records are counted anew each time the corpus is read
        return scan_corpus(corpus, skip_bad=skipped, distinct=True)

    keeps(f"encoded shards are kept in {out}; run the same command again to go on from there")
    with shown_progress("encoding", "shards") as on_progress:
        index = vectors.build_index(
            scan, out, spec, options, on_progress=on_progress, on_event=event
        )
    indexed = counted(index.passages, "passage[|s]")
    say(f"{indexed} indexed ({spec.dimensions} dimensions, {options.storage}) -> {out}")
    _print_skipped(skipped)


def _print_skipped(skipped: SkipBad) -> None:
    if skipped.count:
        say(skipped.described())


if __name__ == "__main__":
    run_app(app)
