"""The inputs of an evaluation from Python: files, or tables in memory.

Tables, dictionaries and frames become records, one dictionary for each row. Retrievers are runs: functions, and objects
of LangChain, LlamaIndex and Haystack, called once for each query.
"""

from __future__ import annotations

import inspect
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import polars as pl

from engine.evaluation.settings import Settings
from engine.inputs.files import OUTPUTS, EvaluationInputs, InputFiles, TableFile
from engine.inputs.read import LoadedInputs, column_of, located
from engine.inputs.shards import InMemoryInputs
from engine.labels.registry import input_tables
from engine.messages.characters import composed
from engine.messages.errors import InputError
from engine.messages.wording import quoted, reason_of
from engine.reading.function_reader import awaited
from engine.sources.fields import DOC_ID_FIELDS, TEXT_FIELDS
from engine.sources.input_tables import InputTable
from engine.sources.io.files import is_text
from engine.sources.io.locations import Location
from engine.sources.passages.index import CorpusInMemory
from engine.sources.passages.read import passages_of
from engine.sources.queries.layouts import QueryRow, kilt_row, plain_rows, queries_in
from engine.sources.queries.read import QuerySet, query_rows, query_set_of, read_answers
from engine.sources.runs import read
from engine.sources.runs.forms import is_row, names_runs, records_in
from engine.sources.traces import read as traces
from engine.tables import ANSWERS, DOC_ID, LABEL, OUTPUT, QUERY, QUERY_ID, RUN, SCORE, TEXT

Record = dict[str, Any]
_QUERIES, _PASSAGES, _RUNS, _ANSWERS = "queries", "passages", "runs", "answers"
_RUN_FORM = (
    "give {query_id: {doc_id: score}}, {query_id: [doc_id, …]}, {query_id: [text, …]} without "
    "`passages`, a frame with query_id, doc_id and score or rank, a file, a retriever, or several by name"
)
# Pandas rows converted to Python objects at a time.
_AT_ONCE = 10_000
_FORMS = "a path, a Polars or pandas frame, a dictionary, a list of dictionaries, or a Hugging Face dataset"


class UserInputs(NamedTuple):
    """The user's inputs of an evaluation, as ``engine.evaluate`` takes them."""

    queries: Any
    passages: Any
    runs: Any
    answers: Any = None  # by query id or text; None if the queries hold them
    tables: Mapping[str, Any] = {}  # annotators' inputs by name
    limit: int | None = None
    ignore_identical_ids: bool = False
    outputs: tuple[Any, ...] = ()  # recorded: their table, or files

    def files(self, settings: Settings) -> InputFiles | None:
        """The files, if all inputs are files; None if some are in memory."""
        runs = self.runs if isinstance(self.runs, list | tuple) else [self.runs]
        several = isinstance(self.passages, list | tuple) and all(map(is_path, self.passages))
        corpus = None if several else self.passages
        rest = [value for value in (corpus, self.answers) if value is not None]
        every = [self.queries, *runs, *self.tables.values(), *rest, *self.outputs]
        if not runs or not all(map(is_path, every)):
            return None
        paths = located(self.passages, runs, self.tables, input_tables())
        paths |= {"queries": self.queries, "answers": self.answers, "outputs": self.outputs}
        return self.named(settings, **paths)

    def named(self, settings: Settings, **files: Any) -> InputFiles:
        """Names of inputs in errors, and their used part."""
        return InputFiles(
            limit=self.limit,
            ignore_identical_ids=self.ignore_identical_ids,
            **settings.input_needs(),
            **files,
        )


