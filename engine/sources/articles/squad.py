"""SQuAD's JSON, which KorQuAD 1.0 and KLUE-MRC use too.

One document ``{"data": [{"title", "paragraphs": [{"context", "qas": […]}]}]}``. It is read as a
whole, since JSON of this form is not divided into lines (SQuAD 2.0 has 42 MB).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine.messages.errors import InputError
from engine.sources.articles.article import Article
from engine.sources.io.json_text import parse_json
from engine.sources.io.lines import raw_lines, read_json_document, start_of
from engine.sources.io.locations import Location, name_of

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
        # Of the files that can be read, only a document may have a first line this long.
        return start_of(path, "JSON").startswith(b"{")
    try:
        first = parse_json(line)
    except ValueError:
        return line.strip() in (b"{", b"[") or (bool(line) and name_of(path).endswith(_NAMES))
    return isinstance(first, dict) and isinstance(first.get("data"), list)


def read_squad(path: Location) -> Iterator[tuple[Article, list[dict[str, Any]]]]:
    """Yield each context of a document as a separate article, with its questions: the raw objects under ``qas``.

    So a passage never crosses contexts. An article is named by the title of its entry in ``data``, which all its
    questions share and of which all passages are gold for them, or without one by the entry's number, counted from 0. Its page id is ``file-entry.context``: the file's name without
    suffixes, and both numbers counted from 0, so that the parts of a data set can form one corpus.

    Raises:
        InputError: not such a document; if its JSON is broken, the error names the line.
    """
    document = read_json_document(path, "a SQuAD document")
    entries = document.get("data") if isinstance(document, dict) else None
    if not isinstance(entries, list):
        raise InputError('JSON without a list "data"', _REMEDY, path=path)
    stem = "_".join(name_of(path).split(".json")[0].split())
    for number, entry in enumerate(entries):
        paragraphs = entry.get("paragraphs") if isinstance(entry, dict) else None
        if not isinstance(paragraphs, list):
            raise InputError(f"data[{number}] has no paragraphs", _REMEDY, path=path)
        title = str(entry.get("title") or "")
        for place, paragraph in enumerate(paragraphs):
            where = f"data[{number}].paragraphs[{place}]"
            context = paragraph.get("context") if isinstance(paragraph, dict) else None
            if not isinstance(context, str):
                raise InputError(f"{where} has no context", _REMEDY, path=path)
            questions = paragraph.get("qas") or []
            if not isinstance(questions, list) or not all(isinstance(q, dict) for q in questions):
                raise InputError(f"{where}.qas is not a list of objects", _REMEDY, path=path)
            page_id = f"{stem}-{number}.{place}"
            yield Article(page_id, title, context, title or str(number)), questions
