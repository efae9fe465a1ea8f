"""Encoding a corpus, in shards, and queries; and the files that hold the vectors of shards.

A shard is a piece of a corpus, named by a hash of its encoder, its storage and its passages. A file is written whole or
not at all and never changed. So a killed build finds its completed shards, a corpus that grew at its end costs only the
new shards, and a vector is never mistaken for another text's. Shards and queries are encoded in this process;
``distribute`` uses Ray instead.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

from engine.machine.remote.api_settings import is_api
from engine.messages.errors import InputError
from engine.messages.extras import require
from engine.retrieval import encoders
from engine.retrieval.encoders import PRESETS, EncoderOptions, EncoderSpec, Preset
from engine.sources.io.files import atomic_path
from engine.tables import DOC_ID, TEXT, TITLE

Storage = Literal["fp32", "fp16"]
Floats = npt.NDArray[np.floating]
TYPES: dict[Storage, npt.DTypeLike] = {"fp32": np.float32, "fp16": np.float16}
VECTOR = "vector"
# Options of reading: pages have checksums, which files of earlier versions lack.
CHECKED: dict[str, Any] = {"page_checksum_verification": True}
FOLDER = "shards"
# A shard's file, or its remains from a killed build of an earlier version.
_NAME = re.compile(r"[0-9a-f]{40}\.parquet|\.[0-9a-f]{40}\.[0-9a-f]+\.tmp\.parquet")
# Passages per shard: some seconds on one laptop core, some megabytes of vectors.
SHARD = 2048


@dataclass(frozen=True)
class Shard:
    """Consecutive passages of a corpus: ``key`` names the file of their vectors, ``texts`` are an encoder's input."""

    key: str
    doc_ids: list[str]
    texts: list[str]


@dataclass(frozen=True)
class Part:
    """A part of a corpus with shards to encode, whose keys are in the order of the corpus; calling it reads and yields
    them, ``anywhere`` also in processes that see the files of the corpus.
    """

    keys: Sequence[str]
    scan: Callable[[], Iterable[pl.DataFrame]]
    cut: Callable[[Iterable[pl.DataFrame]], Iterable[Shard]]
    anywhere: bool

    def __call__(self) -> Iterator[Shard]:
        keys = set(self.keys)
        yield from (shard for shard in self.cut(self.scan()) if shard.key in keys)


@dataclass(frozen=True)
class Block:
    """Vectors in memory: ``vectors`` is (passages, dimensions) in fp32, ``doc_ids`` their ids."""

    doc_ids: pl.Series
    vectors: npt.NDArray[np.float32]


def passage_texts(corpus: pl.DataFrame, form: Preset) -> list[str]:
    """An encoder's input for passages: prefix, title, separator, text; an empty title is omitted, with its separator."""
    title, text = pl.col(TITLE), pl.col(TEXT)
    joined = pl.when(title == "").then(text).otherwise(title + form.separator + text)
    return corpus.select((form.passage_prefix + joined).alias(TEXT))[TEXT].to_list()


def cut_shards(
    batches: Iterable[pl.DataFrame], spec: EncoderSpec, storage: Storage, *, size: int = SHARD
) -> Iterator[Shard]:
    """Cut a streamed corpus into shards of ``size`` passages (the last may be shorter), however batches divide it."""
    pending: list[pl.DataFrame] = []
    rows = 0
    for batch in batches:
        pending.append(batch.select(DOC_ID, TITLE, TEXT))
        rows += batch.height
        if rows < size:
            continue
        table = pl.concat(pending)
        whole = rows - rows % size
        for start in range(0, whole, size):
            yield _shard(table.slice(start, size), spec, storage)
        pending, rows = [table.slice(whole)], rows - whole
    if rows:
        yield _shard(pl.concat(pending), spec, storage)


def _shard(table: pl.DataFrame, spec: EncoderSpec, storage: Storage) -> Shard:
    doc_ids, texts = table[DOC_ID].to_list(), passage_texts(table, spec.text)
    content = json.dumps([spec.fingerprint, storage, doc_ids, texts], ensure_ascii=False)
    return Shard(hashlib.sha256(content.encode()).hexdigest()[:40], doc_ids, texts)


def shard_path(directory: Path, key: str) -> Path:
    return directory / FOLDER / f"{key}.parquet"


def write_shard(directory: Path, shard: EncodedShard) -> None:
    """Write a shard's file atomically."""
    flat = pa.array(np.ascontiguousarray(shard.vectors).reshape(-1))
    rows = pa.FixedSizeListArray.from_arrays(flat, shard.vectors.shape[1])
    table = pa.table({DOC_ID: pa.array(shard.doc_ids, type=pa.string()), VECTOR: rows})
    with atomic_path(shard_path(directory, shard.key)) as temporary:
        # Vectors hardly compress and rarely repeat a number: stored plainly, they are read fastest.
        plain = {"compression": "none", "use_dictionary": False}
        pq.write_table(table, temporary, write_page_checksum=True, **plain)


