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
from engine.inputs.files import EvaluationInputs, InputFiles, TableFile
from engine.inputs.read import LoadedInputs, column_of, located
from engine.inputs.recorded import OUTPUTS
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
from engine.sources.runs.forms import is_row, names_runs, of_dictionary
from engine.sources.runs.outputs import outputs_of, read_outputs
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
    """The user's inputs of an evaluation.

    Attributes:
        queries, passages, runs: as ``engine.evaluate`` takes them.
        answers: by query id or text; None if the queries hold them.
        tables: annotators' inputs by name.
        limit: most queries; None for all.
        outputs: recorded outputs; None if there are none.
    """

    queries: Any
    passages: Any
    runs: Any
    answers: Any = None
    tables: Mapping[str, Any] = {}
    limit: int | None = None
    ignore_identical_ids: bool = False
    outputs: Any = None

    def files(self, settings: Settings) -> InputFiles | None:
        """The files, if all inputs are files; None if some are in memory."""
        runs = self.runs if isinstance(self.runs, list | tuple) else [self.runs]
        several = isinstance(self.passages, list | tuple) and all(map(is_path, self.passages))
        corpus = None if several else self.passages
        given = [self.queries, *runs, *self.tables.values()]
        outputs = () if self.outputs is None else self.outputs
        outputs = outputs if isinstance(outputs, list | tuple) else (outputs,)
        given += [one for one in (corpus, self.answers, *outputs) if one is not None]
        if not runs or not all(map(is_path, given)):
            return None
        paths = located(self.passages, runs, self.tables, input_tables())
        others = {"answers": self.answers, "outputs": tuple(outputs)}
        return self.named(settings, queries=self.queries, **others, **paths)

    def named(self, settings: Settings, **files: Any) -> InputFiles:
        """Names of inputs in errors, and their used part."""
        return InputFiles(
            limit=self.limit,
            ignore_identical_ids=self.ignore_identical_ids,
            **settings.input_needs(),
            **files,
        )


def inputs_of(given: UserInputs, settings: Settings) -> EvaluationInputs:
    """The inputs of an evaluation, checked against each other.

    Raises:
        InputError: as ``read_inputs``; messages name tables in memory by their argument, and count rows from 1.
    """
    k, column = settings.ranking.k, column_of(settings.bootstrap.cluster)
    if (files := given.files(settings)) is not None:
        return InMemoryInputs.of_files(files, k=k).inputs
    query_set = _queries(given, need_answers=settings.needs_answers(), column=column)
    asked = query_set.table.head(given.limit or query_set.table.height)
    runs = runs_of(given.runs, carried=given.passages is None, queries=asked, k=k)
    queries = given.queries if is_path(given.queries) else f"`{_QUERIES}`"
    corpus = None if given.passages is None else f"`{_PASSAGES}`"
    names = tuple(runs[0][RUN].unique(maintain_order=True))
    tables = _tables(given.tables)
    outputs = () if given.outputs is None else (f"`{OUTPUTS}`",)
    paths = {"queries": queries, "corpus": corpus, "run": names, "outputs": outputs}
    named = given.named(settings, tables=tables, **paths)
    retrievers = {n or "run" for n, one in each_run(given.runs) if retriever_of(one) is not None}
    query_set.numbering.own = frozenset(retrievers)
    passages = None if given.passages is None else _passages(given.passages)
    loaded = LoadedInputs(query_set, runs, passages, *_outputs(given.outputs))
    inputs = InMemoryInputs.of_files(named, k=k, given=loaded).inputs
    return inputs if is_path(given.queries) else replace(inputs, queries_file=None)


def _queries(given: UserInputs, *, need_answers: bool, column: str | None) -> QuerySet:
    path, rows = (
        query_rows(given.queries, column)
        if is_path(given.queries)
        else (_QUERIES, _query_rows(given.queries))
    )
    rows = list(rows)
    if not rows:
        problem = "there is no query"
        raise InputError(problem, "give one with its answers", "queries.none", path=path)
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
    """Separate answers, by id or by text, in the form for ``joined``."""
    if is_path(answers):
        return read_answers(answers)
    if not isinstance(answers, Mapping):
        problem = f"is of the type {type(answers).__name__}"
        raise InputError(problem, "give {query_id: [answer, …]}", "queries.answers", path=_ANSWERS)
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


