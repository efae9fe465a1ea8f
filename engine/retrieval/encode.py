"""Encoding in this process: shards (``distribute.execute`` uses Ray Data instead) and queries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.machine.remote.api_settings import is_api
from engine.messages.errors import InputError
from engine.messages.extras import require
from engine.retrieval import encoders
from engine.retrieval.encoders import PRESETS, EncoderOptions, EncoderSpec
from engine.retrieval.index_shards import SHARD, TYPES, Floats, Part, Storage


@dataclass(frozen=True)
class Encoded:
    """An encoded shard; ``vectors`` is (passages, dimensions) in the storage's type."""

    key: str
    doc_ids: list[str]
    vectors: Floats


# Encodes shards, in any order: takes the parts of a corpus that have them, and their number.
Executor = Callable[[Sequence[Part], int, EncoderSpec, Storage], Iterator[Encoded]]


def execute(
    parts: Sequence[Part], count: int, spec: EncoderSpec, storage: Storage
) -> Iterator[Encoded]:
    """Encode shards with one encoder in this process, in their order."""
    encoder = encoder_for(spec)
    for shard in (shard for part in parts for shard in part()):
        vectors = encoder.encode(shard.texts).astype(TYPES[storage], copy=False)
        yield Encoded(shard.key, shard.doc_ids, vectors)


def specify(
    options: EncoderOptions, *, memory: int = 0, gpu: bool | None = None, threads: int = 0
) -> EncoderSpec:
    """The specification of an encoder of this machine, or of a server, whose vectors are taken as they come.

    Raises:
        InputError: as ``encoders.specify`` and ``Embedder``.
    """
    if not is_api(name := options.encoder):
        return encoders.specify(options, memory=memory, gpu=gpu, threads=threads)
    given = {field: getattr(options, field) for field in ("pooling", "dtype", "trust_remote_code")}
    given |= {"memory": memory, "dtype": given["dtype"] not in (None, "float32")}
    for field in [field for field, value in given.items() if value]:
        raise InputError(f"`{field}` with {name}, which a server runs", "leave it out")
    require(f"encoder {name!r}", "api")
    kept = encoders.kept_of(name)[1]
    text = replace(options.adapt(PRESETS[options.preset or "mean"]), dimensions=kept)
    spec = EncoderSpec(name, name, "", "", text, "float32", kept or 0, server=options.server())
    return encoder_for(spec).spec


def encoder_for(spec: EncoderSpec) -> Any:
    """What encodes texts here: a model that is loaded (``Encoder``), or a server that is asked (``Embedder``)."""
    if spec.server:
        from engine.retrieval.embedder import Embedder

        return Embedder(spec)
    from engine.retrieval.encoder import Encoder

    return Encoder(spec)


def queries(
    texts: Sequence[str],
    spec: EncoderSpec,
    *,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> npt.NDArray[np.float32]:
    """The vectors of queries, prefix added, encoded ``SHARD`` at a time: (texts, dimensions); progress is queries done, and all."""
    encoder = encoder_for(spec)
    vectors = np.empty((len(texts), spec.dimensions), dtype=np.float32)
    on_progress(0, len(texts))
    for start in range(0, len(texts), SHARD):
        part = texts[start : start + SHARD]
        vectors[start : start + SHARD] = encoder.queries(part)
        on_progress(start + len(part), len(texts))
    return vectors
