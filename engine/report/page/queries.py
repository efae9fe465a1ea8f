"""The queries of a page: a row each for the table, and details in scripts loaded on demand.

Details include, for every call, its prompt, passages and cost.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from engine.report.page.traces import searches
from engine.report.summary import PROMPT_PARTS
from engine.statistics.single_labels import SUCCESS
from engine.tables import DOC_ID, LABEL, OUTPUT, QUERY_ID, RANK, READ_KEY, RUN, TEXT, TITLE, VALUE

# Larger tables drop the queries of least disagreement: a page stays below 5 MB.
MOST_QUERIES = 20_000
# Letters of a script with details: fast to parse, yet several queries to a file. Letters of an answer and of an
# output in the table.
_LETTERS, _SHOWN = 400_000, 90

Pair = tuple[str, str]


# Kinds of queries to filter by; the page's script names and explains them.
FILTERS = ("useful_absent", "present_useless", "list_fails", "single_fails")


@dataclass(frozen=True)
class Row:
    """A query in the table, with fields in the order that the page's script expects.

    Attributes:
        query_id, text: the query; an empty text if the page has none.
        scores, measures: by run, in the order of ``Findings.runs``: the end-to-end score, and the first
            annotator's primary measure; None for missing values.
        useful, holding: number of listed passages from which the reader answers, and that contain the answer;
            None if not checked.
        kinds: the keys of the filters that let it through.
        part: the number of the script with its details; 0 for none.
        answers, outputs: the first gold answer and how many more, and the output of every run, as far as there is room.
        groups: the place of its group in each of ``slices``; None without one.
    """

    query_id: str
    text: str
    scores: Sequence[float | None]
    measures: Sequence[float | None]
    useful: int | None = None
    holding: int | None = None
    kinds: Sequence[str] = ()
    part: int = 0
    answers: str = ""
    outputs: Sequence[str | None] = ()
    groups: Sequence[int | None] = ()


def filters(findings: Findings) -> list[str]:
    """The filters that can match a query, by the labels and reads of the evaluation."""
    if findings.sources is None:
        return []
    by_reader, by_answer = _looked(findings)
    both = by_reader is not None and by_answer is not None
    lists = by_reader is not None and not findings.downstream.is_empty()
    return [*(FILTERS[:2] if both else ()), *(FILTERS[2:] if lists else ())]


def _looked(findings: Findings) -> tuple[str | None, str | None]:
    """The first annotator for which the reader itself reads each passage, and the first that looks for the answer."""
    names = [name for name in findings.annotators if name not in findings.partly_labelled]
    known = [ANNOTATORS[name] for name in names if name in ANNOTATORS]
    own = (one.name for one in known if one.is_the_readers)
    finds = (one.name for one in known if one.finds_answers)
    return next(own, None), next(finds, None)


def parts(findings: Findings, made: Sequence[Slices] = ()) -> Iterator[tuple[Sequence[Row], str]]:
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
        found = details.of(query_id, text, answers, row)
        contents.append(f"{json.dumps(query_id)}: {json.dumps(found, ensure_ascii=False)}")
        groups = [one.places.get(query_id) for one in made]
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
    annotator, measure = next(iter(findings.primary_measures.items()), ("", ""))
    scores = findings.scores(annotator, measure).rename({VALUE: "measure"})
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
        annotator, measure = next(iter(findings.primary_measures.items()), ("", ""))
        self._end_to_end = _by_run_and_query(findings.downstream, query_ids, VALUE, OUTPUT)
        self._measures = _by_run_and_query(findings.scores(annotator, measure), query_ids, VALUE)
        self.known = {query_id for _, query_id in (*self._end_to_end, *self._measures)}

    def row(self, query_id: str) -> Row:
        """A query's row, before its labels and texts are added."""
        whole = [self._end_to_end.get((run, query_id), (None, None)) for run in self._runs]
        return Row(
            query_id,
            "",
            [score for score, _ in whole],
            [self._measures.get((run, query_id), (None,))[0] for run in self._runs],
            outputs=[output for _, output in whole],
        )


def _by_run_and_query(
    scores: pl.DataFrame, query_ids: pl.Series, *columns: str
) -> dict[Pair, tuple[Any, ...]]:
    of_them = scores.filter(pl.col(QUERY_ID).is_in(query_ids.implode()))
    rows = of_them.select(RUN, QUERY_ID, *columns).iter_rows()
    return {(run, query_id): tuple(values) for run, query_id, *values in rows}


