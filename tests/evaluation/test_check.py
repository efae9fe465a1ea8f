"""What cannot work is refused before anything is read, in shards in the words of the whole."""

import json
from dataclasses import replace

import polars as pl
import pytest

from engine import tables
from engine.evaluation.evaluate import evaluate, evaluate_shards
from engine.evaluation.jobs import Context
from engine.inputs.partition import partition
from engine.inputs.read import read_inputs
from engine.inputs.shards import InMemoryInputs
from engine.labels.annotator import READER, Annotator, Labelled, Scale, ask_reader, labels_of
from engine.labels.traces import complete
from engine.messages.errors import InputError
from engine.sources.io.folders import folder_at
from tests.evaluation.test_stream import (
    Scripted,
    compared,
    in_shards,
    made,
    scripted,
    settings,
    the_whole,
    told,
)

__all__ = ["scripted"]  # a fixture


def edited(files, name, **columns):
    """The files with other columns in one of them."""
    path = getattr(files, name) if name in ("queries", "corpus") else files.tables[name]
    pl.read_parquet(path).with_columns(**columns).write_parquet(path)
    return files


def without_provenance(files):
    return edited(files, "queries", provenance=pl.lit([], pl.List(pl.String)))


def unscorable(files):
    """Answers that no output can match, of two queries in the middle of the file."""
    two = pl.col("query_id").is_in(["q21", "q13"])
    answers = pl.when(two).then(pl.lit(["the"])).otherwise("answers")
    return edited(files, "queries", answers=answers)


def grades(files):
    """Judgments of two queries: one between whole numbers, the other above 1."""
    labels = pl.when(query_id="q1").then(0.5).when(query_id="q2").then(2.0).otherwise(0.0)
    return edited(files, "qrels", label=labels)


def unjudged(files):
    return edited(files, "qrels", label=pl.lit(-1.0))


def titles(files):
    """Gold articles that have titles alone, and a corpus that has none."""
    queries = files.queries.with_suffix(".jsonl")
    with queries.open("w") as stream:
        for name, query in pl.read_parquet(files.queries, columns=["query_id", "query"]).rows():
            output = [{"answer": "a1", "provenance": [{"title": f"no {name}"}]}]
            stream.write(json.dumps({"id": name, "input": query, "output": output}) + "\n")
    return replace(edited(files, "corpus", title=pl.lit("")), queries=queries)


def unchanged(files):
    return files


def one_run(files):
    return replace(files, run=files.run[:1])


def without_tables(files):
    return replace(files, tables={})


@pytest.mark.parametrize(
    ("change", "more", "problem"),
    [
        (without_provenance, {"annotators": ("erag", "provenance")}, "no query has provenance"),
        (titles, {"annotators": ("erag", "provenance")}, "'q0' have a title and no id"),
        (unscorable, {"metric": "f1"}, "cannot score the answers of 2 queries: 'q13' ('the')"),
        (unchanged, {"missing": "error"}, "'one' lists nothing for"),
        (without_tables, {"annotators": ("erag", "qrels")}, "the annotator qrels without `qrels`"),
        (unjudged, {"annotators": ("erag", "qrels")}, "no query is judged by qrels"),
        (grades, {"annotators": ("erag", "qrels")}, "P@3 is not defined on the labels of qrels"),
        (one_run, {"measures": "Judged@2 P@3"}, "Judged is 1 by definition"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_what_cannot_work_is_refused_before_reading(tmp_path, change, more, problem):
    files = change(made(tmp_path))
    asked = settings(**{"annotators": ("erag",), "measures": "P@3 nDCG@6", **more})

    with pytest.raises(InputError) as of_the_whole:
        evaluate(read_inputs(files, k=asked.ranking.k), asked, store=tmp_path / "whole")
    with pytest.raises(InputError) as of_shards:
        in_shards(tmp_path, asked, 40, files)
    assert len(list((tmp_path / "inputs").rglob("shard-*.zip"))) > 2
    assert problem in str(of_shards.value)
    assert str(of_shards.value) == str(of_the_whole.value)
    assert not Scripted.asked


def test_labels_of_a_file_are_looked_at_in_all_shards_together(tmp_path):
    """Between whole numbers in one shard, above 1 in another: no measure without a threshold is left."""
    files = grades(made(tmp_path))
    assert pl.read_parquet(files.tables["qrels"]).filter(pl.col(tables.LABEL) > 1).height
    asked = settings(annotators=("qrels",), measures="P(rel=1)@3 P@3 nDCG@6", end_to_end=False)
    parts = in_shards(tmp_path, asked, 1, files)
    whole = evaluate(read_inputs(files, k=6), asked, store=tmp_path / "whole")
    assert whole.undefined.rows() == parts.undefined.rows() != []
    assert whole.means.rows() == parts.means.rows()
    assert told(parts.notes) == told(whole.notes)


def rare(column, *, role=None):
    """An annotator by how rare a passage's text is among all of ``corpus``, or how short it is by itself."""

    def label(material):
        texts = getattr(material, column).select(
            "doc_id", word=pl.col("text").str.split(" ").list.last()
        )
        share = (
            1 / pl.len().over("word") if column == "corpus" else 1 / pl.col("word").str.len_chars()
        )
        texts = texts.with_columns(value=share)
        labels = labels_of(
            "rare", material.pairs.join(texts, on="doc_id", maintain_order="left"), pl.col("value")
        )
        return Labelled(labels, complete(labels))

    asks = (lambda settings: ask_reader(settings.reader)) if role else (lambda settings: None)
    scale = Scale(graded="shares")
    return Annotator(name="rare", label=label, asks=asks, role=role, scale=lambda settings: scale)


@pytest.mark.parametrize("role", [None, READER])
@pytest.mark.parametrize("more", [{}, {"until": "verdict"}], ids=str)
def test_statistics_of_the_corpus_are_those_of_all_queries_or_refused(tmp_path, role, more):
    files, own = made(tmp_path), {"measures": "P(rel=0.5)@3", "end_to_end": bool(more)}
    asked = settings(annotators=("containment", rare("corpus", role=role)), **own, **more)
    held, line = (
        InMemoryInputs(read_inputs(files, k=6)),
        r"^the annotator rare looks at `corpus`, .*; count",
    )
    cut = partition(files, folder_at(tmp_path / "inputs"), k=6, pairs_per_shard=40)
    for shards, folder in ((held, None), (cut, folder_at(tmp_path / "shards"))):
        if more or folder:
            with pytest.raises(InputError, match=line):
                evaluate_shards(shards, [asked], Context(store=tmp_path / "s"), folder)
            assert not Scripted.asked
        else:
            evaluate_shards(shards, [asked], Context(store=tmp_path / "s"))
            Scripted.asked.clear()
    assert len(cut.shards) > 1


def test_labels_of_single_passages_are_the_same_in_shards(tmp_path):
    own = {"measures": "P(rel=0.5)@3", "end_to_end": False}
    compared(tmp_path, settings(annotators=("containment", rare("passages")), **own))
    asked = settings(annotators=("containment", rare("corpus")), **own)
    whole, one = the_whole(tmp_path, asked), in_shards(tmp_path, asked, 10_000)
    assert whole.means.rows() == one.means.rows()
