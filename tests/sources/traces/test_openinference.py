"""Spans of OpenInference, as Phoenix exports them, become traces."""

import json
from datetime import UTC, datetime

import polars as pl
import pytest

from engine.sources.runs.read import id_of
from engine.sources.traces.read import read_traces
from tests.expected import refused

QUESTION, ANSWER = "which sea", "Caribbean"
A, B, C = ({"document.id": name, "document.content": f"Text {name}."} for name in "abc")


def span(own, parent=None, kind="RETRIEVER", second=0, documents=None, trace="t", **attributes):
    """A span as Phoenix's REST interface gives it; ``input__value`` stands for ``input.value``."""
    attributes = {name.replace("__", "."): value for name, value in attributes.items()}
    attributes["openinference.span.kind"] = kind
    if documents is not None:
        attributes["retrieval.documents"] = documents
    start = datetime(2026, 1, 2, 3, 4, second, tzinfo=UTC).isoformat()
    context = {"trace_id": trace, "span_id": own}
    return {"context": context, "parent_id": parent, "start_time": start, "attributes": attributes}


def root(own="r", trace="t", **more):
    given = {"input__value": QUESTION, "output__value": ANSWER, "kind": "AGENT", "trace": trace}
    return span(own, **given | more)


SPANS = [
    span("s2", "x", second=9, documents=[B, C], input__value="second"),
    root(llm__input_messages=[{"message.content": "long"}]),
    span("x", "r", kind="CHAIN"),
    span("s1", "r", second=5, documents=[A, B], input__value='{"query": "first", "k": 2}', input__mime_type="application/json"),
]  # fmt: skip


def of_frame(spans):
    """As Phoenix's frames have them: a column for each attribute, times, and null for none."""
    return [
        {"context.trace_id": one["context"]["trace_id"], "context.span_id": one["context"]["span_id"]}
        | {"parent_id": one["parent_id"], "start_time": datetime.fromisoformat(one["start_time"])}
        | {f"attributes.{name}": value for name, value in one["attributes"].items() if "llm" not in name}
        for one in spans
    ]  # fmt: skip


def nested(spans):
    """With attributes in objects of their own."""
    made = []
    for one in spans:
        attributes = {}
        for name, value in one["attributes"].items():
            *outer, last = name.split(".")
            place = attributes
            for part in outer:
                place = place.setdefault(part, {})
            documents = [
                {"document": {key.split(".")[1]: own for key, own in document.items()}}
                for document in (value if last == "documents" else ())
            ]
            place[last] = documents or value
        made.append({**one, "attributes": attributes})
    return made


def flattened(spans):
    """With documents by their numbers, as the specification flattens lists."""
    made = []
    for one in spans:
        attributes = dict(one["attributes"])
        for n, item in enumerate(attributes.pop("retrieval.documents", ())):
            attributes |= {f"retrieval.documents.{n}.{key}": own for key, own in item.items()}
        made.append({**one, "attributes": attributes})
    return made


FORMS = {
    "Phoenix's": SPANS,
    "nested": nested(SPANS),
    "flattened": flattened(SPANS),
    "attributes in JSON": [{**one, "attributes": json.dumps(one["attributes"])} for one in SPANS],
}


def summary(found):
    steps = found.steps.select("query_id", "step", "search", "doc_ids").rows()
    return steps, found.runs["doc_id"].to_list(), found.outputs.select("query_id", "output").rows()


EXPECTED = (
    [(QUESTION, 1, "first", ["a", "b"]), (QUESTION, 2, "second", ["b", "c"])],
    ["a", "b", "c"],
    [(QUESTION, ANSWER)],
)


@pytest.mark.parametrize("form", FORMS)
def test_spans_are_searches_by_time_and_an_answer_in_every_form(tmp_path, form):
    path = tmp_path / "spans.jsonl"
    path.write_text("\n".join(map(json.dumps, FORMS[form])))
    found = read_traces(path)
    assert summary(found) == EXPECTED
    assert found.runs["text"].to_list() == ["Text a.", "Text b.", "Text c."]
    assert not any(note.amount for note in found.notes)


def test_frames_of_phoenix_are_read_from_parquet(tmp_path):
    frame = pl.DataFrame(of_frame(SPANS), infer_schema_length=None)
    frame.write_parquet(tmp_path / "spans.parquet")
    assert summary(read_traces(tmp_path / "spans.parquet")) == EXPECTED


def traces(*spans):
    return read_traces("spans", records=enumerate(spans, 1))


