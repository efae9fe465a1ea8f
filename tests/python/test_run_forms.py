import re

import numpy as np
import pandas as pd
import polars as pl
import pytest

from engine.messages.errors import InputError
from engine.python.run_forms import runs_of
from tests.conftest import make_run

ROWS = [("q1", "a", 1), ("q1", "b", 2), ("q2", "c", 1)]


def ranks(frame):
    return frame.select("query_id", "doc_id", "rank").rows()


@pytest.fixture
def trec(tmp_path):
    path = tmp_path / "of-file.trec"
    path.write_text("q1 Q0 a 9 2 of-file\nq1 Q0 b 9 1 of-file\nq2 Q0 c 9 1 of-file\n")
    return path


SCORED = {"q1": {"b": 1, "a": 2.5}, "q2": {"c": 0.5}}
FRAME = pl.DataFrame(
    {"query_id": ["q1", "q1", "q2"], "doc_id": ["b", "a", "c"], "score": [1.0, 2.0, 1.0]}
)


@pytest.mark.parametrize(
    "given",
    [
        SCORED,
        {"q1": ["a", "b"], "q2": ["c"]},
        {"q1": np.array(["a", "b"]), "q2": np.array(["c"])},
        {"q1": [{"doc_id": "a", "score": 0.1}, {"docid": "b", "score": 0.9}], "q2": [{"id": "c"}]},
        FRAME,
        FRAME.lazy(),
        FRAME.to_pandas(),
        FRAME.to_pandas().set_index("query_id"),
        FRAME.to_arrow(),
        FRAME.to_dicts(),
        # PyTerrier's: ranks from 0.
        pd.DataFrame({"qid": ["q1", "q1", "q2"], "docno": ["b", "a", "c"], "rank": [1, 0, 0]}),
        make_run(ROWS, "run").select("query_id", "doc_id", "rank", "score", "run"),
        FRAME.sort("score", descending=True).drop("score"),
        [{"query_id": "q2", "doc_id": "c"}, *({"query_id": "q1", "doc_id": d} for d in "ab")],
        # As results of LangChain, Haystack and FlashRAG are written.
        [
            {"query_id": "q1", "results": [{"id": "a"}, {"id": "b"}]},
            {"query_id": "q2", "documents": ["c"]},
        ],
        {"run": SCORED},
        {"run": FRAME},
        [SCORED],
    ],
)
def test_every_form_of_one_run_gives_the_same_ranks(given):
    frame = runs_of(given, carried=False)[0]
    assert ranks(frame) == ROWS
    assert frame["run"].unique().to_list() == ["run"]


def test_scores_are_kept_and_those_of_lists_count_down_to_1():
    assert runs_of(SCORED, carried=False)[0]["score"].to_list() == [2.5, 1.0, 0.5]
    assert runs_of({"q": ["a", "b", "c"]}, carried=False)[0]["score"].to_list() == [3.0, 2.0, 1.0]


def test_equal_scores_are_ordered_as_trec_eval_orders_them(tmp_path):
    scored = {"q1": {"a": 1, "c": 1, "b": 1}}
    path = tmp_path / "r.trec"
    path.write_text("".join(f"q1 Q0 {d} 0 1 run\n" for d in "acb"))
    of_file = runs_of({"run": path}, carried=False)[0].drop("stated_rank")
    assert runs_of(scored, carried=False)[0].drop("stated_rank").equals(of_file)
    assert ranks(runs_of(scored, carried=False)[0]) == [
        ("q1", "c", 1),
        ("q1", "b", 2),
        ("q1", "a", 3),
    ]


def test_a_rank_counts_more_than_a_score():
    frame = FRAME.with_columns(pl.Series("rank", [1, 2, 1]))
    assert ranks(runs_of(frame, carried=False)[0]) == [
        ("q1", "b", 1),
        ("q1", "a", 2),
        ("q2", "c", 1),
    ]


def test_whole_numbers_are_ids(trec):
    frame = runs_of({1: {2: 0.5}}, carried=False)[0]
    assert ranks(frame) == [("1", "2", 1)]
    numbers = pl.DataFrame({"query_id": [1], "doc_id": [2], "score": [0.5]})
    assert ranks(runs_of(numbers, carried=False)[0]) == [("1", "2", 1)]


