"""Articles, from which passages are cut, from sources of any layout, in chunks that other processes can parse.

MediaWiki XML dumps are streamed: they are cut at their page elements without parsing them, so that pages can be
parsed in other processes, a broken page does not affect the rest, and memory holds one page at a time. Records are KILT's
knowledge source, JSONL, BEIR's corpora and Parquet; SQuAD's JSON, which KorQuAD 1.0 and KLUE-MRC use too, is a document.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from engine.messages.characters import composed
from engine.messages.errors import InputError
from engine.messages.extras import require
from engine.messages.wording import quoted
from engine.sources.fields import first_of, text_in
from engine.sources.io import locations, records
from engine.sources.io.files import is_text
from engine.sources.io.locations import DAMAGE, PACKED, Location
from engine.sources.io.parquet import open_parquet
from engine.sources.io.records import BOM, SkipBad, raw_lines, tolerance

# Sections that contain references rather than prose (the DPR passages leave them out too).
_SECTIONS = (
    "references, external links, see also, further reading, notes, bibliography, footnotes, sources, "
    "citations, notes and references, works cited, gallery, filmography and references"
)
BACK_MATTER = frozenset(_SECTIONS.split(", "))


@dataclass(frozen=True)
class Article:
    """One article.

    Attributes:
        page_id: its id in the source.
        title, text: may be empty; composed (NFC), as the name is.
        name: identifies it in the provenance of questions; if empty, the title does, or without one the id.
    """

    page_id: str
    title: str
    text: str
    name: str = ""

    def __post_init__(self) -> None:
        for part in ("title", "text", "name"):
            object.__setattr__(self, part, composed(getattr(self, part)))


ID_FIELDS = ("id", "_id", "doc_id", "wikipedia_id")
TITLE_FIELDS = ("title", "wikipedia_title")
TEXT_FIELDS = ("text", "contents")
NAME_FIELDS = ("article_id", "wikipedia_id")

_SECTION, _BULLET = "Section::::", "BULLET::::"


def parse_record(path: Location, number: int | None, record: Mapping[str, Any]) -> Article:
    """The article of a record; an InputError without id or text.

    Its id is ``id`` (or ``_id``, ``doc_id``, ``wikipedia_id``), its title ``title`` (or ``wikipedia_title``), its text
    ``text`` (or ``contents``): a string, or KILT's list of paragraphs. Its name in the provenance of questions is
    ``article_id``, else ``wikipedia_id`` (as in KILT), else its title.
    """
    fault = partial(InputError, path=path, line=number)
    page_id = first_of(record, ID_FIELDS)
    text = text_in(record, TEXT_FIELDS)
    title = str(first_of(record, TITLE_FIELDS) or "")
    if isinstance(text, list) and all(isinstance(part, str) for part in text):
        text = kilt_text(text, title)
    if page_id is None or isinstance(page_id, (bool, dict, list)) or not isinstance(text, str):
        raise fault("an article without id or text", 'add "id" and "text"', "articles.text")
    if isinstance(page_id, float):
        remedy = "write ids as strings or whole numbers"
        raise fault(f"the id {quoted(page_id)}", remedy, "articles.id")
    article = Article(str(page_id), title, text, str(first_of(record, NAME_FIELDS) or ""))
    if not is_text(article.page_id, article.title, article.text, article.name):
        problem = f"article {quoted(page_id)} holds half a surrogate pair"
        raise fault(problem, "write valid Unicode", "articles.surrogate")
    return article


def kilt_text(paragraphs: list[str], title: str) -> str:
    """The prose of an article of KILT's knowledge source, one paragraph per line.

    Left out are a first paragraph that repeats the title, headings (``Section::::History.``), markers of list items
    (``BULLET::::- item``) and sections after the prose (see also, references …), as from MediaWiki dumps.
    """
    prose: list[str] = []
    skipping = False
    for place, paragraph in enumerate(paragraphs):
        line = " ".join(paragraph.split())
        if line.startswith(_SECTION):
            path = line.removeprefix(_SECTION).split(".:")
            skipping = any(part.strip(" .:").lower() in BACK_MATTER for part in path)
        elif line and not skipping and (place or line != title):
            item = line.startswith(_BULLET)
            prose.append(line.removeprefix(_BULLET).lstrip("- ") if item else line)
    return "\n".join(prose)


_REMEDY = 'write {"data": [{"title": …, "paragraphs": [{"context": …, "qas": […]}]}]}'
_NAMES = (".json", ".json.gz", ".json.bz2")


def is_squad(path: Location) -> bool:
    """Whether a file is one JSON document with ``data`` rather than JSON lines.

    That is so if its first line is an object with a list ``data``; or if the first line is not a
    complete object, and it is only a bracket or the file's name ends in ``.json``.
    """
    try:
        _, line = next(raw_lines(path, "JSON"), (1, b""))
    except InputError:
        # Among readable files, only a document may have a first line this long.
        return records.start_of(path, "JSON").startswith(b"{")
    try:
        first = records.parse_json(line)
    except ValueError:
        in_json = bool(line) and locations.name_of(path).endswith(_NAMES)
        return in_json or line.strip() in (b"{", b"[")
    return isinstance(first, dict) and isinstance(first.get("data"), list)


def read_squad(path: Location) -> Iterator[tuple[Article, list[dict[str, Any]]]]:
    """Yield each context of a document as a separate article, with its questions: the raw objects under ``qas``.

    So a passage never crosses contexts. An article's name is the title of its entry in ``data``, else the entry's
    number, counted from 0; all passages of an entry are gold for its questions. Its page id is ``file-entry.context``:
    the file's name without suffixes, and both numbers, so that parts of a data set can form a corpus. An InputError
    says that the document is none, with the line of broken JSON.
    """
    fault = partial(InputError, path=path)
    document = records.read_json_document(path, "a SQuAD document")
    entries = document.get("data") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise fault('JSON without a list "data"', _REMEDY, "articles.data")
    stem = "_".join(locations.name_of(path).split(".json")[0].split())
    for number, entry in enumerate(entries):
        paragraphs = entry.get("paragraphs") if isinstance(entry, dict) else None
        if not isinstance(paragraphs, list):
            raise fault(f"data[{number}] has no paragraphs", _REMEDY, "articles.paragraphs")
        title = str(entry.get("title") or "")
        for place, paragraph in enumerate(paragraphs):
            where = f"data[{number}].paragraphs[{place}]"
            context = paragraph.get("context") if isinstance(paragraph, dict) else None
            if not isinstance(context, str):
                raise fault(f"{where} has no context", _REMEDY, "articles.context")
            questions = paragraph.get("qas") or []
            if not isinstance(questions, list) or not all(isinstance(q, dict) for q in questions):
                raise fault(f"{where}.qas is not a list of objects", _REMEDY, "articles.questions")
            page_id = f"{stem}-{number}.{place}"
            yield Article(page_id, title, context, title or str(number)), questions


_DUMP = "a MediaWiki dump, pages-articles (.xml, .xml.bz2 or .xml.gz)"
_OPEN, _CLOSE, _END = b"<page>", b"</page>", b"</mediawiki>"
# Between two pages of concatenated dumps: the end of a dump and the head of the next.
_HEADS = (_END, b"<mediawiki", b"<siteinfo")


def raw_pages(
    path: Location, *, skip: SkipBad, block: int = 1 << 20, largest: int = 256 << 20
) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, unparsed ``<page>…</page>``) of a dump.

    Text between pages and pages without an end tag are bad records. A page has ``largest`` bytes at most (Wikipedia's
    largest have 2 MB, with their full history gigabytes); ``block`` bytes are read at a time. An InputError says that
    the file is missing, no dump or cut short, or has more bad records than ``skip`` tolerates.
    """
    path = locations.require_file(path, _DUMP)
    remedy = f"give {_DUMP}"
    # Bytes read but not yet cut, and the line in which they begin.
    buffer, line, any_page = b"", 1, False

    def bad(number: int, problem: str) -> None:
        skip.tolerate(_malformed(path, number, problem))

    try:
        with locations.open_decompressed(path) as stream:
            while more := stream.read(block):
                # No end tag begins before ``searched``; all before ``at`` is cut.
                searched, at = max(0, len(buffer) - len(_CLOSE)), 0
                buffer += more
                while (end := buffer.find(_CLOSE, searched)) >= 0:
                    searched = end + len(_CLOSE)
                    text, at = buffer[at:searched], searched
                    begin, line = line, line + text.count(b"\n")
                    start = text.rfind(_OPEN)
                    if start < 0:
                        bad(_first_line(begin, text), "an end tag of a page without its start tag")
                        continue
                    before = text[:start]
                    opened = before.find(_OPEN)
                    if opened >= 0:
                        bad(begin + before[:opened].count(b"\n"), "a page without an end tag")
                    elif before.strip() and any_page and not before.lstrip().startswith(_HEADS):
                        between = f"text between pages: {before.strip()[:40]!r}"
                        bad(_first_line(begin, before), between)
                    any_page = True
                    yield begin + before.count(b"\n"), text[start:]
                buffer = buffer[at:]
                if len(buffer) > largest:
                    most, line = f"{largest >> 20} MiB", _first_line(line, buffer)
                    problem = f"a page of more than {most}, or a page without an end tag"
                    raise InputError(problem, remedy, "articles.length", path=path, line=line)
        opened = buffer.find(_OPEN)
        if not any_page and opened < 0:
            raise InputError("holds no <page>", remedy, "articles.page", path=path)
        if opened >= 0 or not buffer.rstrip().endswith(_END):
            where = "within a page" if opened >= 0 else "before </mediawiki>"
            raise _malformed(path, line + buffer.count(b"\n"), f"ends {where}")
    except DAMAGE as error:
        raise records.damaged(path, line, error) from None


