"""Labels and runs for other tools: qrels of every annotator, the runs as evaluated, and both as a data set."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path

import polars as pl
import yaml

from engine import tables
from engine.messages.errors import InputError
from engine.sources.io.digests import file_sha256, require_whole
from engine.sources.io.files import atomic_path, temporary_directory, write_text
from engine.sources.io.folders import Folder
from engine.sources.io.parquet import read_parquet
from engine.sources.runs.qrels import write_qrels
from engine.sources.runs.read import write_run
from engine.tables import ANNOTATOR, DOC_ID, LABEL, QUERY_ID, RUN

_QRELS, _RUNS = "qrels", "runs"
METADATA, CARD = "ir_metadata.yaml", "README.md"
_LABELS_TABLE, _RUNS_TABLE = "labels.parquet", "runs.parquet"
_BESIDE = "|".join(map(re.escape, (_LABELS_TABLE, _RUNS_TABLE, METADATA, CARD)))
_OURS = re.compile(rf"({_QRELS}|{_RUNS})/[^/\0]*[^/\0.][^/\0]*|{_BESIDE}")
# Bytes: file systems take 255, and a number and the suffix need some.
_LONGEST = 204
# Names the files of an export, so that the next export knows which files it may remove.
_LISTED = "exported.json"


def write_exports(
    labels: Iterable[pl.DataFrame],
    runs: Iterable[pl.DataFrame],
    directory: Path,
    *,
    runs_in_order: Sequence[str] = (),
    describe: Callable[[Mapping[str, Mapping[str, str]]], Mapping[str, str]] | None = None,
) -> list[Path]:
    """Write ``qrels/ANNOTATOR.*`` and ``runs/RUN.*`` under ``directory``; the files written.

    Qrels are TREC text (``.txt``) if all of an annotator's labels are whole numbers, else BEIR's TSV (``.tsv``) and
    Parquet, since tools that read TREC qrels truncate 0.5 to 0. Runs are TREC text (``.trec``). With white space in an
    id only Parquet is written. A list of the files stands beside the two folders, for ``exported_files``.

    Args:
        labels: the labels table, in parts, read one after another.
        runs: the run table, cut off as evaluated, likewise, whole queries each.
        directory: an earlier export in it is removed first: a file of the same name in another format
            could be mistaken for a new one. Other files stay.
        runs_in_order: names of runs, in the order for numbering files of alike names; by default the order of ``runs``.
        describe: makes texts by file name, from the files with their ``annotator`` or ``run`` and ``sha256``; the folder
            then also gets tables of all labels and all runs, for ``load_labels``.
    """
    earlier = Folder(directory)
    earlier.delete(list(exported_files(earlier)))
    written: dict[Path, dict[str, str]] = {}
    with temporary_directory(directory / "parts") as place:
        judged = _by_name(labels, ANNOTATOR, place / _QRELS)
        for annotator, name in _file_names(list(judged)).items():
            paths = _write_judgments(judged[annotator], directory / _QRELS / name)
            written |= {path: {ANNOTATOR: annotator} for path in paths}
        listed = _by_name(runs, RUN, place / _RUNS)
        in_order = dict.fromkeys([*(run for run in runs_in_order if run in listed), *listed])
        for run, name in _file_names(list(in_order)).items():
            path = _with(directory / _RUNS / name, ".trec")
            if not _is_written(write_run, listed[run], path):
                path = path.with_suffix(".parquet")
                _together(listed[run], tables.RUNS, path)
            written[path] = {RUN: run}
        if describe is not None:
            for name, schema, files in (
                (_LABELS_TABLE, tables.LABELS, judged.values()),
                (_RUNS_TABLE, tables.RUNS, (listed[run] for run in in_order)),
            ):
                _together([*chain(*files)], schema, directory / name)
                written[directory / name] = {}
    names = [path.relative_to(directory).as_posix() for path in written]
    if describe is not None:
        about = (owner | {"sha256": file_sha256(path)} for path, owner in written.items())
        for name, text in describe(dict(zip(names, about, strict=True))).items():
            write_text(text, directory / name)
            names.append(name)
    write_text(json.dumps(names, indent=1, ensure_ascii=False) + "\n", directory / _LISTED)
    return list(written)


def load_labels(directory: str | Path) -> pl.DataFrame:
    """The labels in a folder ``exported``, or its copy: columns and types of ``Result.labels``, rows of the qrels.

    These are labels of queries with scores, and a 0 for ``no-passage`` of a query without any passage. An InputError
    says that the folder holds no labels, or that they are not as they were written.
    """
    folder = Path(directory)
    path, remedy = folder / _LABELS_TABLE, "name the folder `exported`, or evaluate again"
    try:
        metadata = yaml.safe_load((folder / METADATA).read_text(encoding="utf-8"))
        sha256 = str(metadata["data"]["files"][_LABELS_TABLE]["sha256"])
    except OSError:
        problem = f"holds no labels with {METADATA}"
        raise InputError(problem, remedy, "labels.missing", path=folder) from None
    except (yaml.YAMLError, UnicodeError, RecursionError, LookupError, TypeError):
        problem = f"has no digest of {_LABELS_TABLE}"
        raise InputError(problem, remedy, "labels.damaged", path=folder / METADATA) from None
    require_whole(path, sha256, remedy)
    return tables.conform(read_parquet(path), tables.LABELS, path)


def scored_labels(labels: Iterable[pl.DataFrame], scores: pl.DataFrame) -> Iterator[pl.DataFrame]:
    """Labels, in parts, of the queries with scores, as in means; a query without labels has a 0 for ``no-passage``."""
    keys = [ANNOTATOR, QUERY_ID]
    left = scored = scores.select(keys).unique(maintain_order=True)
    for part in labels:
        own = part.drop_nulls(LABEL).join(scored, on=keys, how="semi", maintain_order="left")
        left = left.join(own, on=keys, how="anti", maintain_order="left")
        yield own
    nothing = pl.lit("no-passage").alias(DOC_ID), pl.lit(0.0).alias(LABEL)
    yield tables.with_added(left.with_columns(nothing), tables.LABELS).select(list(tables.LABELS))


def grade(label: float, scale: int) -> int:
    """A label as a whole number: times ``scale`` (but for errors of products) and rounded down; at scale 0 as it is."""
    if not scale and label % 1:
        problem = f"the label {label:g} is not a whole number, as qrels need it"
        raise InputError(problem, "set `scale`, such as 100", "qrels.fraction")
    return int(round(label * (scale or 1), 9) // 1)


def exported_files(folder: Folder) -> Iterator[str]:
    """The names in ``folder`` of the files of an earlier export, and of its list of files.

    A file that the list does not name is the user's own; without a list, as from an earlier engine, all are. An
    InputError says that the list cannot be read.
    """
    try:
        names = json.loads(folder.read(_LISTED).decode())
    except (OSError, ValueError, RecursionError):
        return
    yield _LISTED
    for name in names if isinstance(names, list) else []:
        # The list may have been edited: it never removes files elsewhere.
        if isinstance(name, str) and _OURS.fullmatch(name):
            yield name


def _by_name(parts: Iterable[pl.DataFrame], column: str, place: Path) -> dict[str, list[Path]]:
    """Rows by name in a column, in files in a folder: a file for every part that has some."""
    place.mkdir()
    files: dict[str, list[Path]] = {}
    for number, part in enumerate(parts):
        for (name,), rows in part.group_by(column, maintain_order=True):
            own = files.setdefault(str(name), [])
            own.append(place / f"{number}-{list(files).index(str(name))}.parquet")
            rows.write_parquet(own[-1])
    return files


def _write_judgments(files: list[Path], base: Path) -> list[Path]:
    parquet, tsv, text = (_with(base, suffix) for suffix in (".parquet", ".tsv", ".txt"))
    labels = pl.col(LABEL)
    whole = pl.scan_parquet(files).select((labels == labels.floor()).all()).collect().item()
    if whole and _is_written(write_qrels, files, text):
        return [text]
    _together(files, tables.QRELS, parquet)
    return [parquet, *([tsv] if not whole and _is_written(write_qrels, files, tsv) else [])]


def _is_written(
    write: Callable[[Iterable[pl.DataFrame], Path], None], files: list[Path], path: Path
) -> bool:
    """Write tables in files as a text; False if it cannot represent them."""
    try:
        write(map(pl.read_parquet, files), path)
    except InputError:
        return False
    return True


def _together(files: list[Path], schema: tables.Schema, path: Path) -> None:
    rows = pl.scan_parquet(files) if files else tables.empty(schema).lazy()
    with atomic_path(path) as temporary:
        rows.select(list(schema)).sink_parquet(temporary)


def _with(base: Path, suffix: str) -> Path:
    return base.with_name(base.name + suffix)  # a name may contain dots


def _file_names(names: list[str]) -> dict[str, str]:
    """A file name for each name; users' names may contain slashes, or no valid character."""
    taken: set[str] = set()
    files: dict[str, str] = {}
    for name in names:
        valid = re.sub(r"[^\w.+-]", "_", name).lstrip(".")
        # Letters may have up to four bytes each.
        file = plain = valid[:100].encode()[:_LONGEST].decode(errors="ignore") or "_"
        number = 2
        while file.casefold() in taken:
            file, number = f"{plain}-{number}", number + 1
        taken.add(file.casefold())
        files[name] = file
    return files
