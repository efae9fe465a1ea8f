"""Spans of OpenInference, as Phoenix exports them, as records of traces: a trace is a query.

Outermost RETRIEVER spans, by start time, are the searches. The root span has the question (``input.value``), the answer
(``output.value``), and perhaps ``metadata.query_id`` and ``metadata.run``. Attributes are flattened, nested, or JSON texts.

Source: OpenInference semantic conventions, spec/semantic_conventions.md of github.com/Arize-ai/openinference.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Any

from engine.messages.errors import InputError
from engine.messages.notes import Note, count_note
from engine.messages.wording import quoted
from engine.sources.fields import QUERY_FIELDS, RESPONSE_FIELDS, first_of, written
from engine.sources.io.locations import Location
from engine.sources.io.records import parse_json
from engine.sources.runs.forms import LINE
from engine.tables import OUTPUT, PASSAGES, QUERY, QUERY_ID, RUN, SEARCH, STEP

Span = dict[str, Any]
_TRACE, _ID = ("context.trace_id", "trace_id"), ("context.span_id", "span_id")
_PARENT, _START = "parent_id", "start_time"
_KIND, _DOCUMENTS = ("openinference.span.kind", "span_kind"), "retrieval.documents"
_DOCUMENT = re.compile(r"retrieval\.documents\.(\d+)\.document\.(?:metadata\.)?(id|content|title)")
_IN_JSON = ("attributes", "metadata", _DOCUMENTS)
_TEXTS = {"input": (*QUERY_FIELDS, "input"), "output": (*RESPONSE_FIELDS, "output", "result")}


def records_of_spans(
    path: Location, records: Sequence[tuple[int, Mapping[str, Any]]]
) -> tuple[Sequence[tuple[int, Mapping[str, Any]]], list[Note]]:
    """Searches and answers as records of ``read_traces``, and counts of incomplete spans; records of others as they are.

    An InputError refuses a span without ids or start, or twice; a cycle of spans; a trace without a root or question, or
    with several roots; and two traces of a question.
    """
    if first_of(records[0][1], _TRACE) is None:
        return records, []
    traces: defaultdict[str, dict[str, Span]] = defaultdict(dict)
    for line, record in records:
        span, fault = _flat(record), partial(InputError, path=path, line=line)
        trace, own, parent = first_of(span, _TRACE), first_of(span, _ID), span.get(_PARENT) or None
        known = isinstance(trace, str | int) and isinstance(own, str | int)
        if not known or not isinstance(parent, str | int | None) or own in traces[trace]:
            problem = f"the span {quoted(own)} of trace {quoted(trace)} has no id of its own"
            remedy = "export each span once, with `trace_id` and `span_id`"
            raise fault(problem, remedy, "traces.span")
        try:
            start = datetime.fromisoformat(str(span.get(_START)))
        except ValueError:
            problem = f"the span {quoted(own)} has the start {quoted(span.get(_START))}"
            raise fault(problem, "write `start_time` in ISO 8601", "traces.time") from None
        start = start.replace(tzinfo=start.tzinfo or UTC)
        traces[trace][own] = {**span, _PARENT: parent, _START: start, LINE: line}
    rows, lost, questions = list[tuple[int, dict[str, Any]]](), 0, dict[tuple[str, str], str]()
    for trace, spans in traces.items():
        searches, here = _searches(path, spans), f"trace {quoted(trace)} has"
        outer = [span for span in spans.values() if span[_PARENT] not in spans]
        roots = [span for span in outer if span[_PARENT] is None] or outer
        lost += len(outer) - 1
        root, fault = roots[0], partial(InputError, path=path, line=roots[-1][LINE])
        if len(roots) > 1:
            problem = f"{here} {len(roots)} spans without their parents"
            raise fault(problem, "export whole traces, of one question each", "traces.root")
        query_id, run = root.get("metadata.query_id"), root.get("metadata.run")
        query = {RUN: run, QUERY_ID: query_id, QUERY: _text(root, "input")}
        if (question := first_of(query, (QUERY_ID, QUERY))) is None:
            raise fault(f"{here} no question", "write it into `input.value`", "traces.question")
        if (other := questions.setdefault((str(run), str(question)), trace)) != trace:
            problem = f"{here} the question of trace {quoted(other)}"
            raise fault(problem, "keep one, or name runs by `metadata.run`", "traces.question")
        for step, span in enumerate(searches, 1):
            search = {STEP: step, SEARCH: _text(span, "input"), PASSAGES: span[PASSAGES]}
            rows.append((span[LINE], query | search))
        rows.append((root[LINE], query | {OUTPUT: _text(root, "output")}))
    empty, file = sum(record.get(PASSAGES) == [] for _, record in rows), [str(path)]
    return rows, [
        count_note("lost_parents", lost, "[span|spans] of {} whose parent is missing", about=file),
        count_note("empty_searches", empty, "[search|searches] of {} without passages", about=file),
    ]


def _flat(record: Mapping[str, Any]) -> Span:
    """The values in a record by their dotted names, without ``attributes``; documents by place, from 0."""
    flat, waiting = Span(), [("", record)]
    for name, value in waiting:  # which grows by the parts of each value
        if isinstance(value, str) and name.endswith(_IN_JSON):
            value = written(value) or value
        if isinstance(value, list) and name == _DOCUMENTS:
            value = dict(enumerate(value))
        if isinstance(value, dict):
            for key, part in value.items():
                waiting.append((f"{name}.{key}".strip(".").removeprefix("attributes."), part))
        else:
            flat[name] = value
    return flat


def _searches(path: Location, spans: Mapping[Any, Span]) -> list[Span]:
    """RETRIEVER spans, with their passages, that lie within no other with documents; by time."""
    children = defaultdict[Any, list[Any]](list)
    for own, span in spans.items():
        children[span[_PARENT] if span[_PARENT] in spans else None].append(own)
    searches, waiting = list[Span](), [(own, False) for own in children[None]]
    for own, is_inside in waiting:  # which grows by the children of each
        span = spans[own]
        if not is_inside and str(first_of(span, _KIND)).upper() == "RETRIEVER":
            documents: defaultdict[int, dict[str, Any]] = defaultdict(dict)
            # The own id after one in the metadata. A frame has nulls for documents that only other spans have.
            for name in sorted(span, key=lambda name: ".metadata." not in name):
                if (match := _DOCUMENT.fullmatch(name)) and span[name] is not None:
                    documents[int(match[1])][match[2]] = span[name]
            span[PASSAGES] = [doc for _, doc in sorted(documents.items()) if any(doc.values())]
            searches.append(span)
            is_inside = bool(span[PASSAGES])
        waiting += [(child, is_inside) for child in children[own]]
    reached = dict(waiting)
    if lost := [own for own in spans if own not in reached]:
        problem = f"the span {quoted(lost[0])} lies within itself, or in one that does"
        fault = partial(InputError, path=path, line=spans[lost[0]][LINE])
        raise fault(problem, "correct the ids of parents", "traces.cycle")
    return sorted(searches, key=lambda span: (span[_START], span[LINE]))


def _text(span: Span, side: str) -> str | None:
    """The text of a span's input or output: in JSON, the text or the known or only field; None for none."""
    value: Any = span.get(f"{side}.value")
    if span.get(f"{side}.mime_type") == "application/json":
        with suppress(ValueError, TypeError):
            value = parse_json(value)
        if isinstance(value, Mapping):
            value = first_of(value, _TEXTS[side] if len(value) > 1 else [*value])
    return None if isinstance(value, None | Mapping | list) else str(value)
