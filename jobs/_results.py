"""Writing and printing an evaluation's results."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import polars as pl
from rich.table import Table

from engine.evaluation.assess import Evaluation
from engine.evaluation.inputs import EvaluationInputs
from engine.evaluation.settings import Settings
from engine.evaluation.study import Study
from engine.labels.registry import ANNOTATORS
from engine.report import answer, printed, summary
from engine.report import study as study_report
from engine.report.audit import Origin
from engine.sources.io.files import write_parquet, write_text
from engine.sources.io.outputs import Outputs
from engine.sources.io.replacing import replaced_together
from engine.sources.runs.export import exported_files, write_exports
from engine.tables import RANK
from jobs._evaluation_options import parameters
from jobs._options import with_options
from jobs._terminal import standard_output

# Where a study's further evaluations lie, in directories of their own.
CONDITIONS = "conditions"
EXPORTED = "exported"
SUMMARY = "summary.json"
_OF_READS = ("labels", "query_scores", "downstream", "reads", "traces")
_OF_STATISTICS = ("correlations", "comparisons", "systems", "run_pairs")
_OF_A_STUDY = ("conditions", "readers", "reader_comparisons")


def outputs(out: Path, settings: Settings) -> Outputs:
    """What an evaluation under these settings writes or clears under ``out``."""
    return Outputs(_files(out, settings), (out / CONDITIONS, out / EXPORTED))


def write_results(
    result: Evaluation,
    inputs: EvaluationInputs,
    files: dict[str, Any],
    out: Path,
    study: Study | None = None,
    origin: Origin | None = None,
) -> None:
    """Write every table and ``summary.json`` under ``out``, where they replace an earlier evaluation's
    all together.

    Args:
        inputs: what was evaluated, or more: runs are cut at the evaluation's cutoff.
        files: where that came from, for the summary.
        study: of which ``result`` is the first evaluation; the others are written beside it.
        origin: the command and its files, for the summary.

    Raises:
        WriteError: the disk is full, or the place cannot be written; an earlier evaluation is whole.
    """

    def earlier() -> Iterator[Path]:
        return _earlier(out, result.settings)

    with replaced_together(out, earlier, last=SUMMARY) as directory:
        _write(result, inputs, files, directory, study, origin)


def _files(out: Path, settings: Settings) -> list[Path]:
    """The files of an evaluation directly under its folder, whether or not it has them all."""
    further = (
        table.name
        for annotator in (*ANNOTATORS.values(), *settings.labels.listed())
        for table in annotator.further_tables
    )
    names = (*_OF_READS, *further, *_OF_STATISTICS, *_OF_A_STUDY)
    return [*(out / f"{name}.parquet" for name in dict.fromkeys(names)), out / SUMMARY]


def _earlier(out: Path, settings: Settings) -> Iterator[Path]:
    """What an earlier evaluation wrote, and nothing that a user put there."""
    yield from _files(out, settings)
    yield from exported_files(out / EXPORTED)
    conditions = out / CONDITIONS
    for old in sorted(conditions.iterdir()) if conditions.is_dir() else []:
        if (old / SUMMARY).is_file() and (old / "labels.parquet").is_file():
            yield from _earlier(old, settings)


def _write(
    result: Evaluation,
    inputs: EvaluationInputs,
    files: dict[str, Any],
    out: Path,
    study: Study | None,
    origin: Origin | None,
) -> None:
    """Write an evaluation, and those of its study, into an empty folder."""
    for name in _OF_READS:
        write_parquet(getattr(result, name), out / f"{name}.parquet")
    for annotator in (*ANNOTATORS.values(), *result.settings.labels.listed()):
        for table in annotator.further_tables:
            _write_unless_empty(result.further_table(table.name), out / f"{table.name}.parquet")
    for name in _OF_STATISTICS:
        write_parquet(getattr(result.statistics, name), out / f"{name}.parquet")
    runs = inputs.runs.filter(pl.col(RANK) <= result.settings.ranking.k)
    write_exports(result.labels, runs, out / EXPORTED)
    content = _with_options(summary.summarize(result, files, origin), _fields())
    if study is not None:
        content["study"] = _write_study(study, inputs, files, out, origin)
    write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", out / SUMMARY)


def print_results(
    result: Evaluation, out: Path, study: Study | None = None, *, full: bool = False
) -> None:
    """Print the answer; with ``full`` all tables and what stands around them."""
    console = standard_output()
    parts = _all_parts(result, out, study) if full else answer.shown(result, out, study)
    known = _fields()
    for part in parts:
        if isinstance(part, str):
            console.print_line(with_options(part, known))
        else:
            console.print(part)


def _all_parts(result: Evaluation, out: Path, study: Study | None) -> list[Table | str]:
    lines = printed.lines(result)
    tables = printed.shown_tables(result)
    if study is not None:
        tables += study_report.shown(study)
        lines += study_report.lines(study)
    return [*tables, *lines, f"results -> {out}"]


def _fields() -> set[str]:
    return {known.name for known in parameters()}


def _with_options(content: dict[str, Any], known: Collection[str]) -> dict[str, Any]:
    """The summary with options, instead of fields, in its sentences."""
    for notes in content["notes"].values():
        for note in notes:
            note["text"] = with_options(note["text"], known)
    if content["verdict"] is not None:
        content["verdict"]["sentences"] = [
            with_options(sentence, known) for sentence in content["verdict"]["sentences"]
        ]
    return content


def _write_unless_empty(frame: pl.DataFrame, path: Path) -> None:
    if not frame.is_empty():  # else nobody asked
        write_parquet(frame, path)


def _write_study(
    study: Study,
    inputs: EvaluationInputs,
    files: dict[str, Any],
    out: Path,
    origin: Origin | None,
) -> dict[str, Any]:
    names = study_report.directory_names(list(study.evaluations))
    main, *others = study.evaluations
    for condition in others:
        directory = out / CONDITIONS / names[condition]
        _write(study.evaluations[condition], inputs, files, directory, None, origin)
    for name in _OF_A_STUDY:
        _write_unless_empty(getattr(study, name), out / f"{name}.parquet")
    places = {c: f"{CONDITIONS}/{names[c]}" for c in others} | {main: "."}
    return summary.jsonable(study_report.content(study, places))
