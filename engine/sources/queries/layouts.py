"""The layouts of queries: which one a file has, and its rows, each a query that is the same for every layout.

In KILT's JSONL (Petroni et al. 2021) records have their own form, and so have SQuAD documents: SQuAD 1.1 and 2.0
(Rajpurkar et al. 2018), KorQuAD 1.0, KLUE-MRC. All else are plain records: JSONL and JSON arrays (BEIR's, ragas's,
FlashRAG's, TriviaQA's …), CSV, TSV, Parquet. Their fields are called as in ``engine.sources.fields``. If the first
record has no id field, no record may have one, and queries are numbered from 1 in the order of the file. A text in
place of answers or articles is split (``fields.listed``), whatever the layout. A question is unanswerable if
``is_impossible`` is set, or its answers are an object with an empty list, as in SQuAD 2.0's rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal, TypeGuard

from engine import tables
from engine.messages.characters import composed
from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.sources import fields
from engine.sources.articles.read import is_squad, read_squad
from engine.sources.data_sets import records_of
from engine.sources.fields import ANSWER_FIELDS, ARTICLE_FIELDS, QUERY_FIELDS, QUERY_ID_FIELDS
from engine.sources.io.files import is_text
from engine.sources.io.locations import Location, is_data_set, suffix_of
from engine.sources.io.parquet import open_parquet
from engine.sources.io.records import (
    read_csv_records,
    read_json_document,
    read_json_records,
    start_of,
)


@dataclass(frozen=True)
class QueryRow:
    """A row of the queries table, and its line in the file (None if lines have no meaning).

    Attributes:
        titles: titles of articles in ``provenance`` whose ids the file lacks.
        unanswerable: whether the file marks the question so.
        written: number of answers and articles that were lists written as a text.
        numbered: whether the id is a number that the file lacks.
        record: the query as the file has it, for fields of other names; empty for a row of the queries table.
    """

    line: int | None
    query_id: str
    query: str
    answers: list[str]
    provenance: list[str]
    titles: tuple[str, ...] = ()
    unanswerable: bool = False
    written: int = 0
    numbered: bool = False
    record: Mapping[str, Any] = field(default_factory=dict)


def no_text(
    path: Location, line: int | None, query_id: object, value: object, field: str
) -> InputError:
    """The error for a query whose ``field`` holds ``value``, which is not a text."""
    problem, remedy = f"query {quoted(query_id)} has no text", f'add "{field}"'
    if value is not None:
        problem = f"the text of query {quoted(query_id)} is {quoted(value)}"
        remedy = "write it as a string, in quotes"
    return InputError(problem, remedy, "queries.text", path=path, line=line)


def clean_row(
    path: Location,
    line: int | None,
    query_id: str,
    query: str,
    answers: Sequence[str | None],
    articles: Sequence[str | None],
) -> QueryRow:
    """A row with stripped answers, distinct answers and articles, in order; all texts but the id are composed (NFC).

    The text of a list (``fields.written``) is replaced by its items, in every layout. An InputError refuses an id that
    is empty or contains white space, and text that is not valid Unicode.
    """
    fault = partial(InputError, path=path, line=line)
    if query_id.split() != [query_id]:
        problem = f"query id {quoted(query_id)} is empty or contains white space"
        remedy = "use another id, since run and qrels files are split at white space"
        raise fault(problem, remedy, "queries.id")
    lists = {
        text: items
        for text in (*answers, *articles)
        if text
        and (value := fields.written(text)) is not None
        and (items := fields.texts_of(value)) is not None
    }
    if lists:
        answers, articles = (
            [item for text in texts if text for item in lists.get(text, [text])]
            for texts in (answers, articles)
        )
    if not is_text(query_id, query, *answers, *articles):
        problem = f"query {quoted(query_id)} holds half a surrogate pair"
        raise fault(problem, "write valid Unicode", "queries.surrogate")
    stripped = (composed(answer).strip() for answer in answers if answer)
    return QueryRow(
        line,
        query_id,
        composed(query),
        list(dict.fromkeys(filter(None, stripped))),
        list(dict.fromkeys(composed(article) for article in articles if article)),
        written=len(lists),
    )


KILT = 'queries in KILT JSONL: {"id": …, "input": …, "output": [{"answer": …}, …]}'


def kilt_row(path: Location, line: int, record: dict[str, Any]) -> QueryRow:
    """The query of a record, with the answers of all outputs and the articles of all provenance.

    An article's id is its ``wikipedia_id``, else its title, which is then among the row's ``titles``. An InputError
    says that there is no id or text, or that the outputs have another form.
    """
    fault = partial(InputError, path=path, line=line)
    query_id = record.get("id")
    if isinstance(query_id, bool) or not isinstance(query_id, (str, int)) or query_id == "":
        raise fault("a query without an id", 'add "id"', "queries.unnamed")
    query = record.get("input")
    if not isinstance(query, str):
        raise no_text(path, line, query_id, query, "input")
    answers: list[str] = []
    articles: list[str] = []
    titles: dict[str, None] = {}
    ids: set[str] = set()
    for output in _objects(record, "output", fault):
        answer = output.get("answer")
        if answer is not None and not isinstance(answer, str):
            problem = f"an answer of query {quoted(query_id)} is not a string: {quoted(answer)}"
            raise fault(problem, "quote it", "queries.answers")
        answers.append(answer or "")
        for source in _objects(output, "provenance", fault):
            names = (source.get("wikipedia_id"), source.get("title"))
            article, title = (composed(str(name or "")) for name in names)
            articles.append(article or title.strip())
            if article:
                ids.add(article)
            else:
                titles[title.strip()] = None
    row = clean_row(path, line, str(query_id), query, answers, articles)
    named = tuple(title for title in titles if title and title not in ids)
    return replace(row, titles=named, record=record)


def _objects(record: dict[str, Any], name: str, fault: partial[InputError]) -> list[dict[str, Any]]:
    objects = record.get(name) or []
    if not _are_objects(objects):
        raise fault(f'"{name}" is not a list of objects', f"give {KILT}", "queries.objects")
    return objects


def _are_objects(value: Any) -> TypeGuard[list[dict[str, Any]]]:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def plain_rows(
    path: Location,
    records: Iterable[tuple[int | None, Mapping[str, Any]]],
    *,
    need_text: bool = True,
) -> Iterator[QueryRow]:
    """Yield queries from (line, record) pairs; a line is None if lines have no meaning.

    An InputError refuses a query without text, ids that only some have, and answers that are not strings.
    """
    numbered: bool | None = None
    own_fields: tuple[str, ...] = ANSWER_FIELDS
    for count, (line, record) in enumerate(records, 1):
        query_id = fields.first_of(record, QUERY_ID_FIELDS)
        if numbered is None:
            numbered = query_id is None
        if numbered != (query_id is None) or isinstance(query_id, (bool, float, list, dict)):
            problem = "a query without an id" if query_id is None else f"the id {quoted(query_id)}"
            remedy = "give every query an id (a string or a whole number), or none of them"
            raise InputError(problem, remedy, "queries.unnamed", path=path, line=line)
        name = str(count if query_id is None else query_id)
        query = fields.first_of(record, QUERY_FIELDS)
        query = "" if query is None and not need_text else query
        if not isinstance(query, str):
            raise no_text(path, line, name, query, QUERY_FIELDS[0])
        if own_fields is ANSWER_FIELDS and not record.keys().isdisjoint(fields.REFERENCE_FIELDS):
            own_fields = tuple(name for name in ANSWER_FIELDS if name not in fields.RESPONSE_FIELDS)
        both = (own_fields, ARTICLE_FIELDS)
        values = [fields.first_of(record, names) for names in both]
        lists = [*map(fields.listed, values)]
        split = sum(isinstance(v, str) and [v] != own for v, own in zip(values, lists, strict=True))
        answers, articles = (
            _texts(path, line, f"{names[0]} of query {quoted(name)}", value)
            for names, value in zip(both, lists, strict=True)
        )
        row = clean_row(path, line, name, query, answers, articles)
        marked = record.get("is_impossible") in (True, "true", "True")
        emptied = not row.answers and isinstance(lists[0], Mapping)
        row = replace(row, unanswerable=marked or emptied, numbered=numbered, record=record)
        yield replace(row, written=row.written + split)


def _texts(path: Location, line: int | None, what: str, value: Any) -> list[str]:
    texts = None if isinstance(value, str) else fields.texts_of(value)
    if texts is None:
        fault = "is not a list" if isinstance(value, str) else "are not strings"
        problem = f"{what} {fault}: {quoted(value)}"
        raise InputError(problem, 'write ["a", "b"]', "queries.answers", path=path, line=line)
    return texts


Layout = Literal["parquet", "kilt", "plain", "table", "squad", "document", "triviaqa", "data set"]

WHAT = f"{KILT}, or JSONL, JSON, CSV or Parquet with query and answers, or a SQuAD document"

# A document of TriviaQA's; its keys are in their order.
_TRIVIAQA = re.compile(rb'\{\s*"Data"\s*:')
# The fields that the engine itself knows; any others may group queries.
OWN_FIELDS = fields.columns_of(QUERY_ID_FIELDS, QUERY_FIELDS, ANSWER_FIELDS, ARTICLE_FIELDS)
OWN_FIELDS |= {"is_impossible", fields.CONTEXT_FIELD, "input", "output"}
_BATCH = 10_000


def layout_of(path: Location) -> Layout:
    """The layout of a file of queries.

    - ``data set``: a name that begins with ``irds:`` or ``hf:``;
    - ``parquet``: by the name;
    - ``triviaqa``: one JSON document that begins with ``Data``;
    - ``squad``: one JSON document with ``data`` (``is_squad``); ``document``: one with ``queries`` (``queries_in``);
    - JSON lines, or a JSON array: ``kilt`` if the first object has ``input`` or ``output``, else ``plain``;
    - anything that does not start with ``{`` or ``[`` is a ``table``, CSV or TSV.
    """
    if is_data_set(path):
        return "data set"
    if suffix_of(path) == ".parquet":
        return "parquet"
    start = start_of(path, WHAT)
    if start and start[:1] not in (b"{", b"["):
        return "table"
    if _TRIVIAQA.match(start):
        return "triviaqa"
    if start[:1] != b"[" and is_squad(path):
        if b'"paragraphs"' in start or queries_in(read_json_document(path, WHAT)) is None:
            return "squad"
        return "document"
    for _, record in read_json_records(path, WHAT):
        if queries_in(record) is not None:
            return "document"
        return "kilt" if "input" in record or "output" in record else "plain"
    return "kilt"


def queries_in(document: Any) -> list[dict[str, Any]] | None:
    """The records of a document ``{"queries": [{"text": …}, …]}``; None for another."""
    queries = document.get("queries") if isinstance(document, dict) else None
    others = _are_objects(queries) and document.keys().isdisjoint(("input", *QUERY_FIELDS))
    return queries if others else None


def rows_of(
    path: Location, *, answers_alone: bool = False, column: str | None = None
) -> Iterator[QueryRow]:
    """The rows of a file; some may be marked as unanswerable. An InputError refuses a row when its turn comes.

    With ``answers_alone`` a row may have an id and answers, and no text; ``column`` is a further column that the
    records of Parquet must hold.
    """
    layout = layout_of(path)
    needed = ANSWER_FIELDS if answers_alone else QUERY_FIELDS
    records: Iterable[tuple[int | None, Mapping[str, Any]]]
    if layout == "kilt":
        return (kilt_row(path, line, record) for line, record in read_json_records(path, WHAT))
    if layout == "parquet":
        records = _parquet_records(path, needed, column)
    elif layout == "squad":
        records = squad_records(path)
    elif layout == "triviaqa":
        records = _triviaqa_records(path)
    elif layout == "document":
        records = ((None, record) for record in queries_in(read_json_document(path, WHAT)) or [])
    elif layout == "data set":
        records = ((None, record) for record in records_of(path, "queries"))
    elif layout == "plain":
        records = read_json_records(path, WHAT)
    else:
        table = read_csv_records(path, WHAT, needed)
        records = ((line, {n: text.strip() for n, text in row.items()}) for line, row in table)
    rows = plain_rows(path, records, need_text=not answers_alone)
    # Lists in a table are always texts.
    return (replace(row, written=0) for row in rows) if layout == "table" else rows


def _parquet_records(
    path: Location, needed: Sequence[str], column: str | None
) -> Iterator[tuple[None, dict[str, Any]]]:
    with open_parquet(path) as table:
        if not set(table.names) & fields.columns_of(needed):
            problem = f"lacks a column {', '.join(needed)}"
            remedy = f"a table of this kind has the columns {', '.join(tables.QUERIES)}"
            raise InputError(problem, remedy, "queries.column", path=path)
        own = fields.columns_of([column] if column else [])
        if column and not own & set(table.names):
            raise no_column(path, column, table.names)
        for frame in table.batches(_BATCH, OWN_FIELDS | table.plain_names | own):
            for record in frame.iter_rows(named=True):
                yield None, dict.fromkeys(table.names) | record


def no_column(path: Location, column: str, names: Iterable[str]) -> InputError:
    """The error for a column without values, with the names of existing columns."""
    problem = f"no query has a value in a column {quoted(column)}"
    remedy = f"name one of its columns: {', '.join(names)}"
    return InputError(problem, remedy, "queries.column", path=path)


def _triviaqa_records(path: Location) -> Iterator[tuple[None, dict[str, Any]]]:
    entries = read_json_document(path, WHAT)["Data"]
    if not _are_objects(entries):
        problem = '"Data" is not a list of objects'
        raise InputError(problem, "fetch the file again", "queries.objects", path=path)
    yield from ((None, entry) for entry in entries)


def squad_records(path: Location) -> Iterator[tuple[None, dict[str, Any]]]:
    """Yield the questions of a document as plain records, without lines.

    A question is unanswerable if ``is_impossible`` or without answers (plausible answers do not count). Its gold
    article is that of its context, named by the title, as ``erag passages`` names it.
    """
    for article, questions in read_squad(path):
        context = {"title": article.title, fields.CONTEXT_FIELD: article.text}
        for question in questions:
            # As SQuAD's rows have them: an object without texts marks an unanswerable question.
            answers = {"text": question.get("answers")}
            gold = {ANSWER_FIELDS[0]: answers, ARTICLE_FIELDS[0]: [article.name]}
            yield None, context | question | gold
