"""Data sets of ir_datasets and of the Hugging Face cache, read from this machine alone."""

import importlib.util
import itertools
import json
import shutil
import socket

import datasets
import huggingface_hub
import ir_datasets
import polars as pl
import pytest
from ir_datasets.formats import BaseDocs, BaseQueries

from engine.sources.data_sets import identity_of
from engine.sources.io.locations import is_data_set
from engine.sources.passages.read import read_corpus
from engine.sources.queries.read import read_queries, read_query_set, read_user_queries
from engine.sources.runs.qrels import read_qrels
from tests.commands import erag
from tests.expected import refused

_NUMBERS = itertools.count()


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    def refuse(*_, **__):
        pytest.fail("asked the network")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)


@pytest.fixture
def irds(tmp_path):
    """A data set of ir_datasets whose files lie here, as BEIR's are: titles, and no answers."""
    (tmp_path / "q.tsv").write_text("1\twhat is a\n2\twhat is b\n")
    (tmp_path / "d.tsv").write_text("a\tIt is Ann.\nb\tIt is Bo.\n")
    (tmp_path / "qrels").write_text("1 0 a 1\n2 0 a 0\n")
    made = ir_datasets.create_dataset(
        docs_tsv=str(tmp_path / "d.tsv"),
        queries_tsv=str(tmp_path / "q.tsv"),
        qrels_trec=str(tmp_path / "qrels"),
    )
    name = f"here/tiny-{next(_NUMBERS)}"
    ir_datasets.registry.register(name, made)
    return f"irds:{name}"


def test_queries_passages_and_judgments_of_ir_datasets(irds):
    assert read_queries(irds, need_answers=False).rows() == [
        ("1", "what is a", [], []),
        ("2", "what is b", [], []),
    ]
    assert read_corpus(irds).rows() == [("a", "", "It is Ann.", "a"), ("b", "", "It is Bo.", "b")]
    assert read_qrels(irds).rows() == [("1", "a", 1.0), ("2", "a", 0.0)]
    assert read_user_queries(irds).table.height == 2
    assert len(identity_of(irds)) == 64
    with refused("queries.no-answers"):
        read_queries(irds)


def test_fields_of_ir_datasets_are_kept_and_texts_made_where_there_are_only_parts(tmp_path):
    class Docs(BaseDocs):
        def docs_iter(self):
            yield ir_datasets.formats.TrecDoc("d", "inside", "<raw>")
            yield ir_datasets.datasets.beir.BeirTitleDoc("e", "the text", "the title")

    class Queries(BaseQueries):
        def queries_iter(self):
            yield ir_datasets.datasets.dpr_w100.DprW100Query("1", "who", ("Ann", "Bo"))
            yield ir_datasets.formats.TrecQuery("2", "the topic", "described", "at length")

    made = ir_datasets.Dataset(Docs(), Queries())
    name = f"here/parts-{next(_NUMBERS)}"
    ir_datasets.registry.register(name, made)
    assert read_corpus(f"irds:{name}")["text"].to_list() == ["inside", "the text"]
    assert read_corpus(f"irds:{name}")["title"].to_list() == ["", "the title"]
    read = read_query_set(f"irds:{name}", need_answers=False).table
    assert read.select("query", "answers").rows() == [("who", ["Ann", "Bo"]), ("the topic", [])]


def test_what_is_not_here_is_not_fetched(tmp_path, monkeypatch, irds):
    monkeypatch.setattr(ir_datasets.util, "home_path", lambda: tmp_path / "home")
    with refused("dataset.absent"):
        read_corpus("irds:vaswani")
    with refused("dataset.unknown"):
        read_corpus("irds:nobody/knows")
    ir_datasets.registry.register(
        name := f"here/docs-{next(_NUMBERS)}",
        ir_datasets.create_dataset(docs_tsv=str(tmp_path / "d.tsv")),
    )
    with refused("dataset.part"):
        read_queries(f"irds:{name}")
    with refused("dataset.unreadable"):
        read_queries("hf:nobody/knows")


