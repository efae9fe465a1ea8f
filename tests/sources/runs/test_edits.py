"""Edits of a run: what a line may say, and what becomes of the lists."""

import json

import polars as pl
import pytest
import pytrec_eval
from hypothesis import given
from hypothesis import strategies as st

from engine import tables
from engine.messages.errors import InputError
from engine.sources.runs.edits import Delete, Edit, Insert, Swap, apply_edits, read_edits
from engine.sources.runs.export import write_exports
from engine.sources.runs.read import read_run
from tests.conftest import make_run
from tests.tables import read_files

RUN = make_run([("q1", "a", 1), ("q1", "b", 2), ("q1", "c", 3), ("q2", "b", 1), ("q2", "a", 2)])
QUERIES = ["q1", "q2", "q3"]


def edits_file(tmp_path, *rows):
    path = tmp_path / "edits.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def edited(tmp_path, *rows, runs=RUN):
    path = edits_file(tmp_path, *rows)
    return apply_edits(runs, read_edits(path), path=path, query_ids=QUERIES)


def lists(runs):
    assert runs.schema == tables.RUNS
    found = {}
    for query_id, doc_id, rank in runs.select("query_id", "doc_id", "rank").iter_rows():
        found.setdefault(query_id, []).append(doc_id)
        assert rank == len(found[query_id])
    return found


def test_numbers_are_ranks_and_strings_are_documents(tmp_path):
    path = edits_file(
        tmp_path,
        {"query_id": "q1", "swap": [1, "3"]},
        {"query_id": "q1", "insert": "x", "rank": 2, "run": "sys"},
        {"query_id": "q2", "delete": 3},
        {"query_id": "q2", "delete": "3"},
    )
    assert read_edits(path) == [
        Edit(1, "q1", None, Swap(1, "3")),
        Edit(2, "q1", "sys", Insert("x", 2)),
        Edit(3, "q2", None, Delete(3)),
        Edit(4, "q2", None, Delete("3")),
    ]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([{"query_id": "q1", "swap": [1, 3]}], {"q1": ["c", "b", "a"]}),
        ([{"query_id": "q1", "swap": ["c", "a"]}], {"q1": ["c", "b", "a"]}),
        ([{"query_id": "q1", "swap": ["b", 1]}], {"q1": ["b", "a", "c"]}),
        ([{"query_id": "q1", "insert": "x", "rank": 2}], {"q1": ["a", "x", "b", "c"]}),
        ([{"query_id": "q1", "insert": "x", "rank": 4}], {"q1": ["a", "b", "c", "x"]}),
        ([{"query_id": "q1", "delete": 2}], {"q1": ["a", "c"]}),
        ([{"query_id": "q1", "delete": "c"}], {"q1": ["a", "b"]}),
        ([{"query_id": "q3", "insert": "x", "rank": 1}], {"q3": ["x"]}),  # nothing was listed
        # One after the other: x is second when rank 2 is deleted, and may come back.
        (
            [
                {"query_id": "q1", "insert": "x", "rank": 2},
                {"query_id": "q1", "delete": 2},
                {"query_id": "q2", "swap": [1, 2]},
                {"query_id": "q1", "insert": "x", "rank": 1},
            ],
            {"q1": ["x", "a", "b", "c"], "q2": ["a", "b"]},
        ),
    ],
)
def test_edits_by_hand(tmp_path, rows, expected):
    runs, (what,) = edited(tmp_path, *rows)
    assert lists(runs) == {"q1": ["a", "b", "c"], "q2": ["b", "a"]} | expected
    assert (what.name, what.original, len(what.edits)) == ("sys-edited", "sys", len(rows))
    assert runs["run"].unique().to_list() == ["sys-edited"]


def test_lists_without_edits_are_unchanged(tmp_path):
    runs, _ = edited(tmp_path, {"query_id": "q1", "delete": 1})
    untouched = RUN.filter(query_id="q2").with_columns(pl.lit("sys-edited").alias("run"))
    assert runs.filter(query_id="q2").equals(untouched)
    assert runs.filter(query_id="q1").select("doc_id", "score").rows() == [("b", 2.0), ("c", 1.0)]


def test_only_the_named_runs_are_edited(tmp_path):
    other = RUN.with_columns(pl.lit("other").alias("run"))
    both = pl.concat([RUN, other])
    rows = [
        {"query_id": "q1", "run": "other", "delete": "a"},
        {"query_id": "q1", "run": "sys", "delete": "b"},
        {"query_id": "q2", "run": "other", "delete": "a"},
    ]
    runs, found = edited(tmp_path, *rows, runs=both)
    assert [(run.name, [edit.line for edit in run.edits]) for run in found] == [
        ("other-edited", [1, 3]),
        ("sys-edited", [2]),
    ]
    assert lists(runs.filter(run="other-edited")) == {"q1": ["b", "c"], "q2": ["b"]}
    assert lists(runs.filter(run="sys-edited")) == {"q1": ["a", "c"], "q2": ["b", "a"]}
    one, _ = edited(tmp_path, rows[1], runs=both)
    assert one["run"].unique().to_list() == ["sys-edited"]


