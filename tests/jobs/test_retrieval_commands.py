"""Indexes, retrieval and fusion as a user runs them."""

import json
import re
import shutil
import subprocess
import sys
import time

import pytest

from engine.machine.remote import limits
from engine.retrieval import manifest
from engine.sources.runs.read import read_run
from tests.commands import erag
from tests.expected import as_expected
from tests.reading.remote.server import Behaviour, Said, serving
from tests.retrieval.tiny_encoder import save_tiny_encoder

PASSAGES = [
    {"id": "a", "title": "Aruba", "text": "The capital of Aruba is Oranjestad."},
    {"id": "b", "title": "Animal Farm", "text": "Animal Farm is a novella by George Orwell."},
    {"id": "c", "title": "Abacus", "text": "The abacus is a calculating tool."},
]


@pytest.fixture
def files(tmp_path):
    corpus, queries = tmp_path / "c.jsonl", tmp_path / "q.jsonl"
    corpus.write_text("".join(json.dumps(p) + "\n" for p in PASSAGES))
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


@pytest.fixture
def indexed(files, without_java):
    """The files with their index for BM25, which is searched without Lucene."""
    assert index(files, "bm25") == 0
    return files


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
    as_expected(re.findall("bm25: 2 .* hit|dense: recall.*", printed))
    runs = {name: read_run(out / f"{name}.trec") for name in ("bm25", "dense", "rrf")}
    assert runs["dense"].height == runs["rrf"].height == 6
    assert runs["dense"].filter(rank=1)["doc_id"].to_list()[:2] == ["a", "b"]
    given = ["--run", out / "bm25.trec", "--run", out / "dense.trec", "--k", 2]
    assert erag("fuse", *given, "--out", tmp_path / "fused.trec") == 0
    assert read_run(tmp_path / "fused.trec").equals(runs["rrf"])


def test_vectors_of_a_server_are_paid_for_once(files, tmp_path, monkeypatch, capsys, without_java):
    monkeypatch.setenv("ERAG_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret-0123456789")
    behaviour = Behaviour(lambda body: Said("no chat"), key="sk-secret-0123456789")
    encoder = ["--encoder", "openai:small@6"]
    with serving(behaviour) as url:
        server = ["--base-url", url, "--price-in", 1, "--max-cost", 1]
        assert index(files, "dense", *encoder, *server) == 0
        # 3 words of the trial, twice, and 7 + 10 + 7 of the passages with their titles
        assert "(6 dimensions, fp32)" in (printed := capsys.readouterr().out)
        assert f"30 tokens for 3e-05 used of {url.split('/')[2]}\n" in printed
        for tokens in (3 + 6 + 4 + 6, 3):  # the trial, and the queries once
            limits.forget()
            asked = len(behaviour.texts)
            assert retrieve(files, tmp_path / "run.trec", "dense", more=["--base-url", url]) == 0
            assert f"{tokens} tokens used of " in capsys.readouterr().out
        assert len(behaviour.texts) == asked
        assert read_run(tmp_path / "run.trec").filter(rank=1)["doc_id"].to_list()[:2] == ["a", "b"]
        more = ["--ignore-identical-ids", "--approximate", ""]
        assert index(files, "dense", *encoder, "--base-url", url, "--factory", "Flat") == 0
        more += ["--base-url", url]
        assert retrieve(files, tmp_path / "run.trec", "dense", more=more) == 0
        as_expected(re.findall("recall@2 .*", capsys.readouterr().out))
        # The other commands that take such encoders say so, too; here nothing but the trial, twice.
        several = files | {"several": tmp_path / "several"}
        assert index(several, "several", *encoder, *server) == 0
        assert " tokens for " in capsys.readouterr().out
        log = ["--queries", files["queries"], "--user-queries", files["queries"]]
        limits.forget()
        assert erag("coverage", *log, *encoder, "--clusters", 2, *server) == 0
        assert f"6 tokens for 6e-06 used of {url.split('/')[2]}\n" in capsys.readouterr().out
        assert len(behaviour.texts) == asked
        behaviour.key = "another"
        assert retrieve(files, tmp_path / "run.trec", "dense", more=["--base-url", url]) == 2
        as_expected(capsys.readouterr().err.splitlines()[-1])
    for path in tmp_path.rglob("*"):
        assert not path.is_file() or b"sk-secret" not in path.read_bytes()
    for kind, more in (
        ("dense", [*encoder, "--actors", 2, "--base-url", url]),
        ("dense", ["--max-tokens", 5]),
        ("several", ["--max-tokens", 5]),
        ("dense", [*encoder, "--memory", "2GiB"]),
    ):
        assert index(several, kind, *more) == 2
        as_expected(re.sub(r" \(.*\)", "", capsys.readouterr().err.splitlines()[-1]))


