"""Writing an evaluation into a folder: tables, exports, ``summary.json`` and the page, all together."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from engine.evaluation.conclude import Evaluation
from engine.evaluation.kept import delivered, shard_tables
from engine.evaluation.settings import Settings
from engine.evaluation.study import Study
from engine.labels.registry import ANNOTATORS
from engine.messages.extras import missing
from engine.report import study_report, summary
from engine.report.audit import Origin
from engine.report.findings import STUDY, Findings, Sources, read_findings
from engine.report.heartbeat import PROGRESS
from engine.report.page.render import BESIDE, PAGE, page_files, sparing
from engine.report.page.write import write_page
from engine.report.summary import SHARDS, STATISTICS, SUMMARY
from engine.sources.io.files import write_parquet, write_text
from engine.sources.io.folders import Folder, folder_at
from engine.sources.io.locations import Location
from engine.sources.io.outputs import Outputs
from engine.sources.io.replacing import replaced_together
from engine.sources.runs.export import exported_files, of_scored, write_exports
from engine.tables import EVALUATED_QUERIES, RANK

# The summary in the words of whoever asked: fields are options to some.
Reworded = Callable[[dict[str, Any]], dict[str, Any]]


# Where a study's further evaluations lie, in directories of their own.
CONDITIONS = "conditions"
EXPORTED = "exported"
_LABELS = "labels.parquet"
_OF_READS = ("labels", "reads", "traces")
_OF_QUERIES = ("query_scores", "downstream")
_QUERIES = "evaluated_queries"
_CLUSTERS = "clusters"


def outputs(out: Location, settings: Settings) -> Outputs:
    """What an evaluation under these settings writes or clears, under ``out`` and elsewhere."""
    folder = folder_at(out)
    folders = [CONDITIONS, EXPORTED, SHARDS, BESIDE, *_in_parts(settings)]
    return Outputs(
        [
            *(folder.place(name) for name in (*_names(settings), PROGRESS)),
            *filter(None, [settings.api.batch_out]),
        ],
        [folder.place(name) for name in folders],
    )


def write_results(
    result: Evaluation,
    files: dict[str, Any],
    out: Location,
    study: Study | None = None,
    origin: Origin | None = None,
    *,
    reworded: Reworded = lambda content: content,
) -> Findings:
    """Write every table and ``summary.json`` under ``out``, where they replace an earlier evaluation's all together.

    Of a ``study``, ``result`` is the first evaluation; the others are written beside it.

    Raises:
        WriteError: the disk is full, or the place cannot be written; at a path, an earlier evaluation
            is whole.
        InputError: the address cannot be read.
        Exception: what the page failed by, if nobody foresaw it; everything else is written.
    """

    def earlier() -> Iterator[str]:
        evaluations = [result] if study is None else list(study.evaluations.values())
        # Nothing takes up the shards of functions that nothing is known of.
        own = [one.parts.name for one in evaluations if one.parts and one.parts.is_lasting]
        return _earlier(folder_at(out), result.settings, own)

    about = _About(files, origin, reworded)
    with replaced_together(out, earlier, last=SUMMARY) as directory:
        found = _write(result, about, directory, study)
    # An evaluation is not lost for a picture: everything else is in its place by now.
    for error in about.unforeseen:
        raise error
    return found


def _names(settings: Settings) -> list[str]:
    """The files of an evaluation directly in its folder, whether or not it has them all."""
    # Last those by which an earlier evaluation is known, so that one which is half removed still is.
    whole = (*_OF_QUERIES, _QUERIES, _CLUSTERS, *STATISTICS, *STUDY)
    names = (*_in_parts(settings), *(f"{name}.parquet" for name in whole))
    return [*(name for name in names if name != _LABELS), PAGE, _LABELS, SUMMARY]


def _in_parts(settings: Settings) -> list[str]:
    """The tables that are one file each, or of an evaluation in shards a folder of files of that name."""
    annotators = (*ANNOTATORS.values(), *settings.resolved.listed)
    further = (table.name for annotator in annotators for table in annotator.further_tables)
    return [f"{name}.parquet" for name in dict.fromkeys((*_OF_READS, *further))]


def _earlier(folder: Folder, settings: Settings, shards: Sequence[str]) -> Iterator[str]:
    """The names of what an earlier evaluation wrote: nothing that a user put there, nor the new ones' own ``shards``."""
    yield from (f"{EXPORTED}/{name}" for name in exported_files(folder / EXPORTED))
    yield from page_files(folder)
    folders = folder.folders()

    def in_parts(table: str) -> Iterator[str]:
        if table in folders:
            yield from (f"{table}/{name}" for name in delivered(folder / table))

    for table in _in_parts(settings):
        if table != _LABELS:
            yield from in_parts(table)
    yield from (f"{SHARDS}/{name}" for name in shard_tables(folder / SHARDS, other_than=shards))
    conditions = folder / CONDITIONS
    for name in conditions.folders():
        old = conditions / name
        # Of evaluations in shards, earlier versions had the labels elsewhere.
        names = {*old.sizes(), *old.folders()}
        if SUMMARY in names and names & {_LABELS, "query_scores.parquet"}:
            earlier = _earlier(old, settings, [])
            yield from (f"{CONDITIONS}/{name}/{file}" for file in earlier)
    *others, labels, summary_file = _names(settings)
    yield from others
    yield from in_parts(_LABELS)
    yield from (labels, summary_file)


