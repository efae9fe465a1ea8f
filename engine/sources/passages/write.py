"""Writing passages as a corpus while the articles that they are cut from are streamed, whose ids must differ."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from engine import tables
from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.sources.articles.read import (
    CHUNK_BYTES,
    Chunk,
    article_chunks,
    parse_chunk,
    source_files,
)
from engine.sources.io.files import atomic_directory, atomic_path
from engine.sources.io.ids import IdHashes
from engine.sources.io.locations import Location
from engine.sources.io.parallel import PATIENCE, map_ordered
from engine.sources.io.records import SkipBad, tolerance
from engine.sources.passages.cut import ArticleId, CutSettings, Row, article_passages

_Place = tuple[Location, int | None]


def _ids(sources: Sequence[Location]) -> Iterator[tuple[str, _Place]]:
    unlimited = SkipBad(limit=2**63)
    for file in source_files(sources):
        for chunk in article_chunks(file, skip=unlimited, prose=False):
            for line, article in unlimited.parsed(chunk.parse, file, chunk.records):
                if article is not None:
                    yield article.page_id, (file, line)


def _duplicate(page_id: str, place: _Place, first_place: _Place) -> InputError:
    path, line = place
    first_path, first_line = first_place
    where = "occurs more than once"
    if first_line is not None:
        where = f"already occurs in line {first_line}{f' of {first_path}' * (first_path != path)}"
    elif first_path != path:
        where = f"already occurs in {first_path}"
    problem = f"article id {quoted(page_id)} {where}"
    return InputError(problem, "make article ids unique", "articles.twice", path=path, line=line)


_SCHEMA = pa.schema([(name, pa.string()) for name in tables.CORPUS])
# The passages and their order do not depend on these sizes: bytes of articles that are cut together, passages of a row
# group, passages per file of a directory, seconds before processes are started.
_CHUNK, _GROUP, _SHARD, _PATIENCE = CHUNK_BYTES, 50_000, 1_000_000, PATIENCE


@dataclass(frozen=True)
class PassageCounts:
    """Counts of the output: ``articles`` have passages, ``empty`` ones no text."""

    passages: int
    articles: int
    empty: int
    files: int


def write_passages(
    sources: Sequence[Location],
    out: Path,
    *,
    cutting: CutSettings,
    article_id: ArticleId | None = None,
    workers: int | None = None,
    skip_bad: int | SkipBad = 0,
) -> PassageCounts:
    """Cut the articles of the sources and write the passages as a corpus, whole or not at all.

    One pass in constant memory: some megabytes per worker, a group of 50,000 passages, and 8 to 16 bytes per article to
    detect duplicate ids. The passages, their order and the files are the same for any number of workers.

    Args:
        out: a ``.parquet`` file, or a new directory for shards of a million passages each.
        article_id: as in ``article_passages``.
        workers: processes, by default one per CPU; a few seconds of work are done in this process.

    Raises:
        InputError: a source cannot be used or has no text, an id is duplicated, or more bad records than tolerated.
    """
    skip = tolerance(skip_bad)
    hashes = IdHashes()
    chunks_of = functools.partial(article_chunks, skip=skip, size=_CHUNK)
    chunks = itertools.chain.from_iterable(map(chunks_of, source_files(sources)))
    work = functools.partial(_cut_chunk, cutting=cutting, article_id=article_id)
    articles = empty = 0

    def pieces() -> Iterator[pa.Table]:
        nonlocal articles, empty
        cpus = workers or len(os.sched_getaffinity(0))
        cuts = map_ordered(work, chunks, workers=cpus, patience=_PATIENCE)
        for table, page_ids, without_text, errors in cuts:
            for error in errors:
                skip.tolerate(error)
            if repeat := hashes.repeat(pl.Series(page_ids, dtype=pl.String), _ids(sources)):
                raise _duplicate(*repeat)
            articles += len(page_ids) - without_text
            empty += without_text
            yield table

    single = out.suffix == ".parquet"
    with (atomic_path if single else atomic_directory)(out) as temporary:
        passages, files = _write(pieces(), temporary, None if single else _SHARD)
        if not passages:
            problem, remedy = "has no article with text", "give another source"
            raise InputError(problem, remedy, "articles.none", path=sources[0])
    return PassageCounts(passages, articles, empty, files)


def _cut_chunk(
    chunk: Chunk, *, cutting: CutSettings, article_id: ArticleId | None
) -> tuple[pa.Table, list[str], int, list[InputError]]:
    """The passages of a chunk, ids of its articles, the number of articles without text, and the errors of others."""
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
    return table, ids, empty, errors


def _write(tables: Iterator[pa.Table], path: Path, shard: int | None) -> tuple[int, int]:
    """Write tables to a file, or to shards in a folder; returns the numbers of passages and files."""
    passages = count = 0
    with contextlib.ExitStack() as opened:
        for rows in _grouped(tables, _GROUP):
            if not count or (shard is not None and passages >= count * shard):
                opened.close()
                name = path if shard is None else path / f"{count:05}.parquet"
                file = opened.enter_context(pq.ParquetWriter(name, _SCHEMA, compression="zstd"))
                count += 1
            file.write_table(rows, row_group_size=_GROUP)
            passages += rows.num_rows
    return passages, count


def _grouped(tables: Iterator[pa.Table], rows: int) -> Iterator[pa.Table]:
    pending = _SCHEMA.empty_table()
    for table in tables:
        pending = pa.concat_tables([pending, table])
        while pending.num_rows >= rows:
            yield pending.slice(0, rows)
            pending = pending.slice(rows)
    if pending.num_rows:
        yield pending
