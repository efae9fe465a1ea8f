"""The queries of a page: a row each for the table, and details in scripts loaded on demand, all calls included."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import polars as pl

from engine import tables
from engine.labels.annotator import READER
from engine.labels.registry import ANNOTATORS
from engine.messages.wording import cut
from engine.reading.plan import read_key
from engine.reading.prompting.prompts import Prompt
from engine.report.findings import Findings
from engine.report.grids import labelling
from engine.report.page.overview import Slices
from engine.report.summary import PROMPT_PARTS
from engine.statistics.single_labels import SUCCESS
from engine.tables import DOC_ID, LABEL, OUTPUT, QUERY_ID, RANK, READ_KEY, RUN, TEXT, TITLE, VALUE

# Larger tables drop the queries of least disagreement: a page stays below 5 MB.
MOST_QUERIES = 20_000
# Letters of a script with details: fast to parse, yet several queries to a file. Letters of an answer and of an
# output in the table.
_LETTERS, _SHOWN = 400_000, 90

# Of a trace: more would slow the page down.
_STEPS, _PASSAGES_OF_STEP = 50, 20

Pair = tuple[str, str]


# Kinds of queries to filter by; the page's script names and explains them.
FILTERS = ("useful_absent", "present_useless", "list_fails", "single_fails")


@dataclass(frozen=True)
class Row:
    """A query in the table; what is by run is in the order of ``Findings.runs``, None for missing values."""

    query_id: str
    text: str  # empty if the page has none
    scores: Sequence[float | None]  # end to end, by run
    measures: Sequence[float | None]  # the first annotator's primary measure, by run
    useful: int | None = None  # listed passages from which the reader answers; None if not checked
    holding: int | None = None  # listed passages that contain the answer; None if not checked
    kinds: Sequence[str] = ()  # the keys of the filters that let it through
    part: int = 0  # the number of the script with its details; 0 for none
    answers: str = ""  # the first gold answer, and how many more
    outputs: Sequence[str | None] = ()  # by run
    groups: Sequence[int | None] = ()  # the place of its group in each of ``slices``


def filters(findings: Findings) -> list[str]:
    """The filters that can match a query, by the labels and reads of the evaluation."""
    if findings.sources is None:
        return []
    by_reader, by_answer = _checkers(findings)
    both = by_reader is not None and by_answer is not None
    lists = by_reader is not None and not findings.downstream.is_empty()
    return [*(FILTERS[:2] if both else ()), *(FILTERS[2:] if lists else ())]


def _checkers(findings: Findings) -> tuple[str | None, str | None]:
    """The first annotator for which the reader itself reads each passage, and the first that looks for the answer."""
    names = [name for name in findings.annotators if name not in findings.partly_labelled]
    known = [ANNOTATORS[name] for name in names if name in ANNOTATORS]
    own = (annotator.name for annotator in known if annotator.is_the_readers)
    finds = (annotator.name for annotator in known if annotator.finds_answers)
    return next(own, None), next(finds, None)


def parts(
    findings: Findings, groupings: Sequence[Slices] = ()
) -> Iterator[tuple[Sequence[Row], str]]:
    """The queries of the page in parts: rows, and the script with their details, empty if the page has no passages."""
    if findings.sources is None:
        most = _ordered(findings).head(MOST_QUERIES)
        scores = _Scores(findings, most)
        yield [scores.row(query_id) for query_id in most], ""
        return
    queries = findings.sources.queries
    scores, details = _Scores(findings, queries[QUERY_ID]), _Details(findings)
    rows: list[Row] = []
    contents: list[str] = []
    number, letters = 1, 0
    columns = queries.select(QUERY_ID, tables.QUERY, tables.ANSWERS)
    for query_id, text, answers in columns.iter_rows():
        if query_id not in scores.known and query_id not in details.listed:
            continue
        row = scores.row(query_id)
        content = details.of(query_id, text, answers, row)
        contents.append(f"{json.dumps(query_id)}: {json.dumps(content, ensure_ascii=False)}")
        groups = [grouping.places.get(query_id) for grouping in groupings]
        more = f" +{len(answers) - 1} more" if len(answers) > 1 else ""
        gold = cut(answers[0], _SHOWN) + more if answers else ""
        known = details.summary(query_id, row.scores)
        rows.append(replace(row, text=text, answers=gold, part=number, groups=groups, **known))
        letters += len(contents[-1])
        if letters > _LETTERS:
            yield rows, _script(number, contents)
            rows, contents, number, letters = [], [], number + 1, 0
    if rows:
        yield rows, _script(number, contents)


def _ordered(findings: Findings) -> pl.Series:
    """Ids of the scored queries: queries on which runs differ first, then by the gap between measure and end-to-end score."""
    scores = findings.scores(*findings.first_measure).rename({VALUE: "measure"})
    whole = findings.downstream.select(RUN, QUERY_ID, VALUE)
    both = scores.join(whole, on=[RUN, QUERY_ID], how="full", coalesce=True)
    apart = (pl.col("measure") - pl.col(VALUE)).abs().max().fill_null(0.0)
    differ = pl.col(VALUE).drop_nulls().n_unique() > 1
    by_query = both.group_by(QUERY_ID).agg(differ.alias("differ"), apart.alias("apart"))
    return by_query.sort(["differ", "apart", QUERY_ID], descending=[True, True, False])[QUERY_ID]


def _script(number: int, contents: Sequence[str]) -> str:
    return f"details({number}, {{{escaped(','.join(contents))}}});\n"


def escaped(script: str) -> str:
    """JSON that may stand in a script, even within HTML: no text in it can end the script."""
    return script.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


class _Scores:
    def __init__(self, findings: Findings, query_ids: pl.Series) -> None:
        self._runs = findings.runs
        among = pl.col(QUERY_ID).is_in(query_ids.implode())
        whole = findings.downstream.filter(among).select(RUN, QUERY_ID, VALUE, OUTPUT)
        measures = findings.scores(*findings.first_measure).filter(among)
        self._end_to_end = {row[:2]: row[2:] for row in whole.iter_rows()}
        self._measures = {row[:2]: row[2] for row in measures.iter_rows()}
        self.known = {query_id for _, query_id in (*self._end_to_end, *self._measures)}

    def row(self, query_id: str) -> Row:
        """A query's row, before its labels and texts are added."""
        keys = [(run, query_id) for run in self._runs]
        whole = [self._end_to_end.get(key, (None, None)) for key in keys]
        scores, outputs = ([values[place] for values in whole] for place in (0, 1))
        return Row(query_id, "", scores, [*map(self._measures.get, keys)], outputs=outputs)


