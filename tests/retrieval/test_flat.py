"""Exact search whatever computes the candidates."""

import numpy as np
import polars as pl
import pytest

from engine.retrieval import flat
from engine.retrieval.shards import Block


@pytest.fixture(scope="module")
def vectors():
    """500 vectors, a hundred of them equal and a hundred others nearly."""
    draw = np.random.default_rng(0)
    made = draw.standard_normal((500, 48)).astype(np.float32)
    made[100:200] = made[100]
    made[200:300] = made[100] + 1e-6 * draw.standard_normal((100, 48)).astype(np.float32)
    return made


@pytest.fixture(scope="module")
def queries(vectors):
    draw = np.random.default_rng(1)
    return np.concatenate([draw.standard_normal((9, 48)), vectors[100:101]]).astype(np.float32)


@pytest.fixture(scope="module")
def ids():
    return pl.Series([f"d{i}" for i in np.random.default_rng(2).permutation(500)])


def cut(ids, vectors, size):
    return [
        Block(ids.slice(start, size), vectors[start : start + size])
        for start in range(0, len(vectors), size)
    ]


def brute_force(ids, vectors, queries, k):
    """The definition, pair by pair."""
    rows = []
    for row, query in enumerate(queries):
        scored = [
            (float(np.add.reduce(query.astype(np.float64) * vector)), doc_id)
            for doc_id, vector in zip(ids, vectors.astype(np.float64), strict=True)
        ]
        best = sorted(scored, key=lambda pair: (-pair[0], pair[1]))[:k]
        rows += [(row, doc_id, score) for score, doc_id in best]
    schema = {"query_row": pl.Int64, "doc_id": pl.String, "score": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


@pytest.mark.parametrize("k", [1, 10, 150, 499, 600])
def test_scores_equal_the_definition_bit_for_bit_through_ties_and_near_ties(
    ids, vectors, queries, k
):
    expected = brute_force(ids, vectors, queries, k)
    for size in (500, 120, 7):
        assert flat.search(cut(ids, vectors, size), queries, k=k).equals(expected)


def test_the_result_does_not_depend_on_the_order_of_blocks(ids, vectors, queries):
    blocks = cut(ids, vectors, 70)
    assert flat.search(blocks[::-1], queries, k=20).equals(flat.search(blocks, queries, k=20))


def test_a_gpu_that_rounds_to_tf32_gives_the_same_result(ids, vectors, queries, monkeypatch):
    """Its thread and its coarser arithmetic, played by the CPU: ten bits of a number are kept."""

    def rounded(numbers):
        bits = np.ascontiguousarray(numbers).view(np.uint32) & np.uint32(0xFFFFE000)
        return bits.view(np.float32)

    def coarse():
        return lambda q, v, k: flat.nearest_on_cpu(rounded(q), rounded(v), k)

    monkeypatch.setattr(flat, "nearest_on_gpu", coarse)
    expected = flat.search(cut(ids, vectors, 500), queries, k=20)
    for size in (500, 60):
        found = flat.search(cut(ids, vectors, size), queries, k=20, searcher=flat.on_gpu)
        assert found.equals(expected)


def test_scores_do_not_depend_on_which_pairs_are_computed_together(vectors, queries):
    row, place = np.repeat(np.arange(10), 500), np.tile(np.arange(500), 10)
    together = flat.exact(queries, vectors, row, place)
    alone = [flat.exact(queries, vectors, row[i : i + 1], place[i : i + 1])[0] for i in range(5000)]
    assert together.tolist() == alone


def test_without_queries_the_result_is_empty(ids, vectors):
    assert flat.search(cut(ids, vectors, 100), np.empty((0, 48), np.float32), k=3).is_empty()
