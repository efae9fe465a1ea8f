"""Runs over several cuts of the same documents, in one evaluation."""

import json
from pathlib import Path

import pytest

from engine.inputs.files import InputFiles
from engine.inputs.partition import partition
from engine.inputs.read import read_inputs
from engine.sources.io.folders import folder_at
from engine.sources.runs.read import split_runs
from tests.expected import refused
from tests.tables import table_files

# Of the article a, short passages and long ones; b is one passage in both cuts.
CUTS = {
    "short": {"a-0": "one two", "a-1": "three four", "b-0": "five"},
    "long": {"a-0": "one two three four", "b-0": "five"},
}
RUNS = {"short": ["a-1", "b-0", "a-0"], "long": ["b-0", "a-0"]}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("queries.jsonl").write_text('{"query_id": "q", "query": "what", "answers": ["five"]}\n')
    for name, texts in CUTS.items():
        rows = [json.dumps({"id": one, "text": text}) for one, text in texts.items()]
        Path(f"{name}.jsonl").write_text("\n".join(rows))
        lines = [f"q Q0 {one} {rank} {-rank} bm25\n" for rank, one in enumerate(RUNS[name], 1)]
        Path(f"{name}.trec").write_text("".join(lines))
    Path("q.txt").write_text("q 0 a-0 1\n")
    Path("lost.txt").write_text("q 0 a-0 1\nq 0 a-1 1\nq 0 a-2 1\n")
    return tmp_path


def files(*runs, tables=None, **more):
    both = [Path("short.jsonl"), Path("long.jsonl")]
    given, corpora = split_runs([Path(run) for run in runs], both)
    named = table_files(both, **(tables or {}))
    return InputFiles(queries="queries.jsonl", run=given, corpora=corpora, tables=named, **more)


def of_one(qrels):
    named, run = table_files([Path("short.jsonl")], qrels=qrels), (Path("short.trec"),)
    return InputFiles(queries="queries.jsonl", run=run, corpus="short.jsonl", tables=named)


def test_documents_are_called_by_their_corpus_only_where_texts_differ(folder):
    inputs = read_inputs(files("short.trec@short", "long.trec@long.jsonl"), k=3)
    listed = {}
    for run, doc in inputs.runs.select("run", "doc_id").iter_rows():
        listed.setdefault(run, []).append(doc)
    # b-0 has the same text in both cuts and is one passage; a-0 is not, and a-1 is in one cut alone.
    short, long = ["a-1", "b-0", "short:a-0"], ["b-0", "long:a-0"]
    assert listed == {"bm25@short": short, "bm25@long": long}
    assert dict(inputs.corpus.select("doc_id", "text").iter_rows()) == {
        "a-1": "three four", "b-0": "five", "short:a-0": "one two", "long:a-0": "one two three four"
    }  # fmt: skip


def test_shards_have_the_same(folder):
    given = files("short.trec@short", "long.trec@long", tables={"qrels": "q.txt@long"})
    (shard,) = (made := partition(given, folder_at(folder / "shards"), k=3)).shards
    held, cut = read_inputs(given, k=3), made.read(shard.number)
    assert cut.tables["qrels"].equals(held.tables["qrels"])
    for name, keys in (("runs", ["run", "rank"]), ("corpus", ["doc_id"])):
        assert getattr(cut, name).sort(keys).equals(getattr(held, name).sort(keys))


@pytest.mark.parametrize("name", ["q.txt@long", "q.txt@long.jsonl", "a@b.txt@long"])
def test_judgments_of_a_corpus_that_no_run_is_over_are_those_of_its_texts(folder, name):
    Path("a@b.txt").write_text("q 0 a-0 1\n")
    judged = read_inputs(files("short.trec@short", tables={"qrels": name}), k=3).tables["qrels"]
    assert judged.drop("largest").rows() == [("q", "one two three four", 1.0, False)]


def test_a_file_whose_name_has_an_at_is_read_as_it_stands(folder):
    text = {"user_input": "what", "reference_contexts": ["five"]}
    Path("mine@home.json").write_text(json.dumps(text))
    judged = read_inputs(files("short.trec@short", tables={"qrels": "mine@home.json"}), k=3).tables
    assert judged["qrels"].drop("largest").rows() == [("q", "five", 1.0, True)]


@pytest.mark.parametrize(
    ("make", "code"),
    [
        (lambda: files("short.trec", "long.trec@long"), "runs.corpus"),
        (lambda: split_runs(["r@a"], ["x/a.jsonl", "y/a.jsonl"]), "runs.corpus"),
        (lambda: read_inputs(files("short.trec@long"), k=3), "runs.unknown"),
        (lambda: read_inputs(files("short.trec@short", "short.trec@short"), k=3), "runs.name"),
        (lambda: files("short.trec@short", skip_bad=1), "settings.tolerance"),
        (lambda: read_inputs(files("short.trec@short", tables={"qrels": "q.txt"}), k=3), "inputs.corpus"),
        (lambda: files("short.trec@short", tables={"qrels": "q.txt@x"}), "runs.corpus"),
        (lambda: read_inputs(files("short.trec@short", tables={"qrels": "lost.txt@long"}), k=3), "qrels.corpus"),
        (lambda: read_inputs(of_one("q.txt@short"), k=3), "files.missing"),
    ],
)  # fmt: skip
def test_what_belongs_to_no_corpus_for_certain_is_refused(folder, make, code):
    with refused(code):
        make()
