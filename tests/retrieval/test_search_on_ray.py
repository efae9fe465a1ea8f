"""Actors that encode queries and search vectors give what one process gives, whatever becomes of them.

They have no GPU here. What one would do, and what goes wrong, is played.
"""

from functools import partial
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from engine.machine import cluster
from engine.machine.nodes import Needs
from engine.machine.pool import Pool
from engine.machine.watch import silent
from engine.messages.errors import EncodeError
from engine.retrieval import distribute, encode, flat
from engine.retrieval.encode import Block
from tests.expected import refused
from tests.retrieval.search_actors import (
    TEXTS,
    Actor,
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


def searching(actor_class, blocks=(), on_event=silent, **spec):
    spec = SimpleNamespace(dimensions=32, **spec)
    parts = [partial(Block, block.doc_ids, block.vectors) for block in blocks]
    return distribute.SearchOnRay(POOL, spec, parts, on_event, actor_class)


@pytest.mark.usefixtures("ray_session")
def test_a_process_that_dies_is_replaced_and_nothing_shows(vectors, queries, tmp_path, monkeypatch):
    blocks = cut(vectors, 60)
    told = []
    deadly = blocks[2].doc_ids[0]
    actors = searching(DyingActor, blocks, told.append, folder=tmp_path, deadly=deadly)
    monkeypatch.setattr(distribute, "SHARD", 20)
    made = actors.queries(TEXTS)
    found = flat.search_flat((), queries, k=20, searcher=actors)
    assert np.array_equal(
        made, np.concatenate([vectors_of(TEXTS[i : i + 20]) for i in (0, 20, 40)])
    )
    assert found.equals(flat.search_flat(cut(vectors, ROWS), queries, k=20))
    # One part of the queries, and one block.
    for words in ("started again", "done again"):
        assert sum(words in line for line in told) == 2
    assert {path.name for path in tmp_path.iterdir()} == {"searching", "encoding"}


@pytest.mark.usefixtures("ray_session")
def test_a_slow_actor_does_not_hold_up_the_others(vectors, queries, tmp_path):
    blocks = cut(vectors, 100)
    actors = searching(SlowActor, blocks, folder=tmp_path, first=blocks[0].doc_ids[0])
    found = flat.search_flat((), queries, k=5, searcher=actors)
    assert found.equals(flat.search_flat(cut(vectors, ROWS), queries, k=5))


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_a_block_that_kills_every_process_ends_the_search(vectors, queries):
    blocks = cut(vectors, ROWS)
    with pytest.raises(EncodeError, match="died 3 times in part 1"):
        flat.search_flat((), queries, k=5, searcher=searching(DeadlyActor, blocks))


def test_a_cluster_of_one_gpu_or_none_has_no_actors(monkeypatch, tmp_path):
    monkeypatch.setattr(cluster, "start_ray", lambda: None)
    spec = SimpleNamespace(path=str(tmp_path), dtype="float32", memory=0)
    for start, gpus, parts, expected in [
        (4, 1, 9, 4),
        (4, 1, 3, 3),
        (4, 1, 1, 0),
        (1, 1, 9, 0),
        (4, 0, 9, 0),
    ]:
        pool = Pool(1, None, start, Needs(0.0, gpus, 0, None))
        monkeypatch.setattr(distribute, "decide", lambda *_, pool=pool, **__: pool)
        found = distribute.pool_for(spec, parts)
        assert (found.start if found else 0) == expected


@pytest.mark.usefixtures("ray_session")
def test_nodes_without_code_for_gpus_say_so(vectors, queries):
    with refused("cluster.failed"):
        searcher = searching(distribute.SearchActor, cut(vectors, ROWS))
        flat.search_flat((), queries, k=5, searcher=searcher)


@pytest.mark.usefixtures("ray_session")
def test_a_part_that_a_node_does_not_see_is_named(queries, tmp_path):
    part = partial(encode.read_shards, tmp_path, ["0" * 40], "fp32", WIDTH)
    searcher = distribute.SearchOnRay(POOL, SimpleNamespace(), [part, part], silent, Actor)
    with refused("cluster.failed"):
        flat.search_flat((), queries, k=5, searcher=searcher)
