"""Scores and notes: those of parts, merged, are those of the whole; what is one value is told."""

from dataclasses import replace

import polars as pl
import pytest

from engine import tables
from engine.evaluation.conclude import is_told, largest_scores
from engine.evaluation.evaluate import evaluate
from engine.evaluation.score import constant_notes
from engine.evaluation.settings import Settings
from engine.inputs.partition import partition
from engine.inputs.read import read_inputs
from engine.inputs.shards import InMemoryInputs
from engine.labels import from_function
from engine.labels.annotator import Annotator, AnnotatorResult, complete, labels_of
from engine.messages.notes import merge_notes
from engine.sources.io.folders import folder_at
from engine.tables import END_TO_END, MEASURE, RUN
from tests.evaluation.in_shards import in_shards, made, scripted, settings, told
from tests.expected import refused
from tests.tables import table_files

LABELS_ALONE = {END_TO_END: False}

__all__ = ["scripted"]  # a fixture


def both(tmp_path, files, pairs=40, **more):
    """An evaluation that reads nothing, held whole and in shards."""
    asked = settings(**LABELS_ALONE | more)
    whole = evaluate(read_inputs(files, k=6), asked, store=tmp_path / "whole")
    return whole, in_shards(tmp_path, asked, pairs, files)


def without_some_lists(files):
    """Some queries, and with them some shards, without anything listed."""
    for path in files.run:
        rows = pl.read_parquet(path)
        rows.filter(~pl.col("query_id").str.ends_with("3")).write_parquet(path)


@pytest.mark.parametrize("pairs", [15, 1])
def test_the_note_that_no_gold_article_is_listed_counts_each_passage_once(tmp_path, pairs):
    files = made(tmp_path, queries=15)
    foreign = pl.col("provenance").list.eval(pl.lit("Z") + pl.element())
    pl.read_parquet(files.queries).with_columns(foreign).write_parquet(files.queries)
    without_some_lists(files)
    whole, parts = both(tmp_path, files, pairs, annotators=("provenance",), measures="P@3")
    assert ("no_gold_article_listed", whole.passages) in [note[:2] for note in told(whole.notes)]
    assert told(parts.notes) == told(whole.notes)


def test_queries_of_a_shard_that_lists_nothing_count_as_without_results(tmp_path):
    files = made(tmp_path, queries=10)
    without_some_lists(files)
    annotators = ("erag", "containment", "judge", "utility", "qrels")
    more = {"annotators": annotators, "measures": "P@3 nDCG@6 UDCG@6", END_TO_END: True}
    whole, parts = both(tmp_path, files, 1, **more)
    assert whole.means.rows() == parts.means.rows()
    assert set(parts.means.filter(annotator="erag")["n"]) == {whole.queries}


def test_a_run_may_have_the_name_of_an_annotator(tmp_path):
    files = made(tmp_path, runs=("qrels", "containment"))
    path = files.tables["qrels"].path
    halves = pl.read_parquet(path).with_columns(label=pl.lit(0.5))
    halves.write_parquet(path)
    files = replace(files, limit=30)
    whole, parts = both(tmp_path, files, annotators=("qrels",), measures="P@3")
    assert told(parts.notes) == told(whole.notes)
    assert whole.means[RUN].to_list() == parts.means[RUN].to_list() == ["qrels", "containment"]


def test_measures_are_in_the_order_in_which_they_were_asked_for(tmp_path):
    """Also where those of the first shard are not: one has no meaning on its labels, others have."""
    files = made(tmp_path)
    first = partition(files, folder_at(tmp_path / "inputs"), k=6, pairs_per_shard=40)
    inside = first.read(0).queries["query_id"]
    path = files.tables["qrels"].path
    judged = pl.read_parquet(path)
    label = pl.when(pl.col("query_id").is_in(inside.implode())).then(0.5).otherwise("label")
    judged.with_columns(label=label).write_parquet(path)
    whole, parts = both(
        tmp_path, files, annotators=("qrels", "containment"), measures="AP P@3 RR nDCG@6"
    )
    assert whole.means.rows() == parts.means.rows()
    assert whole.undefined[MEASURE].to_list() == parts.undefined[MEASURE].to_list() == ["AP", "RR"]


def test_a_run_without_results_for_a_whole_shard_is_refused_where_that_is_an_error(tmp_path):
    files = made(tmp_path)
    rows = pl.concat(map(pl.read_parquet, files.run)).unique(["query_id", "doc_id"])
    ranked = rows.select("query_id", "doc_id").unique("query_id", maintain_order=True)
    for path in files.run:
        name = pl.read_parquet(path)[RUN][0]
        every = pl.read_parquet(files.queries).select("query_id")
        full = every.join(ranked, on="query_id", how="left").with_columns(
            pl.col("doc_id").fill_null("d1"),
            rank=pl.lit(1, pl.Int64),
            score=pl.lit(1.0),
            run=pl.lit(name),
        )
        full.select(pl.read_parquet(path).columns).write_parquet(path)
    last = files.run[-1]
    pl.read_parquet(last).filter(pl.col("query_id") != "q7").write_parquet(last)
    asked = settings(annotators=("containment",), measures="P@3", missing="error", end_to_end=False)
    with refused("runs.unlisted"):
        in_shards(tmp_path, asked, 1, files)


