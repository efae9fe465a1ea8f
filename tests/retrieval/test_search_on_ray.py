"""Actors that encode queries and search vectors give what one process gives, whatever becomes of them.

They have no GPU here. What one would do, and what goes wrong, is played.
"""

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from engine.errors import EncodeError, InputError
from engine.machine import cluster
from engine.machine.nodes import Needs
from engine.machine.pool import Pool
from engine.retrieval import flat, search_on_ray
from engine.retrieval.shards import Block
from tests.retrieval.search_actors import (
    TEXTS,
    CpuActor,
    DeadlyActor,
    DyingActor,
    SlowActor,
    vectors_of,
)

POOL = Pool(2, 2, 2, Needs(0.0, 0.0, 0, None))
ROWS, WIDTH = 500, 24


@pytest.fixture(scope="module")
def vectors():
    """A hundred of them equal, a hundred others nearly."""
    draw = np.random.default_rng(0)
    made = draw.standard_normal((ROWS, WIDTH)).astype(np.float32)
    made[100:200] = made[100]
    made[200:300] = made[100] + 1e-6 * draw.standard_normal((100, WIDTH)).astype(np.float32)
    return made


@pytest.fixture(scope="module")
def queries(vectors):
    draw = np.random.default_rng(1)
    return np.concatenate([draw.standard_normal((9, WIDTH)), vectors[100:101]]).astype(np.float32)


def cut(vectors, size):
    ids = pl.Series([f"d{i}" for i in np.random.default_rng(2).permutation(len(vectors))])
    return [
        Block(ids.slice(at, size), vectors[at : at + size]) for at in range(0, len(vectors), size)
    ]


def crew(actor_class, **spec):
    return search_on_ray.crew(POOL, SimpleNamespace(dimensions=32, **spec), actor_class=actor_class)


@pytest.mark.usefixtures("ray_session")
def test_a_process_that_dies_is_replaced_and_nothing_shows(vectors, queries, tmp_path, monkeypatch):
    blocks = cut(vectors, 60)
    with crew(DyingActor, folder=tmp_path, deadly=blocks[2].doc_ids[0]) as actors:
        monkeypatch.setattr(search_on_ray, "SHARD", 20)
        made = actors.queries(TEXTS)
        found = flat.search(blocks, queries, k=20, searcher=actors)
        starts, repeated = actors.tally().starts, actors.tally().repeated
    assert np.array_equal(
        made, np.concatenate([vectors_of(TEXTS[i : i + 20]) for i in (0, 20, 40)])
    )
    assert found.equals(flat.search(cut(vectors, ROWS), queries, k=20))
    assert repeated == 2
    assert sorted(start.again for start in starts) in (
        [False, False, True],
        [False, False, True, True],
    )
    assert {path.name for path in tmp_path.iterdir()} == {"searching", "encoding"}


@pytest.mark.usefixtures("ray_session")
def test_a_slow_actor_does_not_hold_up_the_others(vectors, queries, tmp_path):
    blocks = cut(vectors, 100)
    with crew(SlowActor, folder=tmp_path, first=blocks[0].doc_ids[0]) as actors:
        found = flat.search(blocks, queries, k=5, searcher=actors)
    assert found.equals(flat.search(cut(vectors, ROWS), queries, k=5))


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_a_block_that_kills_every_process_ends_the_search(vectors, queries):
    blocks = cut(vectors, ROWS)
    died = f"died 3 times in the part that begins with document '{blocks[0].doc_ids[0]}'"
    with crew(DeadlyActor) as actors, pytest.raises(EncodeError, match=died):
        flat.search(blocks, queries, k=5, searcher=actors)


def test_a_cluster_of_one_gpu_or_none_has_no_actors(monkeypatch, tmp_path):
    started = []
    monkeypatch.setattr(cluster, "start_ray", started.append)
    spec = SimpleNamespace(path=str(tmp_path), dtype="float32")
    for start, gpus, pieces, expected in [
        (4, 1, 9, 4),
        (4, 1, 3, 3),
        (4, 1, 1, 0),
        (1, 1, 9, 0),
        (4, 0, 9, 0),
    ]:
        pool = Pool(1, None, start, Needs(0.0, gpus, 0, None))
        monkeypatch.setattr(search_on_ray, "decide", lambda *_, pool=pool: pool)
        found = search_on_ray.pool_for(spec, pieces, 2**20)
        assert (found.start if found else 0) == expected
    # A block for what each GPU has, and one more: here there are no GPUs.
    assert set(started) == {2**20}


@pytest.mark.usefixtures("ray_session")
def test_nodes_without_code_for_gpus_say_so(vectors, queries):
    with crew(CpuActor) as actors:
        assert not actors.has_gpu_code()
    with (
        crew(search_on_ray.SearchActor) as actors,
        pytest.raises(InputError, match="run 'make gpu'"),
    ):
        flat.search(cut(vectors, ROWS), queries, k=5, searcher=actors)
