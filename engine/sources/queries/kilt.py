"""Queries in KILT's JSONL (Petroni et al. 2021)."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from engine.messages.characters import composed
from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.sources.io.locations import Location
from engine.sources.queries.rows import QueryRow, clean_row, no_text

WHAT = 'queries in KILT JSONL: {"id": …, "input": …, "output": [{"answer": …}, …]}'


def kilt_row(path: Location, line: int, record: dict[str, Any]) -> QueryRow:
    """The query of one record, with the answers of all outputs and the articles of all provenance.

    An article is identified by its ``wikipedia_id``. One that has none is named by its title, and is
    among the ``titles`` of the row.

    Raises:
        InputError: there is no id or text, or the outputs have another form.
    """
    fault = partial(InputError, path=path, line=line)
    query_id = record.get("id")
    if isinstance(query_id, bool) or not isinstance(query_id, (str, int)) or query_id == "":
        raise fault("a query without an id", 'add "id"')
    query = record.get("input")
    if not isinstance(query, str):
        raise no_text(path, line, query_id, query, "input")
    answers: list[str] = []
    articles: list[str] = []
    titles: dict[str, None] = {}
    ids: set[str] = set()
    for output in _objects(record, "output", fault):
        answer = output.get("answer")
        if answer is not None and not isinstance(answer, str):
            problem = f"an answer of query {quoted(query_id)} is not a string: {quoted(answer)}"
            raise fault(problem, "quote it")
        answers.append(answer or "")
        for source in _objects(output, "provenance", fault):
            names = (source.get("wikipedia_id"), source.get("title"))
            article, title = (composed(str(name or "")) for name in names)
            articles.append(article or title.strip())
            if article:
                ids.add(article)
            else:
                titles[title.strip()] = None
    row = clean_row(path, line, str(query_id), query, answers, articles)
    named = tuple(title for title in titles if title and title not in ids)
    return replace(row, titles=named, record=record)


def _objects(record: dict[str, Any], name: str, fault: partial[InputError]) -> list[dict[str, Any]]:
    found = record.get(name) or []
    if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
        raise fault(f'"{name}" is not a list of objects', f"give {WHAT}")
    return found
