"""Runs as records, with or without the texts of passages, and as dictionaries of scores.

Records are JSON lines, arrays and dictionaries, and Parquet. A record is a query with its list, under the first field
in ``RESULTS``: passages (objects, texts or ids) with the best first. Or it is a row: a query and a passage, ordered by
``rank``, else by ``score`` as trec_eval orders, else as the file is. Fields are called as in ``engine.sources.fields``.
JSON dictionaries of queries are as in pytrec_eval, ranx and the eRAG package.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import PurePosixPath
from typing import Any, NamedTuple, TypeGuard

import numpy as np
import polars as pl

from engine import tables
from engine.messages.characters import composed
from engine.messages.errors import MASK, MOST, InputError, masked
from engine.messages.wording import quoted
from engine.sources import fields
from engine.sources.fields import DOC_ID_FIELDS, QUERY_FIELDS, QUERY_ID_FIELDS, TEXT_FIELDS
from engine.sources.io.files import is_text
from engine.sources.io.locations import Location, name_of
from engine.tables import ARTICLE_ID, DOC_ID, QUERY_ID, RANK, RUN, SCORE, STATED_RANK, Schema

# Fields of a record that hold its list: ours, LangChain's and Haystack's, DPR's, ragas's, FlashRAG's.
_LISTS = "results passages contexts documents ctxs retrieved_contexts retrieval_result"
RESULTS = tuple(_LISTS.split())
# Fields of a row, in which "id" and "text" mean the passage.
ROW_QUERIES = tuple(
    name for name in (*QUERY_ID_FIELDS, *QUERY_FIELDS) if name not in (*DOC_ID_FIELDS, *TEXT_FIELDS)
)
_ARTICLES = (ARTICLE_ID, "wikipedia_id")
COLUMNS = fields.columns_of(
    QUERY_ID_FIELDS, QUERY_FIELDS, DOC_ID_FIELDS, TEXT_FIELDS, fields.TITLE_FIELDS, _ARTICLES, RESULTS,
    (RANK, SCORE, RUN),
)  # fmt: skip

# In single precision, in which runs are ordered: beyond it all scores are equal to infinity.
LARGEST_SCORE = float(np.finfo(np.float32).max)
IN_RANGE = f"write a number from -{LARGEST_SCORE:.7g} to {LARGEST_SCORE:.7g}"
# Fields of other programs that hold scores, the higher the better: bm25_score, Score, similarity.
_SCORE = re.compile(r"^(?!.*(?:distance|dist\b)).*(?:score|similarity)", re.I)
WRITTEN = "written"
LINE = "line"
# Whether a passage came without an id, so that its text stands for an id in the run.
MADE = "made"
SCHEMA: Schema = {
    QUERY_ID: pl.String(),
    DOC_ID: pl.String(),
    RANK: pl.Int64(),
    SCORE: pl.Float64(),
    LINE: pl.Int64(),
    STATED_RANK: pl.Int32(),
}
GIVEN: Schema = {**tables.CORPUS, QUERY_ID: pl.String(), LINE: pl.Int64(), MADE: pl.Boolean()}
"""The texts that a run carries, with the query that each was listed for, and its line where lines have a
meaning. Articles are empty where nothing names them."""


@dataclass(frozen=True, eq=False)
class Batch:
    """A part of a run, in the order of its file.

    Attributes:
        rows: columns of ``SCHEMA``, and ``run`` for records; ranks are null if the scores decide.
        names: the distinct system names of ``rows``.
        has_lines: whether ``line`` is the line in the file, from 1; else it is the place of the row, from 0.
        texts: the texts that the run carries (``GIVEN``).
        taken: number of lists that were written as a text (``WRITTEN``), and of rows without rank and score, by the
            names of their fields with numbers.
    """

    rows: pl.DataFrame
    names: tuple[str, ...]
    has_lines: bool
    texts: pl.DataFrame = field(default_factory=lambda: tables.empty(GIVEN))
    taken: Counter[str] = field(default_factory=Counter)


Fault = partial[InputError]
"""An error about the record at hand."""


class _RunEntry(NamedTuple):
    query_id: str
    doc_id: str
    rank: int | None
    score: float | None
    run: str
    line: int | None
    stated_rank: int | None = None


def file_name(path: Location) -> str:
    """The name of a run whose file does not give one."""
    # An address may have a signature behind "?", which must not get into tables.
    name = name_of(masked(str(path))).removesuffix(f"?{MASK}")
    return PurePosixPath(name.removesuffix(".gz").removesuffix(".bz2")).stem


def read_records(
    path: Location,
    records: Iterable[tuple[int | None, Mapping[str, Any]]],
    name: str,
    *,
    texts: bool = False,
) -> Batch:
    """The run of (line, record)s, called ``name`` if records lack ``run``; lines are None if they have no meaning.

    Every text in a list is a passage's if ``texts``; else only texts with blanks are, and others are ids. An InputError
    refuses a record without a query or without passages, a passage without id and text, and ranks or scores that only
    some rows have.
    """
    listed: list[_RunEntry] = []
    rows: list[_RunEntry] = []
    carried: list[tuple[object, ...]] = []
    taken: Counter[str] = Counter()
    order: tuple[str, str] | None = None
    for line, record in records:
        items = fields.list_in(record, RESULTS)
        if items is not None and all(record.get(name) is not items for name in RESULTS):
            taken[WRITTEN] += 1
        fault = partial(InputError, path=path, line=line)
        run = run_of(fault, record) or name
        if items is None:
            query_id = query_of(fault, record, ROW_QUERIES)
            doc_id, text = _passage(fault, line, query_id, record)
            order = order or _order_of(record)
            rank = _rank(fault, query_id, record.get(order[0]))
            score = _score(fault, query_id, record.get(order[1]))
            if rank is None and score is None and (others := _numbers_beside(record)):
                taken[", ".join(others)] += 1
            rows.append(_RunEntry(query_id, doc_id, rank, score, run, line))
            carried += text
            continue
        query_id = query_of(fault, record)
        passages = [_passage(fault, line, query_id, item, texts=texts) for item in items]
        scores, rise = _scores_of(fault, query_id, items)
        for place, ((doc_id, text), score) in enumerate(zip(passages, scores, strict=True), 1):
            carried += text
            stated = len(items) - place if rise else None
            listed.append(_RunEntry(query_id, doc_id, place, score, run, line, stated))
    entries = [*listed, *_ordered(path, rows)]
    has_lines = bool(entries) and entries[0].line is not None
    if not has_lines:
        entries = [entry._replace(line=place) for place, entry in enumerate(entries)]
    schema = {**tables.RUNS, LINE: pl.Int64(), STATED_RANK: pl.Int32()}
    frame = pl.DataFrame(entries, schema=schema, orient="row")
    own = pl.DataFrame(carried, schema=GIVEN, orient="row")
    return Batch(frame, tuple(frame[RUN].unique()), has_lines, own, taken)


def run_of(fault: Fault, record: Mapping[str, Any]) -> str:
    """The name of the run in a record; empty for none."""
    run = record.get(RUN)
    if run is not None and (not isinstance(run, str | int) or not is_text(str(run))):
        raise fault(f"the run is called {quoted(run)}", "write its name as a string", "runs.name")
    return "" if run is None else str(run)


def query_of(
    fault: Fault,
    record: Mapping[str, Any],
    names: Sequence[str] = (*QUERY_ID_FIELDS, *QUERY_FIELDS),
) -> str:
    """The id of the query in a record, or its text."""
    query = fields.first_of(record, names)
    if query is None:
        raise fault("names no query", 'add "query_id", or "query" with its text', "runs.queryless")
    if isinstance(query, bool) or not isinstance(query, str | int) or not is_text(str(query)):
        remedy = "write ids as strings or whole numbers"
        raise fault(f"names the query {quoted(query)}", remedy, "runs.query")
    return str(query)


def _scores_of(fault: Fault, query_id: str, items: Sequence[Any]) -> tuple[list[float], bool]:
    """The scores of a list, whose order counts: its own if they fall; and whether they rise, as distances do."""
    values = (item.get(SCORE) if isinstance(item, Mapping) else None for item in items)
    scores = [_score(fault, query_id, value) for value in values]
    known = [score for score in scores if score is not None]
    rising = sorted(known) if len(known) == len(items) else []
    if rising and rising[::-1] == known:
        return known, False
    return [*map(float, range(len(items), 0, -1))], bool(rising) and rising == known


def _passage(
    fault: Fault, line: int | None, query_id: str, item: Any, *, texts: bool = False
) -> tuple[str, list[tuple[object, ...]]]:
    """The id of a passage, or its text instead; and its row of ``GIVEN``, if there is a text."""
    if isinstance(item, str):
        # Texts hold white space, and ids of TREC runs cannot.
        if not item.strip():
            raise _no_passage(fault, query_id, item)
        _refuse_surrogates(fault, query_id, item)
        if not texts and item.split() == [item]:
            return item, []
        own = composed(item)
        return own, [(own, "", own, "", query_id, line, True)]
    if isinstance(item, int) and not isinstance(item, bool):
        return str(item), []
    if not isinstance(item, Mapping):
        raise _no_passage(fault, query_id, item)
    doc_id = fields.first_of(item, DOC_ID_FIELDS)
    text = fields.text_in(item)
    title = fields.first_of(item, fields.TITLE_FIELDS) or ""
    here = f"a passage of query {quoted(query_id)}"
    if text is not None and not isinstance(text, str):
        raise fault(f"{here} has the text {quoted(text)}", "quote it", "runs.text")
    if isinstance(doc_id, bool | float | list | dict) or not isinstance(title, str):
        wrong = doc_id if isinstance(title, str) else title
        remedy = "write ids as strings or whole numbers, and titles as strings"
        raise fault(f"{here} has the id or title {quoted(wrong)}", remedy, "runs.id")
    if doc_id is None and not (text or "").strip():
        for key in [key for key in RESULTS if key in item]:  # no list, and no passage
            if not isinstance(value := item[key], list):
                problem = f"{key} is {'the text ' * isinstance(value, str)}{quoted(value)}"
                raise fault(problem, 'write a list: ["a", "b"]', "runs.passage")
        raise _no_passage(fault, query_id, item)
    text, title = text and composed(text), composed(title)
    article = composed(str(fields.first_of(item, _ARTICLES) or title))
    name = text if doc_id is None else str(doc_id)
    assert name is not None
    _refuse_surrogates(fault, query_id, name, title, text or "", article)
    if text is None:
        return name, []
    return name, [(name, title, text, article, query_id, line, doc_id is None)]


def _refuse_surrogates(fault: Fault, query_id: str, *texts: str) -> None:
    if not is_text(*texts):
        problem = f"a passage of query {quoted(query_id)} holds half a surrogate pair"
        raise fault(problem, "write valid Unicode", "runs.surrogate")


def _no_passage(fault: Fault, query_id: str, item: object) -> InputError:
    problem = f"query {quoted(query_id)} lists {quoted(item)}, which has neither an id nor a text"
    remedy = 'write passages as {"id": …, "text": …}, as texts, or as ids'
    return fault(problem, remedy, "runs.passageless")


def _order_of(row: Mapping[str, Any]) -> tuple[str, str]:
    """The fields with the rank and the score of rows; without the usual names, the only field with a similar one."""
    ranks = [name for name in row if name.lower() == RANK]
    scores = [name for name in _numbers_beside(row) if _SCORE.search(name)]
    if any(row.get(name) is not None for name in (RANK, SCORE)):
        return RANK, SCORE
    return ranks[0] if len(ranks) == 1 else RANK, scores[0] if len(scores) == 1 else SCORE


def _numbers_beside(row: Mapping[str, Any]) -> list[str]:
    """The fields of a row that hold numbers and that the engine does not know."""
    return [name for name in row if name not in COLUMNS and _number(row[name]) is not None]


def _number(value: Any) -> float | None:
    """A number, or its text, as DPR writes it; None for anything else."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            return float(value)
    return value if _is_real(value) else None


