"""What users' files call the parts of a query and of a passage: one table of names for every layout.

The first field of a record that is present, and neither null nor empty, counts. ``a.b`` is the field ``b`` of
the object ``a``, or a field (a column of CSV) of that whole name.

====================  =======================================================================================
part                  fields, and who writes them
====================  =======================================================================================
id of a query         ``query_id``, ``id``, ``_id`` (BEIR), ``qid``, ``question_id`` and ``QuestionId`` (TriviaQA),
                      ``guid`` (KLUE)
text of a query       ``query``, ``question``, ``text`` (BEIR), ``user_input`` (ragas), ``Question`` (TriviaQA)
answers               ``answers``, ``answer``, ``golden_answers`` (FlashRAG), ``reference`` (ragas), ``Answer``
                      (TriviaQA), ``metadata.answers``, ``metadata.answer``
gold articles         ``provenance``, ``article_ids``, ``article_id``
id of a passage       ``doc_id``, ``id``, ``_id`` (BEIR), ``docid``, ``passage_id``
title of a passage    ``title``; beside it in runs ``metadata.title`` (LangChain), ``meta.title`` (Haystack)
text of a passage     ``text``, ``contents`` (Pyserini, FlashRAG), ``content`` (Haystack), ``page_content``
                      (LangChain)
====================  =======================================================================================

Answers are a text, a list of texts, or of objects with a ``text`` (SQuAD); or an object with the texts under
``text`` (SQuAD's rows), ``value`` and ``aliases`` (TriviaQA), all of which count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

QUERY_ID_FIELDS = ("query_id", "id", "_id", "qid", "question_id", "QuestionId", "guid")
QUERY_FIELDS = ("query", "question", "text", "user_input", "Question")
ANSWER_FIELDS = (
    "answers",
    "answer",
    "golden_answers",
    "reference",
    "Answer",
    "metadata.answers",
    "metadata.answer",
)
ARTICLE_FIELDS = ("provenance", "article_ids", "article_id")
# The passage that questions were written about (SQuAD).
CONTEXT_FIELD = "context"
DOC_ID_FIELDS = ("doc_id", "id", "_id", "docid", "passage_id")
TITLE_FIELDS = ("title", "metadata.title", "meta.title")
TEXT_FIELDS = ("text", "contents", "content", "page_content")

# Of an object of answers: the fields that hold texts.
_ANSWER_PARTS = ("text", "value", "aliases", "Value", "Aliases", "HumanAnswers")
_EMPTY: tuple[Any, ...] = (None, "")


def first_of(record: Mapping[str, Any], names: Sequence[str]) -> Any:
    """The value of the first of these fields that is present, and neither null nor empty; else None."""
    for name in names:
        value = record.get(name)
        if value in _EMPTY and "." in name:
            outer, inner = name.split(".", 1)
            inside = record.get(outer)
            value = inside.get(inner) if isinstance(inside, Mapping) else None
        if value not in _EMPTY:
            return value
    return None


def columns_of(*names: Sequence[str]) -> set[str]:
    """The columns of a table in which some of these fields may be."""
    return {column for part in names for name in part for column in (name, name.split(".")[0])}


def texts_of(value: Any) -> list[str] | None:
    """The texts that the value of a field of answers (or of articles) stands for; None for another value."""
    # What is a mapping is told by an abstract class, which takes several times as long as a type.
    if not isinstance(value, (list, str)) and isinstance(value, Mapping):
        parts = [value[name] for name in _ANSWER_PARTS if value.get(name) not in _EMPTY]
        texts = [texts_of(part) for part in parts]
        known = any(name in value for name in _ANSWER_PARTS)
        if not known or any(part is None for part in texts):
            return None
        return [text for part in texts if part is not None for text in part]
    listed = value if isinstance(value, list) else [] if value is None else [value]
    found = [
        item if isinstance(item, str) or not isinstance(item, Mapping) else item.get("text")
        for item in listed
    ]
    given = [text for text in found if isinstance(text, str)]
    return given if len(given) == len(found) else None
