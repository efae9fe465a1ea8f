"""Labels and runs for other tools: qrels of every annotator, and the runs as they were evaluated."""

from __future__ import annotations

import re
from pathlib import Path

import polars as pl

from engine.errors import InputError
from engine.sources.runs.qrels import write_qrels
from engine.sources.runs.read import write_run
from engine.tables import ANNOTATOR, DOC_ID, LABEL, QUERY_ID, RUN

_QRELS, _RUNS = "qrels", "runs"
_SUFFIXES = (".txt", ".tsv", ".trec", ".parquet")


def write_exports(labels: pl.DataFrame, runs: pl.DataFrame, directory: Path) -> list[Path]:
    """Write ``qrels/ANNOTATOR.*`` and ``runs/RUN.*`` under ``directory``; what was written.

    Qrels are TREC text (``.txt``) where all of an annotator's labels are whole numbers. Others are
    BEIR's TSV (``.tsv``) and Parquet: tools that read TREC qrels cut 0.5 down to 0. Runs are TREC text
    (``.trec``). Where an id holds white space, which TREC text cannot, it is Parquet alone.
    Files that an earlier export left in the two folders are removed first: one by the same name in
    another format would be taken for one of these.

    Args:
        labels: the labels table.
        runs: the run table, cut as it was evaluated.
        directory: a folder of the engine's own.
    """
    for folder in (_QRELS, _RUNS):
        for old in sorted((directory / folder).glob("*")):
            if old.suffix in _SUFFIXES:
                old.unlink()
    written: list[Path] = []
    names = _file_names(labels[ANNOTATOR].unique(maintain_order=True).to_list())
    for name, file in names.items():
        own = labels.filter(pl.col(ANNOTATOR) == name).select(QUERY_ID, DOC_ID, LABEL)
        written += _write_judgments(own, directory / _QRELS / file)
    for name, file in _file_names(runs[RUN].unique(maintain_order=True).to_list()).items():
        written.append(_write_list(runs.filter(pl.col(RUN) == name), directory / _RUNS / file))
    return written


def _write_judgments(judgments: pl.DataFrame, base: Path) -> list[Path]:
    parquet, text = _with(base, ".parquet"), _with(base, ".txt")
    whole = bool((judgments[LABEL] == judgments[LABEL].floor()).all())
    try:
        if whole:
            write_qrels(judgments, text)
            return [text]
        write_qrels(judgments, parquet)
        write_qrels(judgments, _with(base, ".tsv"))
        return [parquet, _with(base, ".tsv")]
    except InputError:  # ids that text cannot hold
        write_qrels(judgments, parquet)
        return [parquet]


def _write_list(run: pl.DataFrame, base: Path) -> Path:
    try:
        write_run(run, _with(base, ".trec"))
    except InputError:
        write_run(run, _with(base, ".parquet"))
        return _with(base, ".parquet")
    return _with(base, ".trec")


def _with(base: Path, suffix: str) -> Path:
    return base.with_name(base.name + suffix)  # a name may hold dots


def _file_names(names: list[str]) -> dict[str, str]:
    """A file name for each: names are the user's, and may hold slashes or nothing that a file can."""
    taken: set[str] = set()
    files: dict[str, str] = {}
    for name in names:
        file = plain = re.sub(r"[^\w.+-]", "_", name).lstrip(".")[:100] or "_"
        number = 2
        while file.casefold() in taken:
            file, number = f"{plain}-{number}", number + 1
        taken.add(file.casefold())
        files[name] = file
    return files