def test_several_runs_have_the_names_that_they_are_given_or_have(trec):
    def names(given):
        return runs_of(given, carried=False)[0]["run"].unique(maintain_order=True).to_list()

    assert names({"x": SCORED, "y": trec, "z": FRAME}) == ["x", "y", "z"]
    assert names([trec, SCORED]) == ["of-file", "run-2"]
    assert names([SCORED, SCORED]) == ["run-1", "run-2"]
    assert names(str(trec)) == ["of-file"]
    both = pl.concat([make_run(ROWS, "one"), make_run(ROWS, "two")])
    assert names(both) == ["one", "two"]


def test_texts_become_passages_with_an_id_for_each():
    given = {"x": {"q1": ["one", "two"], "q2": ["two"]}, "y": {"q1": ["two", "three"]}}
    frame, corpus, _ = runs_of(given, carried=True)
    ids = dict(corpus.select("text", "doc_id").iter_rows())
    assert list(ids) == ["one", "two", "three"]
    assert frame.select("run", "query_id", "doc_id").rows() == [
        ("x", "q1", ids["one"]), ("x", "q1", ids["two"]), ("x", "q2", ids["two"]),
        ("y", "q1", ids["two"]), ("y", "q1", ids["three"]),
    ]  # fmt: skip


def test_rows_with_texts_keep_their_ids_and_titles():
    rows = [
        {"qid": "q", "docno": "d7", "text": "one", "title": "T", "score": 3.0},
        {"qid": "q", "page_content": "two", "score": 4.0},
    ]
    # The first 16 digits of the SHA-256 of "two", as for files.
    frame, corpus, _ = runs_of(rows, carried=True)
    assert ranks(frame) == [("q", "3fc4ccfe745870e2", 1), ("q", "d7", 2)]
    assert ("d7", "T", "one", "T") in corpus.rows()


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({}, "run: the run is empty"),
        ([], "there is no run"),
        (7, "runs: is of the type int; give a path"),
        ({"q": 3}, "q: is of the type int"),
        ({"q": {"a": "high"}}, "'high' of document 'a' of query 'q' is not a number"),
        ({"q": {"a": True}}, "True of document"),
        ({"q": {"a": 1e300}}, "not a number that single precision holds"),
        ({"q": ["a", "a"]}, "query 'q' lists document 'a' twice"),
        ({"q": [["a"]]}, "query 'q' lists ['a']"),
        ([{"query_id": "q", "score": 1}], "runs:1: query 'q' lists an object, which has neither an id nor a text"),
        ([{"results": ["a", "b"]}], "runs:1: names no query"),
        ([{"doc_id": "d", "query_id": "q"}, {"doc_id": "d"}], "runs:2: names no query"),
        ([{"doc_id": 1.5, "query_id": "q"}], "runs:1: a passage of query 'q' has the id or title 1.5; write ids as strings"),
        ({"x": [{"query_id": "q", "doc_id": "d"}], "y": ["no.trec"]}, "y:1: is a row of the type str"),
        ([{"query_id": "q", "doc_id": d, "score": s} for d, s in (("a", 1), ("b", None))], "runs:2: document 'b' of query 'q' has no score, and others have"),
        ([make_run(ROWS, "one"), make_run(ROWS, "one")], "the run is called 'one', as is"),
        ({"q": []}, "run: the run is empty"),
        ({"\ud800": SCORED}, "runs: a run is called '\\ud800'; write valid Unicode"),
        (pd.DataFrame([["q", "a", "b"]], columns=["query_id", "doc_id", "doc_id"]), "runs: the column 'doc_id' is given twice"),
    ],
)  # fmt: skip
def test_what_is_no_run_is_refused_in_a_line(given, words):
    with pytest.raises(InputError, match=re.escape(words)):
        runs_of(given, carried=False)[0]


def test_two_texts_under_one_id_are_refused():
    rows = [{"query_id": q, "doc_id": "d", "text": t} for q, t in (("1", "one"), ("2", "two"))]
    with pytest.raises(
        InputError, match="runs:2: passage 'd' of query '2' has another text than in runs:1"
    ):
        runs_of(rows, carried=True)
