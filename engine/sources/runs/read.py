"""Runs (ranked lists): read whole, of any layout of ``scan_run``; written as TREC text and Parquet."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
import polars as pl

from engine import tables
from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.sources.io.ahead import mapped
from engine.sources.io.files import atomic_path, write_parquet
from engine.sources.io.locations import Location, suffix_of
from engine.sources.runs.checks import RunChecks, in_order, require_new_name
from engine.sources.runs.forms import WHAT, of_dictionary, runs_within
from engine.sources.runs.records import Batch, read_records
from engine.sources.runs.scan import SCHEMA
from engine.tables import QUERY_ID, RANK, RUN, STATED_RANK

Taken = TypeVar("Taken")


@dataclass(frozen=True, eq=False)
class TextedRun:
    """A run with the texts that it carries.

    Attributes:
        rows: the run table, sorted by query and rank, with ``STATED_RANK``.
        texts: ``records.GIVEN``; empty for a layout without texts.
        taken: as in ``records.Batch``.
    """

    rows: pl.DataFrame
    texts: pl.DataFrame
    taken: Counter[str] = field(default_factory=Counter)


def read_run(path: Location) -> pl.DataFrame:
    """Read one run as the run table, sorted by query and rank.

    >>> _ = Path("run.trec").write_text("q1 Q0 d1 1 0.2 mine\\nq1 Q0 d2 2 0.7 mine\\n")
    >>> read_run("run.trec").select("query_id", "doc_id", "rank", "run").rows()
    [('q1', 'd2', 1, 'mine'), ('q1', 'd1', 2, 'mine')]

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
    return read_runs([path])


def read_runs(paths: Sequence[Location]) -> pl.DataFrame:
    """Read several runs into one table; an InputError refuses two files with the same system name."""
    runs = [run.rows.drop(STATED_RANK) for run in read_texted_runs(paths)]
    return pl.concat([tables.empty(tables.RUNS), *runs])


def read_texted_runs(paths: Sequence[Location]) -> list[TextedRun]:
    """As ``read_runs``, one by one, with the texts of passages that each run carries."""
    runs: list[TextedRun] = []
    sources: dict[str, Location] = {}
    for path in paths:
        within = runs_within(path)
        found = [] if within else [_read_one(path)]
        for name, one in within.items():
            found += runs_of_records(path, of_dictionary(one, path, f"give {WHAT}"), name)
        for run in found:
            require_new_name(path, run.rows[RUN][0], sources)
        runs += found
    return runs


def _read_one(path: Location) -> TextedRun:
    batches: list[Batch] = []
    name, (rows,) = read_in_parts(path, OnePart(), lambda part, rows: rows, batches.append)
    named = rows.select(*list(tables.RUNS)[:-1], pl.lit(name).alias(RUN), STATED_RANK)
    taken = sum((batch.taken for batch in batches), Counter[str]())
    return TextedRun(named, pl.concat(batch.texts for batch in batches), taken)


def runs_of_records(
    path: Location,
    records: Iterable[tuple[int | None, Mapping[str, Any]]],
    name: str,
    *,
    texts: bool = False,
) -> Iterator[TextedRun]:
    """The runs of records, as ``read_records`` takes them: one, called ``name``, or as many as records name without one.

    Raises:
        InputError: as ``read_records``; a run is empty, or lists a document or a rank twice.
    """
    found = read_records(path, records, name or "run", texts=texts)
    if found.rows.is_empty():
        raise InputError("the run is empty", f"give {WHAT}", path=name or "run")
    named = found.rows.with_columns(pl.lit(name).alias(RUN)) if name else found.rows
    for number, system in enumerate(named.partition_by(RUN, maintain_order=True)):
        checks = RunChecks(path)
        checks.has_lines = found.has_lines
        ordered = in_order(checks.look(system))
        checks.refuse_repeats()
        taken = Counter[str]() if number else found.taken
        yield TextedRun(ordered.select(*tables.RUNS, STATED_RANK), found.texts, taken)