def _prompts_of(findings: Findings) -> list[tuple[str, dict[str, Any]]]:
    """By role, the reader's first: its fingerprint, and ``Prompt.described``; empty for results of earlier versions."""
    roles = [role for role in findings.summary.values() if isinstance(role, dict)]
    return [(role["fingerprint"], role[PROMPT_PARTS]) for role in roles if role.get(PROMPT_PARTS)]


class _Calls:
    """Look up calls. The prompt of a call is available if its text has the key that the call is stored under."""

    def __init__(self, findings: Findings) -> None:
        self._prompts = [(key, Prompt.of(parts)) for key, parts in _prompts_of(findings)]
        self._calls: dict[str, list[Any]] = {}
        self._keys: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
        self._outputs: dict[str, str] = {}
        for row in findings.table("reads").iter_rows(named=True):
            key, seconds = row[READ_KEY], row[tables.SECONDS]
            self._outputs[key] = row[OUTPUT]
            call = [row[tables.PROMPT_TOKENS], row[tables.OUTPUT_TOKENS]]
            call += [int(row[tables.TRUNCATED] or 0), row[tables.THOUGHT] or None]
            call.append(None if seconds is None else round(seconds, 4))
            while call[-1] is None:
                call.pop()
            self._calls[key] = call
            self._keys[row[QUERY_ID], tuple(row[tables.DOC_IDS])].append(key)

    def of_key(self, key: str, query: str, passages: Sequence[tuple[str, str]]) -> list[Any] | None:
        """A call: the place of its prompt (None if its text is unknown), the tokens of prompt and output, whether
        the prompt was cut, the thought, and the seconds; trailing None values are dropped.
        """
        if key not in self._calls:
            return None
        places = (
            place
            for place, (fingerprint, prompt) in enumerate(self._prompts)
            if read_key(fingerprint, prompt.render(query, passages)) == key
        )
        return [next(places, None), *self._calls[key]]

    def longest(self, query_id: str, listed: Sequence[str], output: str) -> int:
        """Number of the first passages of a list that were read together, with this output; 0 for none."""
        for most in range(len(listed), 0, -1):
            keys = self._keys.get((query_id, tuple(listed[:most])), [])
            if any(self._outputs[key] == output for key in keys):
                return most
        return 0

    def of_list(
        self, query_id: str, query: str, doc_ids: Sequence[str], passages: Sequence[tuple[str, str]]
    ) -> list[Any] | None:
        """The reader's call of a list; None if calls in other roles look the same."""
        keys = dict.fromkeys(self._keys.get((query_id, tuple(doc_ids)), []))
        calls = [call for key in keys if (call := self.of_key(key, query, passages))]
        own = [call for call in calls if call[0] == 0] or calls * (len(calls) == 1)
        return own[0] if own else None


