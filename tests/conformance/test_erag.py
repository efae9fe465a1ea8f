import json
import random
import sys

import polars as pl
import pytest

from engine.conformance import erag
from engine.conformance.erag import compare_erag, read_lists
from engine.messages.errors import InputError
from engine.ranking.scores import score_runs


@pytest.fixture
def write(tmp_path):
    def write(lists):
        path = tmp_path / "lists.jsonl"
        path.write_text("".join(json.dumps({"query": q, "labels": v}) + "\n" for q, v in lists))
        return path

    return write


def rows_of(found):
    return {row.measure: row for reference in found.references for row in reference.rows}


def test_real_valued_labels_by_hand(write):
    path = write([("q1", [0.25, 1.0, 0.5]), ("q2", [0.0, 0.5, 0.25, 0.25])])
    found = compare_erag(path)
    rows = rows_of(found)
    # Cutoffs end with the shortest list: the package fails beyond it.
    assert list(rows) == ["P", "Success", "P@1", "Success@1", "P@3", "Success@3"]
    assert "the shortest has 3" in found.notes[1]
    assert all(row.agrees(1e-12) and row.n == 2 for row in rows.values())
    # P: mean label, 1.75 / 3 and 1 / 4; Success@3: the largest of the first 3, 1 and 0.5
    assert rows["P"].their_mean == pytest.approx((1.75 / 3 + 1 / 4) / 2)
    assert rows["Success@3"].their_mean == rows["Success@3"].our_mean == 0.75


def test_labels_keep_every_digit(write):
    rng = random.Random(5)
    path = write([(f"q{i}", [rng.random() for _ in range(7)]) for i in range(50)])
    assert all(row.agrees(1e-12) for row in rows_of(compare_erag(path)).values())


def test_binary_labels_give_trec_evals_measures(write):
    rng = random.Random(6)
    lists = [(f"q{i}", [rng.random() < 0.3 for _ in range(rng.randint(1, 14))]) for i in range(40)]
    found = compare_erag(write([*lists, ("none", [0, 0]), ("all", [1, 1.0, True])]))
    rows = rows_of(found)
    assert {"P@1", "P@10", "P@20", "R@20", "AP@5", "AP", "RR", "Rprec", "nDCG", "nDCG@20"} < set(
        rows
    )
    assert all(row.agrees(1e-12) and row.n == 42 for row in rows.values())
    assert "0 or 1" in found.notes[1]


def test_queries_without_results_count_0_here_and_are_left_out_there(write):
    for lists, notes in (
        ([("q1", [1, 0]), ("q2", [])], "2 queries, 1 of them without results"),
        ([("q1", [0.5, 0.75]), ("q2", [])], "2 queries, 1 of them without results"),
    ):
        found = compare_erag(write(lists))
        row = rows_of(found)["Success@1"]
        assert (row.n, row.our_mean) == (1, row.their_mean / 2)
        assert row.agrees(0)
        assert found.notes[0] == notes


def test_one_object_of_lists(tmp_path):
    path = tmp_path / "lists.json"
    path.write_text(json.dumps({"who?": [0.5, 1], "labels": [0]}, indent=1))
    assert read_lists(path).labels == {"who?": (0.5, 1.0), "labels": (0.0,)}
    path.write_text('{"query": "who?", "labels": [1, 0], "id": 7}')
    lists = read_lists(path)
    assert lists.labels == {"who?": (1.0, 0.0)}
    assert lists.binary


def test_a_wrong_value_of_the_engine_is_found(write, monkeypatch):
    def wrong(*args, **kwargs):
        scores = score_runs(*args, **kwargs)
        hit = (pl.col("measure") == "P@1") & (pl.col("query_id") == "q1")
        return scores.with_columns(pl.when(hit).then(0.5).otherwise("value").alias("value"))

    monkeypatch.setattr(erag, "score_runs", wrong)
    rows = rows_of(compare_erag(write([("q0", [1, 0]), ("q1", [1, 0])])))
    assert (rows["P@1"].difference, rows["P@1"].at) == (0.5, "q1")
    assert [name for name, row in rows.items() if not row.conforms(1e-12)] == ["P@1"]


def test_the_package_must_be_installed(write, monkeypatch):
    monkeypatch.setitem(sys.modules, "erag", None)
    with pytest.raises(InputError, match="no reference implementation of eRAG") as error:
        compare_erag(write([("q", [1])]))
    assert error.value.remedy == "pip install --no-deps erag pytrec-eval-terrier"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no labels"),
        ('{"query": "q", "labels": []}', "holds no labels"),
        ('{"query": "q", "labels": [1]}\n' * 2, ":2: query 'q' stands twice"),
        ('{"q": [1], "q": [0]}', "query 'q' stands twice"),
        ('{"query": "q", "labels": [1.5]}', ":1: label 1.5 of query 'q'"),
        ('{"query": "q", "labels": [NaN]}', ":1: label nan of query 'q'"),
        ('{"query": "q", "labels": ["1"]}', ":1: label '1' of query 'q'"),
        ('{"query": "q", "labels": 1}', ":1: the labels of 'q' are not a list"),
        ('{"query": "q"}', ": the labels of 'query' are not a list"),
        ('{"query": 3, "labels": [1]}', ":1: query 3 is not a text"),
        ('{"q": {"a": 1}}', "the labels of 'q' are not a list"),
        ('{"query": "q", "labels": [1]}\n{"query"', ":2: broken JSON"),
        ("[1]", ":1: a JSON list, not an object"),
    ],
)
def test_bad_input_is_named(tmp_path, text, words):
    path = tmp_path / "lists"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_lists(path)
    assert words in str(error.value)
