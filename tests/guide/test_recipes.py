"""The recipes of docs/guide/recipes.md, run as they stand there, on results of the frameworks' shapes."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import polars as pl
import pytest
from langchain_core.documents import Document

from engine.evaluation.inputs import InputFiles, read_inputs
from engine.sources.runs.texts import id_of
from tests.commands import erag

PAGE = Path(__file__).parents[2] / "docs/guide/recipes.md"
RECIPES = dict(re.findall(r"## (\w+)\n.*?```python\n(.*?)```", PAGE.read_text(), re.S))
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
    queries = tmp_path / "queries.jsonl"
    queries.write_text(
        "".join(
            json.dumps({"id": i, "question": q, "answers": ["Ann"]}) + "\n"
            for i, q in QUESTIONS.items()
        )
    )
    inputs = read_inputs(
        InputFiles(queries=queries, run=(tmp_path / f"{name.lower()}.jsonl",)), k=10
    )
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
    queries = tmp_path / "queries.jsonl"
    queries.write_text(
        "".join(
            json.dumps({"id": i, "question": q, "answers": ["Ann"]}) + "\n"
            for i, q in QUESTIONS.items()
        )
    )
    inputs = read_inputs(InputFiles(queries=queries, run=(tmp_path / "langchain.jsonl",)), k=10)
    assert set(inputs.runs["doc_id"]) == {id_of("Ann did it."), id_of("Bo slept.")}


def test_a_data_set_of_ragas_is_queries_and_run(tmp_path, capsys):
    rows = [
        {"user_input": q, "retrieved_contexts": FOUND[q], "response": "?", "reference": "Ann"}
        for q in QUESTIONS.values()
    ]
    path = tmp_path / "ragas.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = ("--annotators", "containment", "--no-end-to-end", "--out", tmp_path / "out")
    assert erag("evaluate", "--queries", path, "--run", path, *options) == 0, (
        capsys.readouterr().err
    )
    labels = pl.read_parquet(tmp_path / "out/labels.parquet").sort("query_id", "doc_id")
    assert labels.filter(pl.col("label") > 0).select("query_id", "doc_id").rows() == [
        ("1", id_of("Ann did it."))
    ]
