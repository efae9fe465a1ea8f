"""Runs and judgments as JSON dictionaries, as in pytrec_eval, ranx and the eRAG package."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any

from engine.errors import InputError
from engine.sources.io.files import is_text
from engine.sources.io.lines import damaged, raw_lines
from engine.sources.io.locations import DAMAGE, Location, open_decompressed

Ranking = dict[str, float] | list[str]


def is_dictionary(path: Location, what: str) -> bool:
    """Whether a file starts like a JSON dictionary.

    Raises:
        InputError: there is no such file, or it cannot be read.
    """
    _, first = next(raw_lines(path, what), (0, b""))
    return first.lstrip().startswith(b"{")


def read_dictionary(path: Location, what: str) -> dict[str, Ranking]:
    """Read ``{query: {document: number}}`` or ``{query: [document, …]}``, the best document first.

    Raises:
        InputError: broken JSON, another form, or a duplicate key.
    """
    try:
        with open_decompressed(path) as stream:
            rankings = json.loads(
                stream.read(), object_pairs_hook=lambda pairs: _without_duplicates(path, pairs)
            )
    except json.JSONDecodeError as error:
        raise InputError(
            path, error.lineno, f"broken JSON ({error.msg}, column {error.colno})", f"give {what}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputError(path, None, f"broken JSON ({str(error)[:60]})", f"give {what}") from None
    except DAMAGE as error:
        raise damaged(path, None, error) from None
    for query, ranking in rankings.items():
        problem = _problem(query, ranking)
        if problem:
            raise InputError(path, None, problem, f"give {what}")
    return rankings


def _without_duplicates(path: Location, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object's pairs as a dictionary; json would keep the last of equal keys."""
    dictionary = dict(pairs)
    if len(dictionary) < len(pairs):
        duplicate = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise InputError(path, None, f"the key {duplicate!r} is given twice", "keep one of them")
    return dictionary


def _problem(query: str, ranking: Any) -> str:
    if not isinstance(ranking, (dict, list)):
        return f"query {query!r} has neither a dictionary nor a list"
    if not is_text(query) or not all(isinstance(d, str) and is_text(d) for d in ranking):
        return f"the id of query {query!r} or of one of its documents is not valid text"
    if isinstance(ranking, list):
        counts = Counter(ranking)
        duplicate = next((document for document in ranking if counts[document] > 1), None)
        return "" if duplicate is None else f"query {query!r} lists document {duplicate!r} twice"
    for document, number in ranking.items():
        if not _is_number(number):
            return f"{number!r} of document {document!r} of query {query!r} is not a number"
    return ""


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return not math.isnan(float(value))
    except OverflowError:
        return False
