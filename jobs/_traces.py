"""Traces of agents as inputs of an evaluation: runs and recorded outputs, in the folder ``traces`` of its results."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Any

import polars as pl

from engine.messages.errors import InputError
from engine.sources.io.folders import folder_at
from engine.sources.io.locations import Location
from engine.sources.io.outputs import Inputs, Outputs, refuse_overlap
from engine.sources.queries.read import read_query_set
from engine.sources.runs.outputs import named_file
from engine.sources.runs.read import require_new_name
from engine.sources.traces.read import read_traces
from engine.tables import QUERY, QUERY_ID, RUN
from jobs._terminal import say, step

FOLDER = "traces"
_OUTPUTS, _STEPS = "outputs.parquet", "steps.parquet"
_OWN = re.compile(rf"run-\d+.*\.parquet|{_OUTPUTS}|{_STEPS}")


def with_traces(options: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, pl.DataFrame]]:
    """The options with runs and outputs in place of traces, and the tables that stand for these, by file."""
    if not options["traces"] or options["queries"] is None:
        return options, {}
    step("reading the traces")
    named = [named_file(place) for place in options["traces"]]
    files = [Path(file) for _, file in named]
    folder = folder_at(options["out"]) / FOLDER
    refuse_overlap(Inputs({"traces": files}, {}), Outputs(folders=[folder.at]))
    queries = read_query_set(options["queries"], need_answers=False).table
    ids = dict(queries.reverse().select(QUERY, QUERY_ID).iter_rows())
    carried = not options["corpus"]
    every = [read_traces(file, name, carried=carried, ids=ids) for name, file in named]
    sources: dict[str, Location] = {}
    tables = {}
    for file, traces in zip(files, every, strict=True):
        for note in traces.notes:
            say(f"note: {file}: {note.text}") if note.amount else None
        for run in traces.runs.partition_by(RUN, maintain_order=True):
            require_new_name(file, name := run[RUN][0], sources)
            safe = re.sub(r"[^\w.-]+", "-", name)[:60]
            tables[f"run-{len(sources)}-{safe}.parquet"] = run
    runs, outputs = [Path(folder.place(name)) for name in tables], [*options["outputs"]]
    tables[_STEPS] = pl.concat(traces.steps for traces in every)
    recorded = pl.concat(traces.outputs for traces in every)
    if options["end_to_end"] and not recorded.is_empty():
        tables[_OUTPUTS] = recorded
        outputs.append(Path(folder.place(_OUTPUTS)))
    given = {"traces": files, "run": [*options["run"], *runs], "outputs": tuple(outputs)}
    return {**options, **given}, tables


@contextmanager
def written(tables: Mapping[str, pl.DataFrame], out: Location) -> Iterator[None]:
    """Write the tables of traces, in place of earlier ones; they go if inputs are refused."""
    folder = folder_at(out) / FOLDER

    def clear() -> None:
        folder.delete(name for name in folder.names() if _OWN.fullmatch(name))
        folder_at(out).delete_empty([FOLDER])

    if not tables:
        yield
        return
    clear()
    for name, table in tables.items():
        content = BytesIO()
        table.write_parquet(content)
        folder.write(name, content.getvalue())
    try:
        yield
    except InputError:
        clear()
        raise
