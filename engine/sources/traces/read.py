"""Traces of agents as runs, steps and recorded outputs.

A record is a search: ``query_id`` (or ``query``), ``step`` (1, 2, …), ``search`` (its text), ``passages`` as in records
of runs, and perhaps ``run``. ``output`` is the answer, in a record of its own or in that of the last step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple

import polars as pl

from engine import tables
from engine.messages.characters import composed
from engine.messages.errors import InputError
from engine.messages.notes import Note, count_note
from engine.messages.wording import quoted
from engine.sources.fields import list_in
from engine.sources.io.files import is_text
from engine.sources.io.locations import Location, require_file, suffix_of
from engine.sources.io.parquet import read_parquet
from engine.sources.io.records import read_json_records
from engine.sources.runs.forms import LINE, MADE, RESULTS, file_name, query_of, read_records, run_of
from engine.sources.runs.outputs import outputs_of
from engine.sources.runs.read import TextedRun, with_corpus
from engine.sources.traces.openinference import is_span, records_of_spans
from engine.tables import DOC_ID, OUTPUT, QUERY_ID, RUN, SEARCH, STEP

Records = Iterable[tuple[int, Mapping[str, Any]]]
WHAT = 'traces: {"query_id": …, "step": 1, "search": …, "passages": […]}, or spans of OpenInference'
_NUMBER = "number the searches of each query 1, 2, … in their order"


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
        ids: of queries, by their texts.

    Raises:
        InputError: steps of a query other than 1, 2, …; an answer before the last step, or two; a record without passages
            and answer; a run without passages; a passage without an id that is not carried; or as ``records_of_spans``,
            ``read_records`` and ``with_corpus``.
    """
    fault = partial(InputError, path=path)
    if records is None and suffix_of(path := require_file(path, WHAT)) == ".parquet":
        records = enumerate(read_parquet(path).iter_rows(named=True), 1)
    records = iter(read_json_records(path, WHAT) if records is None else records)
    if (first := next(records, None)) is None:
        raise fault("there is no trace", f"give {WHAT}", "traces.empty")
    records, notes = chain([first], records), list[Note]()
    if is_span(first[1]):
        records, notes = records_of_spans(path, records)
    traces, outputs = _parts(path, records, name or file_name(path), ids or {})
    searches = [(*key, step, own[step]) for key, own in traces.items() for step in sorted(own)]
    lists = [(at, {RUN: run, QUERY_ID: q, RESULTS[0]: p}) for run, q, _, (at, _, p) in searches]
    batch = read_records(path, lists, "")
    if not (carried or (made := batch.texts.filter(MADE)).is_empty()):
        problem = (
            f"query {quoted(made[QUERY_ID][0])} lists a passage without an id, beside `corpus`"
        )
        remedy = "add ids, or leave `corpus` out, since the traces carry the texts"
        raise fault(problem, remedy, "traces.ids", line=made[LINE][0])
    run = TextedRun(batch.rows, batch.texts)
    listed, corpus, _ = with_corpus([run], [path], carried=carried)
    doc_ids, steps, sights = iter(listed[DOC_ID]), [], dict[tuple[str, str], dict[str, None]]()
    for name, query_id, step, (_, text, passages) in searches:
        once = dict.fromkeys(islice(doc_ids, len(passages)))
        steps.append((name, query_id, step, text, [*once]))
        sights.setdefault((name, query_id), {}).update(once)
    rows = [(q, d, n, -n, r) for (r, q), own in sights.items() for n, d in enumerate(own, 1)]
    runs = pl.DataFrame(rows, tables.RUNS, orient="row")
    if lacking := {run for run, _ in traces} - {*runs[RUN]}:
        problem = f"no search of the run {quoted(min(lacking))} lists a passage"
        raise fault(problem, "record the passages of searches", "traces.passageless")
    if corpus is not None and not corpus.is_empty():
        runs = runs.join(corpus, DOC_ID, "left", maintain_order="left")
    again, what = (
        listed.height - sum(len(s[4]) for s in steps),
        "[passage|passages] listed twice by a search",
    )
    notes += [
        count_note("repeated_passages", again, what),
        count_note("unanswered_traces", len(traces) - outputs.height, "[trace|traces] unanswered"),
    ]
    return Traces(runs, outputs, pl.DataFrame(steps, tables.STEPS, orient="row"), tuple(notes))


_Search = tuple[int, str, list[Any]]  # line, text, passages


def _parts(
    path: Location, records: Records, name: str, ids: Mapping[str, str]
) -> tuple[dict[tuple[str, str], dict[int, _Search]], pl.DataFrame]:
    """Searches by run and query, and step; and the outputs."""
    traces: dict[tuple[str, str], dict[int, _Search]] = {}
    answers: list[tuple[int, dict[str, Any]]] = []
    for line, record in records:
        fault = partial(InputError, path=path, line=line)
        query_id, run = query_of(fault, record), run_of(fault, record) or name
        here, query_id = f"query {quoted(query_id)} has", ids.get(composed(query_id), query_id)
        items, step, text = list_in(record, RESULTS), record.get(STEP), record.get(SEARCH) or ""
        if isinstance(step, float) and step.is_integer():  # pandas' form if some value is missing
            step = int(step)
        own = traces.setdefault((run, query_id), {})
        if items is not None:
            if type(step) is not int or step in own:
                again = " twice" * (type(step) is int)
                raise fault(f"{here} the step {quoted(step)}{again}", _NUMBER, "traces.step")
            if not isinstance(text, str) or not is_text(text):
                raise fault(f"{here} the search {quoted(text)}", "write a text", "traces.text")
            own[step] = (line, text, items)
        if record.get(OUTPUT) is not None:
            answer = {RUN: run, QUERY_ID: query_id, OUTPUT: record[OUTPUT], STEP: step}
            answers.append((line, answer))
        elif items is None and (step is not None or OUTPUT not in record):
            problem = f"{here} neither a list of passages nor an output"
            raise fault(problem, f"give {WHAT}", "traces.passages")
    for (_, query_id), own in traces.items():
        for due, step in enumerate(sorted(own), 1):
            if due != step:
                problem = f"query {quoted(query_id)} has step {quoted(step)} in place of {due}"
                raise InputError(problem, _NUMBER, "traces.step", path=path, line=own[step][0])
    outputs = outputs_of(path, answers) if answers else tables.empty(tables.OUTPUTS)
    for line, one in answers:
        last, step = max(traces[one[RUN], one[QUERY_ID]], default=0), one[STEP]
        if type(step) is int and step < last:
            problem = f"query {quoted(one[QUERY_ID])} has its answer in step {step} of {last}"
            remedy = "write it into the last step, or a record of its own"
            raise InputError(problem, remedy, "traces.answers", path=path, line=line)
    return traces, outputs