def inputs_of(user: UserInputs, settings: Settings) -> EvaluationInputs:
    """The inputs of an evaluation, checked against each other as by ``read_inputs``.

    Errors name tables in memory by their argument, and count rows from 1.
    """
    k, column = settings.ranking.k, column_of(settings.bootstrap.cluster)
    if (files := user.files(settings)) is not None:
        return InMemoryInputs.of_files(files, k=k).inputs
    query_set = _queries(user, need_answers=settings.needs_answers(), column=column)
    limited = query_set.table.head(user.limit or query_set.table.height)
    runs = runs_of(user.runs, carried=user.passages is None, queries=limited, k=k)
    queries = user.queries if is_path(user.queries) else f"`{_QUERIES}`"
    corpus = None if user.passages is None else f"`{_PASSAGES}`"
    names = tuple(runs[0][RUN].unique(maintain_order=True))
    tables = _tables(user.tables)
    outputs = next((own for own in user.outputs if not is_path(own)), None)
    recorded = user.outputs if outputs is None else (f"`{OUTPUTS}`",)
    paths = {"queries": queries, "corpus": corpus, "run": names, "outputs": recorded}
    named = user.named(settings, tables=tables, **paths)
    retrievers = {n or "run" for n, run in each_run(user.runs) if retriever_of(run) is not None}
    query_set.numbering.own = frozenset(retrievers)
    passages = None if user.passages is None else _passages(user.passages)
    loaded = LoadedInputs(query_set, runs, passages, outputs)
    inputs = InMemoryInputs.of_files(named, k=k, loaded=loaded).inputs
    return inputs if is_path(user.queries) else replace(inputs, queries_file=None)


def _queries(user: UserInputs, *, need_answers: bool, column: str | None) -> QuerySet:
    path, rows = _query_rows(user.queries, column)
    if not rows:
        problem = "there is no query"
        raise InputError(problem, "give one with its answers", "queries.none", path=path)
    answers = None if user.answers is None else _ANSWERS
    separate = [] if answers is None else _answers(rows, user.answers)
    remedy = "add at least one, or give `answers`"
    return query_set_of(
        path, rows, answers, separate, need_answers=need_answers, remedy=remedy, column=column
    )


def _query_rows(queries: Any, column: str | None) -> tuple[Location, list[QueryRow]]:
    if is_path(queries):
        path, rows = query_rows(queries, column)
        return path, list(rows)
    numbered = list(enumerate(_query_records(queries), 1))
    if numbered and ("input" in numbered[0][1] or "output" in numbered[0][1]):
        return _QUERIES, [kilt_row(_QUERIES, number, record) for number, record in numbered]
    return _QUERIES, list(plain_rows(_QUERIES, numbered))


def _query_records(queries: Any) -> Iterator[Record]:
    queries = queries_in(queries) or queries
    if isinstance(queries, Mapping):
        for key, value in ((k, plain(own)) for k, own in by_text(queries, _QUERIES).items()):
            # An id with a text or a record, or a text with its answers.
            if isinstance(value, dict):
                yield {QUERY_ID: key, **value}
            else:
                is_id = isinstance(value, str)
                yield {QUERY_ID: key, QUERY: value} if is_id else {QUERY: key, ANSWERS: value}
    else:
        is_list = isinstance(queries, list | tuple) and bool(queries)
        if is_list and all(isinstance(text, str) for text in queries):
            queries = [{QUERY: text} for text in queries]
        yield from records(queries, _QUERIES)


def _answers(rows: Sequence[QueryRow], answers: Any) -> list[QueryRow]:
    """Separate answers, by id or by text."""
    if is_path(answers):
        return read_answers(answers)
    if not isinstance(answers, Mapping):
        problem = f"is of the type {type(answers).__name__}"
        raise InputError(problem, "give {query_id: [answer, …]}", "queries.answers", path=_ANSWERS)
    by_key = {key: plain(own) for key, own in by_text(answers, _ANSWERS).items()}
    ids = {row.query_id for row in rows}
    texts = {composed(key) for key in by_key}
    have_texts = any(row.query in texts for row in rows)
    separate: list[QueryRow] = []
    for number, (key, own) in enumerate(by_key.items(), 1):
        is_id = key in ids or not (have_texts or " " in key)
        record = {QUERY_ID if is_id else QUERY: key, ANSWERS: own}
        separate += plain_rows(_ANSWERS, [(number, record)], need_text=False)
    return separate


def recorded_outputs(outputs: Any) -> tuple[Any, ...]:
    """The table of recorded outputs (``outputs_of``), or their files; none for a frame of traces without answers."""
    if outputs is None or (isinstance(outputs, pl.DataFrame) and outputs.is_empty()):
        return ()
    several = outputs if isinstance(outputs, list | tuple) else [outputs]
    if several and all(map(is_path, several)):
        return tuple(several)
    if isinstance(outputs, Mapping):
        by_key = plain(outputs, OUTPUTS).items()
        named = [(key, own) if isinstance(own, dict) else ("", {key: own}) for key, own in by_key]
        rows = ((run, query, text) for run, own in named for query, text in own.items())
        outputs = [dict(zip((RUN, QUERY_ID, OUTPUT), row, strict=True)) for row in rows]
    return (traces.outputs_of(OUTPUTS, enumerate(records(outputs, OUTPUTS), 1)),)


