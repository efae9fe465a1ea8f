"""Runs and judgments as JSON dictionaries, as in pytrec_eval, ranx and the eRAG package."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.sources.io.files import is_text
from engine.sources.io.lines import read_json_document, start_of
from engine.sources.io.locations import Location

Ranking = dict[str, float] | list[str]


def is_dictionary(path: Location, what: str) -> bool:
    """Whether a file starts like a JSON dictionary."""
    return start_of(path, what).startswith(b"{")


def read_dictionary(path: Location, what: str) -> dict[str, Ranking]:
    """Read ``{query: {document: number}}`` or ``{query: [document, …]}``, the best document first.

    Raises:
        InputError: broken JSON, another form, or a duplicate key.
    """
    rankings: dict[str, Ranking] = read_json_document(path, what)
    for query, ranking in rankings.items():
        if problem := problem_of(query, ranking):
            raise InputError(problem, f"give {what}", path=path)
    return rankings


def problem_of(query: str, ranking: Any) -> str:
    """What is wrong with the entry of a query; empty for nothing."""
    if not isinstance(ranking, (dict, list)):
        return f"query {quoted(query)} has neither a dictionary nor a list"
    if not is_text(query) or not all(isinstance(d, str) and is_text(d) for d in ranking):
        return f"the id of query {quoted(query)} or of one of its documents is not valid text"
    if isinstance(ranking, list):
        counts = Counter(ranking)
        duplicate = next((document for document in ranking if counts[document] > 1), None)
        twice = f"query {quoted(query)} lists document {quoted(duplicate)} twice"
        return "" if duplicate is None else twice
    for document, number in ranking.items():
        if not _is_number(number):
            return f"{quoted(number)} of document {quoted(document)} of query {quoted(query)} is not a number"
    return ""


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return not math.isnan(float(value))
    except OverflowError:
        return False
