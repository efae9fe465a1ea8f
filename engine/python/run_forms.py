"""Runs in whatever form a Python user has them, as run tables; and the texts that some carry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import polars as pl

from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.python.record_forms import Record, is_path, is_table, plain, records
from engine.sources.fields import (
    DOC_ID_FIELDS,
    QUERY_FIELDS,
    QUERY_ID_FIELDS,
    TEXT_FIELDS,
    TITLE_FIELDS,
    first_of,
    list_in,
)
from engine.sources.io.files import is_text
from engine.sources.runs.checks import by_rank, by_score, listed_twice, require_new_name
from engine.sources.runs.read import read_run
from engine.sources.runs.records import LARGEST_SCORE, RESULTS, rank_of, refuse_text
from engine.sources.runs.scan import conform_rows
from engine.sources.runs.texts import id_of, read_runs_with_texts
from engine.tables import ARTICLE_ID, DOC_ID, QUERY_ID, RANK, RUN, SCORE, TEXT, TITLE

# What columns are called: as in files, and as PyTerrier, BEIR and ir_measures have them.
_DOC_IDS = (*DOC_ID_FIELDS, "docno", "corpus-id")
_QUERY_IDS = (
    *(name for name in QUERY_ID_FIELDS if name not in DOC_ID_FIELDS),
    *("query-id", "q_id"),
    *(name for name in QUERY_FIELDS if name not in TEXT_FIELDS),
)
_FORM = (
    "give {query_id: {doc_id: score}}, {query_id: [doc_id, …]}, {query_id: [text, …]} without "
    "`passages`, a frame with query_id, doc_id and score or rank, a file, or several by name"
)
_WHAT = "runs"


@dataclass
class Texts:
    """Passages that runs carry.

    Attributes:
        records: by document id.
    """

    records: dict[str, Record] = field(default_factory=dict)

    def add(self, doc_id: str | None, record: Record) -> str:
        """Take a passage; its id, which is made of its text where it has none, as for files."""
        text = record[TEXT]
        if doc_id is None:
            doc_id = id_of(text)
        known = self.records.setdefault(doc_id, {**record, DOC_ID: doc_id})
        if known[TEXT] != text:
            raise InputError(
                f"document {quoted(doc_id)} has two texts ({quoted(known[TEXT])}, {quoted(text)})",
                "give every passage an id of its own",
                path=_WHAT,
            )
        return doc_id


class Listed(NamedTuple):
    """A row of a run before it has a rank."""

    query_id: str
    doc_id: str
    rank: int | None
    score: float | None


def runs_of(given: Any, *, texts: Texts | None) -> pl.DataFrame:
    """All runs as one run table, in the order in which they were given.

    Args:
        given: one run or several.
        texts: takes the passages that runs carry; None where the passages are given, so that what a run
            lists are ids.

    Raises:
        InputError: something has another form, a score is not a number, a query lists a document twice, or
            two runs have one name.
    """
    frames: list[pl.DataFrame] = []
    sources: dict[str, Any] = {}
    for name, one in _each(given):
        for frame in _tables(name, one, texts):
            require_new_name(name or _WHAT, frame[RUN][0], sources)
            frames.append(frame)
    if not frames:
        raise InputError("there is no run", _FORM, path=_WHAT)
    return pl.concat(frames)


def _each(given: Any) -> Iterator[tuple[str, Any]]:
    """Runs with their names; a name is empty for one that is given without."""
    if isinstance(given, Mapping):
        if _has_names(given):
            yield from ((str(name), one) for name, one in given.items())
        else:
            yield "", given
    elif (
        is_path(given)
        or is_table(given)
        or not isinstance(given, Sequence)
        or (given and _is_row(given[0]))
    ):
        yield "", given
    else:
        named = len(given) > 1
        for number, one in enumerate(given, 1):
            own = is_path(one) or is_table(one)
            yield f"run-{number}" if named and not own else "", one


def _has_names(given: Mapping[Any, Any]) -> bool:
    """Whether the keys of a dictionary are names of runs, and not ids of queries."""
    for value in given.values():
        if is_path(value) or is_table(value):
            return True
        if isinstance(value, Mapping):
            # {query: {document: number}} is one run, {name: {query: …}} are several.
            inner = next(iter(value.values()), None)
            if inner is not None:
                return isinstance(inner, Mapping | list | tuple)
        elif isinstance(value, list | tuple):
            if value:
                return _is_row(value[0])
        else:
            return True
    return False


def _is_row(value: Any) -> bool:
    """Whether this is a row of a run, or a list of one: a dictionary that says of which query."""
    names = (*_QUERY_IDS, *RESULTS)
    return isinstance(value, Mapping) and any(name in value for name in names)


def _tables(name: str, given: Any, texts: Texts | None) -> Iterator[pl.DataFrame]:
    """The run table of each system in what was given under one name."""
    if is_path(given):
        if texts is None:
            frame = read_run(given)
        else:
            frame, carried = read_runs_with_texts([given])
            for passage in carried.iter_rows(named=True):
                texts.add(passage[DOC_ID], passage)
        yield frame.with_columns(pl.lit(name).alias(RUN)) if name else frame
        return
    if isinstance(given, Mapping):
        yield _ranked(name or "run", _of_mapping(given, texts))
        return
    by_system: dict[str, list[Listed]] = {}
    for number, record in enumerate(records(given, name or _WHAT), 1):
        system = by_system.setdefault(name or str(record.get(RUN) or "run"), [])
        items = list_in(record, RESULTS)
        if items is None:
            system.append(_of_record(name or _WHAT, number, record, texts))
            continue
        query_id = first_of(record, (*QUERY_ID_FIELDS, *_QUERY_IDS))
        if query_id is None:
            raise InputError("a list without a query", _FORM, path=name or _WHAT, line=number)
        system.extend(_of_mapping({query_id: items}, texts))
    for called, listed in by_system.items():
        yield _ranked(called, listed)


def _of_mapping(given: Mapping[Any, Any], texts: Texts | None) -> Iterator[Listed]:
    for key, ranking in given.items():
        query_id, value = str(key), plain(ranking)
        if isinstance(value, dict):
            for doc_id, score in value.items():
                yield Listed(query_id, doc_id, None, _number(query_id, doc_id, score))
            continue
        if not isinstance(value, list):
            raise InputError(
                f"query {quoted(query_id)} has {quoted(value)} for its list", _FORM, path=_WHAT
            )
        for rank, item in enumerate(value, 1):
            if isinstance(item, dict):
                listed = _of_record(_WHAT, rank, {QUERY_ID: query_id, RANK: rank, **item}, texts)
            elif isinstance(item, str) and texts is not None:
                listed = Listed(query_id, texts.add(None, {TEXT: item}), rank, None)
            elif isinstance(item, str | int):
                listed = Listed(query_id, str(item), rank, None)
            else:
                problem = f"query {quoted(query_id)} lists {quoted(item)}"
                raise InputError(problem, _FORM, path=_WHAT)
            yield listed


def _of_record(name: str, number: int, record: Record, texts: Texts | None) -> Listed:
    """A row of a frame, or an item of a list of documents."""
    query_id, doc_id = first_of(record, _QUERY_IDS), first_of(record, _DOC_IDS)
    text, title = first_of(record, TEXT_FIELDS), first_of(record, TITLE_FIELDS)
    if query_id is None or (doc_id is None and (texts is None or text is None)):
        refuse_text(name, number, record)
        lacks = "query" if query_id is None else "document"
        raise InputError(f"a row without the id of a {lacks}", _FORM, path=name, line=number)
    for value in (query_id, doc_id):
        if isinstance(value, float | dict | list):
            problem = f"the id {quoted(value)}"
            raise InputError(problem, "write ids as texts or whole numbers", path=name, line=number)
    known = None if doc_id is None else str(doc_id)
    if texts is not None and isinstance(text, str):
        article = {TITLE: title, ARTICLE_ID: record.get(ARTICLE_ID)}
        given = {key: value for key, value in article.items() if value}
        known = texts.add(known, {TEXT: text, **given})
    score = record.get(SCORE)
    return Listed(
        str(query_id),
        str(known),
        rank_of(name, number, str(query_id), record),
        None if score is None else _number(str(query_id), str(known), score),
    )


def _ranked(name: str, rows: Iterable[Listed]) -> pl.DataFrame:
    """A run table: by rank where every row has one, else by score, else in the order of the rows."""
    schema = {QUERY_ID: pl.String, DOC_ID: pl.String, RANK: pl.Int64, SCORE: pl.Float64}
    listed = list(rows)
    if broken := next((row for row in listed if not is_text(row.query_id, row.doc_id)), None):
        problem = f"{quoted(broken.doc_id)} of query {quoted(broken.query_id)} is not valid Unicode"
        raise InputError(problem, "write valid Unicode", path=name)
    frame = pl.DataFrame(listed, schema=schema, orient="row")
    if frame.is_empty():
        raise InputError("the run is empty", _FORM, path=name)
    twice = frame.filter(pl.struct(QUERY_ID, DOC_ID).is_duplicated())
    if not twice.is_empty():
        query_id, doc_id = twice.select(QUERY_ID, DOC_ID).row(0)
        raise listed_twice(name, query_id, "the document", doc_id)
    scored, ranked = not frame[SCORE].null_count(), not frame[RANK].null_count()
    for what in (RANK, SCORE):
        if 0 < frame[what].null_count() < frame.height and (what == RANK or not ranked):
            raise InputError(f"some rows have a {what} and others none", _FORM, path=name)
    if not ranked and not scored:
        ranks = pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over(QUERY_ID)
        frame, ranked = frame.with_columns(ranks.alias(RANK)), True
    if not scored:
        # As in the eRAG package, scores count down to 1.
        below = pl.len().over(QUERY_ID) - pl.col(RANK).rank("ordinal").over(QUERY_ID) + 1
        frame = frame.with_columns(below.cast(pl.Float64).alias(SCORE))
    frame = by_rank(frame) if ranked else by_score(frame)
    return conform_rows(frame.with_columns(pl.lit(name).alias(RUN)), name)


def _number(query_id: str, doc_id: str, value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or (isinstance(value, int) and abs(value) > LARGEST_SCORE):
        raise InputError(
            f"the score {quoted(value)} of document {quoted(doc_id)} of query {quoted(query_id)} is not "
            "a number",
            _FORM,
            path=_WHAT,
        )
    return float(value)
