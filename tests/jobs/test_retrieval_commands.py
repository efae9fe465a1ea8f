"""Indexes, retrieval and fusion as a user runs them."""

import json
import subprocess
import sys
import time

import pytest

from engine.retrieval import manifest
from engine.sources.runs import read_run
from tests.jobs.test_commands import erag
from tests.retrieval.tiny_encoder import save_tiny_encoder


@pytest.fixture
def files(tmp_path):
    passages = [
        {"id": "a", "title": "Aruba", "text": "The capital of Aruba is Oranjestad."},
        {"id": "b", "title": "Animal Farm", "text": "Animal Farm is a novella by George Orwell."},
        {"id": "c", "title": "Abacus", "text": "The abacus is a calculating tool."},
    ]
    corpus, queries = tmp_path / "c.jsonl", tmp_path / "q.jsonl"
    corpus.write_text("".join(json.dumps(p) + "\n" for p in passages))
    asked = ["what is the capital of aruba", "who wrote animal farm", "to be or not to be"]
    queries.write_text(
        "".join(json.dumps({"id": str(i), "input": q}) + "\n" for i, q in enumerate(asked, 1))
    )
    return {
        "corpus": corpus,
        "queries": queries,
        "bm25": tmp_path / "bm25",
        "dense": tmp_path / "d",
    }


def index(files, kind, *more):
    options = ["--corpus", files["corpus"], "--out", files[kind], *more]
    return erag("index", kind, *options)


def retrieve(files, out, *indexes, more=()):
    given = [part for name in indexes for part in ("--index", files[name])]
    return erag("retrieve", *given, "--queries", files["queries"], "--k", 2, "--out", out, *more)


def test_two_retrievers_and_their_fusion_from_the_command_line(files, tmp_path, capsys):
    assert index(files, "bm25") == 0
    assert index(files, "dense", "--actors", 0, "--factory", "HNSW8") == 0
    assert "3 passages indexed (384 dimensions, fp32)" in capsys.readouterr().out
    out = tmp_path / "runs"
    more = ["--fuse", "rrf", "--corpus", files["corpus"], "--approximate", "efSearch=32"]
    assert retrieve(files, out, "bm25", "dense", more=more) == 0
    printed = capsys.readouterr().out
    assert "bm25: 2 results for 3 queries, 1 queries without any hit" in printed
    assert "dense: recall@2 of the exact lists 1.0000 (of 3 queries)" in printed
    runs = {name: read_run(out / f"{name}.trec") for name in ("bm25", "dense", "rrf")}
    assert runs["dense"].height == runs["rrf"].height == 6
    assert runs["dense"].filter(rank=1)["doc_id"].to_list()[:2] == ["a", "b"]
    given = ["--run", out / "bm25.trec", "--run", out / "dense.trec", "--k", 2]
    assert erag("fuse", *given, "--out", tmp_path / "fused.trec") == 0
    assert read_run(tmp_path / "fused.trec").equals(runs["rrf"])
    assert retrieve(files, tmp_path / "one.trec", "bm25", "dense", more=["--fuse", "rrf"]) == 0
    assert read_run(tmp_path / "one.trec").equals(runs["rrf"])


def test_questions_that_have_no_answer_are_left_out_and_counted(files, tmp_path, capsys):
    asked = [
        {"id": "1", "question": "who wrote animal farm", "answers": [{"text": "Orwell"}]},
        {"id": "2", "question": "who wrote nothing", "answers": [], "is_impossible": True},
    ]
    paragraph = {"context": "Animal Farm is by George Orwell.", "qas": asked}
    document = {"data": [{"title": "Animal Farm", "paragraphs": [paragraph]}]}
    files["queries"] = tmp_path / "squad.json"
    files["queries"].write_text(json.dumps(document))
    assert index(files, "bm25") == 0
    assert retrieve(files, tmp_path / "run.trec", "bm25") == 0
    printed = capsys.readouterr().out
    assert "1 unanswerable questions left out\nbm25: 1 results for 1 queries ->" in printed
    assert read_run(tmp_path / "run.trec")["query_id"].to_list() == ["1"]


def test_indexes_that_do_not_fit_are_refused_in_one_line(files, tmp_path, capsys):
    encoder = save_tiny_encoder(tmp_path / "encoder")
    assert index(files, "bm25") == 0
    assert index(files, "dense", "--actors", 0, "--encoder", encoder) == 0
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({"id": "a", "text": "Something else."}) + "\n")
    save_tiny_encoder(tmp_path / "another", seed=8)
    bare = save_tiny_encoder(tmp_path / "bare")
    (bare / "modules.json").unlink()
    new = files | {"dense": tmp_path / "new"}
    capsys.readouterr()

    def refused(status, words):
        assert status == 2, words
        (line,) = capsys.readouterr().err.splitlines()
        assert words in line

    r = tmp_path / "r"
    refused(retrieve(files, r, "bm25", more=["--corpus", other]), "of another corpus")
    more = ["--encoder", tmp_path / "another"]
    refused(retrieve(files, r, "dense", more=more), "is not the encoder")
    refused(retrieve(files, tmp_path / "r.trec", "bm25", "dense"), "give a directory, or --fuse")
    refused(retrieve(files, r, "bm25", more=["--fuse", "rrf"]), "--fuse with one index")
    refused(retrieve(files, r, "bm25", "bm25"), "two runs of the same name")
    more = ["--approximate", "nprobe=2"]
    refused(retrieve(files, r, "dense", more=more), "has no approximate index")
    refused(index(new, "dense", "--encoder", bare), "give a --preset")
    contrary = ["--encoder", encoder, "--preset", "bge"]
    refused(index(new, "dense", *contrary), "the preset 'bge' by 'cls'")
    refused(index(new, "dense", "--preset", "best"), "unknown preset 'best'")
    refused(index(new, "dense", "--memory", "1MiB"), "cannot hold the encoder")
    refused(index(files, "bm25", "--language", "xx"), "unknown language")
    assert retrieve(files, tmp_path / "r", "bm25", more=["--corpus", files["corpus"]]) == 0


@pytest.mark.slow
def test_a_killed_build_finishes_from_where_it_was(tmp_path):
    """SIGKILL the encoding once some shards are there; the next run leaves these alone."""
    encoder = save_tiny_encoder(tmp_path / "encoder")
    corpus, out = tmp_path / "c.jsonl", tmp_path / "i"
    texts = (" ".join(f"w{(i * j) % 200}" for j in range(1, 40)) for i in range(40_000))
    corpus.write_text("".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in enumerate(texts)))
    options = ["--corpus", corpus, "--out", out, "--encoder", encoder, "--actors", 0]
    command = [sys.executable, "-m", "jobs.index", "dense", *map(str, options)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while len(list(out.glob("shards/[!.]*"))) < 3:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.kill()
    process.wait()
    kept = {file: file.stat().st_mtime_ns for file in out.glob("shards/[!.]*")}
    assert 3 <= len(kept) < 20
    assert not (out / manifest.FILE).exists()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=600)
    assert {file: file.stat().st_mtime_ns for file in kept} == kept
    files = {file.stem for file in out.glob("shards/*")}
    assert files == set(manifest.read(out).settings["shards"])
    assert len(files) == 20
