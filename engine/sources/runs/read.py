"""Runs (ranked lists): TREC text and Parquet, read and written; JSON dictionaries and records, read."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import polars as pl

from engine import tables
from engine.errors import InputError
from engine.masking import MASK, masked
from engine.sources.io.files import write_parquet, write_text
from engine.sources.io.lines import read_lines
from engine.sources.io.locations import Location, name_of, require_file, suffix_of
from engine.sources.io.parquet import read_parquet
from engine.sources.runs.dictionaries import is_dictionary, read_dictionary
from engine.sources.runs.forms import WHAT, records_of
from engine.sources.runs.records import GIVEN, LARGEST_SCORE, read_records
from engine.tables import DOC_ID, QUERY_ID, RANK, RUN, SCORE
from engine.wording import quoted

_RANKS = pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over(QUERY_ID).alias(RANK)


@dataclass(frozen=True, eq=False)
class TextedRun:
    """A run with the texts that it carries.

    Attributes:
        rows: the run table, sorted by query and rank.
        texts: ``records.GIVEN``; empty for a layout without texts.
    """

    rows: pl.DataFrame
    texts: pl.DataFrame


def read_run(path: Location) -> pl.DataFrame:
    """Read one run as the run table, sorted by query and rank.

    The order in TREC files follows trec_eval: by score (in single precision, as trec_eval stores
    it), equal scores by document id, both descending; the rank column is ignored.
    ``{query: {document: score}}`` in JSON (pytrec_eval, ranx) is ordered in the same way; in
    ``{query: [document, …]}`` (the eRAG package) the best document comes first, and scores count
    down to 1, as in that package. In Parquet the rank column counts. Records are read as ``records``
    says; a passage that has a text and no id goes by its text. The result has ranks 1, 2, … without
    gaps. A run without a name is named after its file.

    Raises:
        InputError: the file is unreadable or empty, a line does not have six columns, a score is not a
            number that single precision holds, a query lists a document or a rank twice, there are several
            system names, or a record that ``read_records`` refuses.
    """
    return read_texted_run(path).rows


def read_texted_run(path: Location) -> TextedRun:
    """As ``read_run``, with the texts of passages that the run carries.

    Raises:
        InputError: as ``read_run``.
    """
    path = require_file(path, WHAT)
    records = records_of(path)
    if records is not None:
        found = _from_records(path, records)
    elif suffix_of(path) == ".parquet":
        found = TextedRun(_from_parquet(path), tables.empty(GIVEN))
    elif is_dictionary(path, WHAT):
        found = TextedRun(_from_json(path), tables.empty(GIVEN))
    else:
        found = TextedRun(_from_trec(path), tables.empty(GIVEN))
    require_one_name(path, found.rows[RUN].unique().to_list())
    return replace(found, rows=by_rank(found.rows))


def _from_records(
    path: Location, records: Iterable[tuple[int | None, Mapping[str, Any]]]
) -> TextedRun:
    found = read_records(path, records, file_name(path))
    by_scores = found.rows[RANK] == 0
    scored = by_score(found.rows.filter(by_scores))
    return TextedRun(pl.concat([found.rows.filter(~by_scores), scored]), found.texts)


def read_runs(paths: Sequence[Location]) -> pl.DataFrame:
    """Read several runs into one table; their names must differ.

    Raises:
        InputError: as ``read_run``, or two files with the same system name.
    """
    frames: list[pl.DataFrame] = []
    sources: dict[str, Location] = {}
    for path in paths:
        frame = read_run(path)
        require_new_name(path, frame[RUN][0], sources)
        frames.append(frame)
    return pl.concat(frames)


def require_one_name(path: Location, names: Sequence[str]) -> None:
    """Refuse a run by its distinct system names, in any order: none, or several.

    Raises:
        InputError: the run is empty, or holds several systems.
    """
    if not names:
        raise InputError("the run is empty", f"give {WHAT}", path=path)
    if len(names) > 1:
        raise InputError(
            f"holds several systems ({', '.join(sorted(names)[:3])} …)",
            "write one file per run",
            path=path,
        )


def require_new_name(path: Location, name: str, sources: dict[str, Location]) -> None:
    """Note in ``sources`` which file a run's name comes from.

    Raises:
        InputError: another file has that name.
    """
    if name in sources:
        raise InputError(
            f"the run is called {quoted(name)}, as is {sources[name]}",
            "give each run a different name (last column of a TREC run)",
            path=path,
        )
    sources[name] = path


def write_run(frame: pl.DataFrame, path: Location) -> None:
    """Write a run: Parquet for a name in ``.parquet``, else TREC text.

    Programs that read TREC text order by score in single precision, and equal scores by document
    id. To preserve the order of the ranks, a score that is not below the previous one is written as
    the next smaller number.

    Raises:
        InputError: an id with white space, or equal scores of which no smaller ones exist: TREC text
            cannot represent these.
    """
    path = Path(path)
    if suffix_of(path) == ".parquet":
        write_parquet(frame.select(list(tables.RUNS)), path)
        return
    lines: list[str] = []
    previous: tuple[str, np.float32] | None = None
    ordered = frame.select(list(tables.RUNS)).sort(RUN, QUERY_ID, RANK)
    for query_id, doc_id, rank, score, run in ordered.iter_rows():
        if any(part.split() != [part] for part in (query_id, doc_id, run)):
            raise InputError(
                f"an id with white space ({quoted(query_id)}, {quoted(doc_id)}, {quoted(run)})",
                "write the run as .parquet instead",
                path=path,
            )
        single = np.float32(score)
        if previous is not None and previous[0] == query_id and not single < previous[1]:
            with np.errstate(over="ignore"):
                single = np.nextafter(previous[1], np.float32("-inf"))
            score = float(single)
            if not np.isfinite(single):
                raise InputError(
                    f"query {quoted(query_id)} has equal scores at the end of single precision",
                    "write the run as .parquet instead",
                    path=path,
                )
        previous = (query_id, single)
        lines.append(f"{query_id} Q0 {doc_id} {rank} {score!r} {run}\n")
    write_text("".join(lines), path)


def _from_parquet(path: Location) -> pl.DataFrame:
    frame = conform_rows(read_parquet(path, tables.RUNS), path)
    for column, what in ((DOC_ID, "document"), (RANK, "rank")):
        duplicates = frame.filter(pl.struct(QUERY_ID, column).is_duplicated())
        if not duplicates.is_empty():
            query_id, value = duplicates.select(QUERY_ID, column).row(0)
            raise twice_in_parquet(path, query_id, value, what)
    return frame


def conform_rows(frame: pl.DataFrame, path: Location, *, first_row: int = 0) -> pl.DataFrame:
    """Rows of a Parquet run, or of a part of one that begins at ``first_row``, as the run table.

    Raises:
        InputError: a column is missing, has another type or holds nulls, or a score is out of range.
    """
    if RUN not in frame.columns:
        frame = frame.with_columns(pl.lit(file_name(path)).alias(RUN))
    frame = tables.conform(frame, tables.RUNS, path, first_row=first_row)
    bad = frame.filter(beyond_single(pl.col(SCORE)))
    if not bad.is_empty():
        query_id, doc_id, score = bad.select(QUERY_ID, DOC_ID, SCORE).row(0)
        raise _bad_score(path, None, repr(score), query_id, doc_id)
    return frame


def beyond_single(score: pl.Expr) -> pl.Expr:
    """Whether a score is not a number that single precision holds."""
    return ~(score.abs() <= LARGEST_SCORE) | score.is_nan()


def twice_in_parquet(path: Location, query_id: str, value: object, what: str) -> InputError:
    """The error for a document or rank that a Parquet run lists twice for a query."""
    return InputError(
        f"query {quoted(query_id)} lists the {what} {quoted(value)} twice",
        f"list every {what} once per query",
        path=path,
    )


def twice_in_trec(
    path: Location, line: int, query_id: str, doc_id: str, first_line: int
) -> InputError:
    """The error for a document that a line of a TREC run lists again."""
    return InputError(
        f"query {quoted(query_id)} lists document {quoted(doc_id)} twice (see line {first_line})",
        "list every document once per query",
        path=path,
        line=line,
    )


def _from_trec(path: Location) -> pl.DataFrame:
    rows: list[tuple[str, str, int, float, str]] = []
    first_lines: dict[tuple[str, str], int] = {}
    for number, line in read_lines(path, WHAT):
        query_id, doc_id, score, name = trec_row(path, number, line)
        if (query_id, doc_id) in first_lines:
            raise twice_in_trec(path, number, query_id, doc_id, first_lines[query_id, doc_id])
        first_lines[query_id, doc_id] = number
        rows.append((query_id, doc_id, 0, score, name))
    return by_score(pl.DataFrame(rows, schema=tables.RUNS, orient="row"))


def trec_row(path: Location, number: int, line: str) -> tuple[str, str, float, str]:
    """Query id, document id, score and system name of a line that is not blank.

    Raises:
        InputError: the line does not have six columns, or its score is not a number that single
            precision holds.
    """
    columns = line.split()
    if len(columns) != 6:
        raise InputError(
            f"{len(columns)} columns, a TREC run has 6",
            'write "query Q0 document rank score name"',
            path=path,
            line=number,
        )
    query_id, _, doc_id, _, score_text, name = columns
    try:
        score = float(score_text)
    except ValueError:
        score = math.nan
    if not abs(score) <= LARGEST_SCORE:
        raise _bad_score(path, number, score_text, query_id, doc_id)
    return query_id, doc_id, score, name


def _from_json(path: Location) -> pl.DataFrame:
    name = file_name(path)
    rows = [
        (query_id, doc_id, 0, float(score), name)
        for query_id, ranking in read_dictionary(path, WHAT).items()
        for doc_id, score in (
            ranking.items()
            if isinstance(ranking, dict)
            else zip(ranking, range(len(ranking), 0, -1), strict=True)
        )
    ]
    for query_id, doc_id, _, score, _ in rows:
        if not abs(score) <= LARGEST_SCORE:
            raise _bad_score(path, None, repr(score), query_id, doc_id)
    return by_score(pl.DataFrame(rows, schema=tables.RUNS, orient="row"))


def _bad_score(
    path: Location, line: int | None, score: str, query_id: str, doc_id: str
) -> InputError:
    """The error for a score that a run could not be exported with and read back in the same order."""
    return InputError(
        f"score {quoted(score)} is not a number that single precision holds "
        f"(document {quoted(doc_id)} of query {quoted(query_id)})",
        f"write a number from -{LARGEST_SCORE:.7g} to {LARGEST_SCORE:.7g}",
        path=path,
        line=line,
    )


def file_name(path: Location) -> str:
    """The name of a run whose file does not give one."""
    # What follows an address's "?" may be a signature, which must not get into tables.
    name = name_of(masked(str(path))).removesuffix(f"?{MASK}")
    return PurePosixPath(name.removesuffix(".gz").removesuffix(".bz2")).stem


def by_score(frame: pl.DataFrame) -> pl.DataFrame:
    """Rows ordered by query, and within by score as trec_eval does, with the ranks that this gives.

    Needs ``query_id`` (of any type), ``doc_id`` and ``score``; gives ``rank``, from 1.
    """
    return frame.sort(
        QUERY_ID,
        pl.col(SCORE).cast(pl.Float32),
        DOC_ID,
        descending=[False, True, True],
    ).with_columns(_RANKS)


def by_rank(frame: pl.DataFrame) -> pl.DataFrame:
    """Rows ordered by query and rank, with the ranks closed up: 1, 2, … without gaps."""
    return frame.sort(QUERY_ID, RANK).with_columns(_RANKS)
