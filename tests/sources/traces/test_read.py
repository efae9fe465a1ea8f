"""Traces of agents become runs, outputs and steps."""

import json

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import engine
from engine import tables
from engine.sources.runs.read import id_of
from engine.sources.traces.read import read_traces
from tests.expected import refused

ARUBA = {"id": "a", "text": "Aruba is an island.", "title": "Aruba"}
LIMA = "Lima is a city."


def search(step, passages, query="q1", **more):
    return {"query_id": query, "step": step, "search": f"s{step}", "passages": passages, **more}


def traces(*rows, name="", **options):
    return read_traces("traces", name, enumerate(rows, 1), **options)


def listed(run):
    return run.select("run", "query_id", "doc_id").rows()


ROWS = [
    search(1, [ARUBA, {"doc_id": "b"}], output="Oranjestad"),
    search(1, [ARUBA], query="q2"),
    search(2, ["b", LIMA, "a", "b"]),
    {"query_id": "q2", "output": ""},
]


def test_a_run_lists_passages_in_the_order_of_their_first_sight_each_once(tmp_path):
    (tmp_path / "mine.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    pl.DataFrame(
        [{**row, "passages": json.dumps(row.get("passages"))} for row in ROWS]
    ).write_parquet(tmp_path / "mine.parquet")
    for file in ("mine.jsonl", "mine.parquet"):
        found = read_traces(tmp_path / file)
        ids = ["a", "b", id_of(LIMA)]
        of_first = [("mine", "q1", doc_id) for doc_id in ids]
        runs = found.runs.sort("query_id", "rank")
        assert listed(runs) == [*of_first, ("mine", "q2", "a")], file
        assert runs["rank"].to_list() == [1, 2, 3, 1]
        assert runs["text"].to_list() == [ARUBA["text"], None, LIMA, ARUBA["text"]]
        assert dict(found.steps.schema) == tables.STEPS
        assert found.steps["doc_ids"].to_list() == [["a", "b"], ["a"], ["b", ids[2], "a"]]
        assert found.steps["search"].to_list() == ["s1", "s1", "s2"]
        assert found.outputs.rows() == [("mine", "q1", "Oranjestad"), ("mine", "q2", "")]
        assert not any(note.amount for note in found.notes)


LISTS = st.lists(st.lists(st.sampled_from("abcdefgh"), max_size=6), min_size=1, max_size=6)


@given(st.dictionaries(st.sampled_from("xyz"), LISTS, min_size=1), st.randoms())
def test_conversion_keeps_the_order_of_first_sight(by_query, random):
    every = {
        query: [search(step, passages, query) for step, passages in enumerate([["z"], *lists], 1)]
        for query, lists in by_query.items()
    }
    turns = [query for query, own in every.items() for _ in own]
    random.shuffle(turns)
    found = traces(*(every[query].pop(0) for query in turns))
    for query, lists in by_query.items():
        first_seen = list(dict.fromkeys(["z", *(one for passages in lists for one in passages)]))
        assert found.runs.filter(query_id=query)["doc_id"].to_list() == first_seen
        steps = found.steps.filter(query_id=query)
        assert steps["doc_ids"].to_list() == [["z"], *(list(dict.fromkeys(p)) for p in lists)]
        assert steps["step"].to_list() == [*range(1, len(lists) + 2)]


def test_runs_are_named_by_rows_or_by_the_caller():
    rows = [search(1, ["a"], run="one"), search(1, ["a"], run="two"), search(1, ["b"], query="q2")]
    assert listed(traces(*rows).runs) == [
        ("one", "q1", "a"),
        ("two", "q1", "a"),
        ("traces", "q2", "b"),
    ]
    assert traces(search(1, ["a"]), name="mine").runs["run"].to_list() == ["mine"]
    assert {*traces(*rows, name="mine").runs["run"]} == {"one", "two", "mine"}


def test_a_trace_without_searches_or_answer_is_kept():
    found = traces(search(1.0, ["a"]), {"query_id": "q2", "output": "x"}, search(1, [], query="q3"))
    assert found.steps["query_id"].to_list() == ["q1", "q3"]
    assert found.outputs["query_id"].to_list() == ["q2"]


