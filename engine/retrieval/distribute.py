"""Encoding on Ray Data: tasks read and cut a corpus, and actors that host the encoder encode its shards.

The rows of the dataset are the parts of the corpus. A task reads one where it runs. What it cannot read there,
or reads otherwise than the driver did, it asks the driver for (``desk``). Ray Data holds these tasks back while
actors have enough to do.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import ray
import ray.data

from engine.machine.attempts import begin, ending_if_fatal, tally_of
from engine.machine.cluster import beside_driver
from engine.machine.nodes import Needs
from engine.machine.pool import Pool, one_row_blocks, pool_options, reported
from engine.machine.ray_internals import end_at_exit
from engine.machine.watch import OnEvent, PoolTotals, silent, started_here, watched
from engine.messages.errors import EncodeError, InputError
from engine.retrieval.desk import Desk, feed
from engine.retrieval.encode import Encoded
from engine.retrieval.encoders import EncoderSpec
from engine.retrieval.index_shards import TYPES, Part, Shard, Storage

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
        """The encoder."""
        from engine.retrieval.encoder import Encoder

        return Encoder(spec)

    def __call__(self, batch: pa.Table) -> pa.Table:
        shard: Shard = pickle.loads(batch["content"][0].as_py())
        begin(self._desk, shard.key, f"the shard that begins with document {shard.doc_ids[0]!r}")
        with ending_if_fatal():
            vectors = self._encoder.encode(shard.texts)
        self._desk.forget.remote(shard.key)
        stored = np.ascontiguousarray(vectors.astype(TYPES[self._storage], copy=False))
        result = pickle.dumps(Encoded(shard.key, shard.doc_ids, stored), 5)
        return pa.table({"content": [result]}, schema=_CONTENT)


def _cut(batch: pa.Table, desk: Any) -> Iterator[pa.Table]:
    """The shards of a part of the corpus, in the order of its keys, whoever reads them."""
    number, part = batch["number"][0].as_py(), pickle.loads(batch["part"][0].as_py())
    here = part()
    for key in part.keys:
        begin(desk, shard := (number, key), f"part {number + 1} of the corpus")
        contents = []
        with contextlib.suppress(InputError, StopIteration):  # the driver knows more
            contents = [pickle.dumps(next(one for one in here if one.key == key), 5)]
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
) -> Iterator[Encoded]:
    """Encode shards on a pool of actors; results are yielded as they complete, in any order.

    Ray must have been started. ``on_event`` is told one line when nodes come or go, actors restart, or it waits.

    Raises:
        InputError: the corpus cannot be read.
        EncodeError: encoding failed.
    """
    desk = ray.remote(**beside_driver() | {"max_concurrency": 1000})(Desk).remote()
    feeder = threading.Thread(target=feed, args=(parts, desk), daemon=True)
    feeder.start()
    # Elsewhere, what only the driver can read has no passages.
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
    """The rows of a dataset that actors make, as they come; at its end, the actor that counts attempts ends."""
    try:
        with (
            reported(doing, EncodeError, needs),
            watched(needs, on_event, PoolTotals(), lambda: tally_of(counts)),
        ):
            for block in dataset.iter_batches(batch_size=None, batch_format="pyarrow"):
                yield from block.to_pylist()
    finally:
        with contextlib.suppress(Exception):
            ray.kill(counts)
