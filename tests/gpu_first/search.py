"""Stage exact: what ``flat`` assumes of a GPU's matrix products, by torch's, with TF32 and without; FAISS where it is.

An index's lists are exact because the errors of approximate scores are bounded. The bound assumes that a GPU rounds or
cuts inputs to no less than TF32, and that each sum loses less than two units of fp32's last place.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
import polars as pl
import torch

from engine.retrieval import flat
from engine.retrieval.encode import Block
from tests.gpu_first import models
from tests.gpu_first.checks import Check, NotRun, require
from tests.gpu_first.scale import REAL, Scale

_DOUBLE = flat.RoundoffUnits(0.0, 2.0**-52)


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


def on_device(numbers: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(numbers)).to(models.here(), dtype)


def by_torch(dtype: torch.dtype, asked: set[int]) -> flat.Nearest:
    """The nearest vectors by a matrix product and ``topk``; ``asked`` takes how many were asked for."""

    def nearest(queries: flat.Singles, vectors: flat.Singles, k: int) -> Any:
        asked.add(k)
        there = on_device(queries, dtype) @ on_device(vectors, dtype).T
        scores, places = torch.topk(there, k)
        return scores.cpu().numpy(), places.cpu().numpy()

    return nearest


def search(
    made: Sequence[Block], queries: flat.Singles, k: int, nearest: flat.Nearest, rounding: flat.RoundoffUnits
) -> Any:  # fmt: skip
    def searcher(
        blocks: Iterable[Block], queries: flat.Singles, k: int, floor: flat.Doubles
    ) -> Iterator[flat.BlockCandidates]:
        # FAISS returns so many on a GPU at most; torch has no such limit.
        with mock.patch.object(flat, "_GPU_MOST", len(made[0].vectors)):
            for block in blocks:
                yield flat.candidates(block, queries, k, floor, nearest, rounding)

    return flat.search_flat(made, queries, k=k, searcher=searcher, on_event=refuse)


def roundoff(dimensions: int, scale: Scale) -> float:
    """What each addition loses at most, in units of 2^-24 of the sum, by the errors of products.

    Numbers are positive, so that what is cut adds up, and have TF32's 11 bits, so that no input is rounded.
    """
    draw = torch.Generator().manual_seed(dimensions)
    rows = (scale.queries, min(scale.block, 8192))
    left, right = (
        torch.randint(1024, 2048, (n, dimensions), generator=draw).float().to(models.here()) / 2048
        for n in rows
    )
    exactly = left.double() @ right.double().T
    errors = ((left @ right.T).double() - exactly).abs() / exactly
    return float(errors.max()) / dimensions * 2**24


def exact(dimensions: int, scale: Scale, figures: dict[str, Any]) -> str:
    """Lists as in double precision, and the largest errors as shares of the bound: TF32 off and on; by FAISS, too."""
    made = blocks(scale, dimensions)
    queries = np.random.default_rng(7).standard_normal(
        (scale.queries, dimensions), dtype=np.float32
    )
    first = made[0].vectors
    lengths = np.linalg.norm(queries, axis=1)[:, None] * np.linalg.norm(first, axis=1)
    share = dimensions * flat.GPU_ROUNDING.sums + 2 * flat.GPU_ROUNDING.inputs
    bound = on_device(share / (1 - share) * lengths, torch.float64)
    expected = search(made, queries, scale.k, by_torch(torch.float64, set()), _DOUBLE)
    exactly = on_device(queries, torch.float64) @ on_device(first, torch.float64).T
    said: list[str] = []
    for name in ("TF32 off", "TF32 on"):
        asked: set[int] = set()
        with models.tf32(name == "TF32 on"):
            there = on_device(queries, torch.float32) @ on_device(first, torch.float32).T
            errors = float(((there.double() - exactly).abs() / bound).max())
            loses = roundoff(dimensions, scale)
            start = time.perf_counter()
            nearest = by_torch(torch.float32, asked)
            found = search(made, queries, scale.k, nearest, flat.GPU_ROUNDING)
            seconds = time.perf_counter() - start
        figures[name] = {
            "largest_error_of_the_bound": errors,
            "a_sum_loses": round(loses, 4),
            "k_asked": sorted(asked),
            "seconds": round(seconds, 3),
        }
        said.append(
            f"{name}: errors up to {errors:.2%} of the bound, a sum loses {loses:.3f} of 4 units of 2^-24, "
            f"k asked {max(asked)}, {seconds:.2f} s"
        )
        assert found.equals(expected), f"lists differ from double precision's; {'; '.join(said)}"
        assert errors <= 1, said[-1]
        assert loses <= flat.GPU_ROUNDING.sums * 2**24, said[-1]
    said.append(by_faiss(made, queries, expected, scale, figures))
    return f"{scale.queries} lists of {scale.k} are double precision's; {'; '.join(said)}"


def by_faiss(
    made: list[Block], queries: flat.Singles, expected: Any, scale: Scale, figures: dict[str, Any]
) -> str:
    """The same lists as the engine searches them, with none of the CPU's help; how much of the time is FAISS's own."""
    if importlib.util.find_spec("faiss") is None or not flat.gpu_count():
        return "FAISS with GPU code is not installed"
    nearest = flat.nearest_on_gpu()
    nearest(queries, made[0].vectors, scale.k)  # what a first call sets up
    start = time.perf_counter()
    for block in made:
        nearest(queries, block.vectors, min(scale.k, len(block.vectors)))
    alone = time.perf_counter() - start
    start = time.perf_counter()
    found = flat.search_flat(made, queries, k=scale.k, searcher=flat.on_gpu, on_event=refuse)
    ours = time.perf_counter() - start
    figures["FAISS"] = {"seconds": round(ours, 3), "seconds_of_knn_gpu_alone": round(alone, 3)}
    assert found.equals(expected), "FAISS's lists differ from double precision's"
    return f"FAISS {ours:.2f} s, knn_gpu alone {alone:.2f} s"


def actors(scale: Scale, figures: dict[str, Any]) -> str:
    """Queries and search on an actor for each of several GPUs, as in one process."""
    require("faiss", "ray")
    if flat.gpu_count() < 2:
        raise NotRun("fewer than two GPUs for FAISS")
    from engine.machine import cluster
    from engine.retrieval import distribute, encode
    from engine.retrieval.encoders import EncoderOptions, locate, specify

    spec = locate(specify(EncoderOptions(dtype="float32")))
    cluster.start_ray()
    try:
        made = blocks(scale, spec.dimensions)
        texts = [f"query {i} of a few words " + "and more " * (i % 9) for i in range(300)]
        queries = encode.queries(texts, spec)
        expected = flat.search_flat(made, queries, k=scale.k)
        pool = distribute.pool_for(spec, len(made))
        assert pool is not None, "Ray has fewer than two GPUs"
        start = time.perf_counter()
        parts = [partial(Block, block.doc_ids, block.vectors) for block in made]
        there = distribute.SearchOnRay(pool, spec, parts)
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
