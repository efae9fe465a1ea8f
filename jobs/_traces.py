"""Traces of agents as inputs of an evaluation: runs and recorded outputs, in the folder ``traces`` of its results."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import reduce
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from engine.messages.errors import InputError
from engine.messages.notes import Note
from engine.sources.io.folders import folder_at
from engine.sources.io.locations import Location
from engine.sources.io.outputs import Inputs, Outputs, refuse_overlap
from engine.sources.queries.read import read_query_set
from engine.sources.runs.read import with_query_ids
from engine.sources.traces.read import named_file, read_traces
from engine.tables import QUERY_ID, RUN, STEP
from jobs._evaluation_options import given_files
from jobs._terminal import step

FOLDER = "traces"
_OWN = re.compile(r"(run-.*|outputs|steps)(-[0-9a-f]{8})?\.parquet")


class TraceFiles(NamedTuple):
    """Files that stand for traces: their contents by name, with the user's file behind each; the steps; and notes."""

    contents: Mapping[str, tuple[bytes, Location]] = {}
    steps: pl.DataFrame = pl.DataFrame()
    notes: tuple[Note, ...] = ()


def with_traces(options: Mapping[str, Any]) -> tuple[Mapping[str, Any], TraceFiles]:
    """The options with runs and outputs in place of traces, and their files; an InputError as of ``read_traces``."""
    if options["leave_out"] and not options["traces"]:
        remedy = "give the traces, or leave it out"
        raise InputError("`leave_out` without `traces`", remedy, "settings.traces")
    folder = folder_at(options["out"]) / FOLDER
    # Before anything is read.
    refuse_overlap(Inputs(given_files(options), {}), Outputs(folders=[folder.at]))
    if not options["traces"] or options["queries"] is None:
        return options, TraceFiles()
    step("reading the traces")
    queries = read_query_set(options["queries"], need_answers=False).table
    changed, contents = {**options}, dict[str, tuple[bytes, Location]]()
    steps, notes = list[pl.DataFrame](), list[Note]()
    for run, file in map(named_file, options["traces"]):
        traces = read_traces(file, run, carried=not options["corpus"])
        runs, outputs, taken = (with_query_ids(table, queries) for table in traces[:3])
        if taken.select(RUN, QUERY_ID, STEP).is_duplicated().any():
            problem = "names a query by its id and by its text"
            raise InputError(problem, "give its id alone", "traces.query", path=file)
        named = {f"run-{name}": own for (name,), own in runs.group_by(RUN, maintain_order=True)}
        tables = {"steps": taken, **named}
        if options["end_to_end"] and not outputs.is_empty():
            tables["outputs"] = outputs
        for stem, table in tables.items():
            table.write_parquet(content := BytesIO())
            # No file replaces another content, which may be that of earlier results.
            digest = sha256(content.getbuffer()).hexdigest()[:8]
            name = re.sub(r"[^\w.-]+", "-", stem)[:60] + f"-{digest}.parquet"
            contents[name] = content.getvalue(), file
            if (option := stem.partition("-")[0]) != "steps":
                changed[option] = (*changed[option], Path(folder.place(name)))
        steps.append(taken)
        notes += traces.notes
    return changed, TraceFiles(contents, pl.concat(steps), tuple(notes))


@contextmanager
def written(files: TraceFiles, out: Location) -> Iterator[None]:
    """Write the files of traces; then delete them if there are no results, else those of earlier results."""
    folder, own = folder_at(out) / FOLDER, files.contents
    surplus = own.keys() - {*folder.names()}
    for name, (content, _) in own.items():
        folder.write(name, content)
    try:
        yield
        surplus = {*filter(_OWN.fullmatch, folder.names())} - own.keys()
    except InputError as error:
        # Users know their own files.
        sources = {str(folder.place(name)): str(source) for name, (_, source) in own.items()}
        if str(error.path) not in sources:
            raise
        problem = reduce(lambda text, own: text.replace(*own), sources.items(), error.problem)
        path = sources[str(error.path)]
        raise type(error)(problem, error.remedy, error.code, path=path) from None
    finally:
        folder.delete(surplus)
