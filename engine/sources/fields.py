"""What users' files call the parts of a query and of a passage: one table of names for every layout.

The first field of a record that is present, and neither null nor empty, counts. ``a.b`` is the field ``b`` of
the object ``a``, or a field (a column of CSV) of that whole name.

====================  =======================================================================================
part                  fields, and who writes them
====================  =======================================================================================
id of a query         ``query_id``, ``id``, ``_id`` (BEIR), ``qid``, ``question_id`` and ``QuestionId`` (TriviaQA),
                      ``guid`` (KLUE), ``query-id`` (BEIR)
text of a query       ``query``, ``question``, ``text`` (BEIR), ``user_input`` (ragas), ``Question`` (TriviaQA)
answers               ``answers``, ``golden_answers`` (FlashRAG), ``reference`` (ragas), ``ground_truth`` and
                      ``ground_truths`` (ragas up to 0.1), ``expected_output`` (DeepEval); without one of the last
                      five ``answer``, ``Answer`` (TriviaQA); ``metadata.answers``, ``metadata.answer``
gold articles         ``provenance``, ``article_ids``, ``article_id``
id of a passage       ``doc_id``, ``id``, ``_id`` (BEIR), ``docid``, ``passage_id``, ``docno`` (PyTerrier),
                      ``corpus-id`` (BEIR)
title of a passage    ``title``; beside it in runs ``metadata.title`` (LangChain), ``meta.title`` (Haystack)
text of a passage     ``text``, ``contents`` (Pyserini, FlashRAG), ``content`` (Haystack), ``page_content``
                      (LangChain)
====================  =======================================================================================

Answers are a text, a list of texts, or of objects with a ``text`` (SQuAD); or an object with the texts under
``text`` (SQuAD's rows), ``value`` and ``aliases`` (TriviaQA), all of which count. A text that is a list of texts, as
``str`` of Python or a spreadsheet writes it (``"['a', 'b']"``), is that list, wherever texts or lists are wanted.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from engine.sources.io.json_text import parse_json

QUERY_ID_FIELDS = ("query_id", "id", "_id", "qid", "question_id", "QuestionId", "guid", "query-id")
QUERY_FIELDS = ("query", "question", "text", "user_input", "Question")
# Beside one of these, the others are what a system answered.
REFERENCE_FIELDS = (
    "golden_answers",
    "reference",
    "ground_truth",
    "ground_truths",
    "expected_output",
)
RESPONSE_FIELDS = ("answer", "Answer")
_IN_METADATA = ("metadata.answers", "metadata.answer")
ANSWER_FIELDS = ("answers", *REFERENCE_FIELDS, *RESPONSE_FIELDS, *_IN_METADATA)
ARTICLE_FIELDS = ("provenance", "article_ids", "article_id")
# The passage that questions were written about (SQuAD).
CONTEXT_FIELD = "context"
DOC_ID_FIELDS = ("doc_id", "id", "_id", "docid", "passage_id", "docno", "corpus-id")
TITLE_FIELDS = ("title", "metadata.title", "meta.title")
TEXT_FIELDS = ("text", "contents", "content", "page_content")

# Of an object of answers: the fields that hold texts.
_ANSWER_PARTS = ("text", "value", "aliases", "Value", "Aliases", "HumanAnswers")
_EMPTY: tuple[Any, ...] = (None, "")

# The items of a list as Python writes it: texts with escapes that it knows, numbers and words. NumPy puts no commas.
_ESCAPE = r"\\(?:[\\'\"abfnrtv]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U000[0-9a-fA-F]{5})"
_ITEM = rf"""'(?:[^'\\\n]|{_ESCAPE})*'|"(?:[^"\\\n]|{_ESCAPE})*"|-?\d+(?:\.\d*)?(?:e[-+]?\d+)?|None|True|False|nan"""
_LIST = re.compile(rf"\[\s*(?:(?:{_ITEM})(?:[\s,]+(?:{_ITEM}))*)?[\s,]*\]")
_ITEMS = re.compile(_ITEM)


def written_list(text: str) -> list[str] | None:
    """The texts of a list that is written as a text, in JSON or as Python writes it; None for any other text.

    >>> written_list("['Lima', None, 1899]"), written_list("[sic]"), written_list("[0, 1]")
    (['Lima', '1899'], None, None)
    """
    if text[:1] != "[" or text[-1:] != "]":
        return None
    try:
        items = parse_json(text)
    except ValueError:
        if not _LIST.fullmatch(text):
            return None
        found = (item if item != "nan" else "None" for item in _ITEMS.findall(text))
        try:
            items = [ast.literal_eval(item) for item in found]
        except (SyntaxError, ValueError):  # a number of thousands of digits, or 007
            return None
    given = [item for item in items if not _is_missing(item)]
    if not all(isinstance(item, str | int | float) for item in given):
        return None
    # Of numbers alone it may be a text: an interval, or a year that an editor added.
    numbers_alone = given and not any(isinstance(item, str) for item in given)
    return None if numbers_alone else [*map(str, given)]


def _is_missing(item: Any) -> bool:
    """Whether an item of a list stands for nothing: null, or NaN."""
    return item is None or item != item


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


def list_in(record: Mapping[str, Any], names: Sequence[str]) -> list[Any] | None:
    """The first of these fields that is a list, or a text that is a written list; None if there is none."""
    for name in names:
        value = record.get(name)
        found = written_list(value.strip()) if isinstance(value, str) else value
        if isinstance(found, list):
            return found
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
        if isinstance(item, str) or not _is_missing(item)
    ]
    given = [text for text in found if isinstance(text, str)]
    return given if len(given) == len(found) else None
