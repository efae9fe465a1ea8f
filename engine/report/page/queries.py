"""The queries of a page: a row each for the table, and what stands behind it, in scripts loaded on demand."""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from engine.labels.registry import ANNOTATORS
from engine.report.findings import SUCCESS, Findings
from engine.tables import (
    ANNOTATOR,
    ANSWER,
    ANSWERS,
    CONFIDENCE,
    DOC_ID,
    LABEL,
    OUTPUT,
    QUERY,
    QUERY_ID,
    RANK,
    RUN,
    TEXT,
    TITLE,
    VALUE,
)

# More queries than these, those of least disagreement, are left out of the table: a page stays below 5 MB.
MOST_QUERIES = 20_000
# Letters of a script with details: parsed in a moment, and not one file for each query.
_LETTERS = 400_000

Pair = tuple[str, str]


@dataclass(frozen=True)
class Filter:
    """A kind of query that one may want to see: the table says how many there are."""

    key: str
    name: str
    meaning: str


FILTERS = (
    Filter(
        "useful_absent",
        "useful, answer absent",
        "the reader answers from a passage that does not contain the answer",
    ),
    Filter(
        "present_useless",
        "answer present, useless",
        "a passage contains the answer, and the reader does not answer from it",
    ),
    Filter(
        "list_fails",
        "one passage succeeds, the list fails",
        "the reader answers from a passage alone, and not from the list that holds it",
    ),
    Filter(
        "single_fails",
        "the list succeeds, no passage does",
        "the reader answers from the list, and from none of its passages alone",
    ),
    Filter("runs_differ", "runs differ", "the end-to-end scores of the runs are not the same"),
)


@dataclass(frozen=True)
class Row:
    """A query in the table.

    Attributes:
        query_id, text: the query; an empty text where the page has none.
        scores, measures: by run, in the order of ``Findings.runs``: the end-to-end score, and the first
            annotator's primary measure; None where there is none.
        useful, holding: listed passages from which the reader answers, and those that contain the answer;
            None where nobody looked.
        kinds: the keys of the filters that let it through.
        part: the number of the script with its details; 0 for none.
    """

    query_id: str
    text: str
    scores: Sequence[float | None]
    measures: Sequence[float | None]
    useful: int | None
    holding: int | None
    kinds: Sequence[str]
    part: int

    @property
    def disagreement(self) -> float:
        """How far the measure and the end-to-end score are apart, in the run where they are farthest."""
        pairs = zip(self.scores, self.measures, strict=True)
        return max((abs(a - b) for a, b in pairs if a is not None and b is not None), default=0.0)


@dataclass(frozen=True)
class Part:
    """Some queries: their rows, and the script with their details (empty without any).

    Attributes:
        left_out: how many more queries there are, of less disagreement, of which no row was made.
    """

    number: int
    rows: Sequence[Row]
    script: str
    left_out: int = 0


def filters(findings: Findings) -> list[Filter]:
    """The filters that can let something through, by what was labelled and read."""
    by_reader, by_answer = _looked(findings)
    passages = findings.sources is not None
    read = not findings.downstream.is_empty()
    both = passages and by_reader is not None and by_answer is not None
    lists = passages and by_reader is not None and read
    usable = {
        "useful_absent": both,
        "present_useless": both,
        "list_fails": lists,
        "single_fails": lists,
        "runs_differ": read and len(findings.runs) > 1,
    }
    return [one for one in FILTERS if usable[one.key]]


def _looked(findings: Findings) -> tuple[str | None, str | None]:
    """The first annotator by whom the reader itself reads each passage, and the first that looks for the answer."""
    names = [name for name in findings.annotators if name not in findings.partly_labelled]
    known = [ANNOTATORS[name] for name in names if name in ANNOTATORS]
    own = (one.name for one in known if one.is_the_readers)
    finds = (one.name for one in known if one.finds_answers)
    return next(own, None), next(finds, None)


