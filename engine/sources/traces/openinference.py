"""Spans of OpenInference as records of traces: one trace is one query.

Outermost RETRIEVER spans, by start time, are the searches. The root span has the question (``input.value``), the answer
(``output.value``), and perhaps ``metadata.query_id`` and ``metadata.run``. Attributes are flattened, nested, or OTLP's.

Source: OpenInference semantic conventions, spec/semantic_conventions.md of github.com/Arize-ai/openinference.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from graphlib import CycleError, TopologicalSorter
from typing import Any

from engine.messages.errors import InputError
from engine.messages.notes import Note, count_note
from engine.messages.wording import quoted
from engine.sources.fields import QUERY_FIELDS, RESPONSE_FIELDS, first_of
from engine.sources.io.locations import Location
from engine.sources.io.records import parse_json
from engine.sources.runs.forms import LINE
from engine.tables import OUTPUT, QUERY, QUERY_ID, RUN, SEARCH, STEP

Span = dict[str, Any]
_TRACE, _ID = ("context.trace_id", "trace_id", "traceId"), ("context.span_id", "span_id", "spanId")
_PARENT, _START = ("parent_id", "parentSpanId"), ("start_time", "startTimeUnixNano")
_LISTED = "passages"  # of a RETRIEVER span; None for others
_KIND = ("openinference.span.kind", "span_kind")
_DOCUMENT = re.compile(r"retrieval\.documents\.(\d+)\.document\.(?:metadata\.)?(id|content|title)")
# Levels without a name: attributes, and types of OTLP's JSON.
_UNNAMED = {"attributes", "values", "arrayValue", "kvlistValue"}
_UNNAMED |= {"stringValue", "intValue", "doubleValue", "boolValue"}
_IN_JSON = ("attributes", "metadata", "retrieval.documents")
_TEXTS = {"input": (*QUERY_FIELDS, "input"), "output": (*RESPONSE_FIELDS, "output", "result")}


def is_span(record: Mapping[str, Any]) -> bool:
    """Whether a record is a span, or an export of OTLP."""
    return "resourceSpans" in record or _first(_flat(record), _TRACE) is not None


def records_of_spans(
    path: Location, records: Iterable[tuple[int, Mapping[str, Any]]]
) -> tuple[list[tuple[int, dict[str, Any]]], list[Note]]:
    """Searches and answers as records of ``read.traces_of``, and counts of incomplete spans.

    Raises:
        InputError: a span without ids or start, or twice; a cycle of spans; a trace without a root or question, or with
            several roots; two traces of a question; no RETRIEVER span with documents.
    """
    traces: dict[str, dict[str, Span]] = {}
    for line, record in records:
        for span in _spans(record):
            trace, own = _first(span, _TRACE), _first(span, _ID)
            spans = traces.setdefault(trace, {})
            if trace is None or own is None or own in spans:
                problem = f"the span {quoted(own)} of trace {quoted(trace)} has no id of its own"
                remedy = "export each span once, with `trace_id` and `span_id`"
                raise InputError(problem, remedy, "traces.span", path=path, line=line)
            is_search = str(_first(span, _KIND)).upper() == "RETRIEVER"
            known = {"id": own, "parent": _first(span, _PARENT), LINE: line}
            spans[own] = span | known | {_LISTED: _documents(span) if is_search else None}
    made: list[tuple[int, dict[str, Any]]] = []
    queries: dict[tuple[Any, Any], str] = {}
    lost = inner = empty = 0
    for trace, spans in traces.items():
        searches, root = _searches(path, spans), _root(path, trace, spans)
        fault = partial(InputError, path=path, line=root[LINE])
        query_id, run = root.get(f"metadata.{QUERY_ID}"), root.get(f"metadata.{RUN}")
        query = {QUERY_ID: query_id, QUERY: _text(root, "input"), RUN: run}
        if not (question := query_id or query[QUERY]):
            problem = f"the root span of trace {quoted(trace)} has no question"
            raise fault(problem, "write it as a text into `input.value`", "traces.question")
        if (other := queries.setdefault((run, question), trace)) != trace:
            problem = f"trace {quoted(trace)} has the question of trace {quoted(other)}"
            raise fault(problem, "keep one, or name runs by `metadata.run`", "traces.answers")
        for step, span in enumerate(searches, 1):
            search = {STEP: step, SEARCH: _text(span, "input"), _LISTED: span[_LISTED]}
            made.append((span[LINE], query | search))
            empty += not span[_LISTED]
        made.append((root[LINE], query | {_LISTED: None, OUTPUT: _text(root, "output")}))
        lost += sum(one["parent"] not in spans for one in spans.values()) - 1
        inner += sum(one[_LISTED] is not None for one in spans.values()) - len(searches)
    if not any(record[_LISTED] for _, record in made):
        problem = "no RETRIEVER span has `retrieval.documents`"
        raise InputError(problem, "export them", "traces.passageless", path=path)
    return made, [
        count_note("lost_parents", lost, "[span|spans] whose parent the traces lack"),
        count_note("inner_searches", inner, "RETRIEVER [span|spans] within others left out"),
        count_note("empty_searches", empty, "RETRIEVER [span|spans] without documents"),
    ]


def _spans(record: Mapping[str, Any]) -> Iterator[Span]:
    if "resourceSpans" not in record:
        yield _flat(record)
    for resource in record.get("resourceSpans", ()):
        for scope in resource.get("scopeSpans", ()):
            yield from map(_flat, scope.get("spans", ()))


def _flat(record: Any) -> Span:
    """The values in a record by their dotted names; items of lists by their places, from 0."""
    flat: Span = {}
    waiting = [("", record)]
    while waiting:
        name, value = waiting.pop()
        if isinstance(value, list) and value and all(isinstance(one, dict) for one in value):
            value = {one.get("key", n): one.get("value", one) for n, one in enumerate(value)}
        if not isinstance(value, dict):
            flat[name] = value
            continue
        for key, own in value.items():
            part = str(key).removeprefix("attributes.")
            if isinstance(own, str) and part.endswith(_IN_JSON):
                with suppress(ValueError):
                    own = parse_json(own)
            if not part.startswith("llm"):  # long, and never needed
                named = name if part in _UNNAMED else f"{name}.{part}" if name else part
                waiting.append((named, own))
    return flat


def _first(span: Span, names: Iterable[str]) -> Any:
    return next((value for name in names if (value := span.get(name)) not in (None, "")), None)


def _documents(span: Span) -> list[dict[str, Any]]:
    numbered: dict[int, dict[str, Any]] = {}
    for name, value in span.items():
        if match := _DOCUMENT.fullmatch(name):
            numbered.setdefault(int(match[1]), {})[match[2]] = value
    return [numbered[place] for place in sorted(numbered)]


def _searches(path: Location, spans: Mapping[str, Span]) -> list[Span]:
    """RETRIEVER spans within no other that has documents, by time; an InputError refuses a cycle."""
    parents = {own: {span["parent"]} & spans.keys() for own, span in spans.items()}
    within: dict[
        str | None, bool
    ] = {}  # whether a span is a RETRIEVER with documents, or lies in one
    outermost = []
    try:
        for own in TopologicalSorter(parents).static_order():
            span = spans[own]
            inside = within.get(span["parent"], False)
            outermost += [span] if span[_LISTED] is not None and not inside else []
            within[own] = inside or bool(span[_LISTED])
    except CycleError as error:
        span = spans[error.args[1][0]]
        problem = f"the span {quoted(span['id'])} lies within itself"
        remedy = "correct the ids of parents"
        raise InputError(problem, remedy, "traces.cycle", path=path, line=span[LINE]) from None
    return sorted(outermost, key=lambda span: (_time(path, span), span[LINE]))


def _root(path: Location, trace: str, spans: Mapping[str, Span]) -> Span:
    """The span without a parent, else the only one whose parent is missing."""
    roots = [one for one in spans.values() if one["parent"] is None]
    roots = roots or [one for one in spans.values() if one["parent"] not in spans]
    if len(roots) > 1:
        what = f"{len(roots)} root spans" if roots[0]["parent"] is None else "no root span"
        problem, remedy = (
            f"trace {quoted(trace)} has {what}",
            "export whole traces, of one question each",
        )
        raise InputError(problem, remedy, "traces.root", path=path, line=roots[1][LINE])
    return roots[0]


def _text(span: Span, side: str) -> str | None:
    """The text of a span's input or output: in JSON, the text or the known or only field; None for none."""
    value = span.get(f"{side}.value")
    if span.get(f"{side}.mime_type") == "application/json":
        with suppress(ValueError, TypeError):
            value = parse_json(value)
        if isinstance(value, Mapping):
            value = first_of(value, _TEXTS[side] if len(value) > 1 else [*value])
    return None if isinstance(value, None | Mapping | list) else str(value)


def _time(path: Location, span: Span) -> datetime:
    start = _first(span, _START)
    with suppress(ValueError, TypeError):
        if not isinstance(start, datetime):
            of_day = "-" in str(start)
            start = (
                datetime.fromisoformat(start)
                if of_day
                else datetime.fromtimestamp(int(start) / 1e9, UTC)
            )
        return start.replace(tzinfo=start.tzinfo or UTC)
    problem = f"the span {quoted(span['id'])} has the start {quoted(start)}"
    remedy = "write `start_time` in ISO 8601"
    raise InputError(problem, remedy, "traces.time", path=path, line=span[LINE])
