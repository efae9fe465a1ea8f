import polars as pl
import pytest

from engine import tables
from engine.sources.runs.qrels import read_qrels, write_qrels
from tests.expected import refused


def test_trec_lines_are_read_in_their_order(tmp_path):
    path = tmp_path / "q.txt"
    path.write_text("q2 0 b 2\nq1 0 a 0\nq1 Q0 c -1\n")
    assert read_qrels(path).rows() == [("q2", "b", 2.0), ("q1", "a", 0.0), ("q1", "c", -1.0)]


def test_beir_files_have_three_columns_and_a_header(tmp_path):
    path = tmp_path / "test.tsv"
    path.write_text("query-id\tcorpus-id\tscore\nq 1\td1\t1\nq2\td 2\t0\n")
    assert read_qrels(path).rows() == [("q 1", "d1", 1.0), ("q2", "d 2", 0.0)]
    path.write_text("query-id\tcorpus-id\tscore\nq1\t0\td1\t1\n")
    with refused("qrels.columns"):
        read_qrels(path)
    path.write_text("q1\td1\t1\n")
    with refused("qrels.columns"):
        read_qrels(path)


def test_dictionaries_of_pytrec_eval_are_qrels(tmp_path):
    path = tmp_path / "j.json"
    path.write_text('{"q1": {"d1": 1, "d2": 0},\n "q2": {"d1": 2}}')
    assert read_qrels(path).rows() == [("q1", "d1", 1.0), ("q1", "d2", 0.0), ("q2", "d1", 2.0)]
    for text, words in (
        ('{"q1": ["d1"]}', "qrels.unlabelled"),
        ('{"q1": {"d1": "1"}}', "runs.dictionary"),
        ('{"q1": {"d1": Infinity}}', "qrels.label"),
        ("{}", "qrels.none"),
    ):
        path.write_text(text)
        with refused(words):
            read_qrels(path)


@pytest.mark.parametrize("name", ["j.trec", "j.parquet"])
def test_written_qrels_round_trip(tmp_path, name):
    rows = [("q1", "d1", 1.0), ("q1", "d2", -1.0), ("q2", "d1", 3.0)]
    table = pl.DataFrame(rows, schema=tables.QRELS, orient="row")
    write_qrels(table, tmp_path / name)
    assert read_qrels(tmp_path / name).equals(table)
    if name == "j.trec":
        assert (tmp_path / name).read_text() == "q1 0 d1 1\nq1 0 d2 -1\nq2 0 d1 3\n"


@pytest.mark.parametrize("row", [("q 1", "d", 1.0), ("q", "", 1.0), ("q", "d", 0.5)])
def test_qrels_that_trec_text_cannot_represent_are_not_written(tmp_path, row):
    table = pl.DataFrame([row], schema=tables.QRELS, orient="row")
    with refused("qrels.unfit"):
        write_qrels(table, tmp_path / "j.trec")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "text",
    [
        '{"user_input": "who", "reference_contexts": ["Ann is.", "Bo was."]}\n{"user_input": "why", "reference_contexts": []}\n',
        '[{"user_input": "who", "reference_contexts": "[\'Ann is.\', \'Bo was.\']"}]',
        '{"prompt": "say {query}", "queries": [{"id": 1, "text": "who",\n "relevant_docs": '
        '[{"doc": "Ann is.", "relevance": 1}, {"doc": "Bo was.", "relevance": 1}]}]}',
        '{"query": "who", "relevant_docs": ["Ann is.", "Bo was."]}',
    ],
)
def test_judged_texts_stand_for_documents(tmp_path, text):
    path = tmp_path / "judged.json"
    path.write_text(text)
    expected = [("who", "Ann is.", 1.0, True), ("who", "Bo was.", 1.0, True)]
    assert read_qrels(path).rows() == expected


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"queries": ["relevant_docs"]}', "qrels.query"),
        ('{"query": "who", "relevant_docs": [{"doc": null}]}', "qrels.id"),
        (
            '{"query": "who", "relevant_docs": [{"doc": "a b", "relevance": "much"}]}',
            "qrels.label",
        ),
        ('{"query": "who", "relevant_docs": []}', "qrels.none"),
        ('{"query": "who", "relevant_docs": [', "json.broken"),
    ],
)
def test_judged_texts_that_cannot_be_used_are_refused(tmp_path, text, words):
    path = tmp_path / "judged.json"
    path.write_text(text)
    with refused(words):
        read_qrels(path)