def parts(findings: Findings) -> Iterator[Part]:
    """The queries of the page in parts, with their details where the page has passages."""
    if findings.sources is None:
        most, left_out = _most_disagreeing(findings)
        scores = _Scores(findings, most)
        yield Part(0, [scores.row(query_id, "") for query_id in most], "", left_out)
        return
    scores = _Scores(findings, findings.sources.queries[QUERY_ID])
    details = _Details(findings)
    rows: list[Row] = []
    contents: list[str] = []
    number, letters = 1, 0
    for query_id, text, answers in findings.sources.queries.select(
        QUERY_ID, QUERY, ANSWERS
    ).iter_rows():
        if query_id not in scores.known and query_id not in details.listed:
            continue
        content = json.dumps(
            details.of(query_id, answers, scores.scores_of(query_id)), ensure_ascii=False
        )
        contents.append(f"{json.dumps(query_id)}: {content}")
        rows.append(
            scores.row(
                query_id, text, details.summary(query_id, scores.scores_of(query_id)), number
            )
        )
        letters += len(content)
        if letters > _LETTERS:
            yield Part(number, rows, _script(number, contents))
            rows, contents, number, letters = [], [], number + 1, 0
    if rows:
        yield Part(number, rows, _script(number, contents))


def _most_disagreeing(findings: Findings) -> tuple[pl.Series, int]:
    """The queries that the table has room for, by id, and how many others there are; not made row by row."""
    annotator, measure = next(iter(findings.primary_measures.items()), ("", ""))
    scores = findings.scores(annotator, measure).rename({VALUE: "measure"})
    both = scores.join(
        findings.downstream.select(RUN, QUERY_ID, VALUE),
        on=[RUN, QUERY_ID],
        how="full",
        coalesce=True,
    )
    apart = (pl.col("measure") - pl.col(VALUE)).abs().max().fill_null(0.0)
    by_query = both.group_by(QUERY_ID).agg(apart.alias("apart"))
    most = by_query.sort(["apart", QUERY_ID], descending=[True, False]).head(MOST_QUERIES)
    return most[QUERY_ID], by_query.height - most.height


def _script(number: int, contents: Sequence[str]) -> str:
    return f"details({number}, {{{escaped(','.join(contents))}}});\n"


def escaped(script: str) -> str:
    """JSON that may stand in a script, even within HTML: no text in it can end the script."""
    return script.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


@dataclass(frozen=True)
class _Counts:
    """What a query's labels come to: as in ``Row``."""

    useful: int | None = None
    holding: int | None = None
    kinds: Sequence[str] = ()


class _Scores:
    """The scores of queries, by query id."""

    def __init__(self, findings: Findings, query_ids: pl.Series) -> None:
        self._runs = findings.runs
        annotator, measure = next(iter(findings.primary_measures.items()), ("", ""))
        self._end_to_end = _by_run_and_query(findings.downstream, query_ids)
        self._measures = _by_run_and_query(findings.scores(annotator, measure), query_ids)
        self.known = {query_id for _, query_id in (*self._end_to_end, *self._measures)}

    def scores_of(self, query_id: str) -> list[float | None]:
        """The end-to-end scores of a query, by run."""
        return [self._end_to_end.get((run, query_id)) for run in self._runs]

    def row(self, query_id: str, text: str, counts: _Counts | None = None, part: int = 0) -> Row:
        """A query's row."""
        scores = self.scores_of(query_id)
        counts = counts or _Counts()
        kinds = list(counts.kinds)
        if len({score for score in scores if score is not None}) > 1:
            kinds.append("runs_differ")
        measures = [self._measures.get((run, query_id)) for run in self._runs]
        return Row(query_id, text, scores, measures, counts.useful, counts.holding, kinds, part)


def _by_run_and_query(scores: pl.DataFrame, query_ids: pl.Series) -> dict[Pair, float]:
    of_them = scores.filter(pl.col(QUERY_ID).is_in(query_ids.implode()))
    return {
        (run, query_id): value
        for run, query_id, value in of_them.select(RUN, QUERY_ID, VALUE).iter_rows()
    }