def test_options_named_like_commands_may_stand_in_a_yaml_file(indexed, tmp_path, capsys):
    other = shutil.copytree(indexed["bm25"], tmp_path / "other")
    indexes = [str(indexed["bm25"]), str(other)]
    options = {"index": indexes, "name": ["one", "two"], "fuse": "rrf"}
    options |= {"queries": str(indexed["queries"]), "out": str(tmp_path / "runs"), "k": 2}
    (tmp_path / "o.yaml").write_text(json.dumps(options))  # JSON is YAML
    assert erag("retrieve", "--config", tmp_path / "o.yaml") == 0
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        "one.trec",
        "two.trec",
        "rrf.trec",
    }
    (tmp_path / "i.yaml").write_text(f"corpus: {indexed['corpus']}\nout: {tmp_path / 'again'}\n")
    assert erag("index", "bm25", "--config", tmp_path / "i.yaml") == 0
    assert manifest.read(tmp_path / "again").passages == 3


def test_an_index_that_is_given_twice_is_refused(indexed, tmp_path, capsys):
    more = ["--fuse", "rrf", "--name", "one", "--name", "two"]
    twice = indexed | {"again": indexed["bm25"].parent / "x" / ".." / indexed["bm25"].name}
    assert retrieve(twice, tmp_path / "runs", "bm25", "again", more=more) == 2
    assert "--index has" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_indexes_whose_documents_have_other_ids_are_not_fused(indexed, tmp_path, capsys):
    renamed = [json.dumps({**passage, "id": f"v_{passage['id']}"}) for passage in PASSAGES]
    (tmp_path / "other.jsonl").write_text("\n".join(renamed))
    indexed |= {
        "corpus": tmp_path / "other.jsonl",
        "other": indexed["bm25"],
        "bm25": tmp_path / "b",
    }
    assert index(indexed, "bm25") == 0
    capsys.readouterr()
    assert retrieve(indexed, tmp_path / "f.trec", "other", "bm25", more=["--fuse", "rrf"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    as_expected(line)
    assert not (tmp_path / "f.trec").exists()


def test_a_system_without_any_hit_is_fused_nevertheless(indexed, tmp_path, capsys):
    assert index(indexed, "dense", "--actors", 0) == 0
    indexed["queries"].write_text('{"id": "1", "input": "to be or not to be"}\n')
    assert retrieve(indexed, tmp_path / "runs", "bm25", "dense", more=["--fuse", "rrf"]) == 0
    as_expected(re.findall("bm25: 0 .* hit", capsys.readouterr().out))
    fused, dense = (read_run(tmp_path / "runs" / f"{name}.trec") for name in ("rrf", "dense"))
    assert fused["doc_id"].to_list() == dense["doc_id"].to_list()
    assert retrieve(indexed, tmp_path / "one.trec", "bm25", "dense", more=["--fuse", "rrf"]) == 0
    assert read_run(tmp_path / "one.trec").equals(fused)


def test_an_index_never_replaces_other_files(indexed, tmp_path, capsys):
    (tmp_path / "mine" / "shards").mkdir(parents=True)
    (tmp_path / "mine" / "shards" / "a.txt").write_text("kept")
    for kind in ("bm25", "dense"):
        assert index(indexed | {kind: tmp_path / "mine"}, kind) == 2
        as_expected(capsys.readouterr().err.splitlines()[-1])
    assert (tmp_path / "mine" / "shards" / "a.txt").read_text() == "kept"
    assert index(indexed | {"dense": indexed["bm25"]}, "dense") == 2
    as_expected(capsys.readouterr().err.splitlines()[-1])
    (indexed["bm25"] / "notes.md").write_text("kept")
    assert index(indexed, "bm25") == 2
    as_expected(capsys.readouterr().err.splitlines()[-1])
    (indexed["bm25"] / "notes.md").unlink()
    # of an earlier version, or broken: to be built again is its remedy
    for text in ('{"kind": "bm25", "passages": 3}', "{"):
        (indexed["bm25"] / manifest.FILE).write_text(text)
        assert retrieve(indexed, tmp_path / "run.trec", "bm25") == 2
        as_expected(capsys.readouterr().err.splitlines()[-1])
        assert index(indexed, "bm25") == 0
    assert retrieve(indexed, tmp_path / "run.trec", "bm25") == 0
    assert not list(tmp_path.glob(".*"))  # nothing of the old one is left beside it
    assert index(indexed, "dense", "--actors", 0) == 0
    assert index(indexed | {"bm25": indexed["dense"]}, "bm25") == 2
    as_expected(capsys.readouterr().err.splitlines()[-1])
    assert manifest.read(indexed["dense"]).kind == "dense"


def test_odd_queries_cutoffs_and_outputs(files, tmp_path, capsys):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    files["bm25"] = tmp_path / "link"
    assert index(files, "bm25") == 0
    words = " ".join(f"word{i}" for i in range(3000))
    files["queries"].write_text(json.dumps({"id": "1", "input": f"{words} abacus"}) + "\n")
    out = tmp_path / "run.trec"
    given = ["--index", files["bm25"], "--queries", files["queries"], "--out", f"file://{out}"]
    assert erag("retrieve", *given, "--k", 3_000_000_000) == 0
    assert read_run(out)["doc_id"].to_list() == ["c"]
    capsys.readouterr()
    for more in (
        ["--out", tmp_path / "x.trec.gz"],
        ["--index", f"file://{tmp_path}/link"],
        ["--encoder", "bundled"],
    ):
        given = {"--index": files["bm25"], "--queries": files["queries"], "--out": out}
        given |= {more[0]: more[1]}
        assert erag("retrieve", *[part for pair in given.items() for part in pair]) == 2
        as_expected(capsys.readouterr().err.splitlines()[-1])


def test_ids_with_spaces_are_written_as_parquet(files, tmp_path, without_java):
    files["corpus"].write_text('{"id": "United States", "text": "animal farm"}\n')
    assert index(files, "bm25") == 0
    out = tmp_path / "runs"
    more = ["--name", "one", "two"]
    assert retrieve(files, out, "bm25", "bm25", more=more) == 0
    assert read_run(out / "one.parquet")["doc_id"].to_list() == ["United States"]


def test_unanswerable_questions_are_left_out_and_counted(indexed, tmp_path, capsys):
    asked = [
        {"id": "1", "question": "who wrote animal farm", "answers": [{"text": "Orwell"}]},
        {"id": "2", "question": "who wrote nothing", "answers": [], "is_impossible": True},
    ]
    paragraph = {"context": "Animal Farm is by George Orwell.", "qas": asked}
    document = {"data": [{"title": "Animal Farm", "paragraphs": [paragraph]}]}
    indexed["queries"] = tmp_path / "squad.json"
    indexed["queries"].write_text(json.dumps(document))
    assert retrieve(indexed, tmp_path / "run.trec", "bm25") == 0
    printed = capsys.readouterr().out
    assert "1 unanswerable question left out\nbm25: 1 result for 1 query ->" in printed
    assert read_run(tmp_path / "run.trec")["query_id"].to_list() == ["1"]


def test_unsuitable_indexes_and_options_are_refused_in_one_line(indexed, tmp_path, capsys):
    encoder = save_tiny_encoder(tmp_path / "encoder")
    assert index(indexed, "dense", "--actors", 0, "--encoder", encoder) == 0
    other = tmp_path / "other.jsonl"
    other.write_text(json.dumps({"id": "a", "text": "Something else."}) + "\n")
    save_tiny_encoder(tmp_path / "another", seed=8)
    bare = save_tiny_encoder(tmp_path / "bare")
    (bare / "modules.json").unlink()
    new = indexed | {"dense": tmp_path / "new"}
    capsys.readouterr()

    def refused(status):
        (line,) = capsys.readouterr().err.splitlines()
        assert status == 2, line
        as_expected(re.sub(r" in b?float.*", "", line))

    r = tmp_path / "r"
    refused(retrieve(indexed, r, "bm25", more=["--corpus", other]))
    more = ["--encoder", tmp_path / "another"]
    refused(retrieve(indexed, r, "dense", more=more))
    refused(retrieve(indexed, tmp_path / "r.trec", "bm25", "dense"))
    refused(retrieve(indexed, r, "bm25", more=["--fuse", "rrf"]))
    refused(retrieve(indexed, r, "bm25", "bm25"))
    more = ["--approximate", "nprobe=2"]
    refused(retrieve(indexed, r, "dense", more=more))
    refused(index(new, "dense", "--encoder", bare))
    contrary = ["--encoder", encoder, "--preset", "bge"]
    refused(index(new, "dense", *contrary))
    refused(index(new, "dense", "--preset", "best"))
    refused(index(new, "dense", "--memory", "1MiB"))
    refused(index(indexed, "bm25", "--language", "xx"))
    assert retrieve(indexed, tmp_path / "r", "bm25", more=["--corpus", indexed["corpus"]]) == 0


@pytest.mark.slow
def test_a_killed_build_resumes_where_it_stopped(tmp_path):
    """SIGKILL the encoding once some shards are there; the next run leaves these alone."""
    encoder = save_tiny_encoder(tmp_path / "encoder")
    corpus, out = tmp_path / "c.jsonl", tmp_path / "i"
    texts = (" ".join(f"w{(i * j) % 200}" for j in range(1, 40)) for i in range(40_000))
    corpus.write_text("".join(json.dumps({"id": i, "text": t}) + "\n" for i, t in enumerate(texts)))
    options = ["--corpus", corpus, "--out", out, "--encoder", encoder, "--actors", 0]
    command = [sys.executable, "-m", "jobs.index", "dense", *map(str, options)]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while len(list(out.glob("shards/[!.]*"))) < 3:
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.wait()
    kept = {file: file.stat().st_mtime_ns for file in out.glob("shards/[!.]*")}
    assert 3 <= len(kept) < 20
    assert not (out / manifest.FILE).exists()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert {file: file.stat().st_mtime_ns for file in kept} == kept
    files = {file.stem for file in out.glob("shards/*")}
    assert files == set(manifest.read(out).settings["shards"])
    assert len(files) == 20
