"""BM25 with Pyserini on Lucene: building an index from a streamed corpus, and searching it."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import polars as pl

from engine.messages.errors import InputError
from engine.messages.extras import require
from engine.retrieval import lucene, manifest
from engine.retrieval.manifest import Manifest
from engine.sources.io.digests import Fingerprint
from engine.sources.io.files import abandoned, reported_writing, temporary_directory
from engine.tables import DOC_ID, QUERY, TEXT, TITLE

Tokenizer = Literal["kiwi"]


class Kiwi:
    """Splits Korean texts into morphemes with Kiwi (Lee 2024, https://github.com/bab2min/kiwipiepy).

    Korean attaches particles and endings to words: split at white space, "학교에서" (at school) and "학교는" (school, as
    the topic) have nothing in common. Morphemes are indexed and searched unchanged.
    """

    def __init__(self) -> None:
        require("`tokenizer` kiwi", "korean")
        import kiwipiepy

        # A positive number, since the meaning of 0 and -1 changed between versions.
        self._kiwi: Any = kiwipiepy.Kiwi(num_workers=os.cpu_count() or 1)

    def split(self, texts: pl.Series) -> pl.Series:
        """The morphemes of texts, separated by spaces; an empty text stays empty."""
        forms = (
            [token.form for token in tokens] for tokens in self._kiwi.tokenize(texts.to_list())
        )
        words = [" ".join(filter(str.strip, morphemes)) for morphemes in forms]
        return pl.Series(texts.name, words, dtype=pl.String)


def _version_of_kiwi() -> str:
    """The versions of Kiwi and its model, which decide how texts are split."""
    names = ("kiwipiepy", "kiwipiepy_model")
    return " ".join(f"{name} {importlib.metadata.version(name)}" for name in names)


# The languages for which Anserini 1.6 has a Lucene analyzer (io.anserini.analysis.AnalyzerMap).
LANGUAGES = (
    *("ar", "bn", "da", "de", "en", "es", "fa", "fi", "fr", "hi", "hu", "id", "it", "ja"),
    *("ko", "nl", "no", "pl", "pt", "ru", "sv", "te", "th", "tr", "uk", "zh"),
)

# In the folder in which an index is built: the new one, and the old one once it has moved away.
_NEW, _OLD = "new", "old"


def build_index(
    corpus: pl.DataFrame | Iterable[pl.DataFrame],
    directory: str | Path,
    *,
    language: str = "en",
    tokenizer: Tokenizer | None = None,
    threads: int | None = None,
) -> Manifest:
    """Index the title and text of every passage, as Pyserini does by default.

    The index appears in ``directory`` when it is complete, and replaces an existing one. A corpus
    given in batches is indexed in constant memory.

    Args:
        language: selects the Lucene analyzer that splits texts into words; one of ``LANGUAGES``.
        tokenizer: splits texts and queries instead of the analyzer; ``kiwi`` is for Korean.
        threads: indexing threads; None for all CPUs. Search results do not depend on them.

    Raises:
        InputError: ``directory`` holds something other than an index of this engine, there is no
            Java 21, the language is unknown, or the corpus cannot be read.
        WriteError: the disk is full; an existing index stays.
    """
    directory = Path(directory).resolve()
    # Move an index back that a process was replacing when it was killed, between the two moves.
    for work in abandoned(directory.parent, of=directory):
        if (work / _OLD).is_dir() and not directory.exists():
            (work / _OLD).rename(directory)
    manifest.require_place(directory, "bm25")
    if language not in LANGUAGES:
        remedy = f"use one of {', '.join(LANGUAGES)}"
        raise InputError(f"unknown language {language!r}", remedy, "index.language")
    require("an index for BM25", "retrieval", "pyserini")
    kiwi = Kiwi() if tokenizer else None
    fingerprint = Fingerprint()
    batches = [corpus] if isinstance(corpus, pl.DataFrame) else corpus
    with reported_writing(directory), temporary_directory(directory) as work:
        new = work / _NEW
        new.mkdir()
        contents, splits = _contents(batches, fingerprint, kiwi), None if tokenizer else language
        lucene.index(contents, new, splits, threads=threads or os.cpu_count() or 1)
        version = _version_of_kiwi() if tokenizer else None
        settings = {"language": language, "tokenizer": tokenizer, "tokenizer_version": version}
        digest, versions = fingerprint.hexdigest(), manifest.versions("pyserini")
        index = Manifest("bm25", fingerprint.rows, digest, settings, versions)
        manifest.write(index, new)
        _move_into_place(work, directory)
    return index


def _move_into_place(work: Path, directory: Path) -> None:
    old = work / _OLD
    try:
        if directory.exists():
            os.replace(directory, old)
        os.replace(work / _NEW, directory)
    except BaseException:
        if old.exists() and not directory.exists():
            os.replace(old, directory)
        raise


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

    Queries without any hit, such as queries of stop words, have no rows. Equal scores are ordered by document id, as
    Anserini orders them.

    Args:
        queries: ``query_id`` and ``query``.
        k1, b: BM25's parameters (Robertson et al. 1994; defaults are Anserini's).
        threads: search threads; None for all CPUs.

    Raises:
        InputError: ``directory`` is not a BM25 index, or another version of Kiwi split its texts.
    """
    directory = Path(directory)
    index = manifest.read(directory, "bm25")
    require("BM25", "retrieval", "pyserini")
    settings = index.settings
    if settings["tokenizer"]:
        kiwi = Kiwi()
        if settings["tokenizer_version"] != (installed := _version_of_kiwi()):
            problem = f"was split into morphemes by {settings['tokenizer_version']}; {installed} is installed"
            remedy = "install that version, or build the index again"
            raise InputError(problem, remedy, "index.version", path=directory)
        queries = queries.with_columns(kiwi.split(queries[QUERY]))
    language = None if settings["tokenizer"] else settings["language"]
    options = {"language": language, "threads": threads or os.cpu_count() or 1}
    k = min(k, index.passages)
    return lucene.search_lucene(queries, directory, name=name, k=k, k1=k1, b=b, **options)


def _contents(
    batches: Iterable[pl.DataFrame], fingerprint: Fingerprint, kiwi: Kiwi | None
) -> Iterator[pl.DataFrame]:
    """Title and text on a line each, as in Pyserini's collections."""
    title, text = pl.col(TITLE), pl.col(TEXT)
    for batch in map(fingerprint.update, batches):
        joined = pl.when(title == "").then(text).otherwise(title + "\n" + text)
        frame = batch.select(DOC_ID, joined.alias(lucene.CONTENTS))
        yield frame.with_columns(kiwi.split(frame[lucene.CONTENTS])) if kiwi else frame
