"""Approximate search: an index built from a FAISS factory string, and its recall.

Factory strings (https://github.com/facebookresearch/faiss/wiki/The-index-factory): ``IVF1024,Flat``
searches the nearest of 1,024 cells, ``HNSW32`` walks a graph, ``OPQ32,IVF1024,PQ32`` stores 32
bytes per vector. Such an index is held in memory as a whole, and its scores are those of FAISS.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from engine.messages.errors import InputError
from engine.messages.extras import require
from engine.retrieval import index_shards, manifest
from engine.retrieval.flat import QUERY_ROW, Singles
from engine.retrieval.index_shards import Block
from engine.retrieval.manifest import Manifest
from engine.sources.io.digests import file_sha256, require_whole
from engine.sources.io.files import atomic_path
from engine.tables import DOC_ID, QUERY_ID, SCORE

_SUFFIX = ".faiss"
# The setting of an index that has the SHA-256 of its file.
_DIGEST = "faiss_sha256"
_AGAIN = "delete it, and run the same 'erag index' again"
# FAISS trains on at most 256 vectors per cell; this many suffice for 1,024 cells.
_TRAINING = 262_144


def require_factory(factory: str, dimensions: int) -> None:
    """Check a factory string before anything is encoded for it.

    Raises:
        InputError: FAISS does not accept it for vectors of this length.
    """
    require("`factory`", "retrieval", "faiss")
    _empty_index(factory, dimensions)


def build(directory: Path, index: Manifest, blocks: Callable[[], Iterator[Block]]) -> None:
    """Build the approximate index of a dense index that has a factory, unless it exists and is whole.

    Its digest joins the settings of the manifest, which need not be written yet. ``blocks`` starts reading the
    vectors, in the order of the index's shards.

    Raises:
        InputError: too few passages to train cells or codes on.
    """
    path = _file(directory, index)
    if path is None:
        return
    import faiss

    with contextlib.suppress(InputError, OSError):  # there is no earlier index, or no such file
        known = manifest.read(directory).settings.get(_DIGEST)
        if known == file_sha256(path):
            index.settings[_DIGEST] = known
            return
    factory, dimensions = index.settings["factory"], index.settings["encoder"]["dimensions"]
    faiss_index = _empty_index(factory, dimensions)
    if not faiss_index.is_trained:
        stride = -(-index.passages // _TRAINING)
        sample = np.concatenate(list(_strided(blocks(), stride)))
        try:
            faiss_index.train(sample)
        except RuntimeError as error:
            raise InputError(
                f"`factory` {factory} cannot be trained on {len(sample)} passages ({_reason(error)})",
                "use fewer cells, or leave `factory` out",
            ) from None
    for block in blocks():
        faiss_index.add(block.vectors)
    with atomic_path(path) as temporary:
        faiss.write_index(faiss_index, str(temporary))
        index.settings[_DIGEST] = file_sha256(temporary)


def search_approximate(
    directory: Path, index: Manifest, queries: Singles, *, k: int, parameters: str = ""
) -> pl.DataFrame:
    """What FAISS finds: ``query_row``, ``doc_id`` and ``score``, as from ``flat.search_flat``.

    Args:
        queries: (queries, dimensions).
        parameters: such as ``nprobe=16`` or ``efSearch=64``.

    Raises:
        InputError: the index was built without a factory, is damaged, or does not have these parameters.
    """
    import faiss

    path = _file(directory, index)
    if path is None or not path.exists():
        remedy = "build it with `factory`, or search exactly"
        raise InputError("has no approximate index", remedy, path=directory)
    require_whole(path, index.settings.get(_DIGEST), _AGAIN)
    try:
        faiss_index = faiss.read_index(str(path))
    except (RuntimeError, MemoryError) as error:
        raise InputError(f"cannot be read ({error})", _AGAIN, path=path) from None
    if parameters:
        try:
            space: Any = faiss.ParameterSpace()  # the stub lacks a form of the next call
            space.set_index_parameters(faiss_index, parameters)
        except RuntimeError as error:
            raise InputError(
                f"FAISS refuses the parameters {parameters!r} ({_reason(error)})",
                "write parameters of this index, like nprobe=16",
            ) from None
    scores, places = faiss_index.search(np.ascontiguousarray(queries), min(k, index.passages))
    filled = places >= 0  # a cell may hold fewer than k
    return pl.DataFrame(
        {
            QUERY_ROW: np.nonzero(filled)[0],
            DOC_ID: _doc_ids(directory, index, places[filled]),
            SCORE: scores[filled].astype(np.float64),
        }
    )


def recall(run: pl.DataFrame, exact: pl.DataFrame) -> float:
    """Share of the passages of exact lists that the run lists for the same queries, in [0, 1]."""
    shared = exact.join(run, on=[QUERY_ID, DOC_ID], how="semi").height
    return shared / exact.height if exact.height else 1.0


def prune(directory: Path, index: Manifest) -> None:
    """Remove approximate indexes that do not belong to this index."""
    kept = _file(directory, index)
    for path in directory.glob(f"*{_SUFFIX}"):
        if path != kept:
            path.unlink()


def _file(directory: Path, index: Manifest) -> Path | None:
    """The file, named by its content, so that a rebuild never takes an older one for its result."""
    factory = index.settings["factory"]
    if not factory:
        return None
    content = json.dumps([factory, index.settings["shards"]])
    return directory / f"{hashlib.sha256(content.encode()).hexdigest()[:20]}{_SUFFIX}"


def _empty_index(factory: str, dimensions: int) -> Any:
    import faiss

    try:
        return faiss.index_factory(dimensions, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        raise InputError(
            f"FAISS cannot build an index {factory!r} of {dimensions} dimensions ({_reason(error)})",
            "use a factory string like IVF1024,Flat or HNSW32",
        ) from None


def _strided(blocks: Iterator[Block], stride: int) -> Iterator[Singles]:
    start = 0
    for block in blocks:
        yield block.vectors[start::stride]
        start = (start - len(block.vectors)) % stride


def _doc_ids(directory: Path, index: Manifest, places: Any) -> pl.Series:
    """The ids at positions in the index; reads only the ids of the shards concerned."""
    keys, size = index.settings["shards"], index.settings["shard"]
    wanted = pl.DataFrame({"place": places, "row": np.arange(len(places))}).with_columns(
        (pl.col("place") // size).alias("shard")
    )
    parts = [pl.DataFrame(schema={"row": pl.Int64, DOC_ID: pl.String})]
    for (number,), part in wanted.group_by("shard"):
        with index_shards.readable(path := index_shards.path(directory, keys[number])):
            column = pq.read_table(path, columns=[DOC_ID], **index_shards.CHECKED)
        ids = pl.Series(DOC_ID, column.column(DOC_ID).to_pylist(), dtype=pl.String)
        parts.append(part.select("row", ids.gather(part["place"] % size).alias(DOC_ID)))
    return pl.concat(parts).sort("row")[DOC_ID]


def _reason(error: RuntimeError) -> str:
    """FAISS's message without its C++ context."""
    return str(error).rsplit(": ", 1)[-1].strip()[:200]
