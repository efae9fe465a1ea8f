"""Data as people have it: ``erag evaluate`` on layouts that others write."""

import json

import polars as pl
import pytest

from tests.commands import erag, scores_of
from tests.expected import as_expected

ALONE = ("--no-end-to-end", "--actors", "0", "--k", "2")


def lines(path, *records):
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


@pytest.fixture
def beir(tmp_path):
    """A data set of BEIR's, as it is fetched: no answers anywhere; and a run."""
    folder = tmp_path / "beir"
    lines(folder / "queries.jsonl", *({"_id": q, "text": f"what is {q}"} for q in "12"))
    texts = {"a": "It is Ann.", "b": "It is Bo.", "c": "Nobody knows."}
    lines(folder / "corpus.jsonl", *({"_id": d, "title": d, "text": texts[d]} for d in texts))
    (folder / "test.tsv").write_text("query-id\tcorpus-id\tscore\n1\ta\t1\n2\tc\t1\n")
    run = folder / "bm25.trec"
    run.write_text(
        "".join(f"{q} Q0 {d} 1 {s} bm25\n" for q in "12" for d, s in (("a", 2), ("b", 1)))
    )
    return folder


def evaluate(folder, *more, **files):
    given = {"queries": folder, "corpus": folder, "run": folder / "bm25.trec"} | files
    options = [part for name, value in given.items() for part in (f"--{name}", value)]
    return erag("evaluate", *options, "--out", folder / "out", "--store", folder / "store", *more)


@pytest.mark.parametrize("shards", [(), ("--shard-pairs", "2")])
def test_judgments_of_beir_need_no_answers(beir, capsys, shards):
    options = ("--annotators", "qrels", "--qrels", beir / "test.tsv", *ALONE, *shards)
    assert evaluate(beir, *options) == 0, capsys.readouterr().err
    scores = scores_of(beir / "out").filter(measure="P@2")
    assert scores.sort("query_id")["value"].to_list() == [0.5, 0.0]


def test_annotators_that_need_answers_refuse_queries_without(beir, capsys):
    for options in ((), ALONE, ("--annotators", "dual", *ALONE)):
        assert evaluate(beir, *options) == 2
        (line,) = capsys.readouterr().err.splitlines()
        as_expected(line)


@pytest.mark.parametrize("shards", [(), ("--shard-pairs", "2")])
def test_answers_of_another_file_are_joined(beir, capsys, shards):
    answers = lines(
        beir / "answers.jsonl", {"id": "1", "answers": ["Ann"]}, {"id": "2", "answers": "Bo"}
    )
    options = ("--annotators", "containment", "--answers", answers, *ALONE, *shards)
    assert evaluate(beir, *options) == 0, capsys.readouterr().err
    labels = pl.read_parquet(beir / "out/labels.parquet")
    found = labels.filter(pl.col("label") > 0).select("query_id", "doc_id").sort("query_id").rows()
    assert found == [("1", "a"), ("2", "b")]
    summary = json.loads((beir / "out/summary.json").read_text())
    assert summary["configuration"]["answers"] == str(answers)
    assert str(answers) in {file["path"] for file in summary["audit"]["files"]}
    # Shards of an evaluation without these answers are not taken up.
    assert evaluate(beir, "--annotators", "containment", *ALONE, *shards) == 2


@pytest.fixture
def texted(tmp_path):
    """Queries, and a run whose lists carry their texts: no corpus."""
    lines(
        tmp_path / "q.jsonl",
        *({"id": q, "query": f"who {q}", "answers": [a]} for q, a in (("1", "Ann"), ("2", "Bo"))),
    )
    results = [{"text": "Ann did it."}, {"id": "b", "title": "B", "text": "Bo did it."}]
    lines(tmp_path / "mine.jsonl", *({"query": f"who {q}", "results": results} for q in "12"))
    return {
        "queries": tmp_path / "q.jsonl",
        "run": tmp_path / "mine.jsonl",
        "out": tmp_path / "out",
    }


def test_runs_that_carry_texts_need_no_corpus(texted, capsys):
    store = ("--store", texted["out"].parent / "store")
    options = [part for name, value in texted.items() for part in (f"--{name}", value)]
    assert erag("evaluate", *options, *store, "--annotators", "containment", *ALONE) == 0, (
        capsys.readouterr().err
    )
    labels = pl.read_parquet(texted["out"] / "labels.parquet").sort("query_id", "doc_id")
    assert labels["label"].to_list() == [1.0, 0.0, 0.0, 1.0]
    summary = json.loads((texted["out"] / "summary.json").read_text())
    assert summary["configuration"]["corpus"] is None
    # The page is made again with the passages of the runs.
    assert erag("report", texted["out"], "--passages") == 0, capsys.readouterr().err
    pages = [
        path.read_text()
        for path in texted["out"].rglob("*")
        if path.suffix in (".html", ".js", ".json")
    ]
    assert any("Bo did it." in page for page in pages)
    again = ("--annotators", "containment", "--shard-pairs", "2", "--overwrite")
    assert erag("evaluate", *options, *store, *ALONE, *again) == 0, capsys.readouterr().err
    cut = pl.read_parquet(texted["out"] / "labels.parquet")
    assert sorted(cut.rows()) == sorted(labels.rows())
