"""Retrievers as runs: functions, and objects of LangChain, LlamaIndex and Haystack, called once for each query."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import polars as pl

from engine.messages.errors import InputError
from engine.messages.wording import quoted, reason_of
from engine.reading.function_reader import awaited
from engine.sources.fields import DOC_ID_FIELDS, TEXT_FIELDS
from engine.tables import DOC_ID, QUERY, QUERY_ID, SCORE, TEXT


def retriever_of(given: Any) -> Callable[..., Any] | None:
    """What is called with a question, of objects LangChain's, LlamaIndex's or Haystack's method; None for no retriever."""
    methods = (getattr(given, name, None) for name in ("invoke", "retrieve", "run"))
    return given if callable(given) else next(filter(callable, methods), None)


def retrieved(
    retriever: Callable[..., Any], name: str, queries: pl.DataFrame, k: int, *, carried: bool
) -> dict[str, Any]:
    """What a retriever returns for each query, as one run in memory: by id, a list or ``{doc_id: score}``.

    Args:
        retriever: takes the text of a query, and how many passages where it has a parameter ``k`` or ``top_k``.
        carried: whether passages are given by their texts; else by ids.

    Raises:
        InputError: it raises an error, or returns no list, naming the query.
    """
    run: dict[str, Any] = {}
    for query_id, text in queries.select(QUERY_ID, QUERY).iter_rows():
        try:
            known = inspect.signature(retriever).parameters
            found = awaited(retriever(text, **{one: k for one in ("k", "top_k") if one in known}))
        except (Exception, SystemExit) as error:
            problem = f"the retriever raises {reason_of(error)} for query {quoted(query_id)}"
            raise InputError(problem, "correct it", path=name) from error
        if isinstance(found, Mapping):
            found = found.get("documents", dict(found))  # Haystack's
        if not isinstance(found, Iterable) or isinstance(found, str | bytes):
            problem = f"the retriever returns {type(found).__name__} for query {quoted(query_id)}"
            raise InputError(problem, "return a list of passages, the best first", path=name)
        run[query_id] = found if isinstance(found, dict) else [_passage(p, carried) for p in found]
    return run


def _passage(given: Any, carried: bool) -> Any:
    """A passage as runs have it: an id, a text, or a record.

    An object is known by the id that its metadata have, else by its own where passages are given apart, else by its
    text: stores make ids, and each store another one.
    """
    if isinstance(given, tuple) and len(given) == 2:
        one = _passage(given[0], carried)
        named = one if isinstance(one, Mapping) else {TEXT if carried else DOC_ID: one}
        return {**named, SCORE: given[1]}
    node = getattr(given, "node", given)
    texts = {name: text for name in TEXT_FIELDS if isinstance(text := getattr(node, name, 0), str)}
    if not texts:
        return given
    more = getattr(node, "metadata", None) or getattr(node, "meta", None) or {}
    ids = [more.get(name) for name in DOC_ID_FIELDS]
    ids += [] if carried else [getattr(node, "id", None), getattr(node, "node_id", None)]
    own = next((one for one in ids if one is not None), None)
    return {**texts, "metadata": more, SCORE: getattr(given, SCORE, None), DOC_ID: own}