def some_outputs(given: Any) -> Any:
    """Recorded outputs as they are given; None for the empty frame of traces without answers."""
    return None if isinstance(given, pl.DataFrame) and given.is_empty() else given


def _outputs(given: Any) -> Iterator[pl.DataFrame]:
    """The recorded outputs (``read_outputs``), if there are any."""
    several = given if isinstance(given, list | tuple) else [given]
    if all(map(is_path, several)):
        yield read_outputs(several)
    elif given is not None:
        rows = _answered(given) if isinstance(given, Mapping) else records(given, OUTPUTS)
        yield outputs_of([("", OUTPUTS, enumerate(rows, 1))])


def _answered(given: Mapping[Any, Any]) -> Iterator[Record]:
    for key, own in plain(given, OUTPUTS).items():
        run, outputs = (key, own) if isinstance(own, dict) else ("", {key: own})
        yield from ({RUN: run, QUERY_ID: query, OUTPUT: text} for query, text in outputs.items())


def read_traces(given: Any, name: str = "", *, carried: bool = True) -> traces.Traces:
    """Read traces of agents from a file, a frame or a list of dictionaries.

    >>> search = {"query_id": "q1", "step": 1, "search": "Aruba", "passages": ["d2", "d1"]}
    >>> found = read_traces([search, {"query_id": "q1", "output": "Oranjestad"}])
    >>> found.runs["doc_id"].to_list(), found.outputs["output"].to_list()
    (['d2', 'd1'], ['Oranjestad'])

    ``name``: of the run, if rows name none. ``carried`` is False if passages of ``evaluate`` have the texts.
    """
    rows = None if is_path(given) else enumerate(records(given, "traces"), 1)
    return traces.read_traces(given if rows is None else "traces", name, rows, carried=carried)


def _passages(given: Any) -> CorpusInMemory:
    if is_path(given):
        return CorpusInMemory.of_corpus(given, 0)
    return CorpusInMemory(lambda skip: passages_of(_passage_records(given), _PASSAGES))


def _passage_records(given: Any) -> Iterable[Record]:
    if not isinstance(given, Mapping):
        return records(given, _PASSAGES)
    return (
        {DOC_ID: key, **(value if isinstance(value, dict) else {TEXT: value})}
        for key, value in ((k, plain(own)) for k, own in by_text(given, _PASSAGES).items())
    )


def _tables(given: Mapping[str, Any]) -> dict[str, TableFile]:
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
        problem = f"lacks {', '.join(missing)}"
        raise InputError(problem, f"give a table with {listed}", "table.column", path=name)
    return table


def _judgments(given: Mapping[Any, Any], name: str) -> Iterator[Record]:
    by_text(given, name)
    for query_id, judged in given.items():
        if not isinstance(judged, Mapping):
            problem = f"query {quoted(query_id)} has {quoted(plain(judged))} for its labels"
            raise InputError(problem, "give {query_id: {doc_id: label}}", "qrels.labels", path=name)
        by_text(judged, name)
        for doc_id, label in judged.items():
            yield {QUERY_ID: plain(query_id), DOC_ID: plain(doc_id), LABEL: plain(label)}


def runs_of(
    given: Any, *, carried: bool, queries: pl.DataFrame | None = None, k: int = 0
) -> read.DataSetComparison:
    """All runs, in the order of the arguments, with their texts.

    Args:
        carried: whether runs carry their passages; else runs list ids of separate passages.
        queries, k: arguments of retrievers.

    Raises:
        InputError: a run has another form, or is refused as in a file (``read_runs_with_texts``).
    """
    found: list[read.TextedRun] = []
    sources: dict[str, Any] = {}
    places: list[str] = []
    for name, one in each_run(given):
        if not is_text(name):
            problem = f"a run is called {quoted(name)}"
            raise InputError(problem, "write valid Unicode", "runs.name", path=_RUNS)
        if (retriever := retriever_of(one)) is not None and queries is not None:
            one = retrieved(retriever, name or _RUNS, queries, k, carried=carried)
        for run in _run_tables(name, one, carried=carried):
            places.append(name or (str(one) if is_path(one) else _RUNS))
            read.require_new_name(places[-1], run.rows[RUN][0], sources)
            found.append(run)
    if not found:
        raise InputError("there is no run", _RUN_FORM, "runs.none", path=_RUNS)
    return read.with_corpus(found, places, carried=carried)