def _prompts_of(findings: Findings) -> list[tuple[str, dict[str, Any]]]:
    """By role, the reader's first: its fingerprint, and ``Prompt.described``; empty for results of earlier versions."""
    roles = [one for one in findings.summary.values() if isinstance(one, dict)]
    return [(one["fingerprint"], one[PROMPT_PARTS]) for one in roles if one.get(PROMPT_PARTS)]


class _Calls:
    """Look up calls. The prompt of a call is available if its text has the key that the call is stored under."""

    def __init__(self, findings: Findings) -> None:
        self._prompts = [(key, Prompt.of(parts)) for key, parts in _prompts_of(findings)]
        columns = (
            tables.PROMPT_TOKENS,
            tables.OUTPUT_TOKENS,
            tables.TRUNCATED,
            tables.THOUGHT,
            tables.SECONDS,
        )
        self._calls: dict[str, list[Any]] = {}
        self._keys: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
        self._outputs: dict[str, str] = {}
        identity = (READ_KEY, QUERY_ID, tables.DOC_IDS, OUTPUT)
        rows = findings.table("reads").select(*identity, *columns).iter_rows()
        for key, query_id, doc_ids, output, *tokens, truncated, thought, seconds in rows:
            self._outputs[key] = output
            timed = None if seconds is None else round(seconds, 4)
            call = self._calls[key] = [*tokens, int(truncated or 0), thought or None, timed]
            while call[-1] is None:
                call.pop()
            self._keys[query_id, tuple(doc_ids)].append(key)

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
        found = [call for call in calls if call[0] == 0] or calls
        return found[0] if found and (found[0][0] == 0 or len(calls) == 1) else None


class _Details:
    def __init__(self, findings: Findings) -> None:
        assert findings.sources is not None
        self._runs = findings.runs
        self._by_reader, self._by_answer = _looked(findings)
        settings = findings.configuration
        most = settings["end_to_end_k"] or settings["k"]
        # Number of passages in a list that is read; under a budget of tokens, each list has its own.
        self._most = int(settings["k"] if isinstance(most, str) else most)
        self._own: dict[Pair, int] = {}
        self.listed: dict[str, dict[str, list[str]]] = defaultdict(dict)
        ordered = findings.sources.runs.sort(QUERY_ID, RUN, RANK)
        for query_id, run, doc_ids in (
            ordered.group_by(QUERY_ID, RUN, maintain_order=True).agg(DOC_ID).iter_rows()
        ):
            self.listed[query_id][run] = doc_ids
        corpus = findings.sources.corpus.select(DOC_ID, TITLE, TEXT)
        self._texts = {row[0]: row[1:] for row in corpus.iter_rows()}
        self._calls, self._searches = _Calls(findings), searches(findings)
        if isinstance(most, str):
            for run, query_id, output in findings.downstream.select(
                RUN, QUERY_ID, OUTPUT
            ).iter_rows():
                listed = self.listed.get(query_id, {}).get(run, [])
                self._own[run, query_id] = self._calls.longest(query_id, listed, output)
        self._traces: dict[Pair, dict[str, list[Any]]] = defaultdict(dict)
        columns = (READ_KEY, LABEL, OUTPUT, tables.ANSWER, tables.CONFIDENCE)
        traces = findings.traces.drop_nulls(LABEL).select(
            QUERY_ID, DOC_ID, tables.ANNOTATOR, *columns
        )
        for query_id, doc_id, annotator, *trace in traces.iter_rows():
            self._traces[query_id, doc_id][annotator] = trace

    def of(self, query_id: str, query: str, answers: Sequence[str], row: Row) -> dict[str, Any]:
        lists = self.listed.get(query_id, {})
        named = dict.fromkeys(doc_id for of_run in lists.values() for doc_id in of_run)
        runs = []
        for run, score, output in zip(self._runs, row.scores, row.outputs, strict=True):
            listed = lists.get(run, [])
            given = self._given(run, query_id)
            texts = [self._texts.get(doc_id, ("", "")) for doc_id in given]
            call = None if score is None else self._calls.of_list(query_id, query, given, texts)
            shown = {"score": score, "output": output, "list": listed, "call": call}
            shown |= {"given": len(given)} if self._own else {}
            runs.append(shown | self._searches.get((run, query_id), {}))
        passages = {doc_id: self._passage(query_id, query, doc_id) for doc_id in named}
        return {"answers": list(answers), "passages": passages, "runs": runs}

    def _given(self, run: str, query_id: str) -> list[str]:
        listed = self.listed.get(query_id, {}).get(run, [])
        return listed[: self._own.get((run, query_id), self._most)]

    def _passage(self, query_id: str, query: str, doc_id: str) -> list[Any]:
        text, labels = self._texts.get(doc_id, ("", "")), {}
        calls: dict[str, list[Any]] = {}
        for annotator, (key, *trace) in self._traces.get((query_id, doc_id), {}).items():
            found = calls.get(key) or self._calls.of_key(key, query, [text]) if key else None
            if found:
                calls[key] = found
            labels[annotator] = _trimmed([*trace, 1 + list(calls).index(key) if found else None])
        return [*text, labels, *([list(calls.values())] if calls else [])]

    def summary(self, query_id: str, scores: Sequence[float | None]) -> dict[str, Any]:
        """Numbers of ``useful`` passages and of passages ``holding`` the answer, and the ``kinds`` of the query."""
        lists = self.listed.get(query_id, {})
        named = {doc_id for of_run in lists.values() for doc_id in of_run}
        useful = self._above(query_id, named, self._by_reader)
        holding = self._above(query_id, named, self._by_answer)
        kinds = []
        if useful is not None and holding is not None:
            kinds += ["useful_absent"] * bool(useful - holding)
            kinds += ["present_useless"] * bool(holding - useful)
        if useful is not None:
            for run, score in zip(self._runs, scores, strict=True):
                if score is None:
                    continue
                alone = not useful.isdisjoint(self._given(run, query_id))
                if alone != (score >= SUCCESS):
                    kinds.append("list_fails" if alone else "single_fails")
        found = {"useful": useful, "holding": holding}
        sizes = {name: None if of is None else len(of) for name, of in found.items()}
        return {**sizes, "kinds": list(dict.fromkeys(kinds))}

    def _above(self, query_id: str, doc_ids: set[str], annotator: str | None) -> set[str] | None:
        labels: Mapping[str, float] = {
            doc_id: trace[annotator][1]
            for doc_id in doc_ids
            if annotator in (trace := self._traces.get((query_id, doc_id), {}))
        }
        # Useful, like a success end to end: a partly right answer is not enough.
        return {doc_id for doc_id, label in labels.items() if label >= SUCCESS} if labels else None


