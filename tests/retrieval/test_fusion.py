"""Reciprocal-rank fusion: by hand, and against ranx."""

import random

import polars as pl
import pytest

from engine.retrieval.fusion import reciprocal_rank
from tests.conftest import make_run
from tests.expected import refused


def test_sums_of_reciprocal_ranks_by_hand():
    """a: 1/61 + 1/62, b: 1/62 + 1/61, c: 1/63; a and b are equal, a comes first by its id."""
    one = make_run([("q", "a", 1), ("q", "b", 2), ("q", "c", 3)], "one")
    two = make_run([("q", "b", 1), ("q", "a", 2)], "two")
    fused = reciprocal_rank(pl.concat([one, two]), k=10)
    assert fused["doc_id"].to_list() == ["a", "b", "c"]
    assert fused["score"].to_list() == pytest.approx([1 / 61 + 1 / 62, 1 / 61 + 1 / 62, 1 / 63])
    assert fused["rank"].to_list() == [1, 2, 3]
    assert fused["run"].unique().to_list() == ["rrf"]


def some_runs(seed, systems=3):
    draw = random.Random(seed)
    rows = {}
    for name in range(systems):
        rows[f"s{name}"] = [
            (f"q{q}", f"d{d}", rank)
            for q in range(20)
            for rank, d in enumerate(draw.sample(range(30), draw.randint(1, 15)), 1)
        ]
    return [make_run(rows[name], name) for name in rows]


def test_the_result_does_not_depend_on_the_order_of_runs():
    runs = some_runs(1)
    forward = reciprocal_rank(pl.concat(runs), k=10)
    assert forward.equals(reciprocal_rank(pl.concat(runs[::-1]), k=10))
    assert forward["rank"].max() == 10


def test_a_query_of_a_single_run_is_kept():
    one = make_run([("q1", "a", 1), ("q3", "c", 1)], "one")
    two = make_run([("q2", "b", 1), ("q3", "c", 1)], "two")
    fused = reciprocal_rank(pl.concat([one, two]), k=5)
    assert fused["query_id"].to_list() == ["q1", "q2", "q3"]


@pytest.mark.slow  # ranx compiles for half a minute
def test_scores_are_those_of_ranx():
    from ranx import Run, fuse

    runs = some_runs(2)
    theirs = fuse(
        runs=[
            Run({
                query_id[0]: dict(group.select("doc_id", "score").iter_rows())
                for query_id, group in run.group_by("query_id")
            })
            for run in runs
        ],
        norm=None,
        method="rrf",
        params={"k": 60},
    ).to_dict()  # fmt: skip
    for query_id, doc_id, _, score, _ in reciprocal_rank(pl.concat(runs), k=100).iter_rows():
        assert score == pytest.approx(theirs[query_id][doc_id])


@pytest.mark.parametrize(
    "other",
    [
        [("t1", "a", 1), ("t2", "b", 1)],
        [("q2", "v_b", 1)],
        [("q1", "b", 1), ("q2", "a", 1)],
    ],
)
@pytest.mark.parametrize("third", [False, True], ids=["two runs", "beside a third"])
def test_runs_that_share_nothing_are_refused_unless_they_are_of_one_corpus(other, third):
    one, two = make_run([("q1", "a", 1), ("q2", "b", 1)], "one"), make_run(other, "two")
    more = [make_run([("q1", "c", 1), (*other[0][:2], 2)], "three")] if third else []
    with refused("runs.disjoint"):
        reciprocal_rank(pl.concat([one, two, *more]), k=5)
    known = reciprocal_rank(pl.concat([one, two]), k=5, one_corpus=True)
    assert known.height == len(other) + 2