def _malformed(path: Location, line: int, reason: str) -> InputError:
    problem, remedy = f"not well-formed XML ({reason})", "download the dump again"
    return InputError(problem, remedy, "articles.xml", path=path, line=line)


def _first_line(line: int, text: bytes) -> int:
    """The line of the first word of a text that starts in ``line``."""
    return line + text[: len(text) - len(text.lstrip())].count(b"\n")


def parse_page(path: Location, line: int, page: bytes, *, prose: bool = True) -> Article | None:
    """The article of a page that begins in ``line`` of a dump; None for redirects and other namespaces.

    Its text is empty if ``prose`` is false: rendering takes most of the time. An InputError says that the page is not
    well-formed, or is nested too deeply.
    """
    try:
        element = ElementTree.fromstring(page)
    except ElementTree.ParseError as error:
        raise _malformed(path, line + error.position[0] - 1, error.msg) from None
    if element.findtext("ns") != "0" or element.find("redirect") is not None:
        return None
    markup = element.findtext("revision/text") or ""
    try:
        text = ""
        if prose:  # mwparserfromhell takes a while to import, and other layouts do not need it
            from engine.sources.articles.wikitext import plain_text

            text = plain_text(markup, BACK_MATTER)
    except RecursionError:
        problem, remedy = "a page whose markup is nested too deeply", "leave the page out"
        raise InputError(problem, remedy, "articles.depth", path=path, line=line) from None
    return Article(element.findtext("id") or "", element.findtext("title") or "", text)