def read_traces(given: Any, name: str = "", *, carried: bool = True) -> traces.Traces:
    """Read traces of agents from a file, a frame or a list of dictionaries.

    >>> search = {"query_id": "q1", "step": 1, "search": "Aruba", "passages": ["d2", "d1"]}
    >>> traces = read_traces([search, {"query_id": "q1", "output": "Oranjestad"}])
    >>> traces.runs["doc_id"].to_list(), traces.outputs["output"].to_list()
    (['d2', 'd1'], ['Oranjestad'])

    ``name``: of the run, if rows name none. ``carried`` is False if passages of ``evaluate`` have the texts.
    """
    rows = None if is_path(given) else enumerate(records(given, "traces"), 1)
    return traces.read_traces(given if rows is None else "traces", name, rows, carried=carried)


def _passages(passages: Any) -> CorpusInMemory:
    if is_path(passages):
        return CorpusInMemory.from_corpus(passages, 0)
    return CorpusInMemory(lambda skip: passages_of(_passage_records(passages), _PASSAGES))


def _passage_records(passages: Any) -> Iterable[Record]:
    if not isinstance(passages, Mapping):
        return records(passages, _PASSAGES)
    return (
        {DOC_ID: key, **(value if isinstance(value, dict) else {TEXT: value})}
        for key, value in ((k, plain(own)) for k, own in by_text(passages, _PASSAGES).items())
    )


def _tables(tables: Mapping[str, Any]) -> dict[str, TableFile]:
    known = {name: input_tables()[name] for name in tables}
    readers = {name: partial(_table, known[name], table) for name, table in tables.items()}
    return {name: TableFile(name, replace(known[name], read=readers[name])) for name in tables}


def _table(needed: InputTable, table: Any, name: Location) -> pl.DataFrame:
    if is_path(table):
        return needed.read(table)
    rows = _judgments(table, str(name)) if isinstance(table, Mapping) else records(table, str(name))
    if needed.from_records is not None:
        return needed.from_records(name, enumerate(rows, 1))
    frame = pl.DataFrame(list(rows), infer_schema_length=None)
    if missing := [column for column in needed.columns if column not in frame.columns]:
        listed = ", ".join(needed.columns)
        problem = f"lacks {', '.join(missing)}"
        raise InputError(problem, f"give a table with {listed}", "table.column", path=name)
    return frame


def _judgments(judgments: Mapping[Any, Any], name: str) -> Iterator[Record]:
    by_text(judgments, name)
    for query_id, judged in judgments.items():
        if not isinstance(judged, Mapping):
            problem = f"query {quoted(query_id)} has {quoted(plain(judged))} for its labels"
            raise InputError(problem, "give {query_id: {doc_id: label}}", "qrels.labels", path=name)
        by_text(judged, name)
        for doc_id, label in judged.items():
            yield {QUERY_ID: plain(query_id), DOC_ID: plain(doc_id), LABEL: plain(label)}


def runs_of(
    runs: Any, *, carried: bool, queries: pl.DataFrame | None = None, k: int = 0
) -> read.RunsAndCorpus:
    """All runs, in the order of the arguments, with their texts; retrievers are called with ``queries`` and ``k``.

    ``carried``: whether runs carry their passages; else they list ids of separate passages. An InputError refuses runs of
    another form, and what is refused in a file (``read_runs_with_texts``).
    """
    texted: list[read.TextedRun] = []
    sources: dict[str, Any] = {}
    places: list[str] = []
    for name, own in each_run(runs):
        if not is_text(name):
            problem = f"a run is called {quoted(name)}"
            raise InputError(problem, "write valid Unicode", "runs.name", path=_RUNS)
        if (retriever := retriever_of(own)) is not None and queries is not None:
            own = retrieved(retriever, name or _RUNS, queries, k, carried=carried)
        for run in _run_tables(name, own, carried=carried):
            places.append(name or (str(own) if is_path(own) else _RUNS))
            read.require_new_name(places[-1], run.rows[RUN][0], sources)
            texted.append(run)
    if not texted:
        raise InputError("there is no run", _RUN_FORM, "runs.none", path=_RUNS)
    return read.with_corpus(texted, places, carried=carried)


