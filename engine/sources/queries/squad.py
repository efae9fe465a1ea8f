"""Queries of SQuAD documents: SQuAD 1.1 and 2.0 (Rajpurkar et al. 2018), KorQuAD 1.0, KLUE-MRC."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from engine.sources.articles.squad import read_squad
from engine.sources.fields import ANSWER_FIELDS, ARTICLE_FIELDS, CONTEXT_FIELD
from engine.sources.io.locations import Location


def squad_records(path: Location) -> Iterator[tuple[None, dict[str, Any]]]:
    """Yield the questions of a document as plain records, without lines.

    A question is unanswerable if ``is_impossible`` or without answers (plausible answers do not count). Its gold
    article is that of its context, named by the title; ``erag passages`` gives the passages of the same document
    that name too.

    Raises:
        InputError: not such a document.
    """
    for article, questions in read_squad(path):
        context = {"title": article.title, CONTEXT_FIELD: article.text}
        for question in questions:
            # As SQuAD's rows have them: an object without texts marks an unanswerable question.
            answers = {"text": question.get("answers")}
            gold = {ANSWER_FIELDS[0]: answers, ARTICLE_FIELDS[0]: [article.name]}
            yield None, context | question | gold
