"""Traces of agents as runs, steps and recorded outputs.

A record is a search: ``query_id`` (or ``query``), ``step`` (1, 2, …), ``search`` (its text), ``passages`` as in records
of runs, and perhaps ``run``. ``output`` is the answer, in a record of its own or in that of the last step. Spans of
OpenInference become such records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import polars as pl

from engine import tables
from engine.messages.characters import composed
from engine.messages.errors import MOST, InputError
from engine.messages.notes import Note, count_note
from engine.messages.wording import quoted
from engine.sources.fields import list_in
from engine.sources.io.files import is_text
from engine.sources.io.locations import Location, require_file, suffix_of
from engine.sources.io.parquet import read_parquet
from engine.sources.io.records import read_json_records
from engine.sources.runs import forms
from engine.sources.runs.forms import LINE, RESULTS
from engine.sources.runs.read import TextedRun, with_corpus
from engine.sources.traces.openinference import is_span, records_of_spans
from engine.tables import DOC_ID, DOC_IDS, OUTPUT, QUERY_ID, RANK, RUN, SCORE, SEARCH, STEP

Records = Iterable[tuple[int, Mapping[str, Any]]]
WHAT = 'traces: {"query_id": …, "step": 1, "search": …, "passages": […]}, or spans of OpenInference'
_DUE, _LAST, _PLACE = "due", "last", "place"
_QUERY = [RUN, QUERY_ID]
_ROWS: tables.Schema = {
    **{name: kind for name, kind in tables.STEPS.items() if name != DOC_IDS},
    **{OUTPUT: pl.String(), LINE: pl.Int64(), _PLACE: pl.Int64()},
}


class Traces(NamedTuple):
    """Traces of one run or several.

    Attributes:
        runs: the run table: the passages of a query in the order of their first sight; with ``title``, ``text`` and
            ``article_id`` if the traces carry texts.
        outputs: ``tables.OUTPUTS``; empty if the traces hold no answer.
        steps: ``tables.STEPS``.
        notes: counts of incomplete records.
    """

    runs: pl.DataFrame
    outputs: pl.DataFrame
    steps: pl.DataFrame
    notes: tuple[Note, ...] = ()


def read_traces(path: Location, name: str = "", **options: Any) -> Traces:
    """Read JSON lines, a JSON array or Parquet, whose rows count as lines; options as ``traces_of``."""
    path = require_file(path, WHAT)
    if suffix_of(path) == ".parquet":
        rows = enumerate(read_parquet(path).iter_rows(named=True), 1)
        return traces_of(path, rows, name, **options)
    return traces_of(path, read_json_records(path, WHAT), name, **options)


def traces_of(
    path: Location,
    records: Records,
    name: str = "",
    *,
    carried: bool = True,
    ids: Mapping[str, str] | None = None,
) -> Traces:
    """The traces in (line, record)s.

    Args:
        name: of the run; by default the field ``run`` of records, else the name of the file.
        carried: whether the texts of passages count; else ids name passages of a corpus.
        ids: of queries, by their texts.

    Raises:
        InputError: steps of a query other than 1, 2, …; an answer before the last step, or two; a record without passages
            and answer; a run without passages; several runs under one name; a passage without an id that is not carried;
            or as ``forms.read_records``, ``with_corpus`` and ``records_of_spans``.
    """
    refuse = partial(_refuse, path)
    records, notes = iter(records), list[Note]()
    if (first := next(records, None)) is None:
        raise InputError("there is no trace", f"give {WHAT}", "traces.empty", path=path)
    records = chain([first], records)
    if is_span(first[1]):
        records, notes = records_of_spans(path, records)
    rows, lists = _rows_of(path, records, name or forms.file_name(path), ids or {})
    numbered = pl.int_range(1, pl.len() + 1).over(_QUERY)
    first_sight = pl.col(_LAST).min().over(_QUERY)
    rows = rows.with_row_index(_LAST).sort(first_sight, STEP, _LAST, nulls_last=True).drop(_LAST)
    searches = rows.drop_nulls(_PLACE).with_columns(numbered.alias(_DUE))
    wrong = searches.filter(pl.col(STEP).ne_missing(pl.col(_DUE)))
    remedy = "number the searches of each query 1, 2, … in their order"
    refuse(wrong, "has the step {step} in place of {due}", remedy, "traces.step")
    outputs = rows.drop_nulls(OUTPUT).with_columns(numbered.alias(_DUE))
    refuse(outputs.filter(pl.col(_DUE) > 1), "has two answers", "keep one", "traces.answers")
    ends = searches.group_by(_QUERY).agg(pl.col(STEP).max().alias(_LAST))
    early = outputs.join(ends, _QUERY, maintain_order="left").filter(pl.col(STEP) < pl.col(_LAST))
    remedy = "write it into the last step, or a row of its own"
    refuse(early, "has its answer in step {step} of {last}", remedy, "traces.answers")

    batch = forms.read_records(path, lists, "")
    made = batch.texts.filter(pl.lit(not carried), forms.MADE)
    remedy = "add ids, or leave `corpus` out, since the traces carry the texts"
    refuse(made, "lists a passage without an id, beside `corpus`", remedy, "traces.ids")
    texted = TextedRun(batch.rows, batch.texts)
    listed, corpus, _ = with_corpus([texted], [path], carried=carried)
    places = [place for place, (_, one) in enumerate(lists) for _ in one[RESULTS[0]]]
    listed = listed.with_columns(pl.Series(_PLACE, places, pl.Int64))
    once = listed.unique([_PLACE, DOC_ID], keep="first", maintain_order=True)
    runs = searches.select(_PLACE).join(once, _PLACE, maintain_order="left_right")
    runs = runs.unique([*_QUERY, DOC_ID], keep="first", maintain_order=True)
    runs = runs.with_columns(numbered.alias(RANK), -numbered.cast(pl.Float64).alias(SCORE))
    runs = runs.select(list(tables.RUNS))
    if corpus is not None and not corpus.is_empty():
        runs = runs.join(corpus, DOC_ID, "left", maintain_order="left")
    refuse(
        rows.join(runs, RUN, "anti", maintain_order="left"),
        "is of a run without passages",
        "record the passages of its searches",
        "traces.passageless",
    )
    several = rows.filter(pl.lit(bool(name)), pl.col(RUN) != name)
    refuse(several, "is of another run", "give the file without a name", "runs.several")
    doc_ids = once.group_by(_PLACE, maintain_order=True).agg(pl.col(DOC_ID).alias(DOC_IDS))
    steps = searches.join(doc_ids, _PLACE, "left", maintain_order="left")
    steps = steps.with_columns(pl.col(DOC_IDS).fill_null([])).select(list(tables.STEPS))
    silent = rows.select(_QUERY).unique().join(outputs, _QUERY, "anti").height
    again, what = listed.height - once.height, "[passage|passages] that a search lists twice"
    notes += [
        count_note("repeated_passages", again, what),
        count_note("unanswered_traces", silent, "[trace|traces] without an answer"),
    ]
    return Traces(runs, outputs.select(list(tables.OUTPUTS)), steps, tuple(notes))


def _rows_of(
    path: Location, records: Records, name: str, ids: Mapping[str, str]
) -> tuple[pl.DataFrame, list[tuple[int, dict[str, Any]]]]:
    """``_ROWS``, and lists of searches as records of runs; ``place`` is that of the list, null without one."""
    rows: list[tuple[object, ...]] = []
    lists: list[tuple[int, dict[str, Any]]] = []
    for line, record in records:
        fault = partial(InputError, path=path, line=line)
        query_id, run = forms.query_of(fault, record), forms.run_of(fault, record) or name
        here, query_id = f"query {quoted(query_id)} has", ids.get(composed(query_id), query_id)
        items, step = list_in(record, RESULTS), record.get(STEP)
        if isinstance(step, float) and step.is_integer():  # pandas' form if some value is missing
            step = int(step)
        if step is not None and (type(step) is not int or abs(step) > MOST):
            remedy = "write a whole number, from 1"
            raise fault(f"{here} the step {quoted(step)}", remedy, "traces.step")
        search, output = texts = record.get(SEARCH), record.get(OUTPUT)
        if wrong := [one for one in texts if not isinstance(one, str | None) or not is_text(one)]:
            problem = f"{here} the search or output {quoted(wrong[0])}"
            raise fault(problem, "write a text", "traces.text")
        if items is output is None and (step is not None or OUTPUT not in record):
            problem = f"{here} neither a list of passages nor an output"
            raise fault(problem, f"give {WHAT}", "traces.passages")
        rows.append(
            (run, query_id, step, search or "", output, line, None if items is None else len(lists))
        )
        if items is not None:
            lists.append((line, {RUN: run, QUERY_ID: query_id, RESULTS[0]: items}))
    return pl.DataFrame(rows, _ROWS, orient="row"), lists


def _refuse(path: Location, wrong: pl.DataFrame, problem: str, remedy: str, code: str) -> None:
    """Refuse the first row of a table of wrong ones."""
    for row in wrong.head(1).iter_rows(named=True):
        problem = f"query {quoted(row[QUERY_ID])} {problem.format(**row)}"
        raise InputError(problem, remedy, code, path=path, line=row[LINE])
