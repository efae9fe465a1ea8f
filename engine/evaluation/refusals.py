"""What is wrong with inputs that do not fit together, in the words of ``inputs.read_inputs``."""

from __future__ import annotations

from engine.errors import InputError
from engine.sources.io.lines import read_lines
from engine.sources.io.locations import Location
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


def comes_twice(path: Location, query_id: str, doc_id: str) -> InputError:
    """The error for a run, or for edits, that bring a document into a list by its id and by its text."""
    return InputError(
        f"document {quoted(doc_id)} comes into the list of query {quoted(query_id)} twice, "
        "by its id and by its text",
        "name it once",
        path=path,
    )


def leaves_nothing(edits: Location, run: str, queries: int) -> InputError:
    """The error for edits after which a run lists nothing for any of the queries."""
    return InputError(
        f"leaves {quoted(run)} no document for any of the {queries} queries",
        "keep at least one document",
        path=edits,
    )


def not_in_corpus(
    first: tuple[str, str],
    more: int,
    *,
    corpus: Location | None,
    run: Location,
    insertion: tuple[Location, int] | None,
) -> InputError:
    """The error for listed documents that the corpus lacks, naming the line of the run or of the edit.

    Args:
        first: query id and document id of one.
        more: how many others there are.
        corpus: where they were looked for; None for the texts that the runs carry.
        run: the file that lists it.
        insertion: the file and the line of the edit that inserts it, if one does.
    """
    query_id, doc_id = first
    path, line = insertion or (run, _line_of(run, query_id, doc_id))
    if insertion is not None:
        remedy = "insert passages that the runs list" if corpus is None else _INSERT
    else:
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
