"""Notes on what is one value; an evaluation in parts has those of the whole."""

import polars as pl
import pytest

from engine import tables
from engine.evaluation.conclude import is_told
from engine.evaluation.score import constant_notes
from engine.labels.annotator import Labelled
from engine.messages.notes import merge_notes


class Inputs:
    def __init__(self, rows, corpus=9):
        self.runs = pl.DataFrame(rows, tables.RUNS, orient="row")
        self.run_names = ["bm25"]
        self.corpus = pl.DataFrame({"doc_id": list(range(corpus))})


def codes(notes):
    return [note.code for note in notes if note.is_shown]


def notes_of(rows, labels):
    made = Labelled(pl.DataFrame({"label": labels}, {"label": pl.Float64}), pl.DataFrame())
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
