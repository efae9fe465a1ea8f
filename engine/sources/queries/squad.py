"""Queries of SQuAD documents: SQuAD 1.1 and 2.0 (Rajpurkar et al. 2018), KorQuAD 1.0, KLUE-MRC."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.sources.articles.squad import read_squad
from engine.sources.fields import CONTEXT_FIELD
from engine.sources.io.locations import Location
from engine.sources.queries.rows import QueryRow, clean_row, no_text

_ID_FIELDS = ("id", "guid")


def squad_rows(path: Location) -> tuple[list[QueryRow], int]:
    """The answerable questions of a document, and the number of unanswerable ones left out.

    A question is unanswerable if ``is_impossible`` or without answers (plausible answers do not
    count). Its gold article is that of its context, named by the title; ``erag passages`` gives the
    passages of the same document that name too.

    Raises:
        InputError: not such a document, or a question without an id or text, or with other answers.
    """
    rows: list[QueryRow] = []
    unanswerable = 0
    for paragraph in read_squad(path):
        for question in paragraph.questions:
            query_id = next((question[f] for f in _ID_FIELDS if question.get(f)), None)
            if not isinstance(query_id, (str, int)):
                raise InputError("a question without an id", 'add "id"', path=path)
            text = question.get("question")
            if not isinstance(text, str):
                raise no_text(path, None, query_id, text, "question")
            answers = _answers(path, query_id, question)
            if question.get("is_impossible") or not any(answer.strip() for answer in answers):
                unanswerable += 1
                continue
            article = paragraph.article
            row = clean_row(path, None, str(query_id), text, answers, [article.name])
            beside = {"title": article.title, CONTEXT_FIELD: article.text}
            rows.append(replace(row, record=beside | question))
    return rows, unanswerable


def _answers(path: Location, query_id: str | int, question: dict[str, Any]) -> list[str]:
    answers = question.get("answers") or []
    listed = answers if isinstance(answers, list) else [answers]
    texts = [a.get("text") if isinstance(a, dict) else None for a in listed]
    if not all(isinstance(text, str) for text in texts):
        raise InputError(
            f"answers of query {quoted(query_id)} are not a list of objects with a text",
            'write [{"text": …}, …]',
            path=path,
        )
    return [text for text in texts if isinstance(text, str)]