def _searches(findings: Findings) -> dict[Pair, dict[str, Any]]:
    """By run and query: ``steps`` of a trace (text, passages, whether the first useful step), and their number ``taken``."""
    rows = findings.table("trace_steps")
    of_first = pl.col(tables.ANNOTATOR) == pl.col(tables.ANNOTATOR).first()
    passages = pl.col(tables.DOC_IDS).list.head(_PASSAGES_OF_STEP)
    step = pl.struct(tables.SEARCH, passages, tables.FIRST_USEFUL).sort_by(tables.STEP)
    traces = rows.filter(of_first).group_by(RUN, QUERY_ID).agg(step.head(_STEPS), pl.len())
    return {
        (run, query_id): {"steps": [[*search.values()] for search in own], "taken": taken}
        for run, query_id, own, taken in traces.iter_rows()
    }


class _Details:
    def __init__(self, findings: Findings) -> None:
        assert findings.sources is not None
        self._runs = findings.runs
        self._by_reader, self._by_answer = _checkers(findings)
        settings = findings.configuration
        most = settings["end_to_end_k"] or settings["k"]
        # Number of passages in a list that is read; under a budget of tokens, each list has its own.
        self._most = int(settings["k"] if isinstance(most, str) else most)
        self._own: dict[Pair, int] = {}
        self.listed: dict[str, dict[str, list[str]]] = defaultdict(dict)
        ordered = findings.sources.runs.sort(QUERY_ID, RUN, RANK)
        lists = ordered.group_by(QUERY_ID, RUN, maintain_order=True).agg(DOC_ID)
        for query_id, run, doc_ids in lists.iter_rows():
            self.listed[query_id][run] = doc_ids
        corpus = findings.sources.corpus.select(DOC_ID, TITLE, TEXT)
        self._texts = {row[0]: row[1:] for row in corpus.iter_rows()}
        self._calls, self._searches = _Calls(findings), _searches(findings)
        if isinstance(most, str):
            outputs = findings.downstream.select(RUN, QUERY_ID, OUTPUT)
            for run, query_id, output in outputs.iter_rows():
                listed = self.listed.get(query_id, {}).get(run, [])
                self._own[run, query_id] = self._calls.longest(query_id, listed, output)
        self._traces: dict[Pair, dict[str, list[Any]]] = defaultdict(dict)
        keys = (QUERY_ID, DOC_ID, tables.ANNOTATOR)
        columns = (READ_KEY, LABEL, OUTPUT, tables.ANSWER, tables.CONFIDENCE)
        traces = findings.traces.drop_nulls(LABEL).select(*keys, *columns)
        for query_id, doc_id, annotator, *trace in traces.iter_rows():
            self._traces[query_id, doc_id][annotator] = trace

    def of(self, query_id: str, query: str, answers: Sequence[str], row: Row) -> dict[str, Any]:
        lists = self.listed.get(query_id, {})
        named = dict.fromkeys(chain.from_iterable(lists.values()))
        runs = []
        for run, score, output in zip(self._runs, row.scores, row.outputs, strict=True):
            listed, prompted = lists.get(run, []), self._prompted(run, query_id)
            texts = [self._texts.get(doc_id, ("", "")) for doc_id in prompted]
            call = None if score is None else self._calls.of_list(query_id, query, prompted, texts)
            shown = {"score": score, "output": output, "list": listed, "call": call}
            shown |= {"given": len(prompted)} if self._own else {}
            runs.append(shown | self._searches.get((run, query_id), {}))
        passages = {doc_id: self._passage(query_id, query, doc_id) for doc_id in named}
        return {"answers": list(answers), "passages": passages, "runs": runs}

    def _prompted(self, run: str, query_id: str) -> list[str]:
        listed = self.listed.get(query_id, {}).get(run, [])
        return listed[: self._own.get((run, query_id), self._most)]

    def _passage(self, query_id: str, query: str, doc_id: str) -> list[Any]:
        text, labels = self._texts.get(doc_id, ("", "")), {}
        calls: dict[str, list[Any]] = {}
        for annotator, (key, *trace) in self._traces.get((query_id, doc_id), {}).items():
            call = calls.get(key) or self._calls.of_key(key, query, [text]) if key else None
            if call:
                calls[key] = call
            labels[annotator] = _trimmed([*trace, 1 + list(calls).index(key) if call else None])
        return [*text, labels, *([list(calls.values())] if calls else [])]

    def summary(self, query_id: str, scores: Sequence[float | None]) -> dict[str, Any]:
        """Numbers of ``useful`` passages and of passages ``holding`` the answer, and the ``kinds`` of the query."""
        named = {*chain.from_iterable(self.listed.get(query_id, {}).values())}
        useful = self._above(query_id, named, self._by_reader)
        holding = self._above(query_id, named, self._by_answer)
        kinds = []
        if useful is not None and holding is not None:
            kinds += ["useful_absent"] * bool(useful - holding)
            kinds += ["present_useless"] * bool(holding - useful)
        for run, score in zip(self._runs, scores, strict=True):
            if useful is not None and score is not None:
                alone = not useful.isdisjoint(self._prompted(run, query_id))
                if alone != (score >= SUCCESS):
                    kinds.append("list_fails" if alone else "single_fails")
        passages = {"useful": useful, "holding": holding}
        sizes = {name: None if ids is None else len(ids) for name, ids in passages.items()}
        return {**sizes, "kinds": list(dict.fromkeys(kinds))}

    def _above(self, query_id: str, doc_ids: set[str], annotator: str | None) -> set[str] | None:
        traces = {doc_id: self._traces.get((query_id, doc_id), {}) for doc_id in doc_ids}
        labels = {d: own[annotator][1] for d, own in traces.items() if annotator in own}
        # Useful, like a success end to end: a partly right answer is not enough.
        return {doc_id for doc_id, label in labels.items() if label >= SUCCESS} if labels else None


