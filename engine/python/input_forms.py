"""What a Python user gives as the inputs of an evaluation: files as they are read anywhere, tables as they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import polars as pl

from engine.evaluation.settings import Settings
from engine.inputs.check import column_of
from engine.inputs.files import EvaluationInputs, InputFiles, TableFile
from engine.inputs.read import LoadedInputs, table_files
from engine.inputs.shards import InMemoryInputs
from engine.labels.registry import input_tables
from engine.messages.characters import composed
from engine.messages.errors import InputError
from engine.messages.wording import quoted
from engine.python.record_forms import Record, by_text, is_path, plain, records
from engine.python.retriever_forms import retriever_of
from engine.python.run_forms import each_run, runs_of
from engine.sources.input_tables import InputTable
from engine.sources.io.locations import Location
from engine.sources.passages.index import Collected
from engine.sources.passages.read import passages_of
from engine.sources.queries.layouts import QueryRow, kilt_row, plain_rows, queries_in
from engine.sources.queries.read import QuerySet, query_rows, query_set_of, read_answers
from engine.sources.runs.read import split_runs
from engine.tables import ANSWERS, DOC_ID, LABEL, QUERY, QUERY_ID, RUN, TEXT

_QUERIES, _PASSAGES, _RUNS, _ANSWERS = "queries", "passages", "runs", "answers"


class Given(NamedTuple):
    """The inputs of an evaluation as the user gave them.

    Attributes:
        queries, passages, runs: as ``engine.evaluate`` takes them.
        answers: by query id or text; None where they come with the queries.
        tables: what annotators need, by the name of their input.
        limit: of the queries; None for all.
    """

    queries: Any
    passages: Any
    runs: Any
    answers: Any = None
    tables: Mapping[str, Any] = {}
    limit: int | None = None
    ignore_identical_ids: bool = False

    def files(self, settings: Settings) -> InputFiles | None:
        """The files, where all inputs are files; None where some are in memory."""
        runs = self.runs if isinstance(self.runs, list | tuple) else [self.runs]
        several = isinstance(self.passages, list | tuple) and all(map(is_path, self.passages))
        corpus = None if several else self.passages
        given = [self.queries, *runs, *self.tables.values()]
        given += [one for one in (corpus, self.answers) if one is not None]
        if not runs or not all(map(is_path, given)):
            return None
        runs, corpora = split_runs(runs, self.passages) if several else (runs, ())
        tables = table_files(self.tables, input_tables(), self.passages if several else ())
        more = {"answers": self.answers, "tables": tables, "corpora": corpora}
        return self.named(settings, self.queries, corpus, runs, **more)

    def named(
        self, settings: Settings, queries: Any, corpus: Any, runs: Sequence[Any], **more: Any
    ) -> InputFiles:
        """What is called so in errors, and how much of it is used."""
        return InputFiles(
            queries=queries,
            corpus=corpus,
            run=tuple(runs),
            limit=self.limit,
            ignore_identical_ids=self.ignore_identical_ids,
            **settings.input_needs(),
            **more,
        )


def inputs_of(given: Given, settings: Settings) -> EvaluationInputs:
    """The inputs of an evaluation, checked against each other.

    Raises:
        InputError: as ``read_inputs``; tables in memory are named by their argument, and their rows counted
            from 1.
    """
    k, column = settings.ranking.k, column_of(settings.bootstrap.cluster)
    if (files := given.files(settings)) is not None:
        return InMemoryInputs.of_files(files, k=k).inputs
    query_set = _queries(given, need_answers=settings.needs_answers(), column=column)
    asked = query_set.table.head(given.limit or query_set.table.height)
    runs = runs_of(given.runs, carried=given.passages is None, queries=asked, k=k)
    queries = given.queries if is_path(given.queries) else f"`{_QUERIES}`"
    corpus = None if given.passages is None else f"`{_PASSAGES}`"
    names = [*runs[0][RUN].unique(maintain_order=True)]
    named = given.named(settings, queries, corpus, names, tables=_tables(given.tables))
    passages = None if given.passages is None else _passages(given.passages)
    retrievers = {n or "run" for n, one in each_run(given.runs) if retriever_of(one) is not None}
    query_set.numbering.own = frozenset(retrievers)
    loaded = LoadedInputs(query_set, runs)
    inputs = InMemoryInputs.of_files(named, k=k, passages=passages, given=loaded).inputs
    return inputs if is_path(given.queries) else replace(inputs, queries_file=None)


def _queries(given: Given, *, need_answers: bool, column: str | None) -> QuerySet:
    path, rows = (
        query_rows(given.queries, column)
        if is_path(given.queries)
        else (_QUERIES, _query_rows(given.queries))
    )
    rows = list(rows)
    if not rows:
        raise InputError("there is no query", "give one with its answers", path=path)
    answers = None if given.answers is None else _ANSWERS
    found = [] if answers is None else _answers(rows, given.answers)
    remedy = "add at least one, or give `answers`"
    return query_set_of(
        path, rows, answers, found, need_answers=need_answers, remedy=remedy, column=column
    )  # fmt: skip


def _query_rows(given: Any) -> Iterator[QueryRow]:
    numbered = list(enumerate(_query_records(given), 1))
    if numbered and ("input" in numbered[0][1] or "output" in numbered[0][1]):
        yield from (kilt_row(_QUERIES, number, record) for number, record in numbered)
    else:
        yield from plain_rows(_QUERIES, numbered)


def _query_records(given: Any) -> Iterator[Record]:
    given = queries_in(given) or given
    if isinstance(given, Mapping):
        for key, value in ((k, plain(own)) for k, own in by_text(given, _QUERIES).items()):
            # An id with a text or a record, or a text with its answers.
            if isinstance(value, dict):
                yield {QUERY_ID: key, **value}
            else:
                is_id = isinstance(value, str)
                yield {QUERY_ID: key, QUERY: value} if is_id else {QUERY: key, ANSWERS: value}
    elif isinstance(given, list | tuple) and given and all(isinstance(one, str) for one in given):
        yield from ({QUERY: text} for text in given)
    else:
        yield from records(given, _QUERIES)


def _answers(rows: Sequence[QueryRow], answers: Any) -> list[QueryRow]:
    """Answers that were given apart, by id or by text, as ``joined`` takes them."""
    if is_path(answers):
        return read_answers(answers)
    if not isinstance(answers, Mapping):
        problem = f"is of the type {type(answers).__name__}"
        raise InputError(problem, "give {query_id: [answer, …]}", path=_ANSWERS)
    given = {key: plain(own) for key, own in by_text(answers, _ANSWERS).items()}
    ids = {row.query_id for row in rows}
    texts = {composed(key) for key in given}
    of_texts = any(row.query in texts for row in rows)
    found: list[QueryRow] = []
    for number, (key, own) in enumerate(given.items(), 1):
        is_id = key in ids or not (of_texts or " " in key)
        record = {QUERY_ID if is_id else QUERY: key, ANSWERS: own}
        found += plain_rows(_ANSWERS, [(number, record)], need_text=False)
    return found


def _passages(given: Any) -> Collected:
    if is_path(given):
        return Collected.of_corpus(given, 0)
    return Collected.of_batches(lambda: passages_of(_passage_records(given), _PASSAGES))


def _passage_records(given: Any) -> Iterable[Record]:
    if not isinstance(given, Mapping):
        return records(given, _PASSAGES)
    return (
        {DOC_ID: key, **(value if isinstance(value, dict) else {TEXT: value})}
        for key, value in ((k, plain(own)) for k, own in by_text(given, _PASSAGES).items())
    )


def _tables(given: Mapping[str, Any]) -> dict[str, TableFile]:
    """Tables as ``InputFiles`` has them; errors call them by their argument."""
    known = {name: input_tables()[name] for name in given}
    made = {name: partial(_table, known[name], table) for name, table in given.items()}
    return {name: TableFile(name, replace(known[name], read=made[name])) for name in given}


def _table(needed: InputTable, given: Any, name: Location) -> pl.DataFrame:
    if is_path(given):
        return needed.read(given)
    rows = _judgments(given, str(name)) if isinstance(given, Mapping) else records(given, str(name))
    if needed.of_records is not None:
        return needed.of_records(name, enumerate(rows, 1))
    table = pl.DataFrame(list(rows), infer_schema_length=None)
    if missing := [column for column in needed.columns if column not in table.columns]:
        listed = ", ".join(needed.columns)
        raise InputError(f"lacks {', '.join(missing)}", f"give a table with {listed}", path=name)
    return table


def _judgments(given: Mapping[Any, Any], name: str) -> Iterator[Record]:
    """``{query_id: {doc_id: label}}`` as records."""
    by_text(given, name)
    for query_id, judged in given.items():
        if not isinstance(judged, Mapping):
            problem = f"query {quoted(query_id)} has {quoted(plain(judged))} for its labels"
            raise InputError(problem, "give {query_id: {doc_id: label}}", path=name)
        by_text(judged, name)
        for doc_id, label in judged.items():
            yield {QUERY_ID: plain(query_id), DOC_ID: plain(doc_id), LABEL: plain(label)}
