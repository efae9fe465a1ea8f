"""Encoding a corpus, and searching vectors on several GPUs, on Ray Data.

To encode, tasks read and cut a part of the corpus each, and actors that host the encoder encode its shards. A task asks
the driver for shards that it cannot read on its node, or reads with other content than the driver. Its desk is an actor
on the driver's node and restarts, empty, if its process ends alone: Ray then repeats the question, and the driver reads
the part again. Ray Data delays tasks while actors have enough work.

To search, one actor per GPU encodes queries and finds candidates among vectors. A task is a part of the queries, or of
the index, whose files all nodes must see. The run does not depend on actors: queries are encoded in the same parts as
in one process (``encode.queries``), and ``flat`` computes the same scores wherever vectors are searched.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import ray
import ray.data
import ray.exceptions

from engine.machine import cluster, device, model_files
from engine.machine.attempts import Counts, begin, ending_if_fatal, tally_of
from engine.machine.nodes import Needs
from engine.machine.pool import Pool, PoolSettings, decide, one_row_blocks, pool_options, reported
from engine.machine.ray_internals import blocks_of, end_at_exit
from engine.machine.watch import OnEvent, PoolTotals, silent, started_here, watched
from engine.messages.errors import EncodeError, InputError
from engine.retrieval import flat
from engine.retrieval.encode import SHARD, TYPES, Block, EncodedShard, Part, Shard, Storage
from engine.retrieval.encoders import EncoderSpec
from engine.retrieval.flat import BlockCandidates, Doubles, Nearest, Singles


class Desk(Counts):
    """Hands requested shards to tasks, by the number of a part of the corpus and the key; an asynchronous actor."""

    def __init__(self) -> None:
        super().__init__()
        self._requests: set[tuple[int, str]] = set()
        self._answers: dict[Any, Sequence[ray.ObjectRef]] = {}
        self._changed = asyncio.Condition()

    async def ask(self, shard: tuple[int, str]) -> Sequence[ray.ObjectRef]:
        """The pickled shard, or an exception, as a reference in a list, which Ray forwards; empty if there is none."""
        async with self._changed:
            self._requests |= {shard} - self._answers.keys()
            self._changed.notify_all()
            await self._changed.wait_for(lambda: shard in self._answers)
            return self._answers[shard]

    async def requests(self) -> list[tuple[int, str]]:
        """Wait for shards to be read by the driver."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._requests)
            return list(self._requests)

    async def answer(self, shard: tuple[int, str], content: Sequence[ray.ObjectRef]) -> None:
        """Take the content for ``ask``."""
        async with self._changed:
            self._requests.discard(shard)
            self._answers[shard] = content
            self._changed.notify_all()

    def forget(self, piece: tuple[int, str] | str) -> None:
        """Forget a shard that is read, or that is encoded."""
        self._answers.pop(piece, None)
        self._attempts.pop(piece, None)


def feed(parts: Sequence[Part], desk: Any) -> None:
    """Read in this process the shards that tasks ask for, until the desk ends; an error takes a shard's place."""
    reading: dict[int, Iterator[Shard]] = {}

    def find(number: int, key: str) -> list[Any]:
        # Continue in the part, or start over: a task may be repeated.
        for again in (False, True):
            if again or number not in reading:
                reading[number] = parts[number]()
            if shards := _with_key(reading[number], key):
                if key == parts[number].keys[-1]:
                    del reading[number]
                return shards
        return []

    with contextlib.suppress(ray.exceptions.RayError):
        while True:
            for request in ray.get(desk.requests.remote()):
                try:
                    answers = find(*request)
                except Exception as error:  # others may not travel
                    answers = [error if isinstance(error, InputError) else EncodeError(str(error))]
                content = [ray.put(pickle.dumps(answer, 5)) for answer in answers]
                ray.get(desk.answer.remote(request, content))


def _with_key(shards: Iterator[Shard], key: str) -> list[Any]:
    """The next shard of this key, if any."""
    return list(islice((shard for shard in shards if shard.key == key), 1))


