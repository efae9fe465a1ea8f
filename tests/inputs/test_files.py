"""Digests of inputs: equal for equal contents, whatever their order and file."""

import pytest

from engine.sources.io.files import write_parquet
from tests.tables import read_files, table_files

QUERIES = """{"id": "q1", "input": "who", "output": [{"answer": "Ann"}, {"answer": "Bo"}]}
{"id": "q2", "input": "where", "output": [{"answer": "here"}]}
"""
CORPUS = """{"id": "d1", "title": "A", "text": "says Ann"}
{"id": "d2", "title": "B", "text": "says here"}
"""
RUN = "q1 Q0 d1 1 9.5 mine\nq1 Q0 d2 2 8.5 mine\nq2 Q0 d2 1 3 mine\n"
QRELS = "q1 0 d1 1\nq2 0 d2 0\n"


def digests(directory, queries=QUERIES, corpus=CORPUS, run=RUN, qrels=QRELS, k=2):
    for name, text in (("q.jsonl", queries), ("c.jsonl", corpus), ("r.trec", run), ("j", qrels)):
        (directory / name).write_text(text)
    inputs = read_files(
        directory / "q.jsonl",
        directory / "c.jsonl",
        [directory / "r.trec"],
        k=k,
        tables=table_files(qrels=directory / "j"),
    )
    return inputs, inputs.sha256


def reversed_lines(text):
    return "".join(reversed(text.splitlines(keepends=True)))


def test_order_of_lines_and_what_ranks_alone_decide_change_nothing(tmp_path):
    _, found = digests(tmp_path)
    assert sorted(found) == ["corpus", "qrels", "queries", "runs"]
    _, other = digests(
        tmp_path,
        reversed_lines(QUERIES),
        reversed_lines(CORPUS),
        # other scores, the same ranks; a rank beyond the cutoff
        "q2 Q0 d2 1 7 mine\nq1 Q0 d1 1 1.5 mine\nq1 Q0 d2 2 0.5 mine\nq1 Q0 d1x 3 0.1 mine\n",
        reversed_lines(QRELS),
    )
    assert other == found


def test_the_format_of_a_file_changes_nothing(tmp_path):
    inputs, found = digests(tmp_path)
    write_parquet(inputs.runs, tmp_path / "r.parquet")
    write_parquet(inputs.corpus, tmp_path / "c.parquet")
    again = read_files(
        tmp_path / "q.jsonl",
        tmp_path / "c.parquet",
        [tmp_path / "r.parquet"],
        k=2,
        tables=table_files(qrels=tmp_path / "j"),
    )
    assert again.sha256 == found


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("queries", {"queries": QUERIES.replace("where", "when")}),
        ("queries", {"queries": QUERIES.replace('"Bo"', '"Bob"')}),
        ("corpus", {"corpus": CORPUS.replace("says here", "says there")}),
        ("runs", {"run": RUN.replace("q1 Q0 d1 1 9.5", "q1 Q0 d1 1 0.5")}),
        ("qrels", {"qrels": QRELS.replace("d2 0", "d2 1")}),
    ],
)
def test_every_content_counts(tmp_path, name, changed):
    _, found = digests(tmp_path)
    _, other = digests(tmp_path, **changed)
    assert {key for key in found if found[key] != other[key]} == {name}
