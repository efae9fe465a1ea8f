"""Judgments of relevance (qrels), read and written in TREC text, BEIR's TSV and Parquet, read in JSON; and preferences.

A preference names the best among two or three passages or answers; several may be best, or none.
"""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import combinations
from pathlib import Path, PurePath
from typing import Any

import polars as pl

from engine import tables
from engine.messages.errors import InputError
from engine.messages.wording import counted, quoted
from engine.sources.data_sets import records_of
from engine.sources.fields import QUERY_FIELDS, first_of, list_in
from engine.sources.io.files import atomic_path, is_text, write_parquet
from engine.sources.io.locations import Location, is_data_set, require_file, suffix_of
from engine.sources.io.parquet import read_parquet
from engine.sources.io.records import (
    read_json_document,
    read_json_lines,
    read_json_records,
    read_lines,
    start_of,
)
from engine.sources.passages.read import read_corpus
from engine.sources.runs.forms import checked_dictionary
from engine.tables import BY_TEXT, DOC_ID, LABEL, QUERY_ID, TEXT

_WHAT = (
    'qrels: TREC lines "query 0 document label", BEIR\'s "query-id corpus-id score", Parquet, or JSON '
    "{query: {document: label}}"
)
_QUERY_IDS = ("query_id", "query-id", "qid")
_DOC_IDS = ("doc_id", "corpus-id", "docid")
_LABELS = ("label", "relevance", "score")
# Fields with judged texts without ids: in records of ragas, and below ``queries`` in a document.
_CONTEXTS, _RELEVANT = "reference_contexts", "relevant_docs"
_BEIR_HEADER = ["query-id", "corpus-id", "score"]


def read_qrels(path: Location, corpus: Location | None = None) -> pl.DataFrame:
    """Read judgments: ``query_id``, ``doc_id``, ``label``, in the order of the file.

    >>> _ = Path("qrels.txt").write_text("q1 0 d1 2\\n")
    >>> read_qrels("qrels.txt").rows()
    [('q1', 'd1', 2.0)]

    A text file whose first line is ``query-id corpus-id score`` is BEIR's, split at tabs; a file that starts with a
    brace is a JSON dictionary ``{query: {document: label}}`` (pytrec_eval, ranx). Texts without ids are ragas'
    ``reference_contexts``, with a label of 1, or the ``relevant_docs`` of ``{"queries": [{"text": …, "relevant_docs":
    [{"doc": text, "relevance": number}]}]}``: they stand in ``doc_id``, the texts of queries in ``query_id``, and the
    column ``by_text`` says so. With ``corpus``, its texts of the documents are judged; queries keep their ids, and
    ``by_text`` is False. Labels are numbers (whole numbers in TREC's collections); a label below 0 means that a passage
    was pooled but not judged. An InputError says that the file is unreadable or empty, that a line has another number
    of columns, that a label is not a finite number, that a document is judged twice for a query, or that the corpus
    lacks one.
    """
    if is_data_set(path):
        return qrels_of(path, enumerate(records_of(path, "judgments"), 1), corpus)
    path = require_file(path, _WHAT)
    if suffix_of(path) == ".parquet":
        frame = tables.conform(read_parquet(path, tables.QRELS), tables.QRELS, path)
        return qrels_of(path, ((None, row) for row in frame.iter_rows(named=True)), corpus)
    start = start_of(path, _WHAT)
    if any(f'"{name}"'.encode() in start for name in (_CONTEXTS, _RELEVANT)):
        return qrels_of(path, _in_texts(path)).with_columns(pl.lit(True).alias(BY_TEXT))
    records = _in_dictionary(path) if start[:1] == b"{" else _in_lines(path)
    return qrels_of(path, records, corpus)