class _Details:
    """What stands behind each query: its lists, the texts, the labels and what they rest on."""

    def __init__(self, findings: Findings) -> None:
        assert findings.sources is not None
        self._runs = findings.runs
        self._by_reader, self._by_answer = _looked(findings)
        settings = findings.configuration
        self._given = int(settings["end_to_end_k"] or settings["k"])
        self.listed: dict[str, dict[str, list[str]]] = defaultdict(dict)
        ordered = findings.sources.runs.sort(QUERY_ID, RUN, RANK)
        for query_id, run, doc_ids in (
            ordered.group_by(QUERY_ID, RUN, maintain_order=True).agg(DOC_ID).iter_rows()
        ):
            self.listed[query_id][run] = doc_ids
        self._texts: dict[str, Sequence[str]] = {
            doc_id: (title, text)
            for doc_id, title, text in findings.sources.corpus.select(
                DOC_ID, TITLE, TEXT
            ).iter_rows()
        }
        self._outputs: dict[Pair, str] = {
            (run, query_id): output
            for run, query_id, output in findings.downstream.select(
                RUN, QUERY_ID, OUTPUT
            ).iter_rows()
        }
        self._thoughts = findings.thoughts
        self._traces: dict[Pair, dict[str, list[Any]]] = defaultdict(dict)
        columns = (QUERY_ID, DOC_ID, ANNOTATOR, LABEL, OUTPUT, ANSWER, CONFIDENCE)
        for query_id, doc_id, annotator, *trace in findings.traces.select(columns).iter_rows():
            self._traces[query_id, doc_id][annotator] = _trimmed(trace)

    def of(
        self, query_id: str, answers: Sequence[str], scores: Sequence[float | None]
    ) -> dict[str, Any]:
        """A query's details, as the page's script reads them."""
        lists = self.listed.get(query_id, {})
        named = dict.fromkeys(doc_id for of_run in lists.values() for doc_id in of_run)
        return {
            "answers": list(answers),
            "passages": {
                doc_id: [
                    *self._texts.get(doc_id, ("", "")),
                    self._traces.get((query_id, doc_id), {}),
                    *self._thought(query_id, [doc_id]),
                ]
                for doc_id in named
            },
            "runs": [
                {
                    "score": score,
                    "output": self._outputs.get((run, query_id)),
                    "list": lists.get(run, []),
                    "thought": next(
                        iter(self._thought(query_id, lists.get(run, [])[: self._given])), None
                    ),
                }
                for run, score in zip(self._runs, scores, strict=True)
            ],
        }

    def _thought(self, query_id: str, doc_ids: Sequence[str]) -> list[str]:
        found = self._thoughts.get((query_id, tuple(doc_ids)))
        return [found] if found else []

    def summary(self, query_id: str, scores: Sequence[float | None]) -> _Counts:
        """How many passages are useful and hold the answer, and which filters let the query through."""
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
                alone = not useful.isdisjoint(lists.get(run, [])[: self._given])
                if alone != (score >= SUCCESS):
                    kinds.append("list_fails" if alone else "single_fails")
        return _Counts(_size(useful), _size(holding), list(dict.fromkeys(kinds)))

    def _above(self, query_id: str, doc_ids: set[str], annotator: str | None) -> set[str] | None:
        """The passages that an annotator finds useful; None where it labelled none of them."""
        labels: Mapping[str, float] = {
            doc_id: trace[annotator][0]
            for doc_id in doc_ids
            if annotator in (trace := self._traces.get((query_id, doc_id), {}))
        }
        # Useful, as an end-to-end score is a success: an answer that is right in part is not enough.
        return {doc_id for doc_id, label in labels.items() if label >= SUCCESS} if labels else None


def _size(found: set[str] | None) -> int | None:
    return None if found is None else len(found)


def _trimmed(trace: Sequence[Any]) -> list[Any]:
    """A trace without the empty values at its end: most annotators leave most columns empty."""
    values = [_number(value) if isinstance(value, float) else value for value in trace]
    while len(values) > 1 and not values[-1]:
        values.pop()
    return values


def _number(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None


def as_json(rows: Sequence[Row], findings: Findings, left_out: int = 0) -> dict[str, Any]:
    """The table of queries as the page's script reads it: greatest disagreement first.

    Args:
        left_out: queries of which no row was made.
    """
    ordered = sorted(rows, key=lambda row: -row.disagreement)
    annotator, measure = next(iter(findings.primary_measures.items()), ("", ""))
    usable = filters(findings)
    keys = [one.key for one in usable]
    kept = ordered[:MOST_QUERIES]
    return {
        "runs": findings.runs,
        "metric": findings.metric if not findings.downstream.is_empty() else "",
        "measure": f"{annotator} {measure}".strip(),
        "annotators": findings.annotators,
        "given": findings.configuration["end_to_end_k"],
        "left_out": left_out + len(ordered) - len(kept),
        "filters": [[one.key, one.name, one.meaning] for one in usable],
        "queries": [
            [
                row.query_id,
                row.text,
                [_rounded(score) for score in row.scores],
                [_rounded(value) for value in row.measures],
                row.useful,
                row.holding,
                sum(1 << keys.index(kind) for kind in row.kinds if kind in keys),
                row.part,
            ]
            for row in kept
        ],
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else round(value, 3)
