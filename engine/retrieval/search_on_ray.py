"""Search on several GPUs: actors on Ray, one a GPU, that encode queries and find candidates among vectors.

The driver reads the vectors and hands them out block by block (``tickets``). What becomes of actors does not
show in the run: queries are encoded in the same parts as in one process (``encode.queries``), and ``flat``
computes the same scores from vectors wherever they are searched.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import ray

from engine.machine import cluster, device, model_files
from engine.machine.pool import Pool, PoolSettings, decide
from engine.machine.watch import OnEvent, silent
from engine.messages.errors import EncodeError, InputError
from engine.retrieval import flat
from engine.retrieval.encoders import EncoderSpec
from engine.retrieval.flat import Doubles, Found, Nearest, Singles
from engine.retrieval.index_shards import SHARD, Block
from engine.retrieval.tickets import TicketActor, WorkItem, do_pieces


def pool_for(spec: EncoderSpec, pieces: int, block_bytes: int) -> Pool | None:
    """An actor for each GPU, where Ray has several; None where it has fewer.

    Starts Ray, or joins the cluster of ``RAY_ADDRESS``.

    Args:
        spec: the encoder of the queries, which is on this machine.
        pieces: parts of the work, of which an actor needs one.
        block_bytes: size of the vectors that are handed out at a time.
    """
    # Of each actor the block that it has, one that is read meanwhile, and one whose result is on its way.
    cluster.start_ray((device.gpu_count() + 2) * block_bytes)
    weights = device.weight_bytes(model_files.parameters(Path(spec.path)), spec.dtype)
    pool = decide(PoolSettings(), device.default_actor_memory(weights)).at_most(pieces)
    return pool if pool.needs.gpus and pool.start > 1 else None


class SearchActor(TicketActor):
    """Encodes queries, or searches vectors, on the GPU that Ray gave it. Loads what it needs when it needs it.

    Args:
        spec: the encoder of the queries.
        queries: their vectors, where it searches: a reference.
        k: passages per query.
    """

    def __init__(self, desk: Any, spec: EncoderSpec, queries: Any = None, k: int = 0) -> None:
        super().__init__(desk)
        self._spec = spec
        self._queries: Singles | None = None if queries is None else ray.get(queries)
        self._k = k
        self._encoder: Any = None
        self._nearest: Nearest | None = None

    def do(self, content: Any) -> Any:
        if self._queries is None:
            start, texts = content
            return start, self.encode(texts), self.has_gpu_code()
        return self.candidates(*content)

    def encode(self, texts: Sequence[str]) -> Singles:
        """The vectors of queries, see ``Encoder.queries``."""
        from engine.retrieval.encoder import Encoder

        self._encoder = self._encoder or Encoder(self._spec)
        vectors: Singles = self._encoder.queries(texts)
        return vectors

    def candidates(self, block: Block, floor: Doubles) -> Found:
        """See ``flat.candidates``."""
        assert self._queries is not None
        if self._nearest is None:
            self._nearest = self.nearest()
        return flat.candidates(
            block, self._queries, self._k, floor, self._nearest, flat.GPU_ROUNDING
        )

    def has_gpu_code(self) -> bool:
        return flat.gpu_count() > 0

    def nearest(self) -> Nearest:
        if not self.has_gpu_code():
            raise InputError("FAISS on one of the nodes has no GPU support", "run 'make gpu' there")
        return flat.nearest_on_gpu()


@dataclass
class SearchOnRay:
    """Searches on a pool of actors; called, it is a ``flat.Searcher``.

    Attributes:
        pool: as ``pool_for`` gives it. It does not grow: a search is over before nodes come.
        spec: the encoder of the queries.
        blocks: of vectors, at most.
        on_event: told one line when nodes come or go, or actors are lost.
        actor_class: in the place of ``SearchActor``.
        has_gpu_code: whether FAISS can search on the GPUs of the actors that encoded the queries.
    """

    pool: Pool
    spec: EncoderSpec
    blocks: int
    on_event: OnEvent = silent
    actor_class: type[SearchActor] | None = None
    has_gpu_code: bool = True

    def queries(self, texts: Sequence[str]) -> Singles:
        """The vectors of queries, as ``encode.queries`` gives them: (texts, dimensions)."""
        vectors = np.empty((len(texts), self.spec.dimensions), dtype=np.float32)
        starts = range(0, len(texts), SHARD)
        parts = ((start, list(texts[start : start + SHARD])) for start in starts)
        pieces = (_piece(f"query {part[0]!r}", (start, part)) for start, part in parts)
        for start, made, has_gpu_code in self._done(pieces, len(starts), {}):
            vectors[start : start + SHARD] = made
            self.has_gpu_code &= has_gpu_code
        return vectors

    def __call__(
        self, blocks: Iterable[Block], queries: Singles, k: int, floor: Doubles
    ) -> Iterator[Found]:
        """The candidates of blocks, in the order in which they are found."""
        # The floor as it is when the block is handed out.
        pieces = (
            _piece(f"document {block.doc_ids[0]!r}", (block, floor.copy())) for block in blocks
        )
        arguments = {"queries": ray.put(queries), "k": k}
        # One ticket more than blocks: none is left without a ticket unnoticed.
        for number, found in enumerate(self._done(pieces, self.blocks + 1, arguments)):
            if number == self.blocks:
                raise EncodeError(f"the index has more than {self.blocks} blocks of vectors")
            yield found

    def _done(
        self, pieces: Iterator[WorkItem], most: int, arguments: dict[str, Any]
    ) -> Iterator[Any]:
        # Where a node is lost, actors that have nothing more to do give their GPUs to those that were on it.
        pool = replace(self.pool, least=1, most=self.pool.start)
        return do_pieces(
            "searching", pieces, most, self.actor_class or SearchActor,
            {"spec": self.spec, **arguments},
            pool=pool, room=1, on_event=self.on_event,
        )  # fmt: skip


def _piece(begins: str, content: Any) -> WorkItem:
    return WorkItem(f"the part that begins with {begins}", content)
