"""Runs in whatever form a Python user has them, as run tables; and the texts that some carry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import polars as pl

from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.python.record_forms import Record, by_text, is_path, is_table, plain, records
from engine.python.retriever_forms import retrieved, retriever_of
from engine.sources.io.files import is_text
from engine.sources.runs.forms import is_row, names_runs, of_dictionary
from engine.sources.runs.read import (
    TextedRun,
    Together,
    read_texted_runs,
    require_new_name,
    runs_of_records,
    with_corpus,
)
from engine.tables import RUN

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
            found.append(run)
    if not found:
        raise InputError("there is no run", _FORM, path=_WHAT)
    return with_corpus(found, places, carried=carried)


def each_run(given: Any) -> Iterator[tuple[str, Any]]:
    """Runs with their names; a name is empty for one that is given without."""
    if isinstance(given, Mapping):
        by_key = by_text(given, _WHAT)
        if by_key and all(map(is_table, by_key.values())):
            first = {key: [*islice(records(one, key), 1)] for key, one in by_key.items()}
            if not names_runs(first):
                by_key = {key: [*records(one, key)] for key, one in by_key.items()}
        # NumPy's arrays are lists.
        of = {key: one.tolist() if hasattr(one, "tolist") else one for key, one in by_key.items()}
        yield from by_key.items() if names_runs(of) else [("", by_key)]
    elif _is_named(given) or not isinstance(given, Sequence) or (given and is_row(given[0])):
        yield "", given
    else:
        for number, one in enumerate(given, 1):
            yield f"run-{number}" if len(given) > 1 and not _is_named(one) else "", one


def _is_named(given: Any) -> bool:
    """Whether a run is a file or a frame, which may name it."""
    return is_path(given) or is_table(given)


def _tables(name: str, given: Any, *, carried: bool) -> Iterator[TextedRun]:
    """The run of each system in what was given under one name."""
    if is_path(given):
        runs = read_texted_runs([given])
        if name and len(runs) > 1:
            raise InputError("holds several runs", "give it without a name", path=given)
        for run in runs:
            yield replace(run, rows=run.rows.with_columns(pl.lit(name).alias(RUN))) if name else run
        return
    called = name or _WHAT
    rows: Iterable[tuple[int | None, Record]] = enumerate(records(given, called), 1)
    if isinstance(given, Mapping):
        plainly = {key: plain(one, called) for key, one in by_text(given, called).items()}
        rows = of_dictionary(plainly, called, _FORM)
    yield from runs_of_records(called, rows, name, texts=carried)
