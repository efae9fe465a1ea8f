"""BM25 with Pyserini on Lucene: building an index from a streamed corpus, and searching it."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

import polars as pl

from engine.errors import InputError
from engine.retrieval import lucene, manifest, morphemes
from engine.retrieval.manifest import Manifest
from engine.retrieval.morphemes import Tokenizer
from engine.sources.io.fingerprint import Fingerprint
from engine.tables import DOC_ID, QUERY, TEXT, TITLE

# The languages that Anserini 1.6 has an analyzer of Lucene for (io.anserini.analysis.AnalyzerMap).
LANGUAGES = (
    *("ar", "bn", "da", "de", "en", "es", "fa", "fi", "fr", "hi", "hu", "id", "it", "ja"),
    *("ko", "nl", "no", "pl", "pt", "ru", "sv", "te", "th", "tr", "uk", "zh"),
)


def build_index(
    corpus: pl.DataFrame | Iterable[pl.DataFrame],
    directory: str | Path,
    *,
    language: str = "en",
    tokenizer: Tokenizer | None = None,
    threads: int | None = None,
) -> Manifest:
    """Index title and text of every passage, as Pyserini does by default.

    The index appears in ``directory`` when it is complete; an index that stands there is replaced.
    A corpus given in batches is indexed in constant memory.

    Args:
        corpus: the corpus table, or batches of it.
        directory: of the index.
        language: whose analyzer of Lucene cuts texts into words, one of ``LANGUAGES``.
        tokenizer: cuts texts instead, queries too; ``kiwi`` is for Korean.
        threads: indexing threads; None for every CPU. Searches do not depend on them.

    Raises:
        InputError: ``directory`` holds something that is no index of ours, there is no Java 21, an
            unknown language, or the corpus cannot be read.
    """
    directory = Path(directory).resolve()
    manifest.require_place(directory, "bm25")
    if language not in LANGUAGES:
        raise InputError(
            None, None, f"unknown language {language!r}", f"use one of {', '.join(LANGUAGES)}"
        )
    cut = morphemes.Kiwi() if tokenizer else None
    fingerprint = Fingerprint()
    batches = [corpus] if isinstance(corpus, pl.DataFrame) else corpus
    work = directory.with_name(f".{directory.name}.{uuid.uuid4().hex}.tmp")
    work.mkdir(parents=True)
    try:
        lucene.index(
            _contents(batches, fingerprint, cut),
            work,
            language=language,
            pretokenized=tokenizer is not None,
            threads=threads or os.cpu_count() or 1,
        )
        index = Manifest(
            kind="bm25",
            passages=fingerprint.passages,
            corpus=fingerprint.hexdigest(),
            settings={
                "language": language,
                "tokenizer": tokenizer,
                "tokenizer_version": morphemes.version() if tokenizer else None,
            },
            versions=manifest.versions("pyserini"),
        )
        manifest.write(index, work)
        _put(work, directory)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return index


def _put(work: Path, directory: Path) -> None:
    """Put a finished index in its place; a kill leaves the old one, none, or the new one, never a part."""
    before = work.with_suffix(".old")
    if directory.exists():
        os.replace(directory, before)
    try:
        os.replace(work, directory)
    except OSError:
        if before.exists():
            os.replace(before, directory)
        raise
    shutil.rmtree(before, ignore_errors=True)


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
    """The run table of the best ``k`` passages for each query.

    Queries without any hit, such as those of nothing but stop words, have no rows. Equal scores are
    ordered by document id, as Anserini does.

    Args:
        directory: an index made by ``build_index``.
        queries: ``query_id`` and ``query``.
        k: passages per query, 1 or more.
        name: the system's name in the run.
        k1, b: BM25's parameters (Robertson et al. 1994; defaults are Anserini's).
        threads: search threads; None for every CPU.

    Raises:
        InputError: ``directory`` is no BM25 index, or Kiwi is not the one that cut its texts.
    """
    directory = Path(directory)
    found = manifest.read(directory)
    manifest.require_kind(found, ["bm25"], directory)
    settings = found.settings
    if settings["tokenizer"]:
        cut = morphemes.Kiwi()
        if settings["tokenizer_version"] != (here := morphemes.version()):
            raise InputError(
                directory,
                None,
                f"was cut into morphemes by {settings['tokenizer_version']}, here is {here}",
                "install that version, or build the index again",
            )
        texts = cut.cut(queries[QUERY].to_list())
        queries = queries.with_columns(pl.Series(QUERY, texts, dtype=pl.String))
    return lucene.search(
        queries,
        directory,
        k=min(k, found.passages),
        name=name,
        k1=k1,
        b=b,
        threads=threads or os.cpu_count() or 1,
        language=settings["language"],
        pretokenized=settings["tokenizer"] is not None,
    )


def _contents(
    batches: Iterable[pl.DataFrame], fingerprint: Fingerprint, cut: morphemes.Kiwi | None
) -> Iterator[pl.DataFrame]:
    """Title and text on a line each, as Pyserini's own collections have them."""
    title, text = pl.col(TITLE), pl.col(TEXT)
    for batch in batches:
        fingerprint.update(batch)
        joined = pl.when(title == "").then(text).otherwise(title + "\n" + text)
        frame = batch.select(DOC_ID, joined.alias(lucene.CONTENTS))
        if cut is not None:
            words = cut.cut(frame[lucene.CONTENTS].to_list())
            frame = frame.with_columns(pl.Series(lucene.CONTENTS, words, dtype=pl.String))
        yield frame