def write_qrels(
    frame: pl.DataFrame | Iterable[pl.DataFrame], path: str | Path, stated: str = "0"
) -> None:
    """Write judgments: Parquet for a name in ``.parquet``, BEIR's TSV for ``.tsv``, else TREC text.

    >>> write_qrels(pl.DataFrame({"query_id": ["q1"], "doc_id": ["d1"], "label": [2.0]}), "qrels.txt")
    >>> Path("qrels.txt").read_text()
    'q1 0 d1 2\\n'

    BEIR's labels are written as the shortest decimals that give the same number again, whole numbers without a decimal
    point. A table may come in parts, which text formats append one after another. The second column of TREC text, which
    tools ignore, holds ``stated``. An InputError refuses, in TREC text, an id with white space, or a label that is not
    a whole number, which TREC's tools cannot read (they truncate 0.5 to 0); in TSV an id with a tab or a line end, or
    with white space around it.
    """
    path = Path(path)
    parts = [frame] if isinstance(frame, pl.DataFrame) else frame
    if path.suffix == ".parquet":
        write_parquet(pl.concat(parts).select(list(tables.QRELS)), path)
        return
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as stream:
        if path.suffix == ".tsv":
            stream.write("\t".join(_BEIR_HEADER) + "\n")
        for part in parts:
            stream.writelines(_lines(part.select(list(tables.QRELS)), path, stated))


def _lines(table: pl.DataFrame, path: Path, stated: str) -> Iterator[str]:
    beir = path.suffix == ".tsv"
    for query_id, doc_id, label in table.iter_rows():
        ids = (query_id, doc_id)
        if beir:
            # ``read_qrels`` splits lines where Python does, and strips white space around tabs.
            representable = all(i and [i.strip()] == re.split(r"\t|\n|\r", i) for i in ids)
        else:
            representable = all(part.split() == [part] for part in ids) and label.is_integer()
        if not representable:
            values = ", ".join(map(quoted, (query_id, doc_id, label)))
            problem = f"{'BEIR' if beir else 'TREC'} qrels cannot hold {values}"
            remedy = "write the judgments as .parquet instead"
            remedy += "" if label.is_integer() else ", or give a `scale`"
            raise InputError(problem, remedy, "qrels.unfit", path=path)
        number = int(label) if label.is_integer() else label
        trec = f"{query_id} {stated} {doc_id} {number}\n"
        yield f"{query_id}\t{doc_id}\t{number!r}\n" if beir else trec


def qrels_of(
    path: Location,
    records: Iterable[tuple[int | None, Mapping[str, Any]]],
    corpus: Location | None = None,
) -> pl.DataFrame:
    """The judgments of numbered rows, with columns named as BEIR's, ir_datasets' or ours; as ``read_qrels`` refuses."""
    rows: dict[tuple[str, str], tuple[float, int | None]] = {}
    for number, record in records:
        fault = partial(InputError, path=path, line=number)
        fields = (_QUERY_IDS, _DOC_IDS, _LABELS)
        query_id, doc_id, value = (first_of(record, names) for names in fields)
        for name in (query_id, doc_id):
            if name == "" or _identifier(name, is_answer=True) is None:
                problem = f"the id {quoted(name)} of a judgment"
                raise fault(problem, "give query_id, doc_id and label", "qrels.id")
        label = math.nan
        if not isinstance(value, str):
            with contextlib.suppress(TypeError, ValueError, OverflowError):
                label = float(value)
        if not math.isfinite(label):
            problem = f"label {quoted(value)} is not a finite number"
            raise fault(problem, "write a number", "qrels.label")
        if (pair := (str(query_id), str(doc_id))) in rows:
            first = rows[pair][1]
            see = "" if first is None else f" (see line {first})"
            problem = f"query {quoted(query_id)} judges document {quoted(doc_id)} twice{see}"
            raise fault(problem, "keep one judgment", "qrels.twice")
        rows[pair] = label, number
    if not rows:
        raise InputError("holds no judgments", f"give {_WHAT}", "qrels.none", path=path)
    labels = [(*pair, label) for pair, (label, _) in rows.items()]
    judged = pl.DataFrame(labels, schema=tables.QRELS, orient="row")
    if corpus is None:
        return judged
    passages = read_corpus(corpus, ids=judged[DOC_ID].unique())
    texts = judged.join(passages, on=DOC_ID, how="left", maintain_order="left")
    if (lost := texts.filter(pl.col(TEXT).is_null())).height:
        query_id, doc_id = lost.row(0)[:2]
        many = counted(lost[DOC_ID].n_unique(), "judged [document is|documents are]")
        problem = f"{many} not in the corpus {PurePath(corpus).stem}, the first {quoted(doc_id)}"
        line, remedy = rows[query_id, doc_id][1], "name the corpus that was judged"
        raise InputError(problem, remedy, "qrels.corpus", path=path, line=line)
    return texts.select(QUERY_ID, pl.col(TEXT).alias(DOC_ID), LABEL, pl.lit(False).alias(BY_TEXT))