def _is_real(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _rank(fault: Fault, query_id: str, rank: Any) -> int | None:
    if isinstance(rank, float) and rank.is_integer():  # pandas' form if some value is missing
        rank = int(rank)
    is_whole = isinstance(rank, int) and not isinstance(rank, bool) and abs(rank) <= MOST
    if rank is not None and not is_whole:
        problem = f"the rank {quoted(rank)} of query {quoted(query_id)}"
        raise fault(problem, "write a whole number, 1 for the best", "runs.rank")
    return rank


def _score(fault: Fault, query_id: str, score: Any) -> float | None:
    if score is None:
        return None
    number = _number(score)
    if number is None or not abs(number) <= LARGEST_SCORE:
        which = f"score {quoted(score)} of query {quoted(query_id)}"
        problem = f"{which} is not a number that single precision holds"
        raise fault(problem, IN_RANGE, "runs.score")
    return float(number)


def _ordered(path: Location, rows: Sequence[_RunEntry]) -> list[_RunEntry]:
    """Rows with the ranks and scores that the table needs: no ranks if scores decide."""
    for what in (RANK, SCORE):
        has_one = [getattr(row, what) is not None for row in rows]
        if any(has_one) and not all(has_one):
            row = rows[has_one.index(False)]
            which = f"document {quoted(row.doc_id)} of query {quoted(row.query_id)}"
            problem = f"{which} has no {what}, and others have"
            remedy = f"give every row a {what}, or none"
            raise InputError(problem, remedy, "runs.mixed", path=path, line=row.line)
    if not rows:
        return []
    ranked, scored = rows[0].rank is not None, rows[0].score is not None
    places: dict[str, int] = {}
    ordered = []
    for row in rows:
        places[row.query_id] = places.get(row.query_id, 0) + 1
        rank = row.rank if ranked else None if scored else places[row.query_id]
        # Rows without scores get their negated ranks, so that higher is better.
        ordered.append(row._replace(rank=rank, score=row.score if scored else -float(rank or 0)))
    return ordered


Ranking = dict[str, float] | list[str]


def checked_dictionary(
    rankings: Mapping[str, Any], path: Location, remedy: str
) -> Mapping[str, Ranking]:
    """``{query: {document: number}}`` or ``{query: [document, …]}``, best first; an InputError refuses another form."""
    for query, ranking in rankings.items():
        if problem := _problem_of(query, ranking):
            raise InputError(problem, remedy, "runs.dictionary", path=path)
    return rankings


def _problem_of(query: str, ranking: Any) -> str:
    """The fault in the entry of a query; empty for none."""
    if not isinstance(ranking, (dict, list)):
        return f"query {quoted(query)} has neither a dictionary nor a list"
    if not is_text(query) or not all(isinstance(d, str) and is_text(d) for d in ranking):
        return f"the id of query {quoted(query)} or of one of its documents is not valid text"
    if isinstance(ranking, list):
        for document, count in Counter(ranking).items():
            if count > 1:
                return f"query {quoted(query)} lists document {quoted(document)} twice"
        return ""
    for document, number in ranking.items():
        if not _is_number(number):
            return f"{quoted(number)} of document {quoted(document)} of query {quoted(query)} is not a number"
    return ""


def _is_number(value: Any) -> bool:
    try:
        return _is_real(value) and not math.isnan(value)
    except OverflowError:
        return False


def records_in(
    queries: Mapping[str, Any], path: Location, remedy: str
) -> Iterator[tuple[None, dict[str, Any]]]:
    """A dictionary by query as records: its rows if they name their queries, else its lists or scores.

    An InputError with this remedy says that a query has neither.
    """
    grouped = _are_grouped(queries)
    for query_id, rows in queries.items():
        if not isinstance(rows, list):
            scores: Any = checked_dictionary({query_id: rows}, path, remedy)[query_id]
            rows = [{QUERY_ID: query_id, DOC_ID: d, SCORE: score} for d, score in scores.items()]
        elif not grouped:
            rows = [{QUERY_ID: query_id, RESULTS[0]: rows}]
        yield from ((None, row) for row in rows)


def names_runs(dictionary: Mapping[str, Any]) -> bool:
    """Whether the keys of a dictionary are names of runs, and not ids of queries."""
    for value in dictionary.values():
        if isinstance(value, Mapping):
            # {query: {document: number}} is one run, {name: {query: …}} are several.
            inner = next(iter(value.values()), None)
            if inner is not None:
                return isinstance(inner, Mapping | list | tuple)
        elif isinstance(value, list | tuple):
            if value:
                return is_row(value[0]) and not _are_grouped(dictionary)
        else:
            return True
    return False


def is_row(value: Any) -> bool:
    """Whether this is a row of a run, or a list of rows: a dictionary that names its query."""
    return isinstance(value, Mapping) and any(name in value for name in (*ROW_QUERIES, *RESULTS))


def _are_grouped(dictionary: Mapping[str, Any]) -> bool:
    """Whether a dictionary holds rows by their queries, as pandas groups them: each row names its key."""
    return all(
        isinstance(row, Mapping) and key in {str(row.get(name)) for name in ROW_QUERIES}
        for key, rows in dictionary.items()
        for row in (rows if isinstance(rows, list | tuple) else [rows])
    )
