"""Exact search whatever computes the candidates."""

import numpy as np
import polars as pl
import pytest

from engine.messages.errors import EncodeError
from engine.retrieval import flat
from engine.retrieval.encode import Block
from tests.expected import as_expected
from tests.tables import framed


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
    return framed(rows, schema)


@pytest.mark.parametrize("k", [1, 10, 150, 499, 600])
def test_scores_equal_the_definition_bit_for_bit_through_ties_and_near_ties_in_any_order_of_blocks(
    ids, vectors, queries, k
):
    expected = brute_force(ids, vectors, queries, k)
    for size in (500, 120, 7):
        blocks = cut(ids, vectors, size)
        assert flat.search_flat(blocks, queries, k=k).equals(expected)
        assert flat.search_flat(blocks[::-1], queries, k=k).equals(expected)


def cut_to(mask):
    """The search of a GPU that keeps these bits of a number, played by the CPU."""

    def rounded(numbers):
        return (np.ascontiguousarray(numbers).view(np.uint32) & np.uint32(mask)).view(np.float32)

    return lambda q, v, k: flat.nearest_on_cpu(rounded(q), rounded(v), k)


TF32 = cut_to(0xFFFFE000)  # ten bits of the significand


def test_a_gpu_that_rounds_to_tf32_gives_the_same_result(ids, vectors, queries, monkeypatch):
    """Its thread and its coarser arithmetic, played by the CPU."""
    monkeypatch.setattr(flat, "nearest_on_gpu", lambda: TF32)
    expected = flat.search_flat(cut(ids, vectors, 500), queries, k=20)
    for size in (500, 60):
        found = flat.search_flat(cut(ids, vectors, size), queries, k=20, searcher=flat.on_gpu)
        assert found.equals(expected)


@pytest.mark.parametrize("dimensions", [384, 1024, 2046, 2560, 4096])
def test_a_gpu_searches_vectors_of_any_width_itself(dimensions):
    draw = np.random.default_rng(0)
    made = draw.standard_normal((2508, dimensions), dtype=np.float32)
    made /= np.linalg.norm(made, axis=1, keepdims=True)
    asked = []

    def nearest(queries, vectors, k):
        asked.append(k)
        return TF32(queries, vectors, k)

    block = Block(pl.Series([f"d{i}" for i in range(2500)]), made[8:])
    floor = np.full(8, -np.inf)
    found = flat.candidates(block, made[:8], 10, floor, nearest, flat.GPU_ROUNDING)
    best = flat.Best(8, 10)
    best.add(found.candidates)
    assert best.table.equals(flat.search_flat([block], made[:8], k=10))
    assert max(asked) <= 416
    assert found.on_cpu == 0


def test_what_a_gpu_cannot_return_is_searched_on_the_cpu_which_is_said(monkeypatch):
    monkeypatch.setattr(flat, "_GPU_MOST", 30)
    monkeypatch.setattr(flat, "nearest_on_gpu", lambda: TF32)
    vectors = np.ones((200, 8), np.float32)  # every passage ties: all of them are asked for
    blocks = cut(pl.Series([f"d{i:03}" for i in range(200)]), vectors, 100)
    told = []
    found = flat.search_flat(blocks, vectors[:2], k=3, searcher=flat.on_gpu, on_event=told.append)
    assert found["doc_id"].to_list() == ["d000", "d001", "d002"] * 2
    as_expected(told)


def test_a_search_whose_errors_exceed_their_bound_is_no_result(ids, vectors, queries):
    block, floor = Block(ids, vectors), np.full(len(queries), -np.inf)
    coarser = cut_to(0xFFFF0000)  # seven bits, as bf16
    broken = vectors.copy()
    broken[0] = np.nan
    for search in (
        lambda: flat.candidates(block, queries, 20, floor, coarser, flat.GPU_ROUNDING),
        lambda: flat.search_flat([Block(ids, broken)], queries, k=20),
        lambda: flat.candidates(block, queries, 20, floor, coarser, flat.RoundoffUnits(0.5, 0.1)),
    ):
        with pytest.raises(EncodeError) as caught:
            search()
        as_expected(str(caught.value))


def test_scores_do_not_depend_on_which_pairs_are_computed_together(vectors, queries):
    row, place = np.repeat(np.arange(10), 500), np.tile(np.arange(500), 10)
    together = flat.exact(queries, vectors, row, place)
    alone = [flat.exact(queries, vectors, row[i : i + 1], place[i : i + 1])[0] for i in range(5000)]
    assert together.tolist() == alone


def test_without_queries_the_result_is_empty(ids, vectors):
    assert flat.search_flat(cut(ids, vectors, 100), np.empty((0, 48), np.float32), k=3).is_empty()