Layout = Literal["mediawiki", "json-lines", "squad", "parquet"]

WHAT = "articles: a MediaWiki dump, JSONL, Parquet, a SQuAD document, or a directory of such files"
# Half a second of work for wikitext.
CHUNK_BYTES = 1 << 20
_KNOWN = re.compile(rf"\.(xml|jsonl?|parquet|pq)({'|'.join(map(re.escape, PACKED))})*$", re.I)


_Parser = Callable[[Location, Any, Any], Article | None]


@dataclass(frozen=True)
class Chunk:
    """Consecutive records of a file, each with its first line (None if lines have no meaning), and their parser."""

    path: Location
    parse: _Parser
    records: Sequence[tuple[int | None, Any]]


def source_files(sources: Sequence[Location]) -> list[Location]:
    """The files of the sources, in their order.

    A directory stands for its ``corpus.jsonl`` (BEIR), else for its files with a known suffix (``.xml``, ``.jsonl``,
    ``.json``, also packed as ``.gz`` or ``.bz2``, and ``.parquet``), ordered by name. An InputError refuses a missing
    file, and a directory without known ones.
    """
    files: list[Location] = []
    for source in map(locations.locate, sources):
        if not locations.is_directory(source):
            files.append(locations.require_file(source, WHAT))
            continue
        inside = locations.list_files(source)
        beir = locations.named(inside, "corpus.jsonl")
        known = beir[:1] or [f for f in inside if _KNOWN.search(locations.name_of(f))]
        if not known:
            problem = "a directory without articles"
            raise InputError(problem, f"give {WHAT}", "articles.none", path=source)
        files += known
    return files


