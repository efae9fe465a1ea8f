"""Writing passages as a corpus while the articles that they are cut from are streamed."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from engine import tables
from engine.messages.errors import InputError
from engine.sources.articles.ids import ArticleIds
from engine.sources.articles.read import (
    CHUNK_BYTES,
    Chunk,
    article_chunks,
    parse_chunk,
    source_files,
)
from engine.sources.io.files import atomic_directory, atomic_path
from engine.sources.io.locations import Location
from engine.sources.io.parallel import PATIENCE, map_ordered, usable_cpus
from engine.sources.io.skipping import SkipBad, tolerance
from engine.sources.passages.cut import ArticleId, Row, article_passages
from engine.sources.passages.splitting import Cutting

_SCHEMA = pa.schema([(name, pa.string()) for name in tables.CORPUS])


class Portions(NamedTuple):
    """How much is done at a time; the passages and their order do not depend on it.

    Attributes:
        chunk: bytes of the articles that are cut together, about.
        group: passages that are written together, a row group of the file.
        shard: passages of each file of a directory.
        patience: seconds of work before processes are started.
    """

    chunk: int = CHUNK_BYTES
    group: int = 50_000
    shard: int = 1_000_000
    patience: float = PATIENCE


USUAL = Portions()


@dataclass(frozen=True)
class Written:
    """Counts of what was written.

    Attributes:
        passages: passages written.
        articles: articles with passages.
        empty: articles without text, and so without passages.
        files: Parquet files written.
    """

    passages: int
    articles: int
    empty: int
    files: int


def write_passages(
    sources: Sequence[Location],
    out: Path,
    *,
    cutting: Cutting,
    article_id: ArticleId | None = None,
    workers: int | None = None,
    skip_bad: int | SkipBad = 0,
    portions: Portions = USUAL,
) -> Written:
    """Cut the articles of the sources and write the passages as a corpus, whole or not at all.

    One pass in constant memory: some megabytes per worker, a group of 50,000 passages, and 8 to 16
    bytes per article to detect duplicate ids. The passages, their order and the files are the same
    for any number of workers.

    Args:
        sources: files, directories or addresses.
        out: a ``.parquet`` file, or a new directory for shards of a million passages each.
        cutting: how articles are cut.
        article_id: as in ``article_passages``.
        workers: processes, by default one per CPU; a few seconds of work are done in this process.
        skip_bad: bad records to tolerate, or the ``SkipBad`` that counts them.
        portions: how much is done at a time.

    Raises:
        InputError: a source cannot be used, an article id is duplicated, there is no text at all,
            or there are more bad records than tolerated.
    """
    skip = tolerance(skip_bad)
    ids = ArticleIds(sources)
    files = source_files(sources)
    chunks = (
        chunk for file in files for chunk in article_chunks(file, skip=skip, size=portions.chunk)
    )
    work = functools.partial(_cut_chunk, cutting=cutting, article_id=article_id)
    articles = empty = 0
    single = out.suffix == ".parquet"
    with (atomic_path if single else atomic_directory)(out) as temporary:
        with _Writer(temporary, portions.group, None if single else portions.shard) as writer:
            for piece in map_ordered(
                work, chunks, workers=workers or usable_cpus(), patience=portions.patience
            ):
                for error in piece.errors:
                    skip.tolerate(error)
                ids.add(piece.ids)
                articles += len(piece.ids) - piece.empty
                empty += piece.empty
                writer.add(piece.table)
        if not writer.passages:
            raise InputError("has no article with text", "give another source", path=sources[0])
    return Written(writer.passages, articles, empty, writer.files)


@dataclass(frozen=True)
class _Cut:
    """The result of one chunk; ``empty`` of the articles in ``ids`` have no text."""

    table: pa.Table
    ids: list[str]
    empty: int
    errors: list[InputError]


def _cut_chunk(chunk: Chunk, *, cutting: Cutting, article_id: ArticleId | None) -> _Cut:
    rows: list[Row] = []
    ids: list[str] = []
    errors: list[InputError] = []
    empty = 0
    for _, article in parse_chunk(chunk):
        if isinstance(article, InputError):
            errors.append(article)
            continue
        before = len(rows)
        rows += article_passages(article, cutting, article_id)
        ids.append(article.page_id)
        empty += len(rows) == before
    columns = zip(*rows, strict=True) if rows else [()] * len(_SCHEMA)
    table = pa.table([pa.array(column, pa.string()) for column in columns], schema=_SCHEMA)
    return _Cut(table, ids, empty, errors)


class _Writer:
    """Writes tables as Parquet in groups of rows: to the file ``path``, or to shards under it."""

    def __init__(self, path: Path, group: int, shard: int | None) -> None:
        self.passages = 0
        self.files = 0
        self._path = path
        self._group = group
        self._shard = shard
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._file: pq.ParquetWriter | None = None

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None and self._pending_rows:
            self._write(pa.concat_tables(self._pending))
        self._close()

    def add(self, table: pa.Table) -> None:
        self._pending.append(table)
        self._pending_rows += table.num_rows
        if self._pending_rows < self._group:
            return
        rows = pa.concat_tables(self._pending)
        while rows.num_rows >= self._group:
            self._write(rows.slice(0, self._group))
            rows = rows.slice(self._group)
        self._pending, self._pending_rows = [rows], rows.num_rows

    def _write(self, rows: pa.Table) -> None:
        if self._file is None:
            name = self._path if self._shard is None else self._path / f"{self.files:05}.parquet"
            self._file = pq.ParquetWriter(name, _SCHEMA, compression="zstd")
            self.files += 1
        self._file.write_table(rows, row_group_size=self._group)
        self.passages += rows.num_rows
        if self._shard is not None and self.passages >= self.files * self._shard:
            self._close()

    def _close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