def _in_texts(path: Location) -> Iterator[tuple[int | None, dict[str, Any]]]:
    records: Iterable[tuple[int | None, Any]] = read_json_records(path, _WHAT)
    with contextlib.suppress(InputError):  # several lines are no document
        document = read_json_document(path, _WHAT)
        if isinstance(document, dict) and (queries := list_in(document, ("queries",))):
            records = [(None, query) for query in queries]
    for line, record in records:
        if not isinstance(record, dict):
            problem = f"{quoted(record)} is not a query"
            raise InputError(problem, f"give {_WHAT}", "qrels.query", path=path)
        query = first_of(record, QUERY_FIELDS)
        for text in list_in(record, (_RELEVANT, _CONTEXTS)) or ():
            judged = text if isinstance(text, dict) else {"doc": text}
            label = judged.get("relevance", 1)
            yield line, {QUERY_ID: query, DOC_ID: judged.get("doc"), LABEL: label}


def _in_dictionary(path: Location) -> Iterator[tuple[None, dict[str, Any]]]:
    document = read_json_document(path, _WHAT)
    for query_id, judged in checked_dictionary(document, path, f"give {_WHAT}").items():
        if isinstance(judged, list):
            problem = f"query {quoted(query_id)} has no labels"
            raise InputError(problem, f"give {_WHAT}", "qrels.unlabelled", path=path)
        for doc_id, label in judged.items():
            yield None, {QUERY_ID: query_id, DOC_ID: doc_id, LABEL: label}


def _in_lines(path: Location) -> Iterator[tuple[int, dict[str, Any]]]:
    beir = False
    for place, (number, line) in enumerate(read_lines(path, _WHAT)):
        columns = [c.strip() for c in line.split("\t")] if beir else line.split()
        if not place and columns == _BEIR_HEADER:
            beir = True
            continue
        if len(columns) != (3 if beir else 4):
            usual = "BEIR qrels have 3" if beir else "TREC qrels have 4"
            problem = f"{len(columns)} columns, {usual}"
            remedy = f"give {_WHAT}" if beir else 'write "query 0 document label"'
            raise InputError(problem, remedy, "qrels.columns", path=path, line=number)
        label: float | str = columns[-1]
        with contextlib.suppress(ValueError):
            label = float(label)
        yield number, {QUERY_ID: columns[0], DOC_ID: columns[-2], LABEL: label}


_PREFERENCES = 'preferences in JSONL: {"query_id": …, "shown": [two or three document ids], "best": one of them or null}'
_AS_IT_WAS = 'keep what `erag ask` wrote beside "best", or leave it out where passages were shown'


def read_preferences(path: Location) -> pl.DataFrame:
    """Read judgments as the preferences table, in the order of the file.

    An InputError says that the file is unreadable or empty, or that a line has no query id, fewer than two or more than
    three passages or answers, one twice, a best one that is missing or was not shown, or runs without how it was drawn.
    """
    return preferences_of(path, read_json_lines(path, _PREFERENCES))


