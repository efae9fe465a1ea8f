"""``erag index``: make a corpus searchable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Annotated

import polars as pl
from cyclopts import App, Parameter

from engine.machine.survey import reading_dtype, reads_on_gpus
from engine.messages.checked import Checked, Natural, Positive, fitted
from engine.messages.errors import InputError
from engine.messages.wording import counted
from engine.retrieval import bm25 as lexical
from engine.retrieval import dense as vectors
from engine.retrieval.dense import IndexOptions
from engine.retrieval.encoders import BUNDLED, PassageEncoderOptions, specify
from engine.retrieval.morphemes import Tokenizer
from engine.sources.io.folders import require_output
from engine.sources.io.outputs import Inputs, Outputs, refuse_overlap
from engine.sources.io.skipping import SkipBad
from engine.sources.passages.read import scan_corpus
from jobs._command import ConfigFile, run_app, with_verbosity
from jobs._examples import epilogue
from jobs._options import Models, Size, parts_of
from jobs._progress import event, shown_progress
from jobs._signals import keeps
from jobs._terminal import say, warn_of_code

app = App(name="index", help="Build an index of a corpus.", help_epilogue=epilogue("index"))


@dataclass(frozen=True, kw_only=True)
class Source(Checked):
    """What is indexed.

    Attributes:
        corpus: The passages: Parquet (a file or a directory of shards), JSONL, BEIR's or DPR's layout.
        skip_bad: Bad records to tolerate.
    """

    corpus: str
    skip_bad: Natural = 0


@dataclass(frozen=True, kw_only=True)
class Splitting:
    """How BM25 splits texts into words.

    Attributes:
        language: Selects the analyzer with which BM25 splits texts into words: ar bn da de en es fa fi fr hi hu id it
            ja ko nl no pl pt ru sv te th tr uk zh.
        tokenizer: Splits texts for BM25 instead of the analyzer; kiwi splits Korean into morphemes (needs the extra
            korean).
    """

    language: str = "en"
    tokenizer: Tokenizer | None = None


@app.command(help_epilogue=epilogue("index bm25"))
@with_verbosity
def bm25(
    *,
    source: Annotated[Source, Parameter(name="*")],
    out: Path,
    splitting: Annotated[Splitting, Parameter(name="*")] = Splitting(),
    threads: int | None = None,
    config: ConfigFile = None,
) -> None:
    """Index a corpus for BM25 with Lucene.

    Parameters
    ----------
    out
        Directory of the index; an existing index is replaced.
    threads
        Indexing threads; all CPUs by default.
    """
    require_output(out, directory=True)
    fitted("threads", threads, Positive | None)
    refuse_overlap(Inputs({"corpus": source.corpus, "config": config}, {}), Outputs(folders=[out]))
    skipped = SkipBad(source.skip_bad)
    index = lexical.build_index(
        scan_corpus(source.corpus, skip_bad=skipped, distinct=True),
        out,
        language=splitting.language,
        tokenizer=splitting.tokenizer,
        threads=threads,
    )
    say(f"{counted(index.passages, 'passage[|s]')} indexed -> {out}")
    if skipped.count:
        say(skipped.described())


@app.command(help_epilogue=epilogue("index dense"))
@with_verbosity
def dense(
    *,
    source: Annotated[Source, Parameter(name="*")],
    out: Path,
    encoder: Annotated[PassageEncoderOptions, Parameter(name="*")] = PassageEncoderOptions(),  # noqa: B008 - it is frozen
    options: Annotated[IndexOptions, Parameter(name="*")] = IndexOptions(),  # noqa: B008 - it is frozen
    memory: Size = 0,
    config: ConfigFile = None,
) -> None:
    """Encode a corpus into vectors and index them with FAISS; an interrupted build can be resumed.

    Parameters
    ----------
    out
        Directory of the index; usable vectors of an existing one are kept.
    memory
        Memory limit of one actor (1.5GiB).
    """
    require_output(out, directory=True)
    refuse_overlap(
        Inputs({"corpus": source.corpus, "config": config}, {"encoder": encoder.encoder}),
        Outputs(folders=[out]),
    )
    warn_of_code(encoder.trust_remote_code)
    if encoder.dtype is None:
        encoder = replace(encoder, dtype=reading_dtype(options.pool(), event))
    spec = specify(encoder, memory=memory, gpu=bool(memory) and reads_on_gpus(options.pool()))
    skipped = SkipBad(source.skip_bad)

    def scan() -> Iterator[pl.DataFrame]:
        nonlocal skipped
        skipped = SkipBad(
            source.skip_bad
        )  # bad records are counted anew each time the corpus is read
        return scan_corpus(source.corpus, skip_bad=skipped, distinct=True)

    keeps(f"encoded shards are kept in {out}; run the same command again to go on from there")
    with shown_progress("encoding", "shards") as on_progress:
        index = vectors.build_index(
            scan, out, spec, options, on_progress=on_progress, on_event=event
        )
    indexed = counted(index.passages, "passage[|s]")
    say(f"{indexed} indexed ({spec.dimensions} dimensions, {options.storage}) -> {out}")
    if skipped.count:
        say(skipped.described())


@app.command(help_epilogue=epilogue("index several"))
@with_verbosity
def several(
    *,
    source: Annotated[Source, Parameter(name="*")],
    out: Path,
    encoder: Models = (BUNDLED,),
    splitting: Annotated[Splitting, Parameter(name="*")] = Splitting(),
    options: Annotated[IndexOptions, Parameter(name="*")] = IndexOptions(),  # noqa: B008 - it is frozen
    memory: Size = 0,
    config: ConfigFile = None,
) -> None:
    """Build an index for BM25 and one for each of several encoders, as the other commands build them.

    Parameters
    ----------
    out
        Directory of the indexes: bm25, and one named after each encoder.
    encoder
        Encoders, as in erag index dense; ENCODER=PRESET if its files do not say how to use it, as in
        intfloat/multilingual-e5-large=e5.
    memory
        Memory limit of one actor (1.5GiB).
    """
    require_output(out, directory=True)
    refuse_overlap(
        Inputs({"corpus": source.corpus, "config": config}, {"encoder": encoder}),
        Outputs(folders=[out]),
    )
    encoders = _encoders(encoder)
    # What cannot be used is refused before the first index is built.
    for known in encoders.values():
        specify(known, memory=memory, gpu=bool(memory) and reads_on_gpus(options.pool()))
    bm25(source=source, out=out / "bm25", splitting=splitting)
    for name, known in encoders.items():
        dense(source=source, out=out / name, encoder=known, options=options, memory=memory)


def _encoders(given: Sequence[str]) -> dict[str, PassageEncoderOptions]:
    """The encoders by the names of their indexes, which are the last parts of theirs."""
    encoders: dict[str, PassageEncoderOptions] = {}
    for text in parts_of(given):
        model, _, preset = text.partition("=")
        name = PurePosixPath(model).name
        if name in ("", "bm25") or name in encoders:
            raise InputError(
                f"`encoder` {model!r} needs the name {name!r} for its index, which is taken",
                "give encoders with different names, or build them with erag index dense",
            )
        encoders[name] = PassageEncoderOptions(encoder=model, preset=preset or None)
    return encoders


if __name__ == "__main__":
    run_app(app)
