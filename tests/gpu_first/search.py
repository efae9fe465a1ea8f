"""Stage 2: exact search by FAISS on a GPU, among as many vectors as make it worth one."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import polars as pl

from engine.retrieval import flat
from engine.retrieval.index_shards import Block
from tests.gpu_first.checks import Check, NotRun, require
from tests.gpu_first.scale import REAL, Scale


def blocks(scale: Scale, dimensions: int) -> list[Block]:
    """Random vectors, a hundred of which are equal."""
    starts = range(0, scale.vectors, scale.block)

    def made(start: int) -> Block:
        size = min(scale.block, scale.vectors - start)
        vectors = np.random.default_rng(start).standard_normal((size, dimensions), dtype=np.float32)
        if not start:
            vectors[:100] = vectors[100]
        return Block(pl.Series([f"d{i}" for i in range(start, start + size)]), vectors)

    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as threads:
        return list(threads.map(made, starts))


def refuse(line: str) -> None:
    raise AssertionError(line)  # the CPU did the work of the GPU


def exact(dimensions: int, scale: Scale, figures: dict[str, Any]) -> str:
    """The lists of the CPU, with none of its help; how much of the time is FAISS's own."""
    require("faiss")
    if not flat.gpu_count():
        raise NotRun("this FAISS has no GPU code (make gpu)")
    made = blocks(scale, dimensions)
    draw = np.random.default_rng(7)
    queries = draw.standard_normal((scale.queries, dimensions), dtype=np.float32)
    nearest = flat.nearest_on_gpu()
    asked: list[int] = []

    def counted(queries: flat.Singles, vectors: flat.Singles, k: int) -> Any:
        asked.append(k)
        return nearest(queries, vectors, k)

    nearest(queries, made[0].vectors, scale.k)  # what a first call sets up
    start = time.perf_counter()
    for block in made:
        nearest(queries, block.vectors, min(scale.k, len(block.vectors)))
    alone = time.perf_counter() - start
    with mock.patch.object(flat, "nearest_on_gpu", return_value=counted):
        start = time.perf_counter()
        found = flat.search_flat(made, queries, k=scale.k, searcher=flat.on_gpu, on_event=refuse)
        ours = time.perf_counter() - start
    start = time.perf_counter()
    expected = flat.search_flat(made, queries, k=scale.k)
    on_cpu = time.perf_counter() - start
    figures |= {
        "vectors": scale.vectors,
        "k_asked": sorted(set(asked)),
        "searches": len(asked),
        "blocks": len(made),
        "seconds": round(ours, 3),
        "seconds_of_knn_gpu_alone": round(alone, 3),
        "seconds_on_cpu": round(on_cpu, 3),
    }
    assert found.equals(expected), "lists or scores differ from the CPU's"
    return (
        f"{scale.queries} lists of {scale.k} are the CPU's; k asked {figures['k_asked']}; "
        f"{ours:.2f} s, knn_gpu alone {alone:.2f} s, the CPU {on_cpu:.2f} s"
    )


def actors(scale: Scale, figures: dict[str, Any]) -> str:
    """Queries and search on an actor for each of several GPUs, as in one process."""
    require("faiss", "ray")
    if flat.gpu_count() < 2:
        raise NotRun("fewer than two GPUs for FAISS")
    from engine.machine import cluster
    from engine.retrieval import encode, search_on_ray
    from engine.retrieval.encoders import EncoderOptions, locate, specify

    spec = locate(specify(EncoderOptions(dtype="float32")))
    cluster.start_ray()
    try:
        made = blocks(scale, spec.dimensions)
        texts = [f"query {i} of a few words " + "and more " * (i % 9) for i in range(300)]
        queries = encode.queries(texts, spec)
        expected = flat.search_flat(made, queries, k=scale.k)
        pool = search_on_ray.pool_for(spec, len(made))
        assert pool is not None, "Ray has fewer than two GPUs"
        start = time.perf_counter()
        parts = [partial(Block, block.doc_ids, block.vectors) for block in made]
        there = search_on_ray.SearchOnRay(pool, spec, parts)
        found = flat.search_flat((), queries, k=scale.k, searcher=there, on_event=refuse)
        figures["seconds"] = round(time.perf_counter() - start, 3)
        assert found.equals(expected), "lists or scores differ"
        again = there.queries(texts)
        assert np.array_equal(again, queries), "vectors of queries differ from one GPU's"
    finally:
        cluster.stop_ray()
    return f"the same lists and vectors of queries, in {figures['seconds']:.1f} s"


def checks(dimensions: Sequence[int]) -> dict[str, Check]:
    searches = {f"exact search, {d:,} dimensions": partial(exact, d) for d in dimensions}
    return {**searches, "search on several GPUs": actors}


CHECKS: dict[str, Check] = checks(REAL.dimensions)
