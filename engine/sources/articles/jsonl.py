"""Articles from records: KILT's knowledge source, JSONL, BEIR's corpora, Parquet."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.sources.articles.article import BACK_MATTER, Article
from engine.sources.fields import first_of, text_in
from engine.sources.io.files import is_text
from engine.sources.io.locations import Location

ID_FIELDS = ("id", "_id", "doc_id", "wikipedia_id")
TITLE_FIELDS = ("title", "wikipedia_title")
TEXT_FIELDS = ("text", "contents")
NAME_FIELDS = ("article_id", "wikipedia_id")

_SECTION, _BULLET = "Section::::", "BULLET::::"


def parse_record(path: Location, number: int | None, record: Mapping[str, Any]) -> Article:
    """The article of one record.

    Its id is ``id`` (or ``_id``, ``doc_id``, ``wikipedia_id``), its title ``title`` (or
    ``wikipedia_title``), its text ``text`` (or ``contents``): a string, or KILT's list of
    paragraphs. Its name in the provenance of questions is ``article_id``, else ``wikipedia_id`` (as
    in KILT), else its title.

    Raises:
        InputError: there is no id or no text.
    """
    fault = partial(InputError, path=path, line=number)
    page_id = first_of(record, ID_FIELDS)
    text = text_in(record, TEXT_FIELDS)
    title = str(first_of(record, TITLE_FIELDS) or "")
    if isinstance(text, list) and all(isinstance(part, str) for part in text):
        text = kilt_text(text, title)
    if page_id is None or isinstance(page_id, (bool, dict, list)) or not isinstance(text, str):
        raise fault("an article without id or text", 'add "id" and "text"')
    if isinstance(page_id, float):
        raise fault(f"the id {quoted(page_id)}", "write ids as strings or whole numbers")
    article = Article(str(page_id), title, text, str(first_of(record, NAME_FIELDS) or ""))
    if not is_text(article.page_id, article.title, article.text, article.name):
        raise fault(f"article {quoted(page_id)} holds half a surrogate pair", "write valid Unicode")
    return article


def kilt_text(paragraphs: list[str], title: str) -> str:
    """The prose of an article of KILT's knowledge source, one paragraph per line.

    The first paragraph is left out if it repeats the title. Headings (``Section::::History.``,
    ``Section::::History.:Early years.``) are left out, and list items (``BULLET::::- item``) lose
    their marker, so that passages contain running text as DPR's do. Sections after the prose (see
    also, references …) are left out completely. MediaWiki dumps are treated in the same way.
    """
    kept: list[str] = []
    skipping = False
    for place, paragraph in enumerate(paragraphs):
        line = " ".join(paragraph.split())
        if place == 0 and line == title:
            continue
        if line.startswith(_SECTION):
            path = line.removeprefix(_SECTION).split(".:")
            skipping = any(part.strip(" .:").lower() in BACK_MATTER for part in path)
        elif line and not skipping:
            item = line.startswith(_BULLET)
            kept.append(line.removeprefix(_BULLET).lstrip("- ") if item else line)
    return "\n".join(kept)
