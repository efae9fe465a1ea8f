"""Actors that encode queries and search vectors give what one process gives, whatever becomes of them.

They have no GPU here. What one would do, and what goes wrong, is played.
"""

from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from engine.machine import cluster
from engine.machine.nodes import Needs
from engine.machine.pool import Pool
from engine.machine.watch import silent
from engine.messages.errors import EncodeError, InputError
from engine.retrieval import flat, search_on_ray
from engine.retrieval.index_shards import Block
from tests.retrieval.search_actors import (
    TEXTS,
    Actor,
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


def searching(actor_class, blocks=9, on_event=silent, **spec):
    spec = SimpleNamespace(dimensions=32, **spec)
    return search_on_ray.SearchOnRay(POOL, spec, blocks, on_event, actor_class)


@pytest.mark.usefixtures("ray_session")
def test_a_process_that_dies_is_replaced_and_nothing_shows(vectors, queries, tmp_path, monkeypatch):
    blocks = cut(vectors, 60)
    told = []
    deadly = blocks[2].doc_ids[0]
    actors = searching(DyingActor, on_event=told.append, folder=tmp_path, deadly=deadly)
    monkeypatch.setattr(search_on_ray, "SHARD", 20)
    made = actors.queries(TEXTS)
    found = flat.search_flat(blocks, queries, k=20, searcher=actors)
    assert np.array_equal(
        made, np.concatenate([vectors_of(TEXTS[i : i + 20]) for i in (0, 20, 40)])
    )
    assert found.equals(flat.search_flat(cut(vectors, ROWS), queries, k=20))
    # One part of the queries, and one block.
    for words in ("an actor was lost and started again", "1 unit of work is done again"):
        assert sum(words in line for line in told) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"searching", "encoding"}


@pytest.mark.usefixtures("ray_session")
def test_a_slow_actor_does_not_hold_up_the_others(vectors, queries, tmp_path):
    blocks = cut(vectors, 100)
    actors = searching(SlowActor, folder=tmp_path, first=blocks[0].doc_ids[0])
    found = flat.search_flat(blocks, queries, k=5, searcher=actors)
    assert found.equals(flat.search_flat(cut(vectors, ROWS), queries, k=5))


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_a_block_that_kills_every_process_ends_the_search(vectors, queries):
    blocks = cut(vectors, ROWS)
    died = f"died 3 times in the part that begins with document '{blocks[0].doc_ids[0]}'"
    with pytest.raises(EncodeError, match=died):
        flat.search_flat(blocks, queries, k=5, searcher=searching(DeadlyActor))


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
    # A block for what each GPU has, and two more: here there are no GPUs.
    assert set(started) == {2 * 2**20}


@pytest.mark.usefixtures("ray_session")
def test_nodes_without_code_for_gpus_say_so(vectors, queries):
    actors = searching(CpuActor)
    actors.queries(TEXTS)
    assert not actors.has_gpu_code
    with pytest.raises(InputError, match="run 'make gpu'"):
        flat.search_flat(
            cut(vectors, ROWS), queries, k=5, searcher=searching(search_on_ray.SearchActor)
        )


@pytest.mark.usefixtures("ray_session")
def test_blocks_beyond_those_of_the_manifest_are_not_left_out_silently(vectors, queries):
    with pytest.raises(EncodeError, match="more than 3 blocks"):
        flat.search_flat(cut(vectors, 100), queries, k=5, searcher=searching(Actor, blocks=3))
