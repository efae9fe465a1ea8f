"""Articles from sources of any layout, in chunks that other processes can parse."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from engine.messages.errors import InputError
from engine.messages.extras import require
from engine.sources.articles.article import Article
from engine.sources.articles.jsonl import (
    ID_FIELDS,
    NAME_FIELDS,
    TEXT_FIELDS,
    TITLE_FIELDS,
    parse_record,
)
from engine.sources.articles.mediawiki import parse_page, raw_pages
from engine.sources.articles.squad import is_squad, read_squad
from engine.sources.io.lines import damaged, decode_line, parse_json_object, raw_lines
from engine.sources.io.locations import (
    DAMAGE,
    PACKED,
    Location,
    is_directory,
    list_files,
    locate,
    name_of,
    named,
    open_decompressed,
    require_file,
)
from engine.sources.io.parquet import open_parquet
from engine.sources.io.skipping import SkipBad, tolerance

Layout = Literal["mediawiki", "json-lines", "squad", "parquet"]

WHAT = "articles: a MediaWiki dump, JSONL, Parquet, a SQuAD document, or a directory of such files"
# Half a second of work for wikitext.
CHUNK_BYTES = 1 << 20
_KNOWN = (".xml", ".jsonl", ".json", ".parquet", ".pq")


@dataclass(frozen=True)
class Chunk:
    """Consecutive records of one file, not yet parsed.

    Attributes:
        records: each with the line in which it starts, counted from 1; None if lines have no
            meaning.
    """

    path: Location
    layout: Layout
    records: Sequence[tuple[int | None, Any]]


def source_files(sources: Sequence[Location]) -> list[Location]:
    """The files of the sources, in their order.

    A directory stands for its ``corpus.jsonl`` (BEIR), else for its files with a known suffix
    (``.xml``, ``.jsonl``, ``.json``, also ``.gz`` or ``.bz2`` of these, ``.parquet``), ordered by
    name.

    Raises:
        InputError: no such file, or a directory without any of these.
    """
    files: list[Location] = []
    for source in map(locate, sources):
        if not is_directory(source):
            files.append(require_file(source, WHAT))
            continue
        inside = list_files(source)
        beir = named(inside, "corpus.jsonl")
        known = beir[:1] or [f for f in inside if _unpacked(f).endswith(_KNOWN)]
        if not known:
            raise InputError("a directory without articles", f"give {WHAT}", path=source)
        files += known
    return files


def layout_of(path: Location) -> Layout:
    """The layout of a file, by its first bytes.

    Parquet starts with ``PAR1``, a MediaWiki dump with ``<``; JSON is a SQuAD document if
    ``is_squad`` is true, else JSONL.

    Raises:
        InputError: the file cannot be read.
    """
    try:
        with open_decompressed(path) as stream:
            start = stream.read(1 << 16)
    except DAMAGE as error:
        raise damaged(path, 1, error) from None
    if start.startswith(b"PAR1"):
        return "parquet"
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if text.startswith(b"<"):
        return "mediawiki"
    if text and text[:1] not in b"{[":
        raise InputError(f"starts with {text[:20]!r}", f"give {WHAT}", path=path, line=1)
    return "squad" if is_squad(path) else "json-lines"


def article_chunks(
    path: Location, *, skip: SkipBad, prose: bool = True, size: int = CHUNK_BYTES, rows: int = 1000
) -> Iterator[Chunk]:
    """Cut a file into chunks of at most some megabytes, without parsing it.

    Args:
        prose: whether texts will be rendered, as in ``parse_chunk``.
        size, rows: bytes of a chunk of lines or pages, about, and rows of one of other layouts.

    Raises:
        InputError: the file cannot be read, has more bad records than ``skip`` tolerates, or is a dump of
            wikitext which nothing installed renders.
    """
    layout = layout_of(path)
    if layout == "mediawiki" and prose:
        require("a MediaWiki dump", "articles", "mwparserfromhell")
    if layout == "squad":
        articles = [(None, article) for article, _ in read_squad(path)]
        for start in range(0, len(articles), rows):
            yield Chunk(path, layout, articles[start : start + rows])
        return
    if layout == "parquet":
        known = {*ID_FIELDS, *TITLE_FIELDS, *TEXT_FIELDS, *NAME_FIELDS}
        with open_parquet(path) as table:
            for batch in table.batches(rows, known):
                yield Chunk(path, layout, [(None, row) for row in batch.iter_rows(named=True)])
        return
    records: list[tuple[int | None, bytes]] = []
    held = 0
    for record in raw_pages(path, skip=skip) if layout == "mediawiki" else raw_lines(path, WHAT):
        records.append(record)
        held += len(record[1])
        if held >= size:
            yield Chunk(path, layout, records)
            records, held = [], 0
    if records:
        yield Chunk(path, layout, records)


def parse_chunk(
    chunk: Chunk, *, prose: bool = True
) -> Iterator[tuple[int | None, Article | InputError]]:
    """Yield every article of a chunk with its line, and for a bad record its error instead.

    Redirects and other namespaces of dumps are left out. Without ``prose``, texts of dumps are empty: to
    render them takes most of the time.
    """
    for line, record in chunk.records:
        try:
            article = _parse(chunk, line, record, prose=prose)
        except InputError as error:
            yield line, error
            continue
        if article is not None:
            yield line, article


def read_source(path: Location, *, skip_bad: int | SkipBad = 0) -> Iterator[Article]:
    """Yield the articles of a file or directory of any layout.

    Raises:
        InputError: the source cannot be read, or has more bad records than tolerated.
    """
    skip = tolerance(skip_bad)
    for file in source_files([path]):
        for chunk in article_chunks(file, skip=skip):
            for _, article in parse_chunk(chunk):
                if isinstance(article, InputError):
                    skip.tolerate(article)
                else:
                    yield article


def _parse(chunk: Chunk, line: int | None, record: Any, *, prose: bool) -> Article | None:
    if chunk.layout == "squad":
        assert isinstance(record, Article)
        return record
    if chunk.layout == "parquet":
        return parse_record(chunk.path, line, record)
    if chunk.layout == "mediawiki":
        return parse_page(chunk.path, line or 1, record, prose=prose)
    text = decode_line(chunk.path, line or 1, record)
    return parse_record(chunk.path, line, parse_json_object(chunk.path, line or 1, text))


def _unpacked(path: Location) -> str:
    name = name_of(path).lower()
    for suffix in PACKED:
        name = name.removesuffix(suffix)
    return name
