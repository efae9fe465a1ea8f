"""Search on several GPUs: actors on Ray Data, one a GPU, that encode queries and find candidates among vectors.

A task is a part of the queries, or of the index, whose files its actor reads: all nodes must see them. What
becomes of actors does not show in the run: queries are encoded in the same parts as in one process
(``encode.queries``), and ``flat`` computes the same scores from vectors wherever they are searched.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import ray

from engine.machine import cluster, device, model_files, ray_internals
from engine.machine.attempts import Counts, begin, ending_if_fatal
from engine.machine.pool import Pool, PoolSettings, decide, one_row_blocks, pool_options
from engine.machine.watch import OnEvent, silent, started_here
from engine.messages.errors import InputError
from engine.retrieval import flat
from engine.retrieval.distribute import results_of
from engine.retrieval.encoders import EncoderSpec
from engine.retrieval.flat import Doubles, Found, Nearest, Singles
from engine.retrieval.index_shards import SHARD, Block


def pool_for(spec: EncoderSpec, parts: int) -> Pool | None:
    """An actor for each GPU, where Ray has several; None where it has fewer.

    Starts Ray, or joins the cluster of ``RAY_ADDRESS``. The encoder of the queries is on this machine, and an
    actor needs one of the parts of the work.
    """
    cluster.start_ray()
    weights = device.weight_bytes(model_files.parameters(Path(spec.path)), spec.dtype)
    pool = decide(PoolSettings(), device.default_actor_memory(weights)).at_most(parts)
    return pool if pool.needs.gpus and pool.start > 1 else None


class SearchActor:
    """Encodes queries, or searches vectors, on the GPU that Ray gave it. Loads what it needs when it needs it.

    Where it searches, ``queries`` refers to their vectors; ``counts`` are of the attempts at parts.
    """

    def __init__(self, counts: Any, spec: EncoderSpec, queries: Any = None, k: int = 0) -> None:
        ray_internals.end_at_exit()
        self._counts = counts
        self._spec = spec
        self._queries: Singles | None = None if queries is None else ray.get(queries)
        # Of the parts that this actor had: what is below their k-th best is not among those of all, either.
        self._best = flat.Best(0 if self._queries is None else len(self._queries), k)
        self._encoder: Any = None
        self._nearest: Nearest | None = None
        counts.started.remote(started_here())

    def __call__(self, batch: pa.Table) -> pa.Table:
        (row,) = batch.to_pylist()
        number: int = row["number"]
        begin(self._counts, number, f"part {number + 1}")
        with ending_if_fatal():
            part = pickle.loads(row["content"])
            result = self.encode(part) if self._queries is None else self.candidates(part())
        content = pa.array([pickle.dumps(result, 5)], pa.large_binary())
        return pa.table({"number": [number], "content": content})

    def encode(self, texts: Sequence[str]) -> Singles:
        """The vectors of queries, see ``Encoder.queries``."""
        from engine.retrieval.encoder import Encoder

        with ending_if_fatal(self._counts):
            self._encoder = self._encoder or Encoder(self._spec)
        return self._encoder.queries(texts)

    def candidates(self, block: Block) -> Found:
        """See ``flat.candidates``."""
        assert self._queries is not None
        self._nearest = self._nearest or self.nearest()
        best = self._best
        found = flat.candidates(
            block, self._queries, best.k, best.floor, self._nearest, flat.GPU_ROUNDING
        )
        best.add(found.candidates)
        return found

    def nearest(self) -> Nearest:
        if not flat.gpu_count():
            raise InputError("FAISS on one of the nodes has no GPU support", "run 'make gpu' there")
        return flat.nearest_on_gpu()


@dataclass
class SearchOnRay:
    """Searches on a pool of actors; called, it is a ``flat.Searcher``.

    Attributes:
        pool: as ``pool_for`` gives it. It does not grow: a search is over before nodes come.
        spec: the encoder of the queries.
        parts: of the index: what reads the vectors of each.
        on_event: told one line when nodes come or go, or actors are lost.
        actor_class: in the place of ``SearchActor``.
    """

    pool: Pool
    spec: EncoderSpec
    parts: Sequence[Callable[[], Block]]
    on_event: OnEvent = silent
    actor_class: type[SearchActor] | None = None

    def queries(self, texts: Sequence[str]) -> Singles:
        """The vectors of queries, as ``encode.queries`` gives them: (texts, dimensions)."""
        vectors = np.empty((len(texts), self.spec.dimensions), dtype=np.float32)
        parts = [list(texts[start : start + SHARD]) for start in range(0, len(texts), SHARD)]
        for number, made in self._done("encoding queries", parts):
            vectors[number * SHARD : (number + 1) * SHARD] = made
        return vectors

    def __call__(
        self, blocks: Iterable[Block], queries: Singles, k: int, floor: Doubles
    ) -> Iterator[Found]:
        """The candidates of the parts, in the order in which they are found; ``blocks`` stay unread."""
        arguments = {"queries": ray.put(queries), "k": k}
        return (found for _, found in self._done("searching", self.parts, **arguments))

    def _done(
        self, doing: str, parts: Sequence[Any], **arguments: Any
    ) -> Iterator[tuple[int, Any]]:
        rows = [{"number": n, "content": pickle.dumps(part, 5)} for n, part in enumerate(parts)]
        # Where a node is lost, actors that have nothing more to do give their GPUs to those that were on it.
        pool = replace(self.pool, least=1, most=self.pool.start).at_most(len(rows))
        counts = ray.remote(**cluster.beside_driver())(Counts).remote()
        results = one_row_blocks(rows).map_batches(
            self.actor_class or SearchActor,
            fn_constructor_kwargs={"counts": counts, "spec": self.spec, **arguments},
            **pool_options(pool, in_flight=1),
        )
        for row in results_of(doing, results, counts, pool.needs, self.on_event):
            yield row["number"], pickle.loads(row["content"])