@pytest.mark.parametrize("in_shards_on_disk", [False, True])
def test_the_range_of_dcg_is_that_of_the_whole_file_of_judgments(tmp_path, in_shards_on_disk):
    """Of the two queries evaluated no passage is judged above 1; of another one, 3."""
    files = made(tmp_path)
    inputs = read_inputs(replace(files, limit=2), k=2)
    judged, other = (
        inputs.queries["query_id"].to_list(),
        read_inputs(files, k=2).queries["query_id"][-1],
    )
    path = tmp_path / "qrels.txt"
    doc = inputs.runs["doc_id"][0]
    path.write_text(f"{judged[0]} 0 {doc} 1\n{other} 0 {doc} 3\n")
    files = replace(files, limit=2, tables=table_files(qrels=path))
    shards = InMemoryInputs(read_inputs(files, k=2))
    if in_shards_on_disk:
        shards = partition(files, folder_at(tmp_path / "parts"), k=2)
    options = {"annotators": ("qrels", "containment"), "measures": "DCG@1 nDCG@1"}
    largest = largest_scores(Settings.of(**options), shards)
    assert [largest("qrels", "DCG@1"), largest("qrels", "nDCG@1")] == [3, 1]
    assert largest("containment", "DCG@1") == 1


def test_where_nobody_knows_how_large_labels_can_be_dcg_decides_nothing(tmp_path):
    def label(material):
        labels = labels_of("mine", material.pairs, pl.col("query_id").rank("dense").cast(float))
        return AnnotatorResult(labels, complete(labels))

    known = from_function("known", lambda query, answers, title, text: len(text) % 2)
    options = {"annotators": (Annotator(name="mine", label=label), known), **LABELS_ALONE}
    inputs = read_inputs(made(tmp_path), k=6)
    asked = Settings.of(**options, measures="DCG@3 nDCG@3", k=6, missing="skip")
    for until in (None, "verdict"):
        found = evaluate(inputs, asked.but(until=until), store=tmp_path / "store")
        pairs = found.statistics.run_pairs
        bounds = {
            key: rows["difference_low"].is_nan().all()
            for key, rows in pairs.group_by("annotator", "measure")
        }
        assert [key for key, unknown in bounds.items() if unknown] == [("mine", "DCG@3")]
        assert not any(lead.significant for lead in found.statistics.choice.leads)
        (note,) = [note for note in found.notes if note.code == "unbounded_labels"]
        assert note.about == ("mine",)
        assert note.text.startswith("DCG@3 of mine decides nothing")


class Inputs:
    def __init__(self, rows, corpus=9):
        self.runs = pl.DataFrame(rows, tables.RUNS, orient="row")
        self.run_names = ["bm25"]
        self.corpus = pl.DataFrame({"doc_id": list(range(corpus))})


def codes(notes):
    return [note.code for note in notes if note.is_shown]


def notes_of(rows, labels):
    made = AnnotatorResult(pl.DataFrame({"label": labels}, {"label": pl.Float64}), pl.DataFrame())
    return list(constant_notes(Inputs(rows), ["judge"], {"judge": made}))


def listed(query, scores, documents="ab"):
    return [
        (query, doc, i + 1, s, "bm25")
        for i, (doc, s) in enumerate(zip(documents, scores, strict=True))
    ]


DIFFERENT = [*listed("1", [2.0, 1.0]), *listed("2", [2.0, 1.0], "bc")]
CASES = [
    (DIFFERENT, [0.0, 1.0], []),
    (DIFFERENT, [0.0, 0.0, None], ["alike_labels"]),
    (DIFFERENT, [None], []),
    # Another score in each list; a list of one says nothing.
    ([*listed("1", [2.0, 2.0]), *listed("2", [3.0], "c")], [0.0, 1.0], ["alike_scores"]),
    ([*listed("1", [2.0, 2.0]), *listed("2", [3.0, 2.0], "bc")], [0.0, 1.0], []),
    ([*listed("1", [2.0, 1.0]), *listed("2", [2.5, 1.0])], [0.0, 1.0], ["alike_lists"]),
    ([*listed("1", [2.0, 1.0]), *listed("2", [2.5, 1.0], "ba")], [0.0, 1.0], []),
    ([], [0.0, 1.0], []),
]


@pytest.mark.parametrize(("rows", "labels", "expected"), CASES)
def test_what_is_one_value_is_told(rows, labels, expected):
    assert codes(notes_of(rows, labels)) == expected


@pytest.mark.parametrize(
    ("labels", "expected"),
    [((0.0, 0.0), ["alike_labels"]), ((0.0, 1.0), []), ((0.0, None), ["alike_labels"])],
)
def test_parts_of_one_value_each_are_told_only_where_it_is_the_same(labels, expected):
    parts = [
        notes_of(listed("1", [2.0, 1.0]), [labels[0]] * 2),
        notes_of(listed("2", [2.0, 1.0], "bc"), [labels[1]] * 2),
    ]
    merged = merge_notes(parts, 9)
    assert codes(merged) == expected
    assert all(note.amount == 9 for note in merged if note.is_shown)


@pytest.mark.parametrize(
    ("queries", "passages", "lists", "told"),
    [(2, 2, 2, True), (1, 9, 1, False), (9, 1, 9, False), (2, 2, 1, False)],
)
def test_one_query_one_passage_or_one_list_is_no_news(queries, passages, lists, told):
    rows = [*listed("1", [2.0, 1.0]), *listed("2", [2.0, 1.0])]
    (note,) = (one for one in notes_of(rows, [0.0, 1.0]) if one.is_shown)
    assert (
        is_told(note, queries, passages, [("bm25", 2, lists), ("bm25", 0, 1), ("x", 2, 7)]) == told
    )
