"""Articles from MediaWiki XML dumps.

Dumps are streamed: they are cut at their page elements without parsing them, so that pages can be
parsed in other processes, a broken page does not affect the rest, and memory holds one page at a
time.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from typing import IO

from engine.messages.errors import InputError
from engine.sources.articles.article import Article
from engine.sources.io.lines import damaged
from engine.sources.io.locations import DAMAGE, Location, open_decompressed, require_file
from engine.sources.io.skipping import SkipBad

_WHAT = "a MediaWiki dump, pages-articles (.xml, .xml.bz2 or .xml.gz)"
_OPEN, _CLOSE, _END = b"<page>", b"</page>", b"</mediawiki>"
# In concatenated dumps between two pages: the end of one and the head of the next.
_HEADS = (_END, b"<mediawiki", b"<siteinfo")


def raw_pages(
    path: Location, *, skip: SkipBad, block: int = 1 << 20, largest: int = 256 << 20
) -> Iterator[tuple[int, bytes]]:
    """Yield (line number from 1, unparsed ``<page>…</page>``) of a dump.

    Text between pages and pages without an end tag are bad records.

    A page has ``largest`` bytes at most. Wikipedia's largest have 2 MB; with its full history one may have
    gigabytes. ``block`` bytes are read at a time.

    Raises:
        InputError: the file is missing, is not a MediaWiki dump, is truncated, or has more bad records than
            ``skip`` tolerates.
    """
    path = require_file(path, _WHAT)
    pages = _Pages(path, skip)
    try:
        with open_decompressed(path) as stream:
            yield from pages.cut(stream, block, largest)
    except DAMAGE as error:
        raise damaged(path, pages.line, error) from None


class _Pages:
    """The position in a dump: ``buffer`` holds what was read but not yet cut, from ``line`` on."""

    def __init__(self, path: Location, skip: SkipBad) -> None:
        self.path = path
        self.skip = skip
        self.line = 1
        self.buffer = b""
        self.at = 0  # everything before it in the buffer is already cut

    def cut(self, stream: IO[bytes], size: int, largest: int) -> Iterator[tuple[int, bytes]]:
        any_page = False
        searched = 0  # there is no end tag of a page before this position in the buffer
        while block := stream.read(size):
            self.buffer += block
            while (end := self.buffer.find(_CLOSE, searched)) >= 0:
                searched = end + len(_CLOSE)
                page = self._page(searched, first=not any_page)
                if page is not None:
                    any_page = True
                    yield page
            self.buffer, self.at = self.buffer[self.at :], 0
            searched = max(0, len(self.buffer) - len(_CLOSE))
            if len(self.buffer) > largest:
                problem = f"a page of more than {largest >> 20} MiB, or a page without an end tag"
                line = _first_line(self.line, self.buffer)
                raise InputError(problem, f"give {_WHAT}", path=self.path, line=line)
        self._finish(any_page)

    def _page(self, end: int, *, first: bool) -> tuple[int, bytes] | None:
        """The page that ends here, after a check of the text before it."""
        line, text = self.line, self.buffer[self.at : end]
        self.at = end
        self.line += text.count(b"\n")
        start = text.rfind(_OPEN)
        if start < 0:
            self._bad(_first_line(line, text), "an end tag of a page without its start tag")
            return None
        before = text[:start]
        opened = before.find(_OPEN)
        if opened >= 0:
            self._bad(line + before[:opened].count(b"\n"), "a page without an end tag")
        elif before.strip() and not first and not before.lstrip().startswith(_HEADS):
            self._bad(_first_line(line, before), f"text between pages: {before.strip()[:40]!r}")
        return line + before.count(b"\n"), text[start:]

    def _finish(self, any_page: bool) -> None:
        opened = self.buffer.find(_OPEN)
        if not any_page and opened < 0:
            raise InputError("holds no <page>", f"give {_WHAT}", path=self.path)
        if opened >= 0 or not self.buffer.rstrip().endswith(_END):
            line = self.line + self.buffer.count(b"\n")
            where = "within a page" if opened >= 0 else "before </mediawiki>"
            raise _malformed(self.path, line, f"ends {where}")

    def _bad(self, line: int, problem: str) -> None:
        self.skip.tolerate(_malformed(self.path, line, problem))


def _malformed(path: Location, line: int, problem: str) -> InputError:
    remedy = "download the dump again"
    return InputError(f"not well-formed XML ({problem})", remedy, path=path, line=line)


def _first_line(line: int, text: bytes) -> int:
    """The line of the first word of a text that starts in ``line``."""
    return line + text[: len(text) - len(text.lstrip())].count(b"\n")


def parse_page(path: Location, line: int, page: bytes, *, prose: bool = True) -> Article | None:
    """The article of one page; None for redirects and other namespaces.

    Without ``prose`` its text is empty: to render it takes most of the time.

    Raises:
        InputError: the page, which begins in ``line`` of the dump, is not well-formed.
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

            text = plain_text(markup)
    except RecursionError:
        problem = "a page whose markup is nested too deeply"
        raise InputError(problem, "leave the page out", path=path, line=line) from None
    return Article(element.findtext("id") or "", element.findtext("title") or "", text)