def _trimmed(trace: Sequence[Any]) -> list[Any]:
    """A trace without the empty values at its end: most annotators leave most columns empty."""
    values = [_rounded(value, 4) if isinstance(value, float) else value for value in trace]
    while len(values) > 1 and not values[-1]:
        values.pop()
    return values


def as_json(
    rows: Sequence[Row], findings: Findings, groupings: Sequence[Slices] = ()
) -> dict[str, Any]:
    """The table of queries as the page's script reads it."""
    ordered = _ordered(findings)
    places = {query_id: place for place, query_id in enumerate(ordered)}
    shown = sorted(rows, key=lambda row: places.get(row.query_id, len(places)))[:MOST_QUERIES]
    annotator, measure = findings.first_measure
    usable, own = filters(findings), labelling(findings)
    return {
        "runs": findings.runs,
        "metric": findings.metric if not findings.downstream.is_empty() else "",
        "measure": f"{annotator} {findings.named(measure, annotator)}".strip(),
        "annotators": findings.annotators,
        "by_reader": _checkers(findings)[0],
        "own_labels": bool(own and own[1] == READER.name),
        "given": findings.configuration["end_to_end_k"],
        "recorded": findings.configuration["end_to_end"] == "recorded",
        "left_out": max(len(rows), len(ordered)) - len(shown),
        "filters": usable,
        "slices": [[grouping.field, grouping.names] for grouping in groupings],
        "prompts": [parts for _, parts in _prompts_of(findings)] if findings.sources else [],
        "seconds": _mean_seconds(findings),
        "queries": [
            [
                row.query_id,
                row.text,
                [_rounded(score) for score in row.scores],
                [_rounded(value) for value in row.measures],
                row.useful,
                row.holding,
                sum(1 << usable.index(kind) for kind in row.kinds if kind in usable),
                row.part,
                row.answers,
                [None if output is None else cut(output, _SHOWN) for output in row.outputs],
                row.groups,
            ]
            for row in shown
        ],
    }


def _mean_seconds(findings: Findings) -> dict[str, float]:
    if (findings.summary.get(READER.key) or {}).get("api"):
        return {}
    kinds = (findings.summary["reading"].get("kinds") or {}).items()
    timed = {kind: costs for kind, costs in kinds if costs["done"] and costs["reader_seconds"]}
    return {kind: round(c["reader_seconds"] / c["done"], 4) for kind, c in timed.items()}


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, digits)