@given(st.data())
def test_undoing_all_edits_restores_the_list(data):
    documents = [f"d{i}" for i in range(data.draw(st.integers(2, 8)))]
    run = make_run([("q1", doc_id, rank) for rank, doc_id in enumerate(documents, 1)])
    there, back = [], []
    length = len(documents)
    for number in range(data.draw(st.integers(1, 6))):
        kind = data.draw(st.sampled_from(["swap", "insert"]))
        if kind == "swap":
            places = data.draw(
                st.lists(st.integers(1, length), min_size=2, max_size=2, unique=True)
            )
            there.append(Swap(*places))
            back.append(Swap(*reversed(places)))
        else:
            rank = data.draw(st.integers(1, length + 1))
            there.append(Insert(f"new{number}", rank))
            back.append(Delete(f"new{number}"))
            length += 1
    edits = [Edit(i, "q1", None, done) for i, done in enumerate(there + back[::-1], 1)]
    runs, _ = apply_edits(run, edits, path="edits", query_ids=["q1"])
    assert runs["doc_id"].to_list() == documents


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"query_id": "q9", "delete": 1}, "query 'q9' is not among the 3 queries"),
        ({"query_id": "q1", "delete": 4}, "rank 4 is beyond the list, which has 3 documents"),
        ({"query_id": "q1", "swap": [1, 4]}, r"rank 4 is beyond .*\(query 'q1' of 'sys'\)"),
        (
            {"query_id": "q1", "insert": "x", "rank": 5},
            "rank 5 is beyond .*; use a rank from 1 to 4",
        ),
        (
            {"query_id": "q3", "delete": 1},
            "which has 0 documents .*; insert a document at rank 1 first",
        ),
        ({"query_id": "q1", "delete": "x"}, "document 'x' is not in the list"),
        ({"query_id": "q1", "delete": "1"}, "document '1' is not in the list"),  # no rank
        ({"query_id": "q1", "swap": ["a", "x"]}, "document 'x' is not in the list"),
        ({"query_id": "q1", "swap": ["a", 1]}, "swaps document 'a' with itself"),
        ({"query_id": "q1", "insert": "b", "rank": 1}, "'b' is already in the list, at rank 2"),
        ({"query_id": "q1", "run": "t", "delete": 1}, "no run is called 't'; name one of sys"),
        ({"query_id": "q1", "delete": 1, "why": "x"}, "unknown key 'why'"),
        ({"query_id": "q1", "delete": 1, "swap": [1, 2]}, "swap and delete in one line"),
        ({"query_id": "q1"}, "an edit without an operation"),
        ({"delete": 1}, "without a query id"),
        ({"query_id": 1, "delete": 1}, '"query_id" is 1; write it as a string'),
        ({"query_id": "q1", "run": None, "delete": 1}, '"run" is None'),
        ({"query_id": "q1", "insert": "x"}, "inserts 'x' at no rank"),
        ({"query_id": "q1", "insert": "x", "rank": 0}, "inserts 'x' at rank 0"),
        ({"query_id": "q1", "insert": "x", "rank": "2"}, "inserts 'x' at rank '2'"),
        ({"query_id": "q1", "insert": 7, "rank": 2}, "inserts 7; write the document's id"),
        ({"query_id": "q1", "delete": 1, "rank": 2}, '"rank" without "insert"'),
        ({"query_id": "q1", "delete": True}, "deletes True; name a place"),
        ({"query_id": "q1", "delete": 1.0}, "deletes 1.0"),
        ({"query_id": "q1", "delete": 0}, "deletes 0"),
        ({"query_id": "q1", "delete": ""}, "deletes ''"),
        ({"query_id": "q1", "swap": [1]}, r"swaps \[1\]; give two places"),
        ({"query_id": "q1", "swap": [1, None]}, r"swaps \[1, None\]"),
        ({"query_id": "q1", "swap": "ab"}, "swaps 'ab'"),
    ],
)
def test_bad_edits_are_refused_with_their_line(tmp_path, row, words):
    with pytest.raises(InputError, match=words) as caught:
        edited(tmp_path, {"query_id": "q2", "swap": [1, 2]}, row)
    assert str(caught.value).startswith(f"{tmp_path / 'edits.jsonl'}:2: ")
    assert "\n" not in str(caught.value)


def test_an_edit_that_could_be_lost_or_misplaced_is_refused(tmp_path):
    path = tmp_path / "edits.jsonl"
    path.write_text('{"query_id": "q1", "delete": 1, "delete": 2}\n')
    with pytest.raises(InputError, match=r"edits\.jsonl:1: the key 'delete' is given twice"):
        read_edits(path)
    path.write_text("\n")
    with pytest.raises(InputError, match="holds no edits"):
        read_edits(path)
    both = pl.concat([RUN, RUN.with_columns(pl.lit("sys-edited").alias("run"))])
    with pytest.raises(
        InputError,
        match=r":1: an edit that does not name one of the 2 runs.*one of sys, sys-edited",
    ):
        edited(tmp_path, {"query_id": "q1", "delete": 1}, runs=both)
    with pytest.raises(InputError, match=r":1: the edited run would be called 'sys-edited'"):
        edited(tmp_path, {"query_id": "q1", "run": "sys", "delete": 1}, runs=both)