def preferences_of(path: Location, each: Iterable[tuple[int, Mapping[str, Any]]]) -> pl.DataFrame:
    """The judgments of numbered records, as ``read_preferences`` refuses and gives them."""
    rows = [row for line, record in each for row in _rows(path, line, record)]
    if not rows:
        raise InputError("holds no judgments", f"give {_PREFERENCES}", "qrels.none", path=path)
    return pl.DataFrame(rows, schema=tables.PREFERENCES, orient="row")


def _rows(path: Location, line: int, record: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """Rows of the preferences table: by criterion and pair of runs, or by criterion alone if runs have no names."""
    fault = partial(InputError, path=path, line=line)
    # A table has nulls for values that only other rows have.
    record = {name: value for name, value in record.items() if value is not None or name == "best"}
    query_id = _identifier(record.get("query_id"))
    if query_id is None:
        problem, remedy = "a judgment without a query id", 'add "query_id", as valid text'
        raise fault(problem, remedy, "qrels.queryless")
    are_answers = "answers" in record and "shown" not in record
    key, what, written = "shown", "passage", "document ids"
    if are_answers:
        key, what, written = "answers", "answer", "texts"
    shown = record.get(key)
    known = [_identifier(value, are_answers) for value in shown] if isinstance(shown, list) else []
    if not 2 <= len(known) <= 3 or None in known:
        problem = f"{quoted(shown)} cannot be the {what}s shown for query {quoted(query_id)}"
        remedy = f'write "{key}" as a list of two or three {written}'
        raise fault(problem, remedy, "qrels.shown")
    if len({*known}) < len(known):
        raise fault(f"shows one {what} twice ({quoted(shown)})", "list it once", "qrels.repeated")
    if "best" not in record:
        problem = 'a judgment without "best"'
        raise fault(problem, f"write which {what} was best, or null for none", "qrels.best")
    runs, labels, drawn = record.get("runs", []), {}, (1.0, "")
    criteria = {"": record["best"]}
    try:
        criteria |= record.get("criteria", {})
        if runs or are_answers:
            how, design = record["drawn"], record["drawn"]["design"]
            sizes, weighed = sorted(design["strata"].items()), how.get("labels") or {}
            # A frame names the strata of all its pages, in any order, with null if a page lacks one.
            design = {**design, "strata": {name: n for name, n in sizes if n is not None}}
            drawn = float(how["probability"]), json.dumps(design)
            labels = {run: float(weighed.get(run) or 0) for of in runs for run in of}
            is_known = 0 < drawn[0] <= 1 and math.isfinite(sum(labels.values()))
            is_part = 0 < sum(design["strata"].values()) <= design["queries"]
            if not (is_known and is_part and len(runs) == len(known)):
                raise ValueError
    except (AttributeError, KeyError, TypeError, ValueError):
        problem = '"runs", "drawn" or "criteria" is not as it was'
        raise fault(problem, _AS_IT_WAS, "qrels.drawn") from None
    documents: Any = None if are_answers else known
    for criterion, value in criteria.items():
        values = value if isinstance(value, list) and value else [] if value is None else [value]
        best = [_identifier(name, are_answers) for name in values]
        if not {*best} <= {*known}:
            problem = f"the best {what} {quoted(value)} was not shown"
            remedy = f"write one of {quoted(shown)}, a list of equally good ones, or null for none"
            raise fault(problem, remedy, "qrels.unshown")
        wins = {str(run): name in best for name, of in zip(known, runs, strict=False) for run in of}
        for run, run_b in combinations(sorted(wins), 2) if wins else [("", "")]:
            labelled = (documents, best) if documents else ([], [])
            outcome = float(wins.get(run, 0)) - wins.get(run_b, 0)
            label = labels.get(run, 0.0) - labels.get(run_b, 0.0)
            name = f"{what}s {criterion}".strip()
            yield query_id, *labelled, name, run, run_b, outcome, label, *drawn
            documents = None  # whose labels count once


def _identifier(value: object, is_answer: bool = False) -> str | None:
    """An id or an answer as text; None if the value cannot be one."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return None
    return str(value) if is_text(str(value)) and (value != "" or is_answer) else None