class Gathered(Protocol):
    """The rows of one run at a time, in parts that have all rows of a query.

    Attributes:
        count: how many parts there are.
    """

    count: int

    def gather(self, batches: Iterator[pl.DataFrame]) -> None:
        """Take the rows of a run, in place of those of the run before; an error of the iterator leaves what
        came before it."""

    def rows(self, part: int) -> pl.DataFrame:
        """The rows of a part, in the order in which they came."""


class OnePart:
    """All rows of a run in memory, as one part."""

    count = 1

    def __init__(self) -> None:
        self._batches: list[pl.DataFrame] = []

    def gather(self, batches: Iterator[pl.DataFrame]) -> None:
        self._batches = []
        self._batches.extend(batches)  # those before an error stay

    def rows(self, part: int) -> pl.DataFrame:
        return pl.concat(self._batches or [tables.empty(SCHEMA)])


def read_in_parts(
    path: Location,
    parts: Gathered,
    take: Callable[[int, pl.DataFrame], Taken],
    on_batch: Callable[[Batch], None] = lambda batch: None,
) -> tuple[str, list[Taken]]:
    """Read a run part after part, each of which is checked and put in order, as ``read_run`` does.

    Args:
        take: called with the number and the rows (``scan.SCHEMA``) of each part, in threads.
        on_batch: called with each batch when it was read, before any part is taken.

    Returns:
        the name of the run, and what ``take`` gave for each part.
    """
    checks = RunChecks(path)

    def batches() -> Iterator[pl.DataFrame]:
        for batch in checks.scan():
            on_batch(batch)
            yield batch.rows

    def checked(part: int) -> pl.DataFrame:
        return checks.look(parts.rows(part))

    try:
        parts.gather(batches())
    except InputError:
        if checks.has_lines:
            for part in range(parts.count):
                checked(part)
            checks.refuse_repeats()
        raise
    taken = list(mapped(lambda part: take(part, in_order(checked(part))), range(parts.count)))
    return checks.name(), taken


def write_run(frame: pl.DataFrame | Iterable[pl.DataFrame], path: Location) -> None:
    """Write a run: Parquet for a name in ``.parquet``, else TREC text.

    >>> row = {"query_id": "q1", "doc_id": "d1", "rank": 1, "score": 0.5, "run": "mine"}
    >>> write_run(pl.DataFrame([row]), "run.trec")
    >>> Path("run.trec").read_text()
    'q1 Q0 d1 1 0.5 mine\\n'

    Programs that read TREC text order by score in single precision, and equal scores by document
    id. To preserve the order of the ranks, a score that is not below the previous one is written as
    the next smaller number. A run may come in parts, of whole queries each: text is written part after part.

    Raises:
        InputError: an id with white space, or equal scores of which no smaller ones exist: TREC text
            cannot represent these.
    """
    path = Path(path)
    parts = [frame] if isinstance(frame, pl.DataFrame) else frame
    if suffix_of(path) == ".parquet":
        write_parquet(pl.concat(parts).select(list(tables.RUNS)), path)
        return
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as stream:
        for part in parts:
            stream.writelines(_lines(part, path))


def _lines(frame: pl.DataFrame, path: Path) -> Iterator[str]:
    remedy = "write the run as .parquet instead"
    previous: tuple[str, np.float32] | None = None
    ordered = frame.select(list(tables.RUNS)).sort(RUN, QUERY_ID, RANK)
    for query_id, doc_id, rank, score, run in ordered.iter_rows():
        if any(part.split() != [part] for part in (query_id, doc_id, run)):
            ids = ", ".join(map(quoted, (query_id, doc_id, run)))
            raise InputError(f"an id with white space ({ids})", remedy, path=path)
        single = np.float32(score)
        if previous is not None and previous[0] == query_id and not single < previous[1]:
            with np.errstate(over="ignore"):
                single = np.nextafter(previous[1], np.float32("-inf"))
            score = float(single)
            if not np.isfinite(single):
                where = "at the end of single precision"
                problem = f"query {quoted(query_id)} has equal scores {where}"
                raise InputError(problem, remedy, path=path)
        previous = (query_id, single)
        yield f"{query_id} Q0 {doc_id} {rank} {score!r} {run}\n"