@dataclass(frozen=True)
class _About:
    """What the summary of every evaluation of a folder says beside its figures, and what its pages failed by."""

    files: dict[str, Any]
    origin: Origin | None
    reworded: Reworded
    unforeseen: list[Exception] = field(default_factory=list)


def _write(
    result: Evaluation,
    about: _About,
    out: Path,
    study: Study | None = None,
) -> Findings:
    """Write an evaluation, and those of its study, into an empty folder."""
    parts, shards = result.parts, result.shards
    for name in _OF_QUERIES if parts else (*_OF_READS, *_OF_QUERIES):
        write_parquet(getattr(result, name), out / f"{name}.parquet")
    if parts:
        for name in parts.tables:
            parts.deliver(name, shards.shards, out / f"{name}.parquet")
    queries = shards.queries().select(list(EVALUATED_QUERIES))
    write_parquet(queries, out / f"{_QUERIES}.parquet")
    _write_unless_empty(result.clusters, out / f"{_CLUSTERS}.parquet")
    for annotator in (*ANNOTATORS.values(), *result.settings.resolved.listed):
        for table in annotator.further_tables:
            _write_unless_empty(result.further_table(table.name), out / f"{table.name}.parquet")
    for name in STATISTICS:
        write_parquet(getattr(result.statistics, name), out / f"{name}.parquet")
    runs = (shards.read(shard.number, passages=False).runs for shard in shards.shards)
    labels = parts.table("labels", shards.shards) if parts else [result.labels]
    write_exports(
        of_scored(labels, result.query_scores),
        (rows.filter(pl.col(RANK) <= result.settings.ranking.k) for rows in runs),
        out / EXPORTED,
        runs_in_order=shards.runs,
    )
    content = about.reworded(summary.summarize(result, about.files, about.origin))
    conditions: list[Findings] = []
    if study is not None:
        content["study"], conditions = _write_study(study, about, out)
    content = summary.with_digests(content, out)
    write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", out / SUMMARY)
    used = sources(result)
    if not missing("page"):
        with sparing(out, about.unforeseen):
            write_page(read_findings(out, used), out)
    return Findings.of(result, content, used, study, conditions)


def sources(result: Evaluation) -> Sources | None:
    """What the page of an evaluation shows of its inputs."""
    return None if result.parts else Sources.of(result.inputs)


def _write_unless_empty(frame: pl.DataFrame, path: Path) -> None:
    if not frame.is_empty():  # else nobody asked
        write_parquet(frame, path)


def _write_study(study: Study, about: _About, out: Path) -> tuple[dict[str, Any], list[Findings]]:
    """Write the tables of a study and its further evaluations; what its summary has, and what these found."""
    names = study_report.directory_names(list(study.evaluations))
    main, *others = study.evaluations
    found = [_write(study.evaluations[one], about, out / CONDITIONS / names[one]) for one in others]
    for name in STUDY:
        _write_unless_empty(getattr(study, name), out / f"{name}.parquet")
    places = {c: f"{CONDITIONS}/{names[c]}" for c in others} | {main: "."}
    return summary.jsonable(study_report.summarize_study(study, places)), found
