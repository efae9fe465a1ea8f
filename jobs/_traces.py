"""Traces of agents as inputs of an evaluation: runs and recorded outputs, in the folder ``traces`` of its results."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from engine.messages.errors import InputError
from engine.messages.notes import Note
from engine.report.summary import SUMMARY
from engine.sources.io.folders import folder_at
from engine.sources.io.locations import Location
from engine.sources.io.outputs import Inputs, Outputs, refuse_overlap
from engine.sources.queries.read import read_query_set
from engine.sources.runs.read import require_new_name
from engine.sources.traces.read import Traces, named_file, read_traces
from engine.tables import QUERY, QUERY_ID, RUN
from jobs._evaluation_options import given_files
from jobs._terminal import step

FOLDER = "traces"
_OUTPUTS, _STEPS = "outputs.parquet", "steps.parquet"
_OWN = re.compile(rf"run-\d+.*\.parquet|{_OUTPUTS}|{_STEPS}")
Sourced = tuple[pl.DataFrame, Location]


class TraceFiles(NamedTuple):
    """Traces as tables, by the names of their files, with the user's file behind each; their steps; and notes."""

    tables: Mapping[str, Sourced] = {}
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
    # As in runs, the text of a query stands for its id unless it is an id; here it must be of one query.
    texts = queries.filter(~pl.col(QUERY).is_in(queries[QUERY_ID].implode())).group_by(QUERY)
    own_id = pl.when(pl.len() == 1).then(pl.col(QUERY_ID).first()).otherwise(pl.lit(""))
    ids, every = dict(texts.agg(own_id).iter_rows()), list[Traces]()
    tables, runs, notes = dict[str, Sourced](), dict[str, Location](), list[Note]()
    for name, file in map(named_file, options["traces"]):
        every.append(read_traces(file, name, carried=not options["corpus"], ids=ids))
        notes += (replace(n, text=f"{file}: {n.text}", about=(str(file),)) for n in every[-1].notes)
        for run in every[-1].runs.partition_by(RUN, maintain_order=True):
            require_new_name(file, name := run[RUN][0], runs)
            safe = re.sub(r"[^\w.-]+", "-", name)[:60]
            tables[f"run-{len(runs)}-{safe}.parquet"] = run, file
    changed = {**options, "run": [*options["run"], *(Path(folder.place(name)) for name in tables)]}
    steps = pl.concat(traces.steps for traces in every)
    answers = pl.concat(traces.outputs for traces in every)
    tables[_STEPS] = steps, file
    if options["end_to_end"] and not answers.is_empty():
        tables[_OUTPUTS] = answers, file
        changed["outputs"] = (*options["outputs"], Path(folder.place(_OUTPUTS)))
    return changed, TraceFiles(tables, steps, tuple(notes))


@contextmanager
def written(files: TraceFiles, out: Location) -> Iterator[None]:
    """Write the files of traces, in place of earlier ones, which come back unless the results are replaced."""
    results, folder, own = folder_at(out), folder_at(out) / FOLDER, files.tables
    before, names = [*results.read_each([SUMMARY])], {*filter(_OWN.fullmatch, folder.names())}
    earlier = {name: folder.read(name) for name in names & own.keys()}
    for name, (table, _) in own.items():
        table.write_parquet(content := BytesIO())
        folder.write(name, content.getvalue())
    try:
        yield
    except InputError as error:
        for name, (_, source) in own.items():  # users know their own files
            if str(error.path) == str(folder.place(name)):
                parts = error.problem, error.remedy, error.code
                raise type(error)(*parts, path=source) from None
        raise
    finally:
        is_replaced = [*results.read_each([SUMMARY])] != before
        folder.delete(names - own.keys() if is_replaced else own.keys() - names)
        for name, former in earlier.items() if not is_replaced else ():
            folder.write(name, former)