GOOD = search(1, ["a"])
BAD = {
    "no rows": ("traces.empty", None),
    "a missing step": ("traces.step", 2, GOOD, search(3, ["b"])),
    "a missing first step": ("traces.step", 1, search(2, ["b"])),
    "a step twice": ("traces.step", 2, GOOD, search(1, ["b"])),
    "a step 0": ("traces.step", 1, search(0, ["a"])),
    "no step": ("traces.step", 2, GOOD, search(None, ["b"])),
    "half a step": ("traces.step", 1, search(1.5, ["a"])),
    "a step in words": ("traces.step", 1, search("first", ["a"])),
    "a step that is true": ("traces.step", 1, search(True, ["a"])),
    "an endless step": ("traces.step", 1, search(2**70, ["a"])),
    "steps in another order": ("traces.step", 1, search(2, ["b"]), GOOD),
    "a search that is no text": ("traces.text", 1, search(1, ["a"], search=0)),
    "no query": ("runs.queryless", 1, {"step": 1, "passages": ["a"]}),
    "a query in a list": ("runs.query", 1, search(1, ["a"], query=["q1"])),
    "a run in a list": ("runs.name", 1, search(1, ["a"], run=["x"])),
    "a search in a list": ("traces.text", 1, search(1, ["a"], search=["x"])),
    "an output in a list": ("outputs.text", 2, GOOD, {"query_id": "q1", "output": ["x"]}),
    "half a surrogate pair": ("traces.text", 1, search(1, ["a"], search="\ud800")),
    "half a pair in the answer": ("outputs.text", 1, search(1, ["a"], output="\ud800")),
    "neither passages nor output": ("traces.passages", 1, {"query_id": "q1", "step": 1}),
    "passages in words": ("traces.passages", 1, search(1, "a, b")),
    "a passage without id and text": ("runs.passageless", 1, search(1, [{"title": "x"}])),
    "an empty passage": ("runs.passageless", 1, search(1, [""])),
    "a null passage": ("runs.passageless", 1, search(1, [None])),
    "a text that is a number": ("runs.text", 1, search(1, [{"id": "a", "text": 5}])),
    "an id that is a fraction": ("runs.id", 1, search(1, [{"id": 1.5, "text": "x y"}])),
    "two texts of a passage": ("runs.conflict", 2, search(1, [ARUBA]), search(2, [ARUBA | {"text": "x"}])),
    "two answers": ("outputs.twice", 2, search(1, ["a"], output="x"), {"query_id": "q1", "output": "y"}),
    "no passage at all": ("traces.passageless", None, search(1, [])),
    "answers alone": ("traces.passageless", None, {"query_id": "q1", "output": "x"}),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_bad_traces_are_refused_in_a_line(what):
    code, line, *rows = BAD[what]
    with refused(code, path="traces", line=line):
        traces(*rows)


def test_passages_without_ids_beside_a_corpus_are_refused():
    with refused("traces.ids", line=2):
        traces(GOOD, search(2, [LIMA]), carried=False)
    found = traces(search(1, [ARUBA]), search(2, [ARUBA | {"text": "x"}]), carried=False)
    assert found.runs.columns == list(tables.RUNS)


def test_long_traces_take_no_quadratic_time():
    steps = 100_000
    found = traces(*(search(n + 1, [f"d{n}", f"d{n + 1}"]) for n in range(steps)))
    assert found.runs["doc_id"].to_list() == [f"d{n}" for n in range(steps + 1)]


def test_traces_from_python_are_inputs_of_an_evaluation(tmp_path):
    reads = []

    def reader(prompts):
        reads.extend(prompts)
        return ["Oranjestad" if "Aruba is" in prompt else "Lima" for prompt in prompts]

    queries = {"q1": {"query": "which island", "answers": ["Oranjestad"]}}
    queries |= {"q2": {"query": "which city", "answers": ["Lima"]}}
    rows = [search(1, [ARUBA]), search(2, [LIMA, ARUBA], output="Lima")]
    rows += [search(1, [LIMA, ARUBA], query="q2", output="Lima")]
    found = engine.read_traces(rows)
    result = engine.evaluate(
        queries, None, found.runs, outputs=found.outputs, reader=reader, k=2,
        store=tmp_path, progress=False,
    )  # fmt: skip
    assert len(reads) == result.labels.height == 4
    assert result.table("downstream").sort("query_id")["value"].to_list() == [0.0, 1.0]
