"""Annotators made of a user's function."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import polars as pl

from engine.labels.annotator import Annotator, AnnotatorResult, Material, Scale, complete, labels_of
from engine.messages.errors import InputError
from engine.messages.wording import number_of, quoted, reason_of
from engine.tables import ANSWERS, DOC_ID, LABEL, QUERY, QUERY_ID, TEXT, TITLE

# Takes a query, its answers, and a passage's title and text.
LabelFunction = Callable[[str, list[str], str, str], float]


def from_function(name: str, function: LabelFunction) -> Annotator:
    """An annotator whose labels are the values of a function, for ``Settings.of(annotators=(…, annotator))``.

    Labelling raises an InputError with query and passage if the function raises an error, or returns a value that is
    not a number in [0, 1].

    Args:
        name: of the annotator; not a name of the engine's own.
        function: takes a query, its answers, and a passage's title and text, and returns how useful
            the passage is, in [0, 1] (a bool is 0 or 1). It is called once for every passage that
            some run lists for the query, in one process.
    """
    if not name.strip():
        raise InputError("an annotator without a name", "give it one", "annotator.nameless")

    def label(material: Material) -> AnnotatorResult:
        queries = material.queries.select(QUERY_ID, QUERY, ANSWERS)
        rows = material.pairs.join(queries, on=QUERY_ID, how="left", maintain_order="left")
        texts = material.passages.select(DOC_ID, TITLE, TEXT)
        rows = rows.join(texts, on=DOC_ID, how="left", maintain_order="left")
        columns = (QUERY_ID, DOC_ID, QUERY, ANSWERS, TITLE, TEXT)
        values = [_value(name, function, *row) for row in rows.select(columns).iter_rows()]
        labelled = rows.with_columns(pl.Series(LABEL, values, dtype=pl.Float64))
        labels = labels_of(name, labelled, pl.col(LABEL))
        return AnnotatorResult(labels, complete(labels))

    return Annotator(name=name, label=label, scale=lambda settings: Scale(largest=1.0))


def _value(
    name: str, function: LabelFunction, query_id: str, doc_id: str, *arguments: Any
) -> float:
    try:
        value: Any = function(*arguments)
    except (Exception, SystemExit) as error:
        where = f"passage {quoted(doc_id)} of query {quoted(query_id)}"
        problem = f"the annotator {name} raises {reason_of(error)} for {where}"
        raise InputError(problem, "correct the function", "annotator.raises") from error
    number = number_of(value)
    if math.isnan(number):
        problem = f"{name!r} labels passage {doc_id!r} of query {query_id!r} with {value!r}"
        raise InputError(problem, "give a number from 0 to 1", "annotator.value")
    return number
