import json

import polars as pl
import pytest

from engine.evaluation.query_clusters import with_clusters
from engine.messages.errors import InputError
from engine.sources.io.files import write_parquet
from engine.sources.queries.read import read_query_set


def queries(*rows):
    frame = pl.DataFrame(rows, ["query_id", "query", "provenance"], orient="row")
    return frame.with_columns(pl.col("provenance").cast(pl.List(pl.String)))


def test_queries_that_share_an_article_a_context_or_a_text_are_a_cluster():
    table = queries(
        ("1", "a", ["X"]),
        ("2", "b", ["Y", "X"]),  # X has three queries, Y two
        ("3", "c", ["X"]),
        ("4", "d", ["Y"]),  # the only one left for Y, and still named by another
        ("5", "e", ["Z"]),  # nobody else names Z
        ("6", "f", []),  # the context of 5
        ("7", "g", []),
        ("8", "g", []),  # the text of 7
    )
    clustered, note = with_clusters(table, {"5": "P", "6": "P", "7": "Q"}, "article")
    assert clustered["cluster"].to_list() == [0, 0, 0, 1, 2, 2, 3, 3]
    assert note.text.startswith("8 queries are in 4 clusters by `cluster` article")
    # Not asked for: found, kept, and said.
    found, note = with_clusters(table, {}, None)
    assert found["cluster"].to_list() == [0, 0, 0, 1, 2, 3, 4, 4]
    assert (note.code, note.amount, note.is_shown) == ("queries_share_articles", 5, True)


def test_few_that_share_are_not_worth_a_note():
    rows = [(str(i), f"q{i}", ["X"] if i < 2 else [f"A{i}"]) for i in range(10)]
    assert not with_clusters(queries(*rows), {}, None)[
        1
    ].is_shown  # two of ten are not more than a fifth
    rows[2] = ("2", "q2", ["X"])
    assert with_clusters(queries(*rows), {}, None)[1].amount == 8


def test_a_column_of_any_layout_clusters_and_an_unknown_one_is_one_line(tmp_path):
    records = [
        {"id": "1", "query": "a", "answers": ["x"], "topic": 7},
        {"id": "2", "query": "b", "answers": ["x"], "topic": 7},
        {"id": "3", "query": "c", "answers": ["x"], "topic": None},
    ]
    lines = tmp_path / "q.jsonl"
    lines.write_text("".join(json.dumps(record) + "\n" for record in records))
    table = tmp_path / "q.csv"
    table.write_text("id,query,answers,topic\n1,a,x,7\n2,b,x,7\n3,c,x,\n")
    parquet = tmp_path / "q.parquet"
    frame = pl.DataFrame(records).rename({"id": "query_id"})
    write_parquet(frame.with_columns(pl.Series("provenance", [["A"]] * 3)), parquet)
    for path in (lines, table, parquet):
        assert read_query_set(path, column="topic").groups == {"1": "7", "2": "7"}
        with pytest.raises(InputError, match=r"column 'theme'; name one of .*topic") as caught:
            read_query_set(path, column="theme")
        assert "\n" not in str(caught.value)
    found = read_query_set(lines, column="topic")
    clustered, _ = with_clusters(found.table, found.groups, "topic")
    assert clustered["cluster"].to_list() == [0, 0, 1]


def test_paragraphs_of_squad_are_contexts(tmp_path):
    def paragraph(text, *ids):
        qas = [{"id": i, "question": i, "answers": [{"text": "x"}]} for i in ids]
        return {"context": text, "qas": qas}

    path = tmp_path / "squad.json"
    paragraphs = [paragraph("one", "a", "b"), paragraph("two", "c")]
    path.write_text(json.dumps({"data": [{"title": "T", "paragraphs": paragraphs}]}))
    groups = read_query_set(path).groups
    assert groups["a"] == groups["b"] != groups["c"]
    assert read_query_set(path, column="title").groups == dict.fromkeys("abc", "T")
