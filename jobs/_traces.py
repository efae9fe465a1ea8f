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
from engine.report.summary import SUMMARY
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
_OUTPUTS, STEPS = "outputs.parquet", "steps.parquet"
_OWN = re.compile(rf"run-\d+.*\.parquet|{_OUTPUTS}|{STEPS}")


def with_traces(options: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, pl.DataFrame]]:
    """The options with runs and outputs in place of traces, and the tables of these by their files' names."""
    if options["leave_out"] and not options["traces"]:
        remedy = "give the traces, or leave it out"
        raise InputError("`leave_out` without `traces`", remedy, "settings.traces")
    if not options["traces"] or options["queries"] is None:
        return options, {}
    step("reading the traces")
    files = [(name, Path(file)) for name, file in map(named_file, options["traces"])]
    given, folder = {"traces": [file for _, file in files]}, folder_at(options["out"]) / FOLDER
    refuse_overlap(Inputs(given, {}), Outputs(folders=[folder.at]))
    queries = read_query_set(options["queries"], need_answers=False).table
    # As in runs, the text of a query stands for its id unless it is an id; here it must be of one query.
    texts = queries.filter(~pl.col(QUERY).is_in(queries[QUERY_ID].implode()))
    shared = {*texts.filter(texts[QUERY].is_duplicated())[QUERY]}
    ids = dict(texts.select(QUERY, QUERY_ID).iter_rows())
    ids |= dict.fromkeys(shared, "")
    tables, sources, every = dict[str, pl.DataFrame](), dict[str, Location](), []
    for name, file in files:
        every.append(read_traces(file, name, carried=not options["corpus"], ids=ids))
        for note in every[-1].notes:
            if note.is_shown:
                say(f"note: {file}: {note.text}")
        for run in every[-1].runs.partition_by(RUN, maintain_order=True):
            require_new_name(file, name := run[RUN][0], sources)
            safe = re.sub(r"[^\w.-]+", "-", name)[:60]
            tables[f"run-{len(sources)}-{safe}.parquet"] = run
    runs = [*options["run"], *(Path(folder.place(name)) for name in tables)]
    tables[STEPS] = pl.concat(traces.steps for traces in every)
    recorded, outputs = pl.concat(traces.outputs for traces in every), tuple(options["outputs"])
    if options["end_to_end"] and not recorded.is_empty():
        tables[_OUTPUTS] = recorded
        outputs += (Path(folder.place(_OUTPUTS)),)
    return {**options, **given, "run": runs, "outputs": outputs}, tables


@contextmanager
def written(tables: Mapping[str, pl.DataFrame], out: Location) -> Iterator[None]:
    """Write the tables of traces, in place of earlier ones, which come back unless the results are replaced."""
    folder, results = folder_at(out) / FOLDER, folder_at(out)
    earlier = {name: folder.read(name) for name in filter(_OWN.fullmatch, folder.names())}
    before = results.read(SUMMARY) if SUMMARY in results.names() else None
    if tables:
        folder.delete(earlier)
    for name, table in tables.items():
        table.write_parquet(content := BytesIO())
        folder.write(name, content.getvalue())
    try:
        yield
    except BaseException as error:
        if before == (results.read(SUMMARY) if SUMMARY in results.names() else None):
            if earlier or isinstance(error, InputError):
                folder.delete(tables.keys() - earlier.keys())
            for name in earlier if tables else ():
                folder.write(name, earlier[name])
            raise
        folder.delete(earlier.keys() - tables.keys())
        raise
    folder.delete(earlier.keys() - tables.keys())
