"""Traces of agents as runs, steps and recorded outputs.

A record is a search: ``query_id`` (or ``query``), ``step`` (1, 2, …), ``search`` (its text), ``passages`` as in records
of runs, and perhaps ``run``. ``output`` is the answer, in a record of its own or in that of the last step.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

import polars as pl

from engine import tables
from engine.messages.characters import composed
from engine.messages.errors import InputError
from engine.messages.notes import Note, count_note
from engine.messages.wording import quoted
from engine.sources.fields import list_in
from engine.sources.io.files import is_text
from engine.sources.io.locations import Location
from engine.sources.runs.forms import LINE, MADE, RESULTS, file_name, query_of, read_records, run_of
from engine.sources.runs.outputs import Records, numbered_records, outputs_of
from engine.sources.runs.read import TextedRun, with_corpus
from engine.sources.traces.openinference import is_span, records_of_spans
from engine.tables import DOC_ID, OUTPUT, QUERY_ID, RUN, SEARCH, STEP

WHAT = 'traces: {"query_id": …, "step": 1, "search": …, "passages": […]}, or spans of OpenInference'
_NUMBER = "number the searches of each query 1, 2, … in their order"
_Search = tuple[int, str, list[Any]]  # line, text, passages


class Traces(NamedTuple):
    """Traces of agents, as tables.

    Attributes:
        runs: the run table, passages in the order of first sight; with ``title``, ``text`` and ``article_id`` if the traces
            carry texts.
        outputs: ``tables.OUTPUTS``; empty without answers.
        steps: ``tables.STEPS``.
        notes: counts of incomplete records.
    """

    runs: pl.DataFrame
    outputs: pl.DataFrame
    steps: pl.DataFrame
    notes: tuple[Note, ...]


def read_traces(
    path: Location,
    name: str = "",
    records: Records | None = None,
    *,
    carried: bool = True,
    ids: Mapping[str, str] | None = None,
) -> Traces:
    """Read traces in JSON lines, a JSON array or Parquet, whose rows count as lines.

    Args:
        name: the run of records without ``run``; by default the name of the file.
        records: (line, record)s in place of the file's.
        carried: whether the texts of passages count; else ids name passages of a corpus.
        ids: of queries, by their texts; empty for a text that several have.

    Raises:
        InputError: steps of a query other than 1, 2, …; an answer before the last step, or two; a record without passages
            and answer; a run without passages; a passage without an id that is not carried; or as ``records_of_spans``,
            ``read_records`` and ``with_corpus``.
    """
    fault = partial(InputError, path=path)
    records = list(numbered_records(path, WHAT) if records is None else records)
    if not records:
        raise fault("there is no trace", f"give {WHAT}", "traces.empty")
    notes = list[Note]()
    if is_span(records[0][1]):
        records, notes = records_of_spans(path, records)
    traces, outputs = _parts(path, records, name or file_name(path), ids or {})
    searches = [(*key, *one) for key, own in traces.items() for one in sorted(own.items())]
    lists = [(at, {RUN: run, QUERY_ID: q, RESULTS[0]: p}) for run, q, _, (at, _, p) in searches]
    batch = read_records(path, lists, "")
    if not (carried or (made := batch.texts.filter(MADE)).is_empty()):
        problem = (
            f"query {quoted(made[QUERY_ID][0])} lists a passage without an id, beside `corpus`"
        )
        remedy = "add ids, or leave `corpus` out, since the traces carry the texts"
        raise fault(problem, remedy, "traces.ids", line=made[LINE][0])
    listed, corpus, _ = with_corpus([TextedRun(batch.rows, batch.texts)], [path], carried=carried)
    doc_ids, steps, sights = iter(listed[DOC_ID]), [], dict[tuple[str, str], dict[str, None]]()
    for run, query_id, step, (_, text, passages) in searches:
        once = dict.fromkeys(islice(doc_ids, len(passages)))
        steps.append((run, query_id, int(step), text, [*once]))
        sights.setdefault((run, query_id), {}).update(once)
    rows = [(q, d, n, -n, r) for (r, q), own in sights.items() for n, d in enumerate(own, 1)]
    runs = pl.DataFrame(rows, tables.RUNS, orient="row")
    if lacking := {run for run, _ in traces} - {*runs[RUN]}:
        problem = f"no search of the run {quoted(min(lacking))} lists a passage"
        raise fault(problem, "record the passages of searches", "traces.passageless")
    if corpus is not None and not corpus.is_empty():
        runs = runs.join(corpus, DOC_ID, "left", maintain_order="left")
    again = listed.height - sum(len(once) for *_, once in steps)
    repeated = count_note("repeated_passages", again, "[passage|passages] listed twice by a search")
    without = len(traces) - outputs.height
    notes += [repeated, count_note("unanswered_traces", without, "[trace|traces] unanswered")]
    return Traces(runs, outputs, pl.DataFrame(steps, tables.STEPS, orient="row"), tuple(notes))


def _parts(
    path: Location, records: Records, name: str, ids: Mapping[str, str]
) -> tuple[dict[tuple[str, str], dict[float, _Search]], pl.DataFrame]:
    """Searches by run and query, and step; and the outputs."""
    traces: dict[tuple[str, str], dict[float, _Search]] = {}
    answers: list[tuple[int, dict[str, Any]]] = []
    for line, record in records:
        fault = partial(InputError, path=path, line=line)
        query_id, run = query_of(fault, record), run_of(fault, record) or name
        here, query_id = f"query {quoted(query_id)} has", ids.get(composed(query_id), query_id)
        items, text = list_in(record, RESULTS), record.get(SEARCH)
        text = "" if text is None else text
        if not query_id:
            problem = f"{here} the text of several queries"
            raise fault(problem, "name its id", "traces.query")
        step: Any = record.get(STEP)
        own = traces.setdefault((run, query_id), {})
        if items is not None:
            is_number = type(step) in (int, float)  # pandas writes 1.0 if some value is missing
            if not is_number or step in own:
                problem = f"{here} the step {quoted(step)}{' twice' * is_number}"
                raise fault(problem, _NUMBER, "traces.step")
            if not isinstance(text, str) or not is_text(text):
                raise fault(f"{here} the search {quoted(text)}", "write a text", "traces.text")
            own[step] = (line, text, items)
        if record.get(OUTPUT) is not None:
            answers.append((line, {**record, RUN: run, QUERY_ID: query_id}))
        elif items is None and (step is not None or OUTPUT not in record):
            problem = f"{here} neither a list of passages nor an output"
            raise fault(problem, f"give {WHAT}", "traces.passages")
    for (_, query_id), own in traces.items():
        for due, step in enumerate(sorted(own), 1):
            if due != step:
                problem = f"query {quoted(query_id)} has step {quoted(step)} in place of {due}"
                raise InputError(problem, _NUMBER, "traces.step", path=path, line=own[step][0])
    outputs = outputs_of([("", path, answers)] * bool(answers))
    for line, one in answers:
        last, step = len(traces[one[RUN], one[QUERY_ID]]), one.get(STEP)
        if step is not None and step != last > 0:
            problem = (
                f"query {quoted(one[QUERY_ID])} has its answer in step {quoted(step)} of {last}"
            )
            remedy = "write it into the last step, or a record of its own"
            raise InputError(problem, remedy, "traces.answers", path=path, line=line)
    return traces, outputs