_CONTENT = pa.schema({"content": pa.large_binary()})


class EncoderActor:
    """Hosts an encoder; Ray Data calls it with one shard at a time."""

    def __init__(self, desk: Any, spec: EncoderSpec, storage: Storage) -> None:
        end_at_exit()
        with ending_if_fatal(desk):
            self._encoder = self.load(spec)
        self._storage: Storage = storage
        self._desk = desk
        desk.started.remote(started_here())

    def load(self, spec: EncoderSpec) -> Any:
        from engine.retrieval.encoder import Encoder

        return Encoder(spec)

    def __call__(self, batch: pa.Table) -> pa.Table:
        shard: Shard = pickle.loads(batch["content"][0].as_py())
        begin(self._desk, shard.key, f"the shard that begins with document {shard.doc_ids[0]!r}")
        with ending_if_fatal():
            vectors = self._encoder.encode(shard.texts)
        self._desk.forget.remote(shard.key)
        stored = np.ascontiguousarray(vectors.astype(TYPES[self._storage], copy=False))
        result = pickle.dumps(EncodedShard(shard.key, shard.doc_ids, stored), 5)
        return pa.table({"content": [result]}, schema=_CONTENT)


def _cut(batch: pa.Table, desk: Any) -> Iterator[pa.Table]:
    """The shards of a part of the corpus, in the order of its keys, whether the task or the driver reads them."""
    number, part = batch["number"][0].as_py(), pickle.loads(batch["part"][0].as_py())
    here = part()
    for key in part.keys:
        begin(desk, shard := (number, key), f"part {number + 1} of the corpus")
        contents = []
        with contextlib.suppress(InputError):  # the driver knows more
            contents = [pickle.dumps(content, 5) for content in _with_key(here, key)]
        for content in contents or ray.get(list(ray.get(desk.ask.remote(shard)))):
            if isinstance(error := pickle.loads(content), Exception):
                raise error
            yield pa.table({"content": [content]}, schema=_CONTENT)
        desk.forget.remote(shard)


