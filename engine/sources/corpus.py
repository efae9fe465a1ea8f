"""Corpora of passages: reading them from JSONL or Parquet."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import polars as pl

from engine import tables
from engine.errors import InputError
from engine.sources.files import is_text, read_json_lines, require_file

_WHAT = "a corpus: JSONL or Parquet with doc_id, title, text (and article_id)"
_ID_FIELDS = ("doc_id", "id", "_id")
_TEXT_FIELDS = ("text", "contents")


def read_corpus(path: str | Path, *, wanted: Collection[str] | None = None) -> pl.DataFrame:
    """Read passages as the corpus table.

    JSONL needs ``doc_id`` (or ``id``, ``_id``) and ``text`` (or ``contents``); ``title`` is empty by
    default, and ``article_id`` is ``wikipedia_id``, else the title, else the document id.

    Args:
        path: a ``.parquet`` file with the corpus table, or a JSONL file (``.gz`` or plain).
        wanted: read only these documents (the whole file is checked all the same).

    Raises:
        InputError: unreadable, empty, a passage without an id or text field, a duplicate id.
    """
    path = require_file(path, _WHAT)
    if path.suffix == ".parquet":
        return _from_parquet(path, wanted)
    keep = None if wanted is None else frozenset(wanted)
    seen: dict[str, int] = {}
    rows: list[tuple[str, str, str, str]] = []
    for number, record in read_json_lines(path, _WHAT):
        doc_id, title, text, article_id = _passage(path, number, record)
        if doc_id in seen:
            raise InputError(
                path,
                number,
                f"document id {doc_id!r} stands in line {seen[doc_id]} already",
                "give every passage an id of its own",
            )
        seen[doc_id] = number
        if keep is None or doc_id in keep:
            rows.append((doc_id, title, text, article_id))
    if not seen:
        raise InputError(path, None, "the corpus is empty", f"give {_WHAT}")
    return pl.DataFrame(rows, schema=tables.CORPUS, orient="row")


def _from_parquet(path: Path, wanted: Collection[str] | None) -> pl.DataFrame:
    doc_id = pl.col(tables.DOC_ID)
    try:
        lazy = pl.scan_parquet(path)
        if tables.DOC_ID not in lazy.collect_schema().names():
            return tables.conform(lazy.head(0).collect(), tables.CORPUS, path)  # says what lacks
        lazy = lazy.with_columns(doc_id.cast(pl.String))
        twice = lazy.select(doc_id.filter(doc_id.is_duplicated()).head(1)).collect()
        size = lazy.select(pl.len()).collect().item()
        found = lazy if wanted is None else lazy.filter(doc_id.is_in(list(wanted)))
        frame = found.collect()
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = str(error).split("\n")[0]
        raise InputError(
            path, None, f"not a readable Parquet file ({reason})", "check it"
        ) from None
    frame = tables.conform(frame, tables.CORPUS, path)
    if size == 0:
        raise InputError(path, None, "the corpus is empty", f"give {_WHAT}")
    if not twice.is_empty():
        raise InputError(
            path,
            None,
            f"document id {twice.item()!r} occurs more than once",
            "give every passage an id of its own",
        )
    return frame


def _passage(path: Path, number: int, record: dict[str, Any]) -> tuple[str, str, str, str]:
    doc_id = next((record[name] for name in _ID_FIELDS if record.get(name) not in (None, "")), None)
    if doc_id is None or isinstance(doc_id, (dict, list, bool)):
        raise InputError(path, number, "a passage without an id", "add a doc_id")
    text = next((record[name] for name in _TEXT_FIELDS if name in record), None)
    if not isinstance(text, str):
        raise InputError(path, number, f"passage {doc_id!r} has no text", 'add a "text" string')
    title = record.get(tables.TITLE) or ""
    if not isinstance(title, str):
        raise InputError(
            path, number, f"passage {doc_id!r} has a title that is no string", "fix it"
        )
    if not is_text(str(doc_id), title, text):
        raise InputError(
            path, number, f"passage {doc_id!r} holds half a surrogate pair", "write valid Unicode"
        )
    article = record.get(tables.ARTICLE_ID) or record.get("wikipedia_id") or title or doc_id
    return str(doc_id), title, text, str(article)
