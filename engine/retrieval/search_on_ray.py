"""Search on several GPUs: actors on Ray, one a GPU, that encode queries and find candidates among vectors.

The driver reads the vectors and hands them out block by block: the first actor that is free takes the next. What an
actor had when its process ended goes to the next free one, and Ray starts the actor again where there is a GPU for
it. None of that shows in the run: queries are encoded in the same parts as in one process (``encode.queries``), and
``flat`` computes the same scores from vectors wherever they are searched.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import ray
import ray.exceptions

from engine.errors import EncodeError, InputError
from engine.machine import cluster, device, model_files
from engine.machine.attempts import Attempt, weight
from engine.machine.device import is_fatal
from engine.machine.pool import Pool, PoolSettings, decide, patience, reported, stalled
from engine.machine.watch import (
    OnEvent,
    PoolTotals,
    Start,
    Tally,
    silent,
    started_here,
    watched,
)
from engine.retrieval import flat
from engine.retrieval.encoders import EncoderSpec
from engine.retrieval.flat import Doubles, Found, Nearest, Singles
from engine.retrieval.shards import SHARD, Block

_ATTEMPTS = 3  # at a piece of work, before it counts as the cause of its actors' deaths
_DEATHS = (
    ray.exceptions.RayActorError,
    ray.exceptions.OutOfMemoryError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.ObjectLostError,  # a result, with the node that made it
)


def pool_for(spec: EncoderSpec, pieces: int, block_bytes: int) -> Pool | None:
    """An actor for each GPU, where Ray has several; None where it has fewer.

    Starts Ray, or joins the cluster of ``RAY_ADDRESS``.

    Args:
        spec: the encoder of the queries, which is on this machine.
        pieces: parts of the work, of which an actor needs one.
        block_bytes: size of the vectors that are handed out at a time.
    """
    # Of each actor the block that it has, and one that is read meanwhile.
    cluster.start_ray((device.gpu_count() + 1) * block_bytes)
    weights = device.weight_bytes(model_files.parameters(Path(spec.path)), spec.dtype)
    pool = decide(PoolSettings(), device.default_actor_memory(weights)).at_most(pieces)
    return pool if pool.needs.gpus and pool.start > 1 else None


@contextlib.contextmanager
def crew(
    pool: Pool,
    spec: EncoderSpec,
    *,
    actor_class: type[SearchActor] | None = None,
    on_event: OnEvent = silent,
) -> Iterator[Crew]:
    """Actors of a pool, as many as start; they end with the block.

    Args:
        pool: as ``pool_for`` gives it. It does not grow: a search is over before nodes come.
        spec: the encoder of the queries.
        actor_class: in the place of ``SearchActor``.
        on_event: told one line when nodes come or go, or actors are lost.
    """
    needs = pool.needs
    options: dict[str, Any] = {"num_cpus": needs.cpus, "num_gpus": needs.gpus, "max_restarts": -1}
    if needs.memory:
        options["memory"] = needs.memory
    remote = ray.remote(**options)(actor_class or SearchActor)
    made = Crew([remote.remote(spec) for _ in range(pool.start)], pool, spec.dimensions)
    try:
        with watched(needs, on_event, PoolTotals(), made.tally):
            yield made
    finally:
        made.end()


class Standing(NamedTuple):
    """A process of an actor: its beginning, and whether its FAISS has code for GPUs."""

    start: Start
    has_gpu_code: bool


class SearchActor:
    """Encodes queries and searches vectors on the GPU that Ray gave it. Loads what it needs when it needs it."""

    def __init__(self, spec: EncoderSpec) -> None:
        cluster.end_at_exit()
        self._spec = spec
        self._encoder: Any = None
        self._nearest: Nearest | None = None

    # Asked of an actor that may be on its way.
    @ray.method(max_task_retries=-1)
    def ready(self) -> Standing:
        """What stands here."""
        return Standing(started_here(), self.has_gpu_code())

    def encode(self, texts: Sequence[str]) -> Singles:
        """The vectors of queries, see ``Encoder.queries``."""
        from engine.retrieval.encoder import Encoder

        with _ending_if_fatal():
            self._encoder = self._encoder or Encoder(self._spec)
            vectors: Singles = self._encoder.queries(texts)
            return vectors

    def candidates(self, block: Block, queries: Singles, k: int, floor: Doubles) -> Found:
        """See ``flat.candidates``."""
        with _ending_if_fatal():
            if self._nearest is None:
                self._nearest = self.nearest()
            return flat.candidates(block, queries, k, floor, self._nearest, flat.GPU_ROUNDING)

    def has_gpu_code(self) -> bool:
        return flat.gpu_count() > 0

    def nearest(self) -> Nearest:
        if not self.has_gpu_code():
            raise InputError(
                "FAISS on one of the nodes has no code for GPUs", "run 'make gpu' there"
            )
        return flat.nearest_on_gpu()


@contextlib.contextmanager
def _ending_if_fatal() -> Iterator[None]:
    """End the process where its GPU can do no more: its work goes to another."""
    try:
        yield
    except Exception as error:
        if is_fatal(error):
            os._exit(1)
        raise


@dataclass
class _Work:
    """What an actor is asked for, which it may die of.

    Attributes:
        call: asks an actor.
        about: names the work, for an error.
        tag: comes back with the result.
        ended: its attempts whose process died.
    """

    call: Callable[[Any], ray.ObjectRef]
    about: str
    tag: int = 0
    ended: set[Attempt] = field(default_factory=set)


class Crew:
    """The actors of a search; called, it is a ``flat.Searcher``.

    Args:
        actors: handles, in no state.
        pool: theirs.
        dimensions: of vectors.
    """

    def __init__(self, actors: Sequence[Any], pool: Pool, dimensions: int) -> None:
        self._actors = actors
        self._pool = pool
        self._dimensions = dimensions
        self._standing: dict[int, Standing] = {}
        self._starts: list[Start] = []
        self._repeated = 0
        self._free: deque[int] = deque()
        self._lost: deque[_Work] = deque()
        # What each actor is asked for; None where it is only asked whether it is there.
        self._under_way: dict[ray.ObjectRef, tuple[int, _Work | None]] = {}
        for number in range(len(actors)):
            self._call_up(number)

    def queries(self, texts: Sequence[str]) -> Singles:
        """The vectors of queries, as ``encode.queries`` gives them: (texts, dimensions)."""
        vectors = np.empty((len(texts), self._dimensions), dtype=np.float32)

        def work(start: int) -> _Work:
            part = list(texts[start : start + SHARD])
            return _Work(lambda actor: actor.encode.remote(part), f"query {part[0]!r}", start)

        for start, made in self._results(map(work, range(0, len(texts), SHARD))):
            vectors[start : start + SHARD] = made
        return vectors

    def __call__(
        self, blocks: Iterable[Block], queries: Singles, k: int, floor: Doubles
    ) -> Iterator[Found]:
        """The candidates of blocks, in the order in which they are found."""
        asked = ray.put(queries)

        def work(block: Block) -> _Work:
            held = ray.put(block)
            # The floor as it is when the block is handed out.
            return _Work(
                lambda actor: actor.candidates.remote(held, asked, k, floor),
                f"document {block.doc_ids[0]!r}",
            )

        for _, found in self._results(map(work, blocks)):
            yield found

    def has_gpu_code(self) -> bool:
        """Whether FAISS can search on the GPUs of the actors that stand by now; waits for the first."""
        while not self._standing:
            self._wait()
        return all(standing.has_gpu_code for standing in self._standing.values())

    def tally(self) -> Tally:
        """See ``watched``."""
        return Tally("driver", list(self._starts), self._repeated)

    def end(self) -> None:
        for actor in self._actors:
            with contextlib.suppress(Exception):
                ray.kill(actor)

    def _results(self, works: Iterable[_Work]) -> Iterator[tuple[int, Any]]:
        """Tags and results, in the order in which they come."""
        for work in works:
            while not self._free:
                yield from self._wait()
            self._give(work)
        while self._lost or any(work for _, work in self._under_way.values()):
            yield from self._wait()

    def _give(self, work: _Work) -> None:
        number = self._free.popleft()
        self._under_way[work.call(self._actors[number])] = number, work

    def _call_up(self, number: int) -> None:
        self._under_way[self._actors[number].ready.remote()] = number, None

    def _wait(self) -> list[tuple[int, Any]]:
        """Wait until an actor is done with what it has: the result, if there is one."""
        ended, _ = ray.wait(list(self._under_way), num_returns=1, timeout=patience())
        if not ended:
            raise EncodeError(f"searching on Ray was given up: {stalled(self._pool.needs)}")
        number, work = self._under_way.pop(ended[0])
        results = []
        with reported("searching", EncodeError, self._pool.needs):
            try:
                result = ray.get(ended[0])
            except _DEATHS:
                if work is None:  # it cannot even start
                    raise
                self._bury(number, work)
            else:
                self._free.append(number)
                if work is None:
                    self._standing[number] = result
                    self._starts.append(result.start)
                else:
                    results = [(work.tag, result)]
        if self._lost and self._free:
            self._give(self._lost.popleft())
        return results

    def _bury(self, number: int, work: _Work) -> None:
        """Keep the work of an actor that died for another, and wait for the actor to be there again."""
        self._repeated += 1
        work.ended.add(Attempt(uuid.uuid4().hex, self._standing.pop(number).start.node))
        if weight(work.ended) >= _ATTEMPTS:
            raise EncodeError(
                f"the searching process died {_ATTEMPTS} times in the part that begins with {work.about}"
            )
        self._lost.append(work)
        self._call_up(number)
