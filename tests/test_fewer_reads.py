"""The replays of fewer reads: what the tables hold, and how they are judged."""

import numpy as np
import polars as pl
import pytest

from benchmarks import _replay_tables, fewer_reads
from engine.statistics.until import decided
from tests.expected import as_expected, refused


def results(place, runs, reads):
    """Results of an evaluation of two queries, as far as replays take them."""
    (place / "exported" / "runs").mkdir(parents=True)
    queries = pl.DataFrame({"query_id": ["q9", "q1"], "answers": [["Ann"], ["Rome"]]})
    queries.with_columns(query=pl.lit("?")).write_parquet(place / "evaluated_queries.parquet")
    for run, listed in runs.items():
        lines = [
            f"{query} Q0 {doc} {rank} {-rank} {run}\n"
            for query, docs in listed.items()
            for rank, doc in enumerate(docs, 1)
        ]
        (place / "exported" / "runs" / f"{run}.trec").write_text("".join(lines))
    rows = [(query, docs, output, 7 * len(docs)) for query, docs, output in reads]
    columns = ["query_id", "doc_ids", "output", "prompt_tokens"]
    pl.DataFrame(rows, schema=columns, orient="row").write_parquet(place / "reads.parquet")


def test_a_table_is_made_from_results(tmp_path):
    reads = [("q9", ["a"], "Ann"), ("q9", ["b"], "Ann Lee"), ("q9", ["a", "b"], "Bob")]
    reads += [("q1", ["b"], "Oslo"), ("q1", ["a"], "Rome"), ("q1", ["b", "a"], "Rome")]
    results(tmp_path / "one", {"x": {"q9": "ab", "q1": "ba"}}, reads)
    results(tmp_path / "two", {"y": {"q9": "a", "q1": "b"}}, reads[:1] + reads[3:4])
    out = tmp_path / "made.parquet"
    assert _replay_tables.main([str(tmp_path / "one"), str(tmp_path / "two"), str(out)]) == 0
    table = pl.read_parquet(out)
    assert table.schema == pl.read_parquet(fewer_reads.REPLAYS / "nq.parquet").schema
    assert table.rows() == [
        ("x", 0, 1, 1, 7, True, 100, False, 0),
        ("x", 0, 2, 2, 7, False, 67, False, 0),
        ("x", 1, 1, 2, 7, False, 0, True, 100),
        ("x", 1, 2, 1, 7, True, 100, True, 100),
        ("y", 0, 1, 1, 7, True, 100, True, 100),
        ("y", 1, 1, 2, 7, False, 0, False, 0),
    ]
    results(tmp_path / "lazy", {"x": {"q9": "ab", "q1": "ba"}}, reads[1:])
    with refused("replay.reads"):
        _replay_tables.table_of([tmp_path / "lazy"])


def test_three_passages_are_labelled_up_to_the_first_useful_one():
    run = fewer_reads.load("fid", graded=False)["bm25"]
    assert run.y.mean() == pytest.approx(0.824)
    # in search of the first useful passage all 50 are read
    assert (run.singles.min(), run.singles.max(), run.k) == (1, 50, 50)
    first, by_rank, best = run.features.T
    solved = best > 0
    assert run.singles[solved] == pytest.approx(1 / by_rank[solved])
    assert (run.singles[~solved] > 3).all()
    assert (first == (run.singles == 1)).all()
    assert (run.first <= run.every).all()
    # a label of F1 is 1 where exact match is
    graded = fewer_reads.load("fid", graded=True)["bm25"]
    assert (graded.first == run.first).all()
    assert (graded.features[:, 1] == by_rank).all()


def test_tilted_chances_have_the_mean():
    differences = np.array([1.0, 0.0, 0.0, -1.0, 0.5])
    for mean in (0.0, 0.2, -0.3):
        chances = fewer_reads.tilted(differences, mean)
        assert (chances.sum(), chances @ differences) == pytest.approx((1, mean))


def test_cells_that_miss_are_named():
    good = {"n": 450, "rho": 0.8, "gain": 1.2, "expected": 1.19, "tokens": 0.5}
    held = {"new": 190, "these": 192}
    assert fewer_reads.faults(good | held, 200) == []
    as_expected(fewer_reads.faults(good | held | {"gain": 1.25}, 200))
    assert fewer_reads.faults(good | held | {"new": 170}, 200) == ["new held in 85.0%"]
    low = good | held | {"rho": 0.5, "gain": 1.6, "expected": 1.4}
    assert fewer_reads.faults(low, 200) == ["1.14 of the width expected"]


def test_a_run_that_is_told_apart_from_all_others_saves_its_lists_and_its_own_passages():
    """Two runs without a difference, and one that is beaten by both at the same question."""
    scores = np.array([[1.0] * 50, [1.0] * 50, [0.0] * 50])
    at = decided([scores[0] - scores[2]] * 2 + [0 * scores[0]], confidence=0.95)[0].decided_at
    lists = [[["x", own]] * 50 for own in "abc"]
    # A question takes three lists of two passages and four passages alone; of the run that stops, one of either.
    found = fewer_reads.stopping(scores, lists, 1)
    left = (50 - at) / 50
    assert found == pytest.approx({"lists": left * 2 / 10, "both": left * 3 / 10})