@pytest.fixture
def files(tmp_path):
    queries = tmp_path / "q.jsonl"
    queries.write_text(
        "".join(json.dumps({"id": q, "query": "who", "answers": ["Ann"]}) + "\n" for q in QUERIES)
    )
    corpus = tmp_path / "c.jsonl"
    corpus.write_text("".join(json.dumps({"id": d, "text": f"is {d}"}) + "\n" for d in "abcx"))
    run = tmp_path / "run.trec"
    rows = [("q1", "a"), ("q1", "b"), ("q1", "c"), ("q1", "lost"), ("q2", "b"), ("q2", "a")]
    run.write_text("".join(f"{q} Q0 {d} 0 {9 - i} sys\n" for i, (q, d) in enumerate(rows)))
    return queries, corpus, run


def read(files, tmp_path, *rows, **options):
    path = edits_file(tmp_path, *rows)
    return read_files(files[0], files[1], [files[2]], edits=path, **{"k": 2} | options)


def test_edits_come_before_the_cutoff(files, tmp_path):
    found = read(
        files, tmp_path, {"query_id": "q1", "delete": 1}, {"query_id": "q2", "insert": "x", "rank": 1}
    )  # fmt: skip
    assert found.runs["run"].unique(maintain_order=True).to_list() == ["sys", "sys-edited"]
    assert lists(found.runs.filter(run="sys")) == {"q1": ["a", "b"], "q2": ["b", "a"]}
    # b and c move up, x comes in, and a falls out of the first two
    assert lists(found.runs.filter(run="sys-edited")) == {"q1": ["b", "c"], "q2": ["x", "b"]}
    assert sorted(found.corpus["doc_id"]) == ["a", "b", "c", "x"]
    assert found.cut_runs == ("sys", "sys-edited")
    assert [run.name for run in found.edited] == ["sys-edited"]


def test_an_inserted_document_that_the_corpus_lacks_is_named_with_its_line(files, tmp_path):
    insertion = {"query_id": "q2", "insert": "no", "rank": 1}
    with pytest.raises(InputError) as caught:
        read(files, tmp_path, {"query_id": "q2", "swap": [1, 2]}, insertion)
    assert str(caught.value).startswith(
        f"{tmp_path / 'edits.jsonl'}:2: document 'no' of query 'q2' not in the corpus"
    )
    # pulled up by the edits, but of the run
    rows = [{"query_id": "q1", "delete": 1}] * 2
    with pytest.raises(InputError) as caught:
        read(files, tmp_path, *rows)
    assert str(caught.value).startswith(f"{files[2]}:4: document 'lost' of query 'q1' not in")


def test_edits_of_queries_beyond_a_limit_are_accepted(files, tmp_path):
    found = read(files, tmp_path, {"query_id": "q2", "delete": 1}, limit=1)
    assert lists(found.runs.filter(run="sys-edited")) == {"q1": ["a", "b"]}
    with pytest.raises(InputError, match="leaves 'sys' no document for any of the 1 queries"):
        read(files, tmp_path, *[{"query_id": "q1", "delete": 1}] * 4, limit=1)


def test_runs_keyed_by_question_texts_are_edited_by_texts(tmp_path, files):
    files[2].unlink()
    run = tmp_path / "run.json"
    files[0].write_text('{"id": "q1", "query": "who is it", "answers": ["Ann"]}\n')
    run.write_text(json.dumps({"who is it": ["is b", "is a"]}))
    texts = (files[0], files[1], run)
    found = read(texts, tmp_path, {"query_id": "q1", "insert": "x", "rank": 1})
    assert lists(found.runs.filter(run="run-edited")) == {"q1": ["x", "b"]}
    with pytest.raises(InputError, match="'b' comes into the list of query 'q1' twice"):
        read(texts, tmp_path, {"query_id": "q1", "insert": "b", "rank": 1})


def test_trec_eval_reads_an_exported_edited_run_in_the_right_order(tmp_path):
    # Scores of the original tie in single precision.
    run = RUN.with_columns((22.58 - pl.col("rank") * 1e-7).alias("score"))
    rows = [{"query_id": "q1", "insert": "x", "rank": 2}, {"query_id": "q1", "swap": ["a", "c"]}]
    runs, _ = edited(tmp_path, *rows, runs=run)
    write_exports([tables.empty(tables.LABELS)], [pl.concat([run, runs])], tmp_path)
    path = tmp_path / "runs" / "sys-edited.trec"
    assert lists(read_run(path)) == {"q1": ["c", "x", "b", "a"], "q2": ["b", "a"]}
    with path.open() as stream:
        scores = pytrec_eval.parse_run(stream)
    for rank, document in enumerate(["c", "x", "b", "a"], 1):
        alone = pytrec_eval.RelevanceEvaluator({"q1": {document: 1}}, {"recip_rank"})
        assert alone.evaluate(scores)["q1"]["recip_rank"] == pytest.approx(1 / rank)