def test_a_library_that_is_not_installed_is_named_with_the_extra(monkeypatch, irds):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    for place, library in ((irds, "ir_datasets"), ("hf:a/b", "datasets")):
        with refused("package.missing", path=place, text=place != irds) as caught:
            read_corpus(place)
        assert library in caught.value.problem


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A Hugging Face cache with a data set of two splits, fetched as files."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    place = tmp_path / "hub/datasets--org--tiny"
    snapshot = place / "snapshots/abc"
    (snapshot / "data").mkdir(parents=True)
    (place / "refs").mkdir()
    (place / "refs/main").write_text("abc")
    rows = [{"id": "1", "question": "who", "answers": {"text": ["Ann"], "answer_start": [0]}}]
    for split in ("train", "validation"):
        pl.DataFrame(rows).write_parquet(snapshot / f"data/{split}-00000-of-00001.parquet")
    return tmp_path


def test_data_sets_of_the_hugging_face_cache(hub):
    assert read_queries("hf:org/tiny::validation").rows() == [("1", "who", ["Ann"], [])]
    with refused("dataset.split"):
        read_queries("hf:org/tiny")
    with refused("dataset.split"):
        read_queries("hf:org/tiny::test")
    with refused("dataset.unreadable"):
        read_queries("hf:org/tiny:french")
    assert identity_of("hf:org/tiny::train") != identity_of("hf:org/tiny::validation")


def test_data_sets_that_the_library_has_loaded_before(hub):
    # What load_dataset leaves behind, without the files of the hub.
    snapshot = hub / "hub/datasets--org--tiny/snapshots/abc"
    shutil.copytree(snapshot, hub / "tiny")
    builder = datasets.load_dataset_builder(str(hub / "tiny"))
    builder.download_and_prepare(str(hub / "datasets/org___tiny/default/0.0.0/abcdef"))
    shutil.rmtree(hub / "hub")
    assert read_queries("hf:org/tiny:default:train").rows() == [("1", "who", ["Ann"], [])]


def test_passages_and_judgments_of_the_hugging_face_cache(hub):
    data = hub / "hub/datasets--org--tiny/snapshots/abc/data"
    shutil.rmtree(data)
    data.mkdir()
    pl.DataFrame({"_id": ["a"], "title": ["T"], "text": ["x"]}).write_parquet(
        data / "corpus-0.parquet"
    )
    assert read_corpus("hf:org/tiny").rows() == [("a", "T", "x", "T")]
    (data / "corpus-0.parquet").unlink()
    shutil.rmtree(hub / "datasets")
    judged = {"query-id": [1], "corpus-id": ["a"], "score": [2]}
    pl.DataFrame(judged).write_parquet(data / "test-0.parquet")
    assert read_qrels("hf:org/tiny").rows() == [("1", "a", 2.0)]


def test_names_of_data_sets_and_of_files():
    assert is_data_set("irds:beir/scifact/test")
    assert is_data_set("hf:org/name:config:split")
    for name in (
        "hf://datasets/org/name/x.parquet",
        "hf:/datasets/org",
        "./irds:x",
        "s3://irds:x",
        "C:x",
    ):
        assert not is_data_set(name)


@pytest.mark.parametrize("shards", [(), ("--shard-pairs", "2")])
def test_an_evaluation_of_a_data_set(irds, tmp_path, capsys, shards):
    run = tmp_path / "run.trec"
    run.write_text("1 Q0 a 1 2 x\n1 Q0 b 2 1 x\n2 Q0 b 1 2 x\n")
    options = ["--annotators", "qrels", "--no-end-to-end", "--actors", "0", "--k", "2", *shards]
    given = [part for name in ("queries", "corpus", "qrels") for part in (f"--{name}", irds)]
    out = ("--out", tmp_path / "out", "--store", tmp_path / "store")
    assert erag("evaluate", *given, "--run", run, *options, *out) == 0, capsys.readouterr().err
    configuration = json.loads((tmp_path / "out/summary.json").read_text())["configuration"]
    assert [configuration[name] for name in ("queries", "corpus", "qrels")] == [irds] * 3
    scores = pl.read_parquet(tmp_path / "out/query_scores.parquet").filter(measure="P@2")
    assert scores.sort("query_id")["value"].to_list() == [0.5, 0.0]
