"""Traces of agents as runs, steps and recorded outputs; and recorded outputs, the answers of the users' own system, alone.

A record is a search: ``query_id`` (or ``query``), ``step`` (1, 2, …), ``search`` (its text), ``passages`` as in records
of runs, and perhaps ``run``. ``output`` is the answer, in a record of its own or in that of a search.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from engine import tables
from engine.messages.errors import InputError
from engine.messages.notes import Note
from engine.messages.wording import quoted
from engine.sources.fields import list_in
from engine.sources.io.files import is_text
from engine.sources.io.locations import Location, require_file, suffix_of
from engine.sources.io.parquet import read_parquet
from engine.sources.io.records import read_json_records
from engine.sources.runs.forms import LINE, MADE, RESULTS, file_name, query_of, read_records, run_of
from engine.sources.runs.read import TextedRun, with_corpus
from engine.sources.traces.openinference import records_of_spans
from engine.tables import DOC_ID, DOC_IDS, OUTPUT, QUERY_ID, RANK, RUN, SCORE, SEARCH, STEP

Records = Iterable[tuple[int, Mapping[str, Any]]]
_OUTPUTS = 'recorded outputs: {"query_id": …, "output": text}, and perhaps "run"'
WHAT = 'traces: {"query_id": …, "step": 1, "search": …, "passages": […]}, or spans of OpenInference'
_NUMBER = "number the searches of each query 1, 2, … in their order"


class Traces(NamedTuple):
    """Traces of agents: the run table, passages in the order of first sight, with ``title``, ``text`` and ``article_id`` if
    the traces carry texts; ``tables.OUTPUTS``; ``tables.STEPS``; and counts of incomplete records.
    """

    runs: pl.DataFrame
    outputs: pl.DataFrame
    steps: pl.DataFrame
    notes: tuple[Note, ...]


def read_traces(
    path: Location, name: str = "", records: Records | None = None, *, carried: bool = True
) -> Traces:
    """Read traces in JSON lines, a JSON array or Parquet, whose rows count as lines, or from (line, record)s.

    ``name``: the run of records without ``run``; by default the name of the file. ``carried``: whether the texts of passages
    count; else ids name passages of a corpus. ``query_id`` may be the text of a query.

    An InputError refuses steps of a query other than 1, 2, …, and passages, answers or ids that lack; or is one of
    ``records_of_spans``, ``read_records`` and ``with_corpus``.
    """
    fault = partial(InputError, path=path)
    records = list(numbered_records(path, WHAT) if records is None else records)
    if not records:
        raise fault("there is no trace", f"give {WHAT}", "traces.empty")
    records, notes = records_of_spans(path, records)
    searches, outputs = _parts(path, records, name or file_name(path))
    batch = read_records(path, ((search[LINE], search) for search in searches), "")
    for query_id, line in batch.texts.filter(MADE, not carried)[[QUERY_ID, LINE]].iter_rows():
        problem = f"query {quoted(query_id)} lists a passage without an id, beside `corpus`"
        remedy = "add ids, or leave `corpus` out, since the traces carry the texts"
        raise fault(problem, remedy, "traces.ids", line=line)
    listed, corpus, _ = with_corpus([TextedRun(batch.rows, batch.texts)], [path], carried=carried)
    doc_ids = iter(listed[DOC_ID])
    for search in searches:
        search[DOC_IDS] = [*dict.fromkeys(islice(doc_ids, len(search[RESULTS[0]])))]
    steps = pl.DataFrame(searches, tables.STEPS)
    runs = listed.unique([RUN, QUERY_ID, DOC_ID], keep="first", maintain_order=True)
    place = pl.int_range(1, pl.len() + 1).over(RUN, QUERY_ID)
    ranked = place.alias(RANK), (-place).cast(pl.Float64).alias(SCORE)
    runs = runs.with_columns(ranked).select(list(tables.RUNS))
    if lacking := {*steps[RUN], *outputs[RUN]} - {*runs[RUN]}:
        problem = f"no search of the run {quoted(min(lacking))} lists a passage"
        remedy = "record the passages of searches, in spans as `retrieval.documents`"
        raise fault(problem, remedy, "traces.passageless")
    if corpus is not None and not corpus.is_empty():
        runs = runs.join(corpus, DOC_ID, "left", maintain_order="left")
    return Traces(runs, outputs, steps, tuple(notes))


def _parts(
    path: Location, records: Records, name: str
) -> tuple[list[dict[str, Any]], pl.DataFrame]:
    """Searches, with their passages, and the outputs."""
    searches, taken = list[dict[str, Any]](), Counter[tuple[str, str]]()
    answers: list[tuple[int, Mapping[str, Any]]] = []
    for line, record in records:
        fault = partial(InputError, path=path, line=line)
        query_id, run = query_of(fault, record), run_of(fault, record) or name
        step, text, passages = record.get(STEP), record.get(SEARCH), list_in(record, RESULTS)
        here = f"query {quoted(query_id)} has"
        if passages is not None:
            due = taken[run, query_id] = taken[run, query_id] + 1
            if isinstance(step, bool) or step != due:
                problem = f"{here} the step {quoted(step)} in place of {due}"
                raise fault(problem, _NUMBER, "traces.step")
            if not isinstance(text, str | None) or not is_text(text):
                raise fault(f"{here} the search {quoted(text)}", "write a text", "traces.text")
            search = {LINE: line, RUN: run, QUERY_ID: query_id, STEP: due, SEARCH: text or ""}
            searches.append(search | {RESULTS[0]: passages})
        if record.get(OUTPUT) is not None:
            answers.append((line, record))
        elif passages is None and (step is not None or OUTPUT not in record):
            problem = f"{here} neither a list of passages nor an output"
            raise fault(problem, f"give {WHAT}", "traces.passages")
    return searches, outputs_of(path, answers, name)


def named_file(place: Location) -> tuple[str, Location]:
    """The run's name and the file of ``RUN=FILE``; an empty name for a file alone."""
    name, mark, file = str(place).partition("=")
    if not mark or "/" in name or Path(place).exists():
        return "", place
    return name, file


