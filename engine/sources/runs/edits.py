"""Edits of a run: documents swapped, inserted or deleted, for a second run beside the original.

Edits test what a list would be worth with other documents, one document at a time; only the new
documents and lists cost reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeGuard

import polars as pl

from engine import tables
from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.sources.io.files import is_text
from engine.sources.io.lines import parse_json_object, read_lines
from engine.sources.io.locations import Location
from engine.tables import DOC_ID, QUERY_ID, RANK, RUN

_WHAT = (
    'edits in JSONL: {"query_id": …, "swap": [place, place]}, {"query_id": …, "insert": document, '
    '"rank": …} or {"query_id": …, "delete": place}'
)
_OPERATIONS = ("swap", "insert", "delete")
_KEYS = ("query_id", "run", *_OPERATIONS, "rank")
_SUFFIX = "-edited"

# A whole number is a rank, 1 for the best; a string is a document id, even if it consists of
# digits.
Place = int | str


@dataclass(frozen=True)
class Swap:
    first: Place
    second: Place


@dataclass(frozen=True)
class Insert:
    """``doc_id`` gets ``rank``; the document at that rank and those below it move down."""

    doc_id: str
    rank: int


@dataclass(frozen=True)
class Delete:
    place: Place


Operation = Swap | Insert | Delete


@dataclass(frozen=True)
class Edit:
    """One line of an edits file.

    Attributes:
        line: its number, from 1.
        query_id: the query whose list is edited.
        run: the run that is edited; None for the only one.
    """

    line: int
    query_id: str
    run: str | None
    operation: Operation


@dataclass(frozen=True)
class PerturbedRun:
    """A run that results from edits.

    Attributes:
        name: of the perturbed run.
        original: the name of the run before the edits.
        edits: in the order in which they were applied.
    """

    name: str
    original: str
    edits: tuple[Edit, ...]

    def line_of(self, query_id: str, doc_id: str) -> int | None:
        """The line that inserted a document last; None if no edit did."""
        lines = [
            edit.line
            for edit in self.edits
            if edit.query_id == query_id
            and isinstance(edit.operation, Insert)
            and edit.operation.doc_id == doc_id
        ]
        return lines[-1] if lines else None


def read_edits(path: Location) -> list[Edit]:
    """Read edits, one per line, in the order of the file.

    Raises:
        InputError: the file is unreadable or empty; a line has an unknown or a duplicate key, no
            operation or several, no query id, or places that are neither ranks nor document ids.
    """
    edits = [_edit(path, line, text) for line, text in read_lines(path, _WHAT)]
    if not edits:
        raise InputError("holds no edits", f"give {_WHAT}", path=path)
    return edits


def apply_edits(
    runs: pl.DataFrame,
    edits: Sequence[Edit],
    *,
    path: Location,
    query_ids: Sequence[str],
    names: Sequence[str] | None = None,
) -> tuple[pl.DataFrame, tuple[PerturbedRun, ...]]:
    """Only the perturbed runs, and what was done to each.

    Each run with edits gives a complete run called ``NAME-edited``; its lists without edits are
    unchanged. Edits are applied one after another, so ranks refer to the list that the previous
    edits left. Scores of an edited list count down to 1, since the retriever's score of an inserted
    document is unknown.

    Args:
        runs: the run table, before any cutoff.
        edits: the edits, in order.
        path: the file of the edits, for errors.
        query_ids: the queries that may be edited; a run need not list anything for them.
        names: of all runs, in their order, where ``runs`` holds but the lists of the queries edited.

    Raises:
        InputError: an unknown run, or none named although there are several; an unknown query; a
            rank beyond the list; a document that is not in the list, or that is inserted but
            already there; or a run that is already called ``NAME-edited``.
    """
    names = runs[RUN].unique(maintain_order=True).to_list() if names is None else names
    by_run = _by_run(edits, names, path, set(query_ids))
    frames = [tables.empty(tables.RUNS)]
    edited = []
    for name, edits_of_run in by_run.items():
        if name + _SUFFIX in names:
            raise InputError(
                f"the edited run would be called {name + _SUFFIX!r}, like another run",
                "rename the other run",
                path=path,
                line=edits_of_run[0].line,
            )
        edited.append(_perturbed_run(name, edits_of_run))
        frames.append(_edited(runs.filter(pl.col(RUN) == name), edited[-1], path))
    return pl.concat(frames), tuple(edited)


def perturbed_runs(
    edits: Sequence[Edit], names: Sequence[str], *, path: Location
) -> tuple[PerturbedRun, ...]:
    """The perturbed runs that ``apply_edits`` gives, of edits that it took before.

    Args:
        edits, path: as in ``apply_edits``.
        names: of all runs before the edits, in their order.
    """
    by_run = _by_run(edits, names, path, {edit.query_id for edit in edits})
    return tuple(_perturbed_run(name, edits_of_run) for name, edits_of_run in by_run.items())


def _perturbed_run(name: str, edits: Sequence[Edit]) -> PerturbedRun:
    return PerturbedRun(name + _SUFFIX, name, tuple(edits))


def _by_run(
    edits: Sequence[Edit], names: Sequence[str], path: Location, known: set[str]
) -> dict[str, list[Edit]]:
    by_run: dict[str, list[Edit]] = {}
    for edit in edits:
        name = _run_of(edit, names, path)
        if edit.query_id not in known:
            raise InputError(
                f"query {quoted(edit.query_id)} is not among the {len(known)} queries",
                "give an id of the queries file, as a string",
                path=path,
                line=edit.line,
            )
        by_run.setdefault(name, []).append(edit)
    return by_run


def _edited(run: pl.DataFrame, edited: PerturbedRun, path: Location) -> pl.DataFrame:
    touched = list(dict.fromkeys(edit.query_id for edit in edited.edits))
    is_touched = pl.col(QUERY_ID).is_in(touched)
    lists: dict[str, list[str]] = {query_id: [] for query_id in touched}
    for query_id, doc_id in run.filter(is_touched).sort(RANK).select(QUERY_ID, DOC_ID).iter_rows():
        lists[query_id].append(doc_id)
    for edit in edited.edits:
        try:
            _apply(edit.operation, lists[edit.query_id])
        except _ImpossibleError as error:
            where = f"query {quoted(edit.query_id)} of {quoted(edited.original)}"
            raise InputError(
                f"{error.problem} ({where})", error.remedy, path=path, line=edit.line
            ) from None
    rows = [
        (query_id, doc_id, rank, float(len(documents) + 1 - rank), edited.name)
        for query_id, documents in lists.items()
        for rank, doc_id in enumerate(documents, 1)
    ]
    kept = run.filter(~is_touched).with_columns(pl.lit(edited.name).alias(RUN))
    changed = pl.DataFrame(rows, schema=tables.RUNS, orient="row")
    return pl.concat([kept.select(list(tables.RUNS)), changed]).sort(QUERY_ID, RANK)


class _ImpossibleError(Exception):
    """An edit that a list does not allow; the caller knows the query and the line."""

    def __init__(self, problem: str, remedy: str) -> None:
        self.problem = problem
        self.remedy = remedy
        super().__init__(problem)


def _apply(operation: Operation, documents: list[str]) -> None:
    """Edit a list of document ids in place, the best first."""
    if isinstance(operation, Swap):
        first, second = _index(operation.first, documents), _index(operation.second, documents)
        if first == second:
            raise _ImpossibleError(
                f"swaps document {quoted(documents[first])} with itself",
                "name two documents, or leave the line out",
            )
        documents[first], documents[second] = documents[second], documents[first]
    elif isinstance(operation, Insert):
        if operation.doc_id in documents:
            raise _ImpossibleError(
                f"document {quoted(operation.doc_id)} is already in the list, at rank "
                f"{documents.index(operation.doc_id) + 1}",
                "delete it first, or swap it to the new place",
            )
        _refuse_beyond(operation.rank, len(documents), last=len(documents) + 1)
        documents.insert(operation.rank - 1, operation.doc_id)
    else:
        del documents[_index(operation.place, documents)]


def _index(place: Place, documents: list[str]) -> int:
    if isinstance(place, int):
        _refuse_beyond(place, len(documents), last=len(documents))
        return place - 1
    if place not in documents:
        raise _ImpossibleError(
            f"document {quoted(place)} is not in the list",
            'name a document of the list ("insert" adds a new one)',
        )
    return documents.index(place)


def _refuse_beyond(rank: int, length: int, *, last: int) -> None:
    if rank > last:
        raise _ImpossibleError(
            f"rank {rank} is beyond the list, which has {length} documents after the previous edits",
            f"use a rank from 1 to {last}" if last else "insert a document at rank 1 first",
        )


def _run_of(edit: Edit, names: Sequence[str], path: Location) -> str:
    fault = partial(InputError, path=path, line=edit.line)
    if edit.run is None and len(names) > 1:
        raise fault(
            f"an edit that does not name one of the {len(names)} runs",
            f'add "run": one of {", ".join(names)}',
        )
    if edit.run is not None and edit.run not in names:
        raise fault(f"no run is called {quoted(edit.run)}", f"name one of {', '.join(names)}")
    return names[0] if edit.run is None else edit.run


def _edit(path: Location, line: int, text: str) -> Edit:
    fault = partial(InputError, path=path, line=line)
    record = parse_json_object(path, line, text)
    for key in record:
        if key not in _KEYS:
            raise fault(f"unknown key {quoted(key)}", f"give {_WHAT}")
    for key in ("query_id", "run"):
        if key in record and not _is_id(record[key]):
            raise fault(f'"{key}" is {quoted(record[key])}', "write it as a string")
    if "query_id" not in record:
        raise fault("an edit without a query id", 'add "query_id"')
    operations = [name for name in _OPERATIONS if name in record]
    if len(operations) != 1:
        raise fault(
            " and ".join(operations) + " in one line"
            if operations
            else "an edit without an operation",
            f"write one of {', '.join(_OPERATIONS)} per line",
        )
    return Edit(line, record["query_id"], record.get("run"), _operation(path, line, record))


def _operation(path: Location, line: int, record: dict[str, Any]) -> Operation:
    fault = partial(InputError, path=path, line=line)
    if "insert" in record:
        doc_id, rank = record["insert"], record.get("rank")
        if not _is_id(doc_id):
            raise fault(f"inserts {quoted(doc_id)}", "write the document's id, as a string")
        if not _is_rank(rank):
            raise fault(
                f"inserts {quoted(doc_id)} at {'no rank' if rank is None else f'rank {quoted(rank)}'}",
                'write "rank" as a whole number, 1 for the best',
            )
        return Insert(doc_id, rank)
    if "rank" in record:
        raise fault('"rank" without "insert"', "write the places as the operation's value")
    remedy = "name a place by its rank (a whole number from 1) or its document id (a string)"
    if "swap" in record:
        places = record["swap"]
        if not isinstance(places, list) or len(places) != 2 or not all(map(_is_place, places)):
            raise fault(f"swaps {quoted(places)}", f"give two places; {remedy}")
        return Swap(*places)
    if not _is_place(record["delete"]):
        raise fault(f"deletes {quoted(record['delete'])}", remedy)
    return Delete(record["delete"])


def _is_place(value: object) -> bool:
    return _is_rank(value) or _is_id(value)


def _is_rank(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_id(value: object) -> bool:
    return isinstance(value, str) and value != "" and is_text(value)
