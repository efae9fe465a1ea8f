"""Runs in whatever form a Python user has them, as run tables; and the texts that some carry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import polars as pl

from engine import tables
from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.python.record_forms import is_path, is_table, plain, records
from engine.python.retriever_forms import retrieved, retriever_of
from engine.sources.fields import DOC_ID_FIELDS, QUERY_FIELDS, QUERY_ID_FIELDS, TEXT_FIELDS
from engine.sources.io.files import is_text
from engine.sources.runs.checks import RunChecks, in_order, require_new_name
from engine.sources.runs.dictionaries import problem_of
from engine.sources.runs.read import TextedRun, read_texted_runs
from engine.sources.runs.records import RESULTS, read_records
from engine.sources.runs.texts import Together, with_corpus
from engine.tables import DOC_ID, QUERY_ID, RUN, SCORE

_FORM = (
    "give {query_id: {doc_id: score}}, {query_id: [doc_id, …]}, {query_id: [text, …]} without "
    "`passages`, a frame with query_id, doc_id and score or rank, a file, a retriever, or several by name"
)
_WHAT = "runs"


def runs_of(
    given: Any, *, carried: bool, queries: pl.DataFrame | None = None, k: int = 0
) -> Together:
    """All runs, in the order in which they were given, with their texts.

    Args:
        carried: whether runs carry their passages; else these are given apart, so that what a run lists are ids.
        queries, k: what retrievers are called with.

    Raises:
        InputError: something has another form, or is refused as in a file (``read_runs_with_texts``).
    """
    found: list[TextedRun] = []
    sources: dict[str, Any] = {}
    places: list[str] = []
    for name, one in each_run(given):
        if not is_text(name):
            raise InputError(f"a run is called {quoted(name)}", "write valid Unicode", path=_WHAT)
        if (retriever := retriever_of(one)) is not None and queries is not None:
            one = retrieved(retriever, name or _WHAT, queries, k, carried=carried)
        for run in _tables(name, one, carried=carried):
            places.append(name or (str(one) if is_path(one) else _WHAT))
            require_new_name(places[-1], run.rows[RUN][0], sources)
            found.append(run if carried else replace(run, texts=run.texts.clear()))
    if not found:
        raise InputError("there is no run", _FORM, path=_WHAT)
    return with_corpus(found, places)


def each_run(given: Any) -> Iterator[tuple[str, Any]]:
    """Runs with their names; a name is empty for one that is given without."""
    if isinstance(given, Mapping):
        if _has_names(given):
            yield from ((str(name), one) for name, one in given.items())
        else:
            yield "", given
    elif _is_named(given) or not isinstance(given, Sequence) or (given and _is_row(given[0])):
        yield "", given
    else:
        for number, one in enumerate(given, 1):
            yield f"run-{number}" if len(given) > 1 and not _is_named(one) else "", one


def _is_named(given: Any) -> bool:
    """Whether a run is a file or a frame, which may name it."""
    return is_path(given) or is_table(given)


def _has_names(given: Mapping[Any, Any]) -> bool:
    """Whether the keys of a dictionary are names of runs, and not ids of queries."""
    for value in given.values():
        value = plain(value) if hasattr(value, "tolist") else value  # NumPy's
        if _is_named(value):
            return True
        if isinstance(value, Mapping):
            # {query: {document: number}} is one run, {name: {query: …}} are several.
            inner = next(iter(value.values()), None)
            if inner is not None:
                return isinstance(inner, Mapping | list | tuple)
        elif isinstance(value, list | tuple):
            if value:
                return _is_row(value[0])
        else:
            return True
    return False


def _is_row(value: Any) -> bool:
    """Whether this is a row of a run, or a list of one: a dictionary that says of which query."""
    apart = {*DOC_ID_FIELDS, *TEXT_FIELDS}  # in a row, these are of the passage
    names = {*QUERY_ID_FIELDS, *QUERY_FIELDS} - apart | {*RESULTS}
    return isinstance(value, Mapping) and any(name in value for name in names)


def _tables(name: str, given: Any, *, carried: bool) -> Iterator[TextedRun]:
    """The run of each system in what was given under one name."""
    if is_path(given):
        (run,) = read_texted_runs([given])
        yield replace(run, rows=run.rows.with_columns(pl.lit(name).alias(RUN))) if name else run
        return
    called, is_mapping = name or _WHAT, isinstance(given, Mapping)
    rows = _of_mapping(given) if is_mapping else enumerate(records(given, called), 1)
    found = read_records(called, rows, name or "run", texts=carried)
    if found.rows.is_empty():
        raise InputError("the run is empty", _FORM, path=name or "run")
    named = found.rows.with_columns(pl.lit(name).alias(RUN)) if name else found.rows
    for number, system in enumerate(named.partition_by(RUN, maintain_order=True)):
        checks = RunChecks(called)
        checks.has_lines = found.has_lines
        ordered = in_order(checks.look(system))
        checks.refuse_repeats()
        written = 0 if number else found.written
        yield TextedRun(ordered.select(list(tables.RUNS)), found.texts, written)


def _of_mapping(given: Mapping[Any, Any]) -> Iterator[tuple[None, dict[str, Any]]]:
    """A dictionary by query as records."""
    for key, ranking in given.items():
        query_id, value = str(key), plain(ranking)
        if isinstance(value, list):
            yield None, {QUERY_ID: query_id, RESULTS[0]: value}
            continue
        problem = f"query {quoted(query_id)} has {quoted(value)} for its list"
        if not isinstance(value, dict) or (problem := problem_of(query_id, value)):
            raise InputError(problem, _FORM, path=_WHAT)
        for doc_id, score in value.items():
            yield None, {QUERY_ID: query_id, DOC_ID: doc_id, SCORE: score}
