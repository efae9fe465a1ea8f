"""``erag evaluate --traces`` and ``erag plan --traces``."""

import json

import polars as pl
import pytest

from tests.commands import CONTAINMENT, erag
from tests.expected import as_expected

ARUBA, LIMA = (
    {"id": "a", "text": "Aruba has Oranjestad."},
    {"id": "b", "text": "Peru has Lima."},
)
QUERIES = [
    {"id": "q1", "query": "capital of Aruba", "answers": ["Oranjestad"]},
    {"id": "q2", "query": "capital of Peru", "answers": ["Lima"]},
]


def search(query, step, *passages, **more):
    return {"query_id": query, "step": step, "search": "x", "passages": passages, **more}


BM25 = [
    search("q1", 1, LIMA),
    search("q1", 2, LIMA, ARUBA, output="Oranjestad"),
    search("q2", 1, ARUBA, output="Quito"),
]
DENSE = [
    search("capital of Aruba", 1, ARUBA, output="Willemstad"),
    search("capital of Peru", 1, LIMA, output="Lima"),
    search("capital of Cuba", 1, LIMA, output="Havana"),
]


def traced(out):
    """The files of traces in results, by their names without the digits of their content."""
    return {path.name[:-17]: path for path in (out / "traces").iterdir()}


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def given(tmp_path, monkeypatch):
    """A folder with queries and traces of two runs, in which commands run."""
    monkeypatch.chdir(tmp_path)
    for name, rows in (("queries", QUERIES), ("bm25", BM25), ("dense", DENSE)):
        write(tmp_path / f"{name}.jsonl", rows)
    return tmp_path


COMMON = ("--queries", "queries.jsonl", "--store", "store", "--k", 3)
RECORDED = (*COMMON, "--annotators", "containment")


def test_traces_are_evaluated_as_runs_with_recorded_answers(given):
    assert not erag("evaluate", *RECORDED, "--traces", "bm25.jsonl,new=dense.jsonl", "--out", "out")
    assert traced(given / "out").keys() == {"run-bm25", "run-new", "steps", "outputs"}
    steps = pl.read_parquet("out/trace_steps.parquet").sort("run", "query_id", "step")
    assert steps.select("run", "query_id", "step", "doc_ids").rows() == [
        ("bm25", "q1", 1, ["b"]),
        ("bm25", "q1", 2, ["b", "a"]),
        ("bm25", "q2", 1, ["a"]),
        ("new", "q1", 1, ["a"]),
        ("new", "q2", 1, ["b"]),
    ]
    scored = pl.read_parquet("out/downstream.parquet").sort("run", "query_id")
    assert scored.select("run", "value").rows() == [
        ("bm25", 1.0), ("bm25", 0.0), ("new", 0.0), ("new", 1.0),
    ]  # fmt: skip
    labels = pl.read_parquet("out/labels.parquet")
    assert sorted(labels.select("query_id", "doc_id", "label").rows()) == [
        ("q1", "a", 1.0), ("q1", "b", 0.0), ("q2", "a", 0.0), ("q2", "b", 1.0),
    ]  # fmt: skip


def test_a_second_evaluation_replaces_the_tables_of_the_first(given):
    options = (*COMMON, *CONTAINMENT, "--out", "out")
    assert not erag("evaluate", *options, "--traces", "bm25.jsonl", "dense.jsonl")
    assert not erag("evaluate", *options, "--traces", "dense.jsonl", "--overwrite")
    assert traced(given / "out").keys() == {"run-dense", "steps"}


def test_runs_and_a_corpus_may_stand_beside_traces(given):
    write(given / "corpus.jsonl", [ARUBA, LIMA])
    write(given / "static.jsonl", [{"query_id": "q1", "results": ["a", "b"]}])
    options = (*COMMON, *CONTAINMENT, "--corpus", "corpus.jsonl", "--run", "static.jsonl")
    assert not erag("evaluate", *options, "--traces", "bm25.jsonl", "--out", "out")
    summary = json.loads((given / "out" / "summary.json").read_text())
    assert {row["run"] for row in summary["means"]} == {"static", "bm25"}


def test_a_plan_of_traces_leaves_nothing_behind(given, capsys):
    before = sorted(given.iterdir())
    assert not erag("plan", *RECORDED, "--traces", "bm25.jsonl", "--out", "out", "--json")
    assert json.loads(capsys.readouterr().out)
    assert sorted(given.iterdir()) == before


