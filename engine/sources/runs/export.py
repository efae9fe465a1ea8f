"""Labels and runs for other tools: qrels of every annotator, and the runs as evaluated."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from engine.errors import InputError
from engine.sources.io.files import write_text
from engine.sources.io.folders import Folder
from engine.sources.runs.qrels import write_qrels
from engine.sources.runs.read import write_run
from engine.tables import ANNOTATOR, DOC_ID, LABEL, QUERY_ID, RUN

_QRELS, _RUNS = "qrels", "runs"
# Bytes: file systems take 255, of which a number and the suffix need some.
_LONGEST = 204
# Names the files of an export, so that the next one knows which of them it may remove.
_LISTED = "exported.json"


def write_exports(labels: pl.DataFrame, runs: pl.DataFrame, directory: Path) -> list[Path]:
    """Write ``qrels/ANNOTATOR.*`` and ``runs/RUN.*`` under ``directory``; the files written.

    Qrels are TREC text (``.txt``) if all of an annotator's labels are whole numbers. Others are
    BEIR's TSV (``.tsv``) and Parquet, since tools that read TREC qrels truncate 0.5 to 0. Runs are
    TREC text (``.trec``). If an id contains white space, which TREC text cannot represent, only
    Parquet is written. A list of the files is written beside the two folders, for ``exported_files``.

    Args:
        labels: the labels table.
        runs: the run table, cut off as evaluated.
        directory: an earlier export in it is removed first: a file of the same name in another format
            could be mistaken for a new one. Other files stay.
    """
    earlier = Folder(directory)
    earlier.delete(list(exported_files(earlier)))
    written: list[Path] = []
    annotators = labels[ANNOTATOR].unique(maintain_order=True).to_list()
    for annotator, name in _file_names(annotators).items():
        judgments = labels.filter(pl.col(ANNOTATOR) == annotator).select(QUERY_ID, DOC_ID, LABEL)
        written += _write_judgments(judgments, directory / _QRELS / name)
    for run, name in _file_names(runs[RUN].unique(maintain_order=True).to_list()).items():
        written.append(_write_list(runs.filter(pl.col(RUN) == run), directory / _RUNS / name))
    names = [path.relative_to(directory).as_posix() for path in written]
    write_text(json.dumps(names, indent=1, ensure_ascii=False) + "\n", directory / _LISTED)
    return written


def exported_files(folder: Folder) -> Iterator[str]:
    """The names, in ``folder``, of the files of an earlier export there, and of its list of them.

    A file that the list does not name is the user's own, and is not among them: nor is any of an export
    by an engine that made no list.

    Raises:
        InputError: the list cannot be read.
    """
    try:
        names = json.loads(folder.read(_LISTED).decode())
    except (OSError, ValueError, RecursionError):
        return
    yield _LISTED
    for name in names if isinstance(names, list) else []:
        # Whoever may have changed the list: nothing elsewhere is removed for it.
        if isinstance(name, str) and re.fullmatch(
            rf"({_QRELS}|{_RUNS})/[^/\0]*[^/\0.][^/\0]*", name
        ):
            yield name


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
    except InputError:  # ids that text cannot represent
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
    return base.with_name(base.name + suffix)  # a name may contain dots


def _shortened(name: str) -> str:
    """As much of a name as a file may be called: letters may have up to four bytes each."""
    return name[:100].encode()[:_LONGEST].decode(errors="ignore")


def _file_names(names: list[str]) -> dict[str, str]:
    """A file name for each name; users' names may contain slashes, or no valid character."""
    taken: set[str] = set()
    files: dict[str, str] = {}
    for name in names:
        file = plain = _shortened(re.sub(r"[^\w.+-]", "_", name).lstrip(".")) or "_"
        number = 2
        while file.casefold() in taken:
            file, number = f"{plain}-{number}", number + 1
        taken.add(file.casefold())
        files[name] = file
    return files