def each_run(runs: Any) -> Iterator[tuple[str, Any]]:
    """Runs with their names; empty for a run without a name."""
    if isinstance(runs, Mapping):
        by_key = by_text(runs, _RUNS)
        if by_key and all(map(is_table, by_key.values())):
            first = {key: [*islice(records(own, key), 1)] for key, own in by_key.items()}
            if not names_runs(first):
                by_key = {key: [*records(own, key)] for key, own in by_key.items()}
        # NumPy arrays count as lists.
        lists = {k: own.tolist() if hasattr(own, "tolist") else own for k, own in by_key.items()}
        yield from by_key.items() if names_runs(lists) else [("", by_key)]
    elif _is_named(runs) or not isinstance(runs, Sequence) or (runs and is_row(runs[0])):
        yield "", runs
    else:
        for number, own in enumerate(runs, 1):
            yield f"run-{number}" if len(runs) > 1 and not _is_named(own) else "", own


def _is_named(run: Any) -> bool:
    return is_path(run) or is_table(run)


def _run_tables(name: str, run: Any, *, carried: bool) -> Iterator[read.TextedRun]:
    if is_path(run):
        runs = read.read_texted_runs([run])
        if name and len(runs) > 1:
            problem = "holds several runs"
            raise InputError(problem, "give it without a name", "runs.several", path=run)
        for own in runs:
            yield replace(own, rows=own.rows.with_columns(pl.lit(name).alias(RUN))) if name else own
        return
    called = name or _RUNS
    rows: Iterable[tuple[int | None, Record]] = enumerate(records(run, called), 1)
    if isinstance(run, Mapping):
        rows = records_in(plain(run, called), called, _RUN_FORM)
    yield from read.runs_of_records(called, rows, name, texts=carried)


def retriever_of(run: Any) -> Callable[..., Any] | None:
    """A function of a question: the object, or its LangChain, LlamaIndex or Haystack method; None for no retriever."""
    methods = (getattr(run, name, None) for name in ("invoke", "retrieve", "run"))
    return run if callable(run) else next(filter(callable, methods), None)


def retrieved(
    retriever: Callable[..., Any], name: str, queries: pl.DataFrame, k: int, *, carried: bool
) -> dict[str, Any]:
    """A retriever's results for each query, as one run in memory: by id, a list or ``{doc_id: score}``.

    It gets the text of a query, and ``k`` if it has a parameter ``k`` or ``top_k``. An InputError names the query for
    which it raises an error or returns no list. ``carried``: whether its results hold the passages' texts; else ids.
    """
    run: dict[str, Any] = {}
    for query_id, text in queries.select(QUERY_ID, QUERY).iter_rows():
        try:
            known = inspect.signature(retriever).parameters
            lengths = dict.fromkeys(known.keys() & {"k", "top_k"}, k)
            results = awaited(retriever(text, **lengths))
        except (Exception, SystemExit) as error:
            problem = f"the retriever raises {reason_of(error)} for query {quoted(query_id)}"
            raise InputError(problem, "correct it", "retriever.raises", path=name) from error
        if isinstance(results, Mapping):
            results = results.get("documents", dict(results))  # Haystack's
        if not isinstance(results, Iterable) or isinstance(results, str | bytes):
            problem = f"the retriever returns {type(results).__name__} for query {quoted(query_id)}"
            remedy = "return a list of passages, the best first"
            raise InputError(problem, remedy, "retriever.value", path=name)
        if not isinstance(results, dict):
            results = [_passage(result, carried) for result in results]
        run[query_id] = results
    return run