def each_run(given: Any) -> Iterator[tuple[str, Any]]:
    """Runs with their names; empty for a run without a name."""
    if isinstance(given, Mapping):
        by_key = by_text(given, _RUNS)
        if by_key and all(map(is_table, by_key.values())):
            first = {key: [*islice(records(one, key), 1)] for key, one in by_key.items()}
            if not names_runs(first):
                by_key = {key: [*records(one, key)] for key, one in by_key.items()}
        # NumPy arrays count as lists.
        of = {key: one.tolist() if hasattr(one, "tolist") else one for key, one in by_key.items()}
        yield from by_key.items() if names_runs(of) else [("", by_key)]
    elif _is_named(given) or not isinstance(given, Sequence) or (given and is_row(given[0])):
        yield "", given
    else:
        for number, one in enumerate(given, 1):
            yield f"run-{number}" if len(given) > 1 and not _is_named(one) else "", one


def _is_named(given: Any) -> bool:
    """Whether a run is a file or a frame, which may name it."""
    return is_path(given) or is_table(given)


def _run_tables(name: str, given: Any, *, carried: bool) -> Iterator[read.TextedRun]:
    """The systems' runs within a run argument."""
    if is_path(given):
        runs = read.read_texted_runs([given])
        if name and len(runs) > 1:
            problem = "holds several runs"
            raise InputError(problem, "give it without a name", "runs.several", path=given)
        for run in runs:
            yield replace(run, rows=run.rows.with_columns(pl.lit(name).alias(RUN))) if name else run
        return
    called = name or _RUNS
    rows: Iterable[tuple[int | None, Record]] = enumerate(records(given, called), 1)
    if isinstance(given, Mapping):
        plainly = {key: plain(one, called) for key, one in by_text(given, called).items()}
        rows = of_dictionary(plainly, called, _RUN_FORM)
    yield from read.runs_of_records(called, rows, name, texts=carried)


def retriever_of(given: Any) -> Callable[..., Any] | None:
    """A function of a question: the object, or its LangChain, LlamaIndex or Haystack method; None for no retriever."""
    methods = (getattr(given, name, None) for name in ("invoke", "retrieve", "run"))
    return given if callable(given) else next(filter(callable, methods), None)


def retrieved(
    retriever: Callable[..., Any], name: str, queries: pl.DataFrame, k: int, *, carried: bool
) -> dict[str, Any]:
    """A retriever's results for each query, as one run in memory: by id, a list or ``{doc_id: score}``.

    Args:
        retriever: takes the text of a query, and a number of passages if it has a parameter ``k`` or ``top_k``.
        carried: whether its results hold the passages' texts; else ids.

    Raises:
        InputError: it raises an error, or returns no list, naming the query.
    """
    run: dict[str, Any] = {}
    for query_id, text in queries.select(QUERY_ID, QUERY).iter_rows():
        try:
            known = inspect.signature(retriever).parameters
            found = awaited(retriever(text, **{one: k for one in ("k", "top_k") if one in known}))
        except (Exception, SystemExit) as error:
            problem = f"the retriever raises {reason_of(error)} for query {quoted(query_id)}"
            raise InputError(problem, "correct it", "retriever.raises", path=name) from error
        if isinstance(found, Mapping):
            found = found.get("documents", dict(found))  # Haystack's
        if not isinstance(found, Iterable) or isinstance(found, str | bytes):
            problem = f"the retriever returns {type(found).__name__} for query {quoted(query_id)}"
            remedy = "return a list of passages, the best first"
            raise InputError(problem, remedy, "retriever.value", path=name)
        run[query_id] = found if isinstance(found, dict) else [_passage(p, carried) for p in found]
    return run


