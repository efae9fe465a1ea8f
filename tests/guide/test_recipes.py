"""The recipes of docs/guide/recipes.md, run as they stand there, on results of the frameworks' shapes."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
from langchain_core.documents import Document

from engine.inputs.files import InputFiles
from engine.inputs.read import read_inputs
from engine.sources.runs.read import id_of, read_run
from tests.commands import CONTAINMENT, erag, scores_of

PAGE = Path(__file__).parents[2] / "docs/guide/recipes.md"
RECIPES = dict(re.findall(r"## (\w+)\n[^#]*?```python\n(.*?)```", PAGE.read_text(), re.S))
EDITS = re.findall(r"```python\n(.*?)```", PAGE.read_text().partition("## Edited runs")[2], re.S)
QUESTIONS = {"q1": "who did it", "q2": "who slept"}
FOUND = {"who did it": ["Ann did it.", "Bo slept."], "who slept": ["Bo slept."]}


def passages(question):
    return [
        (f"id-{text[:2]}", text, text.split()[0], 1 / place)
        for place, text in enumerate(FOUND[question], 1)
    ]


class LangChain:
    """``BaseRetriever.invoke``: documents of LangChain's own class."""

    def invoke(self, question):
        return [Document(t, id=i, metadata={"title": n}) for i, t, n, _ in passages(question)]


class LlamaIndex:
    """``BaseRetriever.retrieve``: nodes with scores."""

    def retrieve(self, question):
        return [
            SimpleNamespace(node=SimpleNamespace(node_id=i, get_content=lambda t=t: t), score=s)
            for i, t, _, s in passages(question)
        ]


@dataclass
class HaystackDocument:
    id: str
    content: str
    score: float
    meta: dict = field(default_factory=dict)


class Haystack:
    """``Pipeline.run``: what components return, by their names."""

    def run(self, data):
        found = passages(data["retriever"]["query"])
        documents = [HaystackDocument(i, t, s, {"title": n}) for i, t, n, s in found]
        return {"retriever": {"documents": documents}}


def write_rows(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def inputs_with(run):
    """What is evaluated of the questions and a run beside which nothing is given."""
    queries = run.with_name("queries.jsonl")
    write_rows(
        queries, ({"id": i, "question": q, "answers": ["Ann"]} for i, q in QUESTIONS.items())
    )
    return read_inputs(InputFiles(queries=queries, run=(run,)), k=10)


@pytest.mark.parametrize(
    ("name", "given", "title"),
    [
        ("LangChain", {"retriever": LangChain()}, "Ann"),
        ("LlamaIndex", {"retriever": LlamaIndex()}, ""),
        ("Haystack", {"pipeline": Haystack()}, "Ann"),
    ],
)
def test_a_recipe_writes_a_run_that_needs_no_corpus(name, given, title, tmp_path, monkeypatch):
    recipe = RECIPES[name]
    assert len([line for line in recipe.splitlines() if line.strip()]) <= 10
    monkeypatch.chdir(tmp_path)
    exec(compile(recipe, PAGE, "exec"), {"questions": QUESTIONS, **given})
    inputs = inputs_with(tmp_path / f"{name.lower()}.jsonl")
    assert inputs.runs.select("query_id", "doc_id", "rank").rows() == [
        ("q1", "id-An", 1), ("q1", "id-Bo", 2), ("q2", "id-Bo", 1),
    ]  # fmt: skip
    assert inputs.corpus.select("doc_id", "text", "title").rows()[0] == (
        "id-An",
        "Ann did it.",
        title,
    )


def test_documents_without_ids_are_named_by_their_texts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    retriever = SimpleNamespace(
        invoke=lambda question: [Document(text) for text in FOUND[question]]
    )
    exec(RECIPES["LangChain"], {"questions": QUESTIONS, "retriever": retriever})
    inputs = inputs_with(tmp_path / "langchain.jsonl")
    assert set(inputs.runs["doc_id"]) == {id_of("Ann did it."), id_of("Bo slept.")}


def test_a_data_set_of_ragas_is_queries_and_run(tmp_path, capsys):
    rows = [
        {"user_input": q, "retrieved_contexts": FOUND[q], "response": "?", "reference": "Ann"}
        for q in QUESTIONS.values()
    ]
    path = tmp_path / "ragas.jsonl"
    write_rows(path, rows)
    options = (*CONTAINMENT, "--out", tmp_path / "out")
    assert erag("evaluate", "--queries", path, "--run", path, *options) == 0, (
        capsys.readouterr().err
    )
    labels = pl.read_parquet(tmp_path / "out/labels.parquet").sort("query_id", "doc_id")
    assert labels.filter(pl.col("label") > 0).select("query_id", "doc_id").rows() == [
        ("1", id_of("Ann did it."))
    ]


CORPUS = {
    "d1": "Ann did it in Rome.",
    "d2": "Bo slept in May.",
    "d3": "Nobody knows.",
    "d4": "Rome, in May.",
}
ASKED = {"q1": ("who", "Ann"), "q2": ("where", "Rome"), "q3": ("when", "May")}
FIRST = {"q1": ["d3", "d1", "d2"], "q2": ["d2", "d4", "d3"], "q3": ["d3", "d1", "d2"]}
READER = """
import re

KNOWN = {"who": "Ann|Bo", "where": "Rome", "when": "May"}

def read(prompts):
    with open("asked", "a") as file:
        print(*map(repr, prompts), sep="\\n", file=file)
    named = [re.findall(KNOWN[re.search(r"(\\w+) was", text)[1]], text) for text in prompts]
    return [(names or ["?"])[0] for names in named]

read.version = "1"
"""


@pytest.fixture
def first(tmp_path, monkeypatch):
    """A folder with queries, corpus, a reader, and the run of which the page writes an edited one."""
    monkeypatch.chdir(tmp_path)
    queries = [
        {"id": i, "question": f"{word} was it?", "answers": [name]}
        for i, (word, name) in ASKED.items()
    ]
    write_rows(Path("queries.jsonl"), queries)
    write_rows(Path("corpus.jsonl"), ({"id": i, "text": text} for i, text in CORPUS.items()))
    # The column of ranks says nothing: scores decide.
    lines = [f"{q} Q0 {d} 0 {9 - n} first\n" for q, ids in FIRST.items() for n, d in enumerate(ids)]
    Path("first.trec").write_text("".join(lines))
    Path("reader.py").write_text(READER)
    Path("asked").touch()


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (1, {"q1": ["d1", "d3", "d2"]}),
        (2, {"q2": ["d1", "d2", "d4", "d3"]}),
        (3, {"q3": ["d1", "d2"]}),
    ],
)
def test_each_edit_of_a_run_changes_one_list(first, edit, expected):
    exec("".join([EDITS[0], EDITS[edit], EDITS[-1]]), {})
    lists = read_run("second.trec").group_by("query_id", maintain_order=True).agg("doc_id")
    assert dict(lists.iter_rows()) == FIRST | expected


