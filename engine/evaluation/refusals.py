"""What is wrong with inputs that do not fit together, in the words of ``inputs.read_inputs``."""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import InputError
from engine.sources.io.lines import read_lines
from engine.sources.io.locations import Location
from engine.sources.runs.edits import EditedRun
from engine.sources.runs.forms import is_trec
from engine.wording import quoted

_INSERT = "insert passages of the corpus"


def lists_none(
    path: Location, query_id: str, *, queries: Location, count: int, first: str
) -> InputError:
    """The error for a run without any of the queries evaluated.

    Args:
        path: the run.
        query_id: one that it has.
        queries: the file of the queries, of which ``count`` are evaluated; ``first`` is the first.
    """
    return InputError(
        f"lists none of the {count} queries of {queries} "
        f"(it has {quoted(query_id)}, they have {quoted(first)})",
        "give the queries that the run was made for",
        path=path,
    )


def comes_twice(edits: Location, query_id: str, doc_id: str) -> InputError:
    """The error for edits that bring a document into a list by its id and by its text."""
    return InputError(
        f"document {quoted(doc_id)} comes into the list of query {quoted(query_id)} twice, "
        "by its id and by its text",
        "name documents as the run does",
        path=edits,
    )


def leaves_nothing(edits: Location, run: str, queries: int) -> InputError:
    """The error for edits after which a run lists nothing for any of the queries."""
    return InputError(
        f"leaves {quoted(run)} no document for any of the {queries} queries",
        "keep at least one document",
        path=edits,
    )


def not_in_corpus(
    first: tuple[str, str, str],
    more: int,
    *,
    corpus: Location | None,
    files: dict[str, Location],
    edits: Location | None,
    edited: Sequence[EditedRun],
) -> InputError:
    """The error for listed documents that the corpus lacks, naming the line of the run or of the edit.

    Args:
        first: run, query id and document id of one.
        more: how many others there are.
        corpus: where they were looked for; None for the texts that the runs carry.
        files: the files of the runs, by name.
        edits: the file of the edits, if there is one.
        edited: the edited runs.
    """
    name, query_id, doc_id = first
    edited_run = next((run for run in edited if run.name == name), None)
    line = edited_run.line_of(query_id, doc_id) if edited_run else None
    if edits is not None and line is not None:
        path, remedy = edits, "insert passages that the runs list" if corpus is None else _INSERT
    else:
        path = files[edited_run.original if edited_run else name]
        line = _line_of(path, query_id, doc_id)
        remedy = "give the corpus that the run was made from"
        if corpus is None:
            remedy = "give `corpus`, or write the texts of passages into the run"
    return InputError(
        f"document {quoted(doc_id)} of query {quoted(query_id)}{f' and {more} more' if more else ''} "
        f"{f'not in the corpus {corpus}' if corpus is not None else 'without a text in any run'}",
        remedy,
        path=path,
        line=line,
    )


def _line_of(path: Location, query_id: str, doc_id: str) -> int | None:
    """Where a TREC file lists a document; only looked up to word an error."""
    if not is_trec(path):
        return None
    for number, line in read_lines(path, "a run"):
        columns = line.split()
        if columns[0] == query_id and columns[2] == doc_id:
            return number
    return None