def _passage(given: Any, carried: bool) -> Any:
    """A passage in a run's form: an id, a text, or a record.

    An object's id comes from its metadata, else from the object if passages are separate; else its text identifies it,
    because stores generate ids, which differ between stores.
    """
    if isinstance(given, tuple) and len(given) == 2:
        one = _passage(given[0], carried)
        named = one if isinstance(one, Mapping) else {TEXT if carried else DOC_ID: one}
        return {**named, SCORE: given[1]}
    node = getattr(given, "node", given)
    texts = {name: text for name in TEXT_FIELDS if isinstance(text := getattr(node, name, 0), str)}
    if not texts:
        return given
    more = getattr(node, "metadata", None) or getattr(node, "meta", None) or {}
    ids = [more.get(name) for name in DOC_ID_FIELDS]
    ids += [] if carried else [getattr(node, "id", None), getattr(node, "node_id", None)]
    own = next((one for one in ids if one is not None), None)
    return {**texts, "metadata": more, SCORE: getattr(given, SCORE, None), DOC_ID: own}


def is_path(given: object) -> bool:
    """Whether an argument is a file, a folder or an address, not a table in memory."""
    return isinstance(given, str | Path)


def is_table(given: object) -> bool:
    """Whether an argument is a frame of Polars, pandas or Arrow."""
    return isinstance(given, pl.DataFrame | pl.LazyFrame) or _module(given) in ("pandas", "pyarrow")


def records(given: Any, name: str) -> Iterator[Record]:
    """The rows of a frame, a data set or a list of dictionaries; an InputError names any other argument."""
    for number, row in enumerate(_rows(given, name), 1):
        if not isinstance(row, Mapping):
            problem = f"is a row of the type {type(row).__name__}"
            raise InputError(problem, f"give {_FORMS}", "table.row", path=name, line=number)
        yield {key: plain(value) for key, value in by_text(row, name).items()}


def by_text(given: Mapping[Any, Any], name: str | None = None) -> dict[str, Any]:
    """A dictionary with keys as texts, as in a JSON object; an InputError refuses two keys that become equal."""
    # Grouping by a list of a single column, pandas makes keys tuples.
    keys = [key[0] if isinstance(key, tuple) and len(key) == 1 else key for key in given]
    found = dict(zip(map(str, keys), given.values(), strict=True))
    if len(found) < len(keys):
        twice = next(key for key, times in Counter(map(str, keys)).items() if times > 1)
        both = " and ".join(quoted(key) for key in keys if str(key) == twice)
        problem = f"the keys {both} are the same id"
        raise InputError(problem, "keep one of them", "table.key", path=name)
    return found


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


def _rows(given: Any, name: str) -> Iterable[Any]:
    if isinstance(given, pl.LazyFrame):
        given = given.collect()
    if isinstance(given, pl.DataFrame):
        return given.iter_rows(named=True)
    if _module(given) == "pandas":
        named = [level for level in given.index.names if level is not None]
        frame = given.reset_index() if named else given
        if twice := next(iter(frame.columns[frame.columns.duplicated()]), None):
            problem = f"the column {quoted(twice)} is given twice"
            raise InputError(problem, "keep one", "table.duplicate", path=name)
        slices = (frame.iloc[at : at + _AT_ONCE] for at in range(0, len(frame), _AT_ONCE))
        return (row for some in slices for row in some.to_dict("records"))
    if _module(given) == "pyarrow":
        return _rows(pl.DataFrame(given), name)
    if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping):
        problem = f"is of the type {type(given).__name__}"
        raise InputError(problem, f"give {_FORMS}", "python.type", path=name)
    return given


def _module(given: object) -> str:
    """The library of a possible frame; empty for other objects."""
    library = type(given).__module__.split(".")[0]
    return library if type(given).__name__ in ("DataFrame", "Table") else ""