def _passage(result: Any, carried: bool) -> Any:
    """A passage in a run's form: an id, a text, or a record.

    An object's id comes from its metadata, else from the object if passages are separate; else its text identifies it,
    because stores generate ids, which differ between stores.
    """
    if isinstance(result, tuple) and len(result) == 2:
        passage = _passage(result[0], carried)
        named = passage if isinstance(passage, Mapping) else {TEXT if carried else DOC_ID: passage}
        return {**named, SCORE: result[1]}
    node = getattr(result, "node", result)
    texts = {name: text for name in TEXT_FIELDS if isinstance(text := getattr(node, name, 0), str)}
    if not texts:
        return result
    more = getattr(node, "metadata", None) or getattr(node, "meta", None) or {}
    ids = [more.get(name) for name in DOC_ID_FIELDS]
    ids += [] if carried else [getattr(node, "id", None), getattr(node, "node_id", None)]
    own = next((id_ for id_ in ids if id_ is not None), None)
    return {**texts, "metadata": more, SCORE: getattr(result, SCORE, None), DOC_ID: own}


def is_path(value: object) -> bool:
    """Whether an argument is a file, a folder or an address, not a table in memory."""
    return isinstance(value, str | Path)


def is_table(value: object) -> bool:
    """Whether an argument is a frame of Polars, pandas or Arrow."""
    return isinstance(value, pl.DataFrame | pl.LazyFrame) or _module(value) in ("pandas", "pyarrow")


def records(rows: Any, name: str) -> Iterator[Record]:
    """The rows of a frame, a data set or a list of dictionaries; an InputError names any other argument."""
    for number, row in enumerate(_rows(rows, name), 1):
        if not isinstance(row, Mapping):
            problem = f"is a row of the type {type(row).__name__}"
            raise InputError(problem, f"give {_FORMS}", "table.row", path=name, line=number)
        yield {key: plain(value) for key, value in by_text(row, name).items()}


def by_text(mapping: Mapping[Any, Any], name: str | None = None) -> dict[str, Any]:
    """A dictionary with keys as texts, as in a JSON object; an InputError refuses two keys that become equal."""
    # Grouping by a list of a single column, pandas makes keys tuples.
    keys = [key[0] if isinstance(key, tuple) and len(key) == 1 else key for key in mapping]
    values = dict(zip(map(str, keys), mapping.values(), strict=True))
    if len(values) < len(keys):
        twice = next(key for key, times in Counter(map(str, keys)).items() if times > 1)
        both = " and ".join(quoted(key) for key in keys if str(key) == twice)
        problem = f"the keys {both} are the same id"
        raise InputError(problem, "keep one of them", "table.key", path=name)
    return values


def plain(value: Any, name: str | None = None) -> Any:
    """A value as JSON would hold it: arrays as lists, and missing numbers as None."""
    if isinstance(value, str | bool | int) or value is None:
        return value
    if isinstance(value, float):
        return None if math.isnan(value) else value
    if isinstance(value, Mapping):
        return {key: plain(item, name) for key, item in by_text(value, name).items()}
    if isinstance(value, list | tuple | set | frozenset | pl.Series):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):  # numpy's
        return plain(value.tolist())
    return None if type(value).__name__ in ("NAType", "NaTType") else value


def _rows(rows: Any, name: str) -> Iterable[Any]:
    if isinstance(rows, pl.LazyFrame):
        rows = rows.collect()
    if isinstance(rows, pl.DataFrame):
        return rows.iter_rows(named=True)
    if _module(rows) == "pandas":
        named = [level for level in rows.index.names if level is not None]
        frame = rows.reset_index() if named else rows
        if twice := next(iter(frame.columns[frame.columns.duplicated()]), None):
            problem = f"the column {quoted(twice)} is given twice"
            raise InputError(problem, "keep one", "table.duplicate", path=name)
        slices = (frame.iloc[at : at + _AT_ONCE] for at in range(0, len(frame), _AT_ONCE))
        return (row for some in slices for row in some.to_dict("records"))
    if _module(rows) == "pyarrow":
        return _rows(pl.DataFrame(rows), name)
    if not isinstance(rows, Iterable) or isinstance(rows, str | bytes | Mapping):
        problem = f"is of the type {type(rows).__name__}"
        raise InputError(problem, f"give {_FORMS}", "python.type", path=name)
    return rows


def _module(value: object) -> str:
    """The library of a possible frame; empty for other objects."""
    library = type(value).__module__.split(".")[0]
    return library if type(value).__name__ in ("DataFrame", "Table") else ""
