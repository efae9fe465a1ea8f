"""``erag index``: make a corpus searchable."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Annotated

import polars as pl
from cyclopts import App, Parameter

from engine.machine.remote.api_settings import ServerSettings, is_api
from engine.machine.remote.limits import limits_of
from engine.machine.survey import reading_dtype, reads_on_gpus
from engine.messages.checked import CheckedSettings, Natural, Positive, fitted
from engine.messages.errors import InputError
from engine.messages.wording import counted
from engine.retrieval import dense as vectors
from engine.retrieval.bm25 import Tokenizer, build_index
from engine.retrieval.dense import IndexOptions
from engine.retrieval.encode import specify
from engine.retrieval.encoders import BUNDLED, PassageEncoderOptions
from engine.sources.io.folders import require_output
from engine.sources.io.outputs import Inputs, Outputs, refuse_overlap
from engine.sources.io.records import SkipBad
from engine.sources.passages.read import scan_corpus, split_corpus
from jobs._command import ConfigFile, epilogue, run_app, with_verbosity
from jobs._options import Models, Size
from jobs._progress import event, shown_progress
from jobs._signals import keeps
from jobs._terminal import say, warn_of_code

app = App(name="index", help="Build an index of a corpus.", help_epilogue=epilogue("index"))
Memory = Annotated[Size, Parameter(help="Memory limit of one actor (1.5GiB).")]


@dataclass(frozen=True, kw_only=True)
class Build(CheckedSettings):
    """Input and output of an index.

    Attributes:
        corpus: The passages: Parquet (a file or a directory of shards), JSONL, BEIR's or DPR's layout.
        out: Directory of the index, or of several; an existing index is replaced, or its content used again.
        skip_bad: Bad records to tolerate.
    """

    corpus: str
    out: Path
    skip_bad: Natural = 0

    def check(self, encoders: Sequence[str], config: Path | None) -> None:
        """Refuse an unwritable place, or a place with an input."""
        require_output(self.out, directory=True)
        inputs = Inputs({"corpus": self.corpus, "config": config}, {"encoder": encoders})
        refuse_overlap(inputs, Outputs(folders=[self.out]))


@dataclass(frozen=True, kw_only=True)
class WordSettings:
    """How BM25 splits texts into words.

    Attributes:
        language: Selects the analyzer that splits texts into words: ar bn da de en es fa fi fr hi hu id it ja
            ko nl no pl pt ru sv te th tr uk zh.
        tokenizer: Splits texts for BM25 instead of the analyzer; kiwi splits Korean into morphemes (needs the
            extra korean).
    """

    language: str = "en"
    tokenizer: Tokenizer | None = None


@app.command(help_epilogue=epilogue("index bm25"))
@with_verbosity
def bm25(
    *,
    build: Annotated[Build, Parameter(name="*")],
    splitting: Annotated[WordSettings, Parameter(name="*")] = WordSettings(),
    threads: int | None = None,
    config: ConfigFile = None,
) -> None:
    """Index a corpus for BM25 with Lucene.

    Args:
        threads: Indexing threads; all CPUs by default.
    """
    fitted("threads", threads, Positive | None)
    build.check([], config)
    skipped = SkipBad(build.skip_bad)
    corpus = scan_corpus(build.corpus, skip_bad=skipped, distinct=True)
    index = build_index(corpus, build.out, **vars(splitting), threads=threads)
    say(f"{counted(index.passages, 'passage[|s]')} indexed -> {build.out}")
    if skipped.count:
        say(skipped.described())


@app.command(help_epilogue=epilogue("index dense"))
@with_verbosity
def dense(
    *,
    build: Annotated[Build, Parameter(name="*")],
    encoder: Annotated[PassageEncoderOptions, Parameter(name="*")] = PassageEncoderOptions(),  # noqa: B008 - it is frozen
    options: Annotated[IndexOptions, Parameter(name="*")] = IndexOptions(),  # noqa: B008 - it is frozen
    memory: Memory = 0,
    config: ConfigFile = None,
) -> None:
    """Encode a corpus into vectors and index them with FAISS; an interrupted build can be resumed."""
    build.check([encoder.encoder], config)
    warn_of_code(encoder.trust_remote_code)
    if encoder.dtype is None and not is_api(encoder.encoder):
        encoder = replace(encoder, dtype=reading_dtype(options.pool(), event))
    spec = specify(encoder, memory=memory, gpu=bool(memory) and reads_on_gpus(options.pool()))
    skipped = SkipBad(build.skip_bad)

    def scan() -> Iterator[pl.DataFrame]:
        nonlocal skipped
        skipped = SkipBad(build.skip_bad)  # counted anew each time the corpus is read
        return scan_corpus(build.corpus, skip_bad=skipped, distinct=True)

    split = partial(split_corpus, build.corpus)
    keeps(f"encoded shards are kept in {build.out}; run the same command again to go on from there")
    with shown_progress("encoding", "shards") as on_progress:
        index = vectors.build_index(
            scan, build.out, spec, options, on_progress=on_progress, on_event=event, split=split
        )
    indexed = counted(index.passages, "passage[|s]")
    say(f"{indexed} indexed ({spec.dimensions} dimensions, {options.storage}) -> {build.out}")
    if vectors.is_constant(build.out, index):
        say("note: all vectors are one, so no search can tell passages apart; check the encoder")
    elif not spec.text.normalize and (times := vectors.length_ratio(build.out, index)) > 10:
        say(
            f"note: the longest vector is {times:.0f} times as long as the shortest, and inner products favour "
            "long ones; check the encoder"
        )
    if spec.server:
        say(f"{limits_of(spec.server).used()} used of {spec.server.host}")
    if skipped.count:
        say(skipped.described())


@app.command(help_epilogue=epilogue("index several"))
@with_verbosity
def several(
    *,
    build: Annotated[Build, Parameter(name="*")],
    encoder: Models = (BUNDLED,),
    splitting: Annotated[WordSettings, Parameter(name="*")] = WordSettings(),
    server: Annotated[ServerSettings, Parameter(name="*")] = ServerSettings(),  # noqa: B008 - it is frozen
    options: Annotated[IndexOptions, Parameter(name="*")] = IndexOptions(),  # noqa: B008 - it is frozen
    memory: Memory = 0,
    config: ConfigFile = None,
) -> None:
    """Build an index for BM25 and one for each of several encoders, as the other commands build them.

    Args:
        encoder: Encoders, as in erag index dense; ENCODER=PRESET if its files do not say how to use it, as in
            intfloat/multilingual-e5-large=e5. Each names its index; that for BM25 is called bm25.
    """
    build.check(encoder, config)
    encoders = _encoders(encoder, server)
    # Unusable encoders are refused before the first index is built.
    for known in encoders.values():
        specify(known, memory=memory, gpu=bool(memory) and reads_on_gpus(options.pool()))
    bm25(build=replace(build, out=build.out / "bm25"), splitting=splitting)
    for name, known in encoders.items():
        there = replace(build, out=build.out / name)
        dense(build=there, encoder=known, options=options, memory=memory)


def _encoders(names: Sequence[str], server: ServerSettings) -> dict[str, PassageEncoderOptions]:
    """The encoders by the names of their indexes, which are the last parts of the encoders' names."""
    encoders: dict[str, PassageEncoderOptions] = {}
    has_server = any(map(is_api, names))
    for text in names:
        model, _, preset = text.partition("=")
        name = PurePosixPath(model).name
        if name in ("", "bm25") or name in encoders:
            problem = f"`encoder` {model!r} needs the name {name!r} for its index, which is taken"
            remedy = "give encoders with different names, or build them with erag index dense"
            raise InputError(problem, remedy, "settings.name")
        # If no encoder is on a server, server settings are refused.
        own = vars(server) if is_api(model) or not has_server else {}
        encoders[name] = PassageEncoderOptions(encoder=model, preset=preset or None, **own)
    return encoders


if __name__ == "__main__":
    run_app(app)
