"""Passages that are collected from files, and those that are marked in an index of the same files."""

import json

import polars as pl
import pytest

from engine.sources.io.folders import folder_at
from engine.sources.passages.index import index_corpus
from engine.sources.passages.listed import Collected, Marked
from engine.tables import DOC_ID, TEXT, TITLE

PASSAGES = [
    ("d1", "one text", "T"),
    ("d2", " ", "T"),
    ("d3", "one text", ""),
    ("d4", "another", "U"),
    ("d5", "the last", ""),
]


@pytest.fixture(params=["collected", "held", "marked"])
def passages(request, tmp_path):
    path = tmp_path / "c.jsonl"
    rows = [{"id": i, "text": text, "title": title} for i, text, title in PASSAGES]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"id": "bad"}\n')
    if request.param == "marked":
        return Marked(index_corpus(path, folder_at(tmp_path), "k", skip_bad=1))
    collected = Collected.of_corpus(path, skip_bad=1)
    if request.param == "held":
        collected.look_up(pl.Series([i for i, *_ in PASSAGES]))
        (table,) = collected.scan()
        return Collected.of_batches(lambda: [table])
    return collected


def listed(passages, column=DOC_ID):
    return [value for batch in passages.scan([column]) for value in batch[column]]


def test_what_was_looked_up_is_noted_in_the_order_of_the_corpus(passages):
    assert passages.look_up(pl.Series(["d4", "lost", "d2"])).to_list() == ["lost"]
    assert listed(passages) == ["d2", "d4"]
    assert listed(passages, TITLE) == ["T", "U"]
    assert passages.count_empty() == 1
    assert passages.look_up(pl.Series(["d4"])).is_empty()
    assert sorted(listed(passages)) == ["d2", "d4"]


def test_a_text_stands_for_the_first_passage_that_has_it_and_comes_last(passages):
    passages.look_up(pl.Series(["d4"]))
    found = passages.look_up_texts(pl.Series(["the last", "one text", "no such"]))
    assert sorted(found.select(TEXT, DOC_ID).rows()) == [("one text", "d1"), ("the last", "d5")]
    assert listed(passages) == ["d4", "d1", "d5"]


def test_a_passage_that_has_both_its_id_and_its_text_given_is_noted_once(passages):
    passages.look_up(pl.Series(["d1"]))
    passages.look_up_texts(pl.Series(["one text"]))
    assert listed(passages) == ["d1"]


def test_ids_are_unknown_that_are_not_those_of_passages(passages):
    passages.look_up(pl.Series(["d1", "lost"]))
    assert passages.unknown(pl.Series(["lost", "d1"])).to_list() == ["lost"]


def test_bad_records_are_counted(passages, request):
    passages.look_up(pl.Series(["d1"]))
    expected = 0 if "held" in request.node.name else 1
    assert passages.skipped == expected
