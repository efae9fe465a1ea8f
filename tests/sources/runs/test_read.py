import gzip
import json

import polars as pl
import pytest
import pytrec_eval

from engine.sources.runs.read import read_run, read_runs, write_run
from tests.expected import refused


def write(path, text):
    path.write_text(text, encoding="utf-8")
    return path


def test_trec_order_is_score_then_document_id_descending_like_trec_eval(tmp_path):
    # The rank column lies; b and c tie; 1.00000001 and 1 are the same in single precision.
    text = "q Q0 a 1 0.5 s\nq Q0 b 2 2 s\nq Q0 c 3 2 s\nq Q0 d 4 1 s\nq Q0 e 5 1.00000001 s\n"
    ranked = read_run(write(tmp_path / "r", text))["doc_id"].to_list()
    assert ranked == ["c", "b", "e", "d", "a"]
    # trec_eval, asked where each document stands: the reciprocal rank if it alone is relevant.
    scores = {"a": 0.5, "b": 2.0, "c": 2.0, "d": 1.0, "e": 1.00000001}
    for rank, document in enumerate(ranked, 1):
        result = pytrec_eval.RelevanceEvaluator({"q": {document: 1}}, {"recip_rank"}).evaluate(
            {"q": scores}
        )
        assert result["q"]["recip_rank"] == pytest.approx(1 / rank)


def test_parquet_keeps_given_ranks_and_trec_round_trips(tmp_path):
    frame = pl.DataFrame(
        {
            "query_id": ["q", "q", "p"],
            "doc_id": ["a", "b", "a"],
            "rank": [7, 3, 1],
            "score": [0.1, 1 / 3, 2.0],
            "run": ["s"] * 3,
        }
    )
    write_run(frame, tmp_path / "r.parquet")
    parquet = read_run(tmp_path / "r.parquet")
    assert parquet.select("query_id", "doc_id", "rank").rows() == [
        ("p", "a", 1),
        ("q", "b", 1),
        ("q", "a", 2),
    ]
    write_run(parquet, tmp_path / "r.trec")
    assert read_run(tmp_path / "r.trec").equals(parquet)


def test_ties_keep_their_ranks_through_trec_text(tmp_path):
    """Equal in single precision, though not in double: readers would order them by document id."""
    frame = pl.DataFrame(
        {
            "query_id": ["q"] * 5 + ["p"],
            "doc_id": ["d00", "d01", "d02", "d10", "d03", "d00"],
            "rank": [1, 2, 3, 4, 5, 1],
            "score": [22.58, 22.58 - 1e-7, 22.58 - 2e-7, 22.58, 1.0, 22.58],
            "run": ["s"] * 6,
        }
    )
    write_run(frame, tmp_path / "r.trec")
    write_run(frame, tmp_path / "r.parquet")
    order = ["query_id", "doc_id", "rank"]
    trec, parquet = (read_run(tmp_path / f"r.{end}").select(order) for end in ("trec", "parquet"))
    assert trec.equals(parquet)


def test_two_runs_of_one_name_are_refused(tmp_path):
    first = write(tmp_path / "1", "q Q0 a 1 1 s\n")
    second = write(tmp_path / "2", "q Q0 b 1 1 s\n")
    with refused("runs.name"):
        read_runs([first, second])
    write(second, "q Q0 b 1 1 t\n")
    assert read_runs([first, second])["run"].to_list() == ["s", "t"]


def test_dictionaries_of_scores_are_ordered_as_trec_files_are(tmp_path):
    scores = {"q2": {"a": 1, "b": 2.5}, "q1": {"x": 0.5, "y": 0.5, "z": -3}}
    (tmp_path / "mine.json.gz").write_bytes(gzip.compress(json.dumps(scores).encode()))
    trec = "".join(f"{q} Q0 {d} 0 {s} mine\n" for q in scores for d, s in scores[q].items())
    (tmp_path / "mine.trec").write_text(trec)
    run = read_run(tmp_path / "mine.json.gz")
    assert run.equals(read_run(tmp_path / "mine.trec"))
    assert run["doc_id"].to_list() == ["y", "x", "z", "b", "a"]


def test_dictionaries_of_lists_hold_the_best_document_first(tmp_path):
    (tmp_path / "mine.json").write_text('{"who is it": ["b", "c", "a"],\n "where": []}')
    assert read_run(tmp_path / "mine.json").rows() == [
        ("who is it", "b", 1, 3.0, "mine"),
        ("who is it", "c", 2, 2.0, "mine"),
        ("who is it", "a", 3, 1.0, "mine"),
    ]


def test_the_first_of_several_bad_lines_is_named(tmp_path):
    """A document that a line repeats is found when all lines are read, and yet comes before those below."""
    good, again, bad = "q Q0 a 1 2 s\n", "q Q0 a 1 1 s\n", "q Q0 b\n"
    for text, code in (
        (good + again + bad, "runs.duplicate"),
        (good + bad + again, "runs.columns"),
    ):
        with refused(code, path=tmp_path / "r", line=2):
            read_run(write(tmp_path / "r", text))


def test_records_may_count_ranks_from_0(tmp_path):
    rows = [{"query_id": "q", "doc_id": d, "rank": n} for n, d in ((1, "b"), (0, "a"), (2, "c"))]
    path = write(tmp_path / "r.jsonl", "".join(f"{json.dumps(row)}\n" for row in rows))
    assert read_run(path).select("doc_id", "rank").rows() == [("a", 1), ("b", 2), ("c", 3)]
