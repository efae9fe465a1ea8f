"""Names of the parts of a query and a passage in users' files: one table for every layout.

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

Answers are a text, a list of texts, or of objects with a ``text`` (SQuAD); or an object with the texts under ``text``
(SQuAD's rows), ``value`` and ``aliases`` (TriviaQA), all of which count. A text that is a list, tuple, set, array or
object of texts, as ``str`` of Python or a spreadsheet writes it (``"['a', 'b']"``), is that collection, in any field of
texts or lists (``written``). Other texts in place of a list have items between ``|`` (``listed``).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence
from typing import Any

from engine.sources.io.records import parse_json

QUERY_ID_FIELDS = ("query_id", "id", "_id", "qid", "question_id", "QuestionId", "guid", "query-id")
QUERY_FIELDS = ("query", "question", "text", "user_input", "Question")
# Names of reference answers; other answer fields beside them hold a system's output.
_REFERENCES = "golden_answers reference ground_truth ground_truths expected_output"
REFERENCE_FIELDS = tuple(_REFERENCES.split())
RESPONSE_FIELDS = ("answer", "Answer")
_IN_METADATA = ("metadata.answers", "metadata.answer")
ANSWER_FIELDS = ("answers", *REFERENCE_FIELDS, *RESPONSE_FIELDS, *_IN_METADATA)
ARTICLE_FIELDS = ("provenance", "article_ids", "article_id")
# The passage that questions were written about (SQuAD).
CONTEXT_FIELD = "context"
DOC_ID_FIELDS = ("doc_id", "id", "_id", "docid", "passage_id", "docno", "corpus-id")
TITLE_FIELDS = ("title", "metadata.title", "meta.title")
TEXT_FIELDS = ("text", "contents", "content", "page_content")

# The fields with texts in an object of answers.
_ANSWER_PARTS = ("text", "value", "aliases", "Value", "Aliases", "HumanAnswers")
_EMPTY: tuple[Any, ...] = (None, "")

# Collections as Python and NumPy write them: texts with known escapes, numbers, words; brackets, some with a name.
_ESCAPE = r"\\(?:[\\'\"abfnrtv]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U000[0-9a-fA-F]{5})"
_ITEM = rf"""'(?:[^'\\\n]|{_ESCAPE})*'|"(?:[^"\\\n]|{_ESCAPE})*"|-?\d+(?:\.\d*)?(?:e[-+]?\d+)?|(?:None|True|False|nan)\b"""
_NAMED = r"(?:array|set|frozenset)\("
_ABOUT = r"dtype=(?:'[^'\n]*'|\w+)|shape=\([\d, ]*\)"
_TOKEN = re.compile(rf"""(?:{_ITEM}|[\])}}])(\s+(?=['"\w\-\[({{]))?|{_ABOUT}|{_NAMED}|[\[({{,:]""")
_OPENS = re.compile(rf"[\[({{]|{_NAMED}")
# Anything but numbers and brackets.
_WORDS = re.compile(r"[^-+.,:\[\](){}\se\d]")
# Only a collection of texts begins like this.
_MEANT = re.compile(rf"""{_NAMED}\s*[\[({{]|[\[{{]\s*(?:['"]|{_NAMED}|{{\s*['"])""")
SEPARATOR = "|"


def written(text: str) -> list[Any] | dict[str, Any] | None:
    """The list or object in a text, as JSON, Python or NumPy write it; None for any other text.

    Tuples, sets and arrays are lists. Numbers in brackets alone may be a text: an interval, or an editor's year.

    >>> written("['Lima', None, 1899]"), written("{'text': array(['Lima'], dtype=object)}"), written("[0, 1]")
    (['Lima', '1899'], {'text': ['Lima']}, None)
    """
    text = text.strip()
    if not _OPENS.match(text) or text[-1] not in "])}":
        return None
    if not _WORDS.search(text) and any(map(str.isdigit, text)):
        return None
    try:
        value = parse_json(text)
    except ValueError:
        if _TOKEN.sub("", text).strip():
            return None
        # NumPy writes no commas. Nothing is evaluated, and the tokens allow literals alone.
        commas = _TOKEN.sub(lambda token: token[0] + "," * (token[1] is not None), text)
        try:
            value = _value_of(ast.parse(commas, mode="eval").body)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None  # 007, or thousands of digits
    if not isinstance(value, list):
        return value if isinstance(value, dict) else None
    present = [item for item in value if not _is_missing(item)]
    if not all(isinstance(item, str | int | float) for item in present):
        return value
    if present and not any(isinstance(item, str) for item in present):
        return present if text[0].isalpha() else None
    return [*map(str, present)]


def _value_of(node: ast.AST) -> Any:
    """The value of a part of an expression; a ValueError if it is no text, number or collection."""
    match node:
        case ast.Constant(value):
            return value
        case ast.Name("nan"):
            return None
        case ast.UnaryOp(ast.USub(), ast.Constant(int() | float() as value)):
            return -value
        case ast.List(items) | ast.Tuple(items) | ast.Set(items):
            return [_value_of(item) for item in items]
        case ast.Dict(keys, values):
            return {str(_value_of(k)): _value_of(v) for k, v in zip(keys, values, strict=True) if k}
        case ast.Call(ast.Name(), items):
            return _value_of(items[0]) if items else []
    raise ValueError("something else")


def listed(value: Any) -> Any:
    """The value of a field of answers or articles; for a text, its collection or items.

    A text that only begins like a collection of texts stays a text: it was cut, or has another form.
    """
    if not isinstance(value, str):
        return value
    if (collection := written(value)) is not None:
        return collection
    return value if _MEANT.match(value.strip()) else value.split(SEPARATOR)


def _is_missing(item: Any) -> bool:
    return item is None or item != item


def first_of(record: Mapping[str, Any], names: Sequence[str]) -> Any:
    """The value of the first field in ``names`` that is present, and neither null nor empty; else None."""
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
    """The first field in ``names`` that is a list, or the text of a list, if any."""
    for name in names:
        value = record.get(name)
        value = written(value) if isinstance(value, str) else value
        if isinstance(value, list):
            return value
    return None


def text_in(record: Mapping[str, Any], names: Sequence[str] = TEXT_FIELDS) -> Any:
    """As ``first_of``, for a text that may be empty; an empty text is not missing."""
    text = first_of(record, names)
    return "" if text is None and any(record.get(name) == "" for name in names) else text


def columns_of(*names: Sequence[str]) -> set[str]:
    """The columns of a table that may hold some of the fields."""
    return {column for part in names for name in part for column in (name, name.split(".")[0])}


def texts_of(value: Any) -> list[str] | None:
    """The texts in the value of a field of answers (or articles); None for another value."""
    # Types first: the abstract class Mapping takes several times as long.
    if not isinstance(value, (list, str)) and isinstance(value, Mapping):
        if not any(name in value for name in _ANSWER_PARTS):
            return None
        parts = [texts_of(value[n]) for n in _ANSWER_PARTS if value.get(n) not in _EMPTY]
        texts = [text for part in parts if part is not None for text in part]
        return None if None in parts else texts
    listed = value if isinstance(value, list) else [] if value is None else [value]
    items = [
        item if isinstance(item, str) or not isinstance(item, Mapping) else item.get("text")
        for item in listed
        if isinstance(item, str) or not _is_missing(item)
    ]
    texts = [text for text in items if isinstance(text, str)]
    return texts if len(texts) == len(items) else None