def numbered_records(path: Location, what: str) -> Records:
    """The records of JSON lines, a JSON array, or Parquet, whose rows count as lines."""
    if suffix_of(path := require_file(path, what)) == ".parquet":
        return enumerate(read_parquet(path).iter_rows(named=True), 1)
    return read_json_records(path, what)


def read_outputs(places: Sequence[Location]) -> pl.DataFrame:
    """Read recorded outputs from files, each ``RUN=FILE`` or with a field ``run``, as ``outputs_of``."""
    named = map(named_file, places)
    return pl.concat(outputs_of(at, numbered_records(at, _OUTPUTS), run) for run, at in named)


def outputs_of(path: Location, records: Records, name: str = "") -> pl.DataFrame:
    """The outputs (``tables.OUTPUTS``) of records, of the run ``name`` if they name none.

    ``query_id`` may be the text of a query. An InputError refuses a record without a query or an output, and a second one.
    """
    rows: dict[tuple[str, str], str] = {}
    for line, record in records:
        fault = partial(InputError, path=path, line=line)
        key = run_of(fault, record) or name, (query_id := query_of(fault, record))
        output = record.get(OUTPUT)
        if not isinstance(output, str) or not is_text(output):
            problem = f"query {quoted(query_id)} has {quoted(output)} for its output"
            raise fault(problem, 'write "output" as a text, "" for none', "outputs.text")
        if key in rows:
            raise fault(f"query {quoted(query_id)} has two outputs", "keep one", "outputs.twice")
        rows[key] = output
    columns = [(*key, output) for key, output in rows.items()]
    return pl.DataFrame(columns, schema=tables.OUTPUTS, orient="row")