def notes(found):
    return {note.code: note.amount for note in found.notes if note.amount}


def test_metadata_names_query_and_run_and_passages_may_lack_ids():
    document = {"document.content": "Some text.", "document.metadata": '{"title": "T"}'}
    found = traces(
        root(metadata='{"query_id": "7", "run": "mine"}'), span("s", "r", documents=[document])
    )
    assert found.steps.rows() == [("mine", "7", 1, "", [id_of("Some text.")])]
    assert found.runs["title"].to_list() == ["T"]


def test_a_search_within_another_is_part_of_it():
    fused = span("s", "r", documents=[A, B])
    found = traces(root(), fused, span("in", "s", documents=[C]), span("failed", "r", second=1))
    assert found.steps["doc_ids"].to_list() == [["a", "b"], []]
    assert notes(found) == {"empty_searches": 1}
    found = traces(root(), span("s", "r"), span("in", "s", second=1, documents=[C]))
    assert found.steps["doc_ids"].to_list() == [[], ["c"]]


def test_a_parent_that_the_log_lacks_is_counted():
    found = traces(root(), span("s", "gone", documents=[A]))
    assert notes(found) == {"lost_parents": 1}
    remote = traces(root(parent="of a caller"), span("s", "r", documents=[A]))
    assert remote.outputs["output"].to_list() == [ANSWER]


@pytest.mark.parametrize(
    ("value", "output"),
    [('{"answer": "x", "score": 1}', "x"), ('{"text": "x"}', "x"), ('"x"', "x"), ("42", "42"), ('{"a": 1, "b": 2}', None)],
)  # fmt: skip
def test_answers_in_json_are_their_texts(value, output):
    json_type = {"output__mime_type": "application/json"}
    found = traces(root(output__value=value, **json_type), span("s", "r", documents=[A]))
    assert found.outputs["output"].to_list() == [output] * (output is not None)


S = span("s", "r", documents=[A])
BAD = {
    "a cycle": ("traces.cycle", None, root(), span("s", "x", documents=[A]), span("x", "s")),
    "its own parent": ("traces.cycle", 2, root(), span("s", "s", documents=[A])),
    "a cycle without a root": ("traces.cycle", None, span("a", "b"), span("b", "a")),
    "two roots": ("traces.root", 3, root(), S, root("r2")),
    "parents alone are missing": ("traces.root", 2, span("s", "r", documents=[A]), span("s2", "q")),
    "a span twice": ("traces.span", 3, root(), S, S),
    "a span without an id": ("traces.span", 2, root(), span(None, "r")),
    "a root without a question": ("traces.question", 1, root(input__value=None), S),
    "two traces of a question": ("traces.question", 2, root(), root(trace="u"), S),
    "searches without documents": ("traces.passageless", None, root(), span("s", "r")),
    "no search": ("traces.passageless", None, root(), span("s", "r", kind="LLM")),
    "no start": ("traces.time", 2, root(), {**S, "start_time": None}),
    "a start in words": ("traces.time", 2, root(), {**S, "start_time": "noon"}),
    "an id in a list": ("traces.span", 2, root(), span("s", ["r"], documents=[A])),
    "a question in a list": ("runs.query", 2, root(metadata={"query_id": ["q"]}), S),
    "a run in a list": ("runs.name", 2, root(metadata={"run": ["x"]}), S),
    "a document without id and text": ("runs.passageless", 2, root(), span("s", "r", documents=[{"document.metadata": {"title": "t"}}])),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_spans_are_refused_in_a_line(what):
    code, line, *spans = BAD[what]
    with refused(code, path="spans", line=line):
        traces(*spans)


def test_long_chains_of_spans_take_no_quadratic_time():
    depth = 30_000
    chain = [span(f"s{n}", f"s{n - 1}" if n else "r", kind="CHAIN") for n in range(depth)]
    found = traces(root(), *chain, span("last", f"s{depth - 1}", documents=[A]))
    assert found.runs["doc_id"].to_list() == ["a"]


def test_nulls_of_a_frame_are_no_documents():
    rows = of_frame([root(), span("s", "r", second=2), span("u", "r", second=3)])
    for row, texts in zip(rows, [(None, None), ("one", "two"), ("three", None)], strict=True):
        for place, text in enumerate(texts):
            row[f"attributes.retrieval.documents.{place}.document.content"] = text
    found = read_traces("spans", records=enumerate(rows, 1))
    assert [len(docs) for docs in found.steps["doc_ids"]] == [2, 1]
