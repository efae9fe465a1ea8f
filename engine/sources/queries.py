"""Queries with their references: KILT JSONL, or the queries table in Parquet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from engine import tables
from engine.errors import InputError
from engine.normalize import normalize_answer
from engine.sources.files import is_text, read_parquet
from engine.sources.lines import read_json_lines
from engine.sources.locations import Location, require_file, suffix_of

# Line in the file (None for Parquet), query id, query, answers, provenance.
_Row = tuple[int | None, str, str, list[str], list[str]]
_WHAT = 'queries in KILT JSONL: {"id": …, "input": …, "output": [{"answer": …}, …]}'


def read_queries(path: Location, *, need_answers: bool = True) -> pl.DataFrame:
    """Read queries as the queries table, in the order of the file.

    Answers are stripped and distinct, in their order. Provenance is the ``wikipedia_id`` of every
    provenance entry (its title where there is none).

    Args:
        path: KILT JSONL (``.gz`` or plain), or a ``.parquet`` file with the queries table.
        need_answers: whether a query without answers is an error (retrieval does without).

    Raises:
        InputError: unreadable or empty, a query without id, text or answers, a duplicate id, or
            answers that normalize to nothing (every empty output would match them).
    """
    path = require_file(path, _WHAT)
    if suffix_of(path) == ".parquet":
        frame = tables.conform(read_parquet(path), tables.QUERIES, path)
        rows = [_clean(path, None, *row) for row in frame.iter_rows()]
    else:
        rows = [_query(path, number, r) for number, r in read_json_lines(path, _WHAT)]
    if not rows:
        raise InputError(path, None, "no queries", f"give {_WHAT}")
    seen: dict[str, int | None] = {}
    for number, query_id, query, answers, _ in rows:
        if query_id in seen:
            before = f" (see line {seen[query_id]})" if seen[query_id] else ""
            raise InputError(
                path, number, f"duplicate query id {query_id!r}{before}", "make query ids unique"
            )
        seen[query_id] = number
        if not query.strip():
            raise InputError(path, number, f"query {query_id!r} is empty", "write its text")
        if need_answers and not answers:
            raise InputError(
                path, number, f"query {query_id!r} has no answers", "add at least one answer"
            )
        if need_answers and not any(normalize_answer(answer) for answer in answers):
            raise InputError(
                path,
                number,
                f"the answers of query {query_id!r} normalize to nothing ({answers[0]!r})",
                "an answer needs more than articles and punctuation",
            )
    return pl.DataFrame([row[1:] for row in rows], schema=tables.QUERIES, orient="row")


def _query(path: Location, number: int, record: dict[str, Any]) -> _Row:
    query_id = record.get("id")
    if isinstance(query_id, bool) or not isinstance(query_id, (str, int)) or query_id == "":
        raise InputError(path, number, "a query without an id", 'add "id"')
    query = record.get("input")
    if not isinstance(query, str):
        raise InputError(path, number, f"query {query_id!r} has no text", 'add "input"')
    outputs = record.get("output") or []
    if not isinstance(outputs, list) or not all(isinstance(output, dict) for output in outputs):
        raise InputError(
            path, number, f'"output" of query {query_id!r} is no list of objects', f"give {_WHAT}"
        )
    answers: list[str] = []
    articles: list[str] = []
    for output in outputs:
        answer = output.get("answer")
        if answer is not None and not isinstance(answer, str):
            raise InputError(
                path, number, f"an answer of query {query_id!r} is no string", "quote it"
            )
        answers.append(answer or "")
        sources = output.get("provenance") or []
        if not isinstance(sources, list) or not all(isinstance(s, dict) for s in sources):
            raise InputError(
                path,
                number,
                f'"provenance" of query {query_id!r} is no list of objects',
                'write [{"wikipedia_id": …}, …]',
            )
        articles += [str(s.get("wikipedia_id") or s.get("title") or "") for s in sources]
    return _clean(path, number, str(query_id), query, answers, articles)


def _clean(
    path: Location,
    number: int | None,
    query_id: str,
    query: str,
    answers: Sequence[str | None],
    articles: Sequence[str | None],
) -> _Row:
    if query_id.split() != [query_id]:
        raise InputError(
            path,
            number,
            f"query id {query_id!r} is empty or has white space in it",
            "run and qrels files are split at white space; use another id",
        )
    if not is_text(query_id, query, *answers, *articles):
        raise InputError(
            path, number, f"query {query_id!r} holds half a surrogate pair", "write valid Unicode"
        )
    stripped = (answer.strip() for answer in answers if answer)
    return (
        number,
        query_id,
        query,
        list(dict.fromkeys(filter(None, stripped))),
        list(dict.fromkeys(filter(None, articles))),
    )