def _trimmed(trace: Sequence[Any]) -> list[Any]:
    """A trace without the empty values at its end: most annotators leave most columns empty."""
    values = [_rounded(value, 4) if isinstance(value, float) else value for value in trace]
    while len(values) > 1 and not values[-1]:
        values.pop()
    return values


def as_json(rows: Sequence[Row], findings: Findings, made: Sequence[Slices] = ()) -> dict[str, Any]:
    """The table of queries as the page's script reads it."""
    ordered = _ordered(findings)
    places = {query_id: place for place, query_id in enumerate(ordered)}
    kept = sorted(rows, key=lambda row: places.get(row.query_id, len(places)))[:MOST_QUERIES]
    annotator, measure = next(iter(findings.primary_measures.items()), ("", ""))
    usable, own = filters(findings), labelling(findings)
    return {
        "runs": findings.runs,
        "metric": findings.metric if not findings.downstream.is_empty() else "",
        "measure": f"{annotator} {findings.named(measure, annotator)}".strip(),
        "annotators": findings.annotators,
        "by_reader": _looked(findings)[0],
        "own_labels": bool(own and own[1] == READER.name),
        "given": findings.configuration["end_to_end_k"],
        "recorded": findings.configuration["end_to_end"] == "recorded",
        "left_out": max(len(rows), len(ordered)) - len(kept),
        "filters": usable,
        "slices": [[one.field, one.names] for one in made],
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
            for row in kept
        ],
    }


def _mean_seconds(findings: Findings) -> dict[str, float]:
    if (findings.summary.get(READER.key) or {}).get("api"):
        return {}
    kinds = (findings.summary["reading"].get("kinds") or {}).items()
    return {
        kind: round(costs["reader_seconds"] / costs["done"], 4)
        for kind, costs in kinds
        if costs["done"] and costs["reader_seconds"]
    }


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, digits)
