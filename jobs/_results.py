"""Writing and printing an evaluation's results."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import polars as pl

from engine.evaluation.assess import Evaluation
from engine.evaluation.inputs import EvaluationInputs
from engine.evaluation.study import Study
from engine.labels.registry import ANNOTATORS
from engine.report import printed, summary
from engine.report import study as study_report
from engine.report.audit import Origin
from engine.sources.io.files import write_parquet, write_text
from engine.sources.runs.export import write_exports
from engine.tables import RANK
from jobs._evaluation_options import parameters
from jobs._options import with_options
from jobs._terminal import standard_output

# Where a study's further evaluations lie, in directories of their own.
CONDITIONS = "conditions"
_OF_A_STUDY = ("conditions", "readers", "reader_comparisons")


def write_results(
    result: Evaluation,
    inputs: EvaluationInputs,
    files: dict[str, Any],
    out: Path,
    study: Study | None = None,
    origin: Origin | None = None,
) -> None:
    """Write every table and ``summary.json`` under ``out``.

    Args:
        inputs: what was evaluated, or more: runs are cut at the evaluation's cutoff.
        files: where that came from, for the summary.
        study: of which ``result`` is the first evaluation; the others are written beside it.
        origin: the command and its files, for the summary.
    """
    # Removed first and written last: a summary means that everything it speaks of is there.
    (out / "summary.json").unlink(missing_ok=True)
    for name in ("labels", "query_scores", "downstream", "reads", "traces"):
        write_parquet(getattr(result, name), out / f"{name}.parquet")
    for annotator in (*ANNOTATORS.values(), *result.settings.labels.listed()):
        for table in annotator.further_tables:
            _write_unless_empty(result.further_table(table.name), out / f"{table.name}.parquet")
    for name in ("correlations", "comparisons", "systems", "run_pairs"):
        write_parquet(getattr(result.statistics, name), out / f"{name}.parquet")
    runs = inputs.runs.filter(pl.col(RANK) <= result.settings.ranking.k)
    write_exports(result.labels, runs, out / "exported")
    content = _with_options(summary.summarize(result, files, origin), _fields())
    _remove_conditions(out / CONDITIONS)
    if study is None:
        for name in _OF_A_STUDY:
            (out / f"{name}.parquet").unlink(missing_ok=True)
    else:
        content["study"] = _write_study(study, inputs, files, out, origin)
    write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", out / "summary.json")


def print_results(result: Evaluation, out: Path, study: Study | None = None) -> None:
    """Print the tables and what stands around them."""
    console = standard_output()
    lines = printed.lines(result)
    tables = printed.shown_tables(result)
    if study is not None:
        tables += study_report.shown(study)
        lines += study_report.lines(study)
    for table in tables:
        console.print(table)
    known = _fields()
    for line in [*(with_options(line, known) for line in lines), f"results -> {out}"]:
        console.print_line(line)


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
    if frame.is_empty():  # nobody asked; an earlier evaluation's would speak of other labels
        path.unlink(missing_ok=True)
    else:
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
        write_results(
            study.evaluations[condition],
            inputs,
            files,
            out / CONDITIONS / names[condition],
            origin=origin,
        )
    for name in _OF_A_STUDY:
        _write_unless_empty(getattr(study, name), out / f"{name}.parquet")
    places = {c: f"{CONDITIONS}/{names[c]}" for c in others} | {main: "."}
    return summary.jsonable(study_report.content(study, places))


def _remove_conditions(directory: Path) -> None:
    """Remove what an earlier study wrote, and nothing that is not an evaluation."""
    if not directory.is_dir():
        return
    for old in directory.iterdir():
        if (old / "summary.json").is_file() and (old / "labels.parquet").is_file():
            shutil.rmtree(old)
    if not any(directory.iterdir()):
        directory.rmdir()