def read_shards(directory: Path, keys: Sequence[str], storage: Storage, dimensions: int) -> Block:
    """Read shards as one block, in fp32; an InputError if a file is missing, broken, or not as the index states."""
    blocks = [_read(directory, key, storage, dimensions) for key in keys]
    if len(blocks) == 1:
        return blocks[0]
    doc_ids = pl.concat([block.doc_ids for block in blocks])
    return Block(doc_ids, np.concatenate([block.vectors for block in blocks]))


def _read(directory: Path, key: str, storage: Storage, dimensions: int) -> Block:
    file = shard_path(directory, key)
    with readable(file):
        table = pq.read_table(file, columns=[DOC_ID, VECTOR], memory_map=True, **CHECKED)
        values = table.column(VECTOR).combine_chunks().flatten().to_numpy(zero_copy_only=False)
        vectors = values.astype(np.float32, copy=False).reshape(-1, dimensions)
        if values.dtype != TYPES[storage] or len(vectors) != table.num_rows:
            raise ValueError("not the vectors that the index states")
    doc_ids = pl.from_arrow(table.column(DOC_ID))
    assert isinstance(doc_ids, pl.Series)
    return Block(doc_ids.cast(pl.String), vectors)


@contextlib.contextmanager
def readable(file: Path) -> Iterator[None]:
    """Refuse the file of a shard that is gone or broken."""
    try:
        yield
    except (OSError, pa.ArrowException, KeyError, ValueError, AttributeError) as error:
        reason = str(error).split("\n")[0]
        remedy = "delete it, and run the same 'erag index' again"
        raise InputError(f"broken shard ({reason})", remedy, "index.shard", path=file) from None


def prune(directory: Path, keys: Iterable[str]) -> None:
    """Remove files of shards that an index does not use, such as an older corpus' or encoder's."""
    used = {shard_path(directory, key).name for key in keys}
    for file in (directory / FOLDER).iterdir():
        if file.name not in used and _NAME.fullmatch(file.name):
            file.unlink()


@dataclass(frozen=True)
class EncodedShard:
    """An encoded shard; ``vectors`` is (passages, dimensions) in the storage's type."""

    key: str
    doc_ids: list[str]
    vectors: Floats


# Encodes shards, in any order: takes the parts of a corpus that have them, and their number.
Executor = Callable[[Sequence[Part], int, EncoderSpec, Storage], Iterator[EncodedShard]]


def execute(
    parts: Sequence[Part], count: int, spec: EncoderSpec, storage: Storage
) -> Iterator[EncodedShard]:
    """Encode shards with one encoder in this process, in their order."""
    encoder = encoder_for(spec)
    for shard in (shard for part in parts for shard in part()):
        vectors = encoder.encode(shard.texts).astype(TYPES[storage], copy=False)
        yield EncodedShard(shard.key, shard.doc_ids, vectors)


def specify(
    options: EncoderOptions, *, memory: int = 0, gpu: bool | None = None, threads: int = 0
) -> EncoderSpec:
    """The specification of an encoder of this machine, or of a server, whose vectors stay as they come; errors as of
    ``encoders.specify`` and ``Embedder``.
    """
    if not is_api(name := options.encoder):
        return encoders.specify(options, memory=memory, gpu=gpu, threads=threads)
    local = {field: getattr(options, field) for field in ("pooling", "dtype", "trust_remote_code")}
    local |= {"memory": memory, "dtype": local["dtype"] not in (None, "float32")}
    for field in [field for field, value in local.items() if value]:
        problem = f"`{field}` with {name}, which a server runs"
        raise InputError(problem, "leave it out", "encoder.server")
    require(f"encoder {name!r}", "api")
    size = encoders.split_name(name)[1]
    text = replace(options.adapt(PRESETS[options.preset or "mean"]), dimensions=size)
    spec = EncoderSpec(name, name, "", "", text, "float32", size or 0, server=options.server())
    return encoder_for(spec).spec


def encoder_for(spec: EncoderSpec) -> Any:
    """The encoder in this process: a loaded model (``Encoder``), or the client of a server (``Embedder``)."""
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
    """The vectors of queries, with prefix, encoded ``SHARD`` at a time: (texts, dimensions); progress: done, all."""
    encoder = encoder_for(spec)
    vectors = np.empty((len(texts), spec.dimensions), dtype=np.float32)
    on_progress(0, len(texts))
    for start in range(0, len(texts), SHARD):
        part = texts[start : start + SHARD]
        vectors[start : start + SHARD] = encoder.queries(part)
        on_progress(start + len(part), len(texts))
    return vectors