def evaluate(out, *runs):
    """The calls that the reader gets when these runs are evaluated."""
    before = Path("asked").read_text().splitlines()
    given = [part for run in runs for part in ("--run", f"{run}.trec")]
    assert erag(
        "evaluate", "--queries", "queries.jsonl", "--corpus", "corpus.jsonl", *given,
        "--reader", "reader.py:read", "--k", 3, "--end-to-end-k", 2, "--measures", "P@3 RR@3 R@3",
        "--resamples", 0, "--store", "store", "--out", out,
    ) == 0  # fmt: skip
    return Path("asked").read_text().splitlines()[len(before) :]


def test_an_edited_run_costs_its_new_reads_and_has_the_labels_and_scores_of_its_lists(first):
    """The labels and scores are those that the option for edits gave, which read such a second run itself."""
    assert len(EDITS) == 5
    assert all(len(block.splitlines()) <= 10 for block in EDITS)
    exec("".join(EDITS), {})
    # Three lists of three passages, each passage alone; and three whole lists.
    assert len(evaluate("before", "first")) == 12
    new = evaluate("after", "first", "second")
    # Alone only d1 for q2, which was inserted. Whole lists of two: d1, d3 (q1), d1, d2 (q2) and d1, d2 (q3).
    texts = [[d for d, text in CORPUS.items() if text in prompt] for prompt in new]
    assert sorted(texts) == [["d1"], ["d1", "d2"], ["d1", "d2"], ["d1", "d3"]]
    labels = pl.read_parquet("after/labels.parquet")
    assert set(labels.filter(label=1).select("query_id", "doc_id").rows()) == {
        ("q1", "d1"), ("q2", "d1"), ("q2", "d4"), ("q3", "d2"),
    }  # fmt: skip
    assert labels.height == 10
    scores = scores_of(Path("after")).sort("query_id")
    by = ["run", "measure"]
    found = {tuple(row[:2]): row[2] for row in scores.group_by(by).agg("value").iter_rows()}
    assert found == {
        # first: d3 [d1] d2; d2 [d4] d3, of two that the pool has; d3 d1 [d2]
        ("first", "P@3"): pytest.approx([1 / 3, 1 / 3, 1 / 3]),
        ("first", "RR@3"): pytest.approx([1 / 2, 1 / 2, 1 / 3]),
        ("first", "R@3"): [1, 1 / 2, 1],
        # second: [d1] d3 d2; [d1] d2 [d4]; d1 [d2]
        ("second", "P@3"): pytest.approx([1 / 3, 2 / 3, 1 / 3]),
        ("second", "RR@3"): [1, 1, 1 / 2],
        ("second", "R@3"): [1, 1, 1],
    }
    # Whole lists of two: first reads d3 d1: Ann; d2 d4: Rome; d3 d1: no month. The second reads d1 d2: May.
    whole = pl.read_parquet("after/downstream.parquet").select("run", "query_id", "value").rows()
    assert {(run, q) for run, q, value in whole if value == 0} == {("first", "q3")}
    assert len(whole) == 6