def layout_of(path: Location) -> Layout:
    """The layout of a file, by its first bytes.

    Parquet starts with ``PAR1``, a MediaWiki dump with ``<``; JSON is a SQuAD document if ``is_squad``, else JSONL.
    """
    start = records.read_document(path, WHAT, 1 << 16)
    if start.startswith(b"PAR1"):
        return "parquet"
    text = start.removeprefix(BOM).lstrip()
    if text.startswith(b"<"):
        return "mediawiki"
    if text and text[:1] not in b"{[":
        problem = f"starts with {text[:20]!r}"
        raise InputError(problem, f"give {WHAT}", "articles.layout", path=path, line=1)
    return "squad" if is_squad(path) else "json-lines"


def article_chunks(
    path: Location, *, skip: SkipBad, prose: bool = True, size: int = CHUNK_BYTES, rows: int = 1000
) -> Iterator[Chunk]:
    """Cut a file into chunks of about ``size`` bytes of lines or pages, or ``rows`` of other layouts, unparsed.

    With ``prose``, texts will be rendered, as in ``parse_page``. An InputError says that the file cannot be read, has
    more bad records than ``skip`` tolerates, or is a dump of wikitext and no renderer is installed.
    """
    layout = layout_of(path)
    if layout == "mediawiki" and prose:
        require("a MediaWiki dump", "articles", "mwparserfromhell")
    if layout == "squad":
        articles = [(None, article) for article, _ in read_squad(path)]
        for start in range(0, len(articles), rows):
            yield Chunk(path, _parsed, articles[start : start + rows])
        return
    if layout == "parquet":
        known = {*ID_FIELDS, *TITLE_FIELDS, *TEXT_FIELDS, *NAME_FIELDS}
        with open_parquet(path) as table:
            for batch in table.batches(rows, known):
                each = [(None, row) for row in batch.iter_rows(named=True)]
                yield Chunk(path, parse_record, each)
        return
    is_dump = layout == "mediawiki"
    parse: _Parser = partial(parse_page, prose=prose) if is_dump else _parse_line
    several: list[tuple[int | None, bytes]] = []
    total = 0
    for record in raw_pages(path, skip=skip) if is_dump else raw_lines(path, WHAT):
        several.append(record)
        total += len(record[1])
        if total >= size:
            yield Chunk(path, parse, several)
            several, total = [], 0
    if several:
        yield Chunk(path, parse, several)


def _parsed(path: Location, line: None, article: Article) -> Article:
    return article


def _parse_line(path: Location, line: int, text: bytes) -> Article:
    record = records.parse_json_object(path, line, records.decode_line(path, line, text))
    return parse_record(path, line, record)


def parse_chunk(chunk: Chunk) -> Iterator[tuple[int | None, Article | InputError]]:
    """Yield every article of a chunk with its line, and for a bad record its error instead.

    Redirects and other namespaces of dumps are left out.
    """
    for line, record in chunk.records:
        article: Article | InputError | None
        try:
            article = chunk.parse(chunk.path, line, record)
        except InputError as error:
            article = error
        if article is not None:
            yield line, article


def read_source(path: Location, *, skip_bad: int | SkipBad = 0) -> Iterator[Article]:
    """Yield the articles of a file or directory of any layout; an InputError if more records are bad than tolerated."""
    skip = tolerance(skip_bad)
    for file in source_files([path]):
        for chunk in article_chunks(file, skip=skip):
            for _, article in skip.parsed(chunk.parse, chunk.path, chunk.records):
                if article is not None:
                    yield article