BAD = {
    "two runs of a name": ("--traces", "bm25.jsonl", "bm25=dense.jsonl"),
    "no question of the queries": ("--traces", "others.jsonl"),
    "texts beside a corpus": ("--traces", "texts.jsonl", "--corpus", "corpus.jsonl"),
    "no file": ("--traces", "none.jsonl"),
    "the place of the tables": ("--traces", "out/traces/bm25.jsonl"),
    "a static run without answers": ("--traces", "bm25.jsonl", "--run", "static.jsonl"),
    "two answers": ("--traces", "dense.jsonl", "answers.jsonl"),
    "an id and a text of a query": ("--traces", "both.jsonl"),
}


@pytest.mark.parametrize("what", BAD)
def test_unusable_traces_are_refused_in_a_line(given, capsys, what):
    (given / "out" / "traces").mkdir(parents=True)
    write(given / "out" / "traces" / "bm25.jsonl", BM25)
    write(given / "others.jsonl", [search("q9", 1, ARUBA, output="x")])
    write(given / "texts.jsonl", [search("q1", 1, {"text": ARUBA["text"]})])
    write(given / "both.jsonl", [search("q1", 1), search("capital of Aruba", 1, ARUBA)])
    write(given / "corpus.jsonl", [ARUBA, LIMA])
    write(given / "static.jsonl", [{"query_id": "q1", "results": [ARUBA, LIMA]}])
    write(
        given / "answers.jsonl", [search("q1", 1, ARUBA), *({"query_id": "q1", "output": "x"},) * 2]
    )
    assert erag("evaluate", *RECORDED, "--out", "out", *BAD[what]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("erag: ")]
    assert len(said) == 1
    as_expected(said[0])
    assert [path.name for path in (given / "out" / "traces").iterdir()] == ["bm25.jsonl"]


def test_an_id_is_no_text_of_another_query_and_a_text_is_of_every_query_that_has_it(given):
    queries = [
        {"id": "a", "query": "b", "answers": ["x"]},
        {"id": "b", "query": "c", "answers": ["y"]},
        {"id": "d", "query": "twice", "answers": ["x"]},
        {"id": "e", "query": "twice", "answers": ["y"]},
    ]
    write(given / "queries.jsonl", queries)
    passages = [{"id": "p", "text": "it is y"}]
    own = {"step": 1, "search": "s", "passages": passages, "output": "y"}
    write(given / "own.jsonl", [{"query_id": "b", **own}])
    assert not erag("evaluate", *RECORDED, "--traces", "own.jsonl", "--out", "out")
    found = pl.read_parquet("out/downstream.parquet").filter(pl.col("output") == "y")
    assert found.select("query_id", "value").rows() == [("b", 1.0)]
    write(given / "twice.jsonl", [{"query": "twice", **own}])
    assert not erag("evaluate", *RECORDED, "--traces", "twice.jsonl", "--out", "new")
    for table in ("downstream", "trace_steps"):
        found = pl.read_parquet(f"new/{table}.parquet")
        assert {"d", "e"} <= {*found["query_id"]}


def test_files_of_earlier_traces_are_no_inputs_of_an_evaluation_there(given, capsys):
    assert not erag("evaluate", *RECORDED, "--traces", "bm25.jsonl", "--out", "out")
    folder = given / "out" / "traces"
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    place = next(folder.glob("run-*"))
    assert erag("evaluate", *RECORDED, "--run", place, "--out", "out", "--overwrite") == 2
    as_expected(capsys.readouterr().err.splitlines()[-1].replace(place.name, "RUN"))
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_notes_on_traces_stand_in_the_results_and_refusals_name_their_file(given, capsys):
    span = {
        "trace_id": "t",
        "span_id": "r",
        "start_time": "2026-01-02",
        "input.value": "capital of Peru",
    }
    found = {"span_kind": "RETRIEVER", "retrieval.documents": [{"document.content": "in Lima"}]}
    write(given / "spans.jsonl", [span, span | found | {"span_id": "s", "parent_id": "gone"}])
    assert not erag("evaluate", *CONTAINMENT, *COMMON, "--traces", "spans.jsonl", "--out", "out")
    notes = json.loads((given / "out" / "summary.json").read_text())["notes"]
    assert [note["about"] for note in notes["lost_parents"]] == [["spans.jsonl"]]
    write(given / "corpus.jsonl", [{"id": "z", "text": "zero"}])
    stranger = {"query_id": "q1", "step": 1, "search": "s", "passages": ["z", "unknown"]}
    write(given / "unknown.jsonl", [stranger])
    capsys.readouterr()
    options = ("--traces", "unknown.jsonl", "--corpus", "corpus.jsonl", "--out", "new")
    assert erag("evaluate", *RECORDED, *options) == 2
    assert "erag: unknown.jsonl:" in capsys.readouterr().err