def execute(
    parts: Sequence[Part],
    count: int,
    spec: EncoderSpec,
    storage: Storage,
    *,
    pool: Pool,
    actor_class: type[EncoderActor] = EncoderActor,
    on_event: OnEvent = silent,
) -> Iterator[EncodedShard]:
    """Encode shards on a pool of actors of the started Ray; results are yielded as they complete, in any order. An
    InputError if the corpus cannot be read, an EncodeError if encoding failed.
    """
    desk = ray.remote(**cluster.beside_driver() | {"max_concurrency": 1000})(Desk).remote()
    feeder = threading.Thread(target=feed, args=(parts, desk), daemon=True)
    feeder.start()
    # Elsewhere, parts that only the driver can read have no passages.
    known = (part if part.anywhere else replace(part, scan=list) for part in parts)
    pickled = enumerate(map(ray.cloudpickle.dumps, known))
    dataset = one_row_blocks([{"number": number, "part": part} for number, part in pickled])
    # Blocks are cut at a byte: each shard is one, and so a task, of its own.
    dataset.context.target_max_block_size = 1
    results = dataset.map_batches(
        _cut,
        fn_kwargs={"desk": desk},
        batch_size=1,
        batch_format="pyarrow",
        num_cpus=0,  # actors may have left none
        compute=ray.data.TaskPoolStrategy(size=1 + pool.start // 8),  # a task feeds more than eight
    ).map_batches(
        actor_class,
        fn_constructor_kwargs={"desk": desk, "spec": spec, "storage": storage},
        # Ray Data makes a pool larger whose actors have shards that wait; elsewhere none waits behind a slow one.
        **pool_options(pool.at_most(count), in_flight=1 if pool.most == pool.start else 2),
    )
    try:
        for row in results_of("encoding", results, desk, pool.needs, on_event):
            yield pickle.loads(row["content"])
    finally:
        feeder.join()


def results_of(
    doing: str, dataset: ray.data.Dataset, counts: Any, needs: Needs, on_event: OnEvent
) -> Iterator[dict[str, Any]]:
    """The rows of actors' results, as they come; the actor that counts attempts ends last."""
    try:
        with (
            reported(doing, EncodeError, needs),
            watched(needs, on_event, PoolTotals(), lambda: tally_of(counts)),
        ):
            for block in blocks_of(dataset):
                yield from block.to_pylist()
    finally:
        with contextlib.suppress(Exception):
            ray.kill(counts)


def pool_for(spec: EncoderSpec, parts: int) -> Pool | None:
    """An actor per GPU, at most one per part, of the started or joined Ray; None for fewer than two GPUs."""
    pool = pool_of(spec, PoolSettings()).at_most(parts)
    return pool if pool.needs.gpus and pool.start > 1 else None


def pool_of(spec: EncoderSpec, settings: PoolSettings) -> Pool:
    """The pool of an encoder's actors, on the started or joined Ray."""
    cluster.start_ray()
    weights = device.weight_bytes(model_files.parameters(Path(spec.path)), spec.dtype)
    return decide(settings, device.default_actor_memory(weights), budget=spec.memory)


class SearchActor:
    """Encodes queries, or searches vectors, on the GPU that Ray gave it. Loads encoder and FAISS at first use.

    ``queries`` refers to the vectors for a search; ``counts`` counts attempts at parts.
    """

    def __init__(self, counts: Any, spec: EncoderSpec, queries: Any = None, k: int = 0) -> None:
        end_at_exit()
        self._counts = counts
        self._spec = spec
        self._queries: Singles | None = None if queries is None else ray.get(queries)
        # The k-th best of this actor's parts: lower scores are not among the best of all parts, either.
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

    def candidates(self, block: Block) -> BlockCandidates:
        """See ``flat.candidates``."""
        assert self._queries is not None
        self._nearest = self._nearest or self.nearest()
        best = self._best
        search = self._nearest, flat.GPU_ROUNDING
        result = flat.candidates(block, self._queries, best.k, best.floor, *search)
        best.add(result.candidates)
        return result

    def nearest(self) -> Nearest:
        if not flat.gpu_count():
            problem = "FAISS on one of the nodes has no GPU support"
            raise InputError(problem, "run 'make gpu' there", "index.gpu")
        return flat.nearest_on_gpu()


@dataclass
class SearchOnRay:
    """Searches parts of an index (calls that read vectors) on a pool of actors, as ``pool_for`` gives it; called, it is
    a ``flat.Searcher``. The pool does not grow: a search is over before nodes come. ``spec`` is the encoder of the
    queries.
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
        for number, part in self._results("encoding queries", parts):
            vectors[number * SHARD : (number + 1) * SHARD] = part
        return vectors

    def __call__(
        self, blocks: Iterable[Block], queries: Singles, k: int, floor: Doubles
    ) -> Iterator[BlockCandidates]:
        """The candidates of the parts, as they arrive; ``blocks`` stay unread."""
        arguments = {"queries": ray.put(queries), "k": k}
        return (candidates for _, candidates in self._results("searching", self.parts, **arguments))

    def _results(
        self, doing: str, parts: Sequence[Any], **arguments: Any
    ) -> Iterator[tuple[int, Any]]:
        rows = [{"number": n, "content": pickle.dumps(part, 5)} for n, part in enumerate(parts)]
        # If a node is lost, idle actors give their GPUs to the lost actors' replacements.
        pool = replace(self.pool, least=1, most=self.pool.start).at_most(len(rows))
        counts = ray.remote(**cluster.beside_driver())(Counts).remote()
        options = pool_options(pool, in_flight=1)
        options["fn_constructor_kwargs"] = {"counts": counts, "spec": self.spec, **arguments}
        results = one_row_blocks(rows).map_batches(self.actor_class or SearchActor, **options)
        for row in results_of(doing, results, counts, pool.needs, self.on_event):
            yield row["number"], pickle.loads(row["content"])
