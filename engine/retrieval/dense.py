"""Dense retrieval: indexes of vectors, exact or approximate, from a streamed corpus; search in any kind of index.

An approximate index is built from a FAISS factory string
(https://github.com/facebookresearch/faiss/wiki/The-index-factory): ``IVF1024,Flat`` searches the nearest of 1,024
cells, ``HNSW32`` walks a graph, ``OPQ32,IVF1024,PQ32`` stores 32 bytes per vector. Such an index is held in memory as a
whole, and FAISS computes its scores.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
import pyarrow.parquet as pq

from engine import tables
from engine.machine import device, model_files
from engine.machine.pool import PoolSettings
from engine.machine.remote.api_settings import ServerSettings, is_api
from engine.machine.watch import OnEvent, silent
from engine.messages.checked import Amount, Positive, Share
from engine.messages.errors import InputError
from engine.messages.extras import require
from engine.retrieval import bm25, encode, flat, manifest
from engine.retrieval.encode import Block, Part, Storage
from engine.retrieval.encoders import EncoderSpec, Preset, lacks_scaling, locate
from engine.retrieval.flat import QUERY_ROW, Singles
from engine.retrieval.manifest import Manifest
from engine.sources.io.digests import Fingerprint, file_sha256, require_whole
from engine.sources.io.files import atomic_path
from engine.sources.runs.read import without_identical
from engine.tables import DOC_ID, QUERY, QUERY_ID, RANK, RUN, SCORE

if TYPE_CHECKING:
    from engine.retrieval.distribute import SearchOnRay

# Starts reading the corpus from the beginning: batches of the corpus table.
Scan = Callable[[], Iterator[pl.DataFrame]]
# Parts of a corpus that any process can read: first rows, multiples of the argument, and scans.
Split = Callable[[int], Sequence[tuple[int, Scan]]]
Progress = Callable[[int, int], None]
# Reads a part of an index's vectors.
ReadPart = Callable[[], Block]

# At most this many shards are encoded in this process by default: Ray takes longer to start.
_FEW = 4

_RECORDED = ("name", "source", "digest", "dtype", "dimensions")
# Numbers of vectors that a search takes at a time: 32 MiB, and 256 MiB for a GPU, which would search a small block
# faster than the next arrives.
_BLOCK_NUMBERS = 2**23
_GPU_BLOCK_NUMBERS = 2**26
_SUFFIX = ".faiss"
# Queries whose approximate lists are compared with the exact ones.
_RECALL_QUERIES = 100
# The setting of an index that has the SHA-256 of its file.
_DIGEST = "faiss_sha256"
_AGAIN = "delete it, and run the same 'erag index' again"
# FAISS trains on at most 256 vectors per cell; this many suffice for 1,024 cells.
_TRAINING = 262_144


@dataclass(frozen=True, kw_only=True)
class IndexOptions(PoolSettings):
    """How an index of vectors is built.

    Attributes:
        storage: Precision in which vectors are stored.
        factory: FAISS's factory string of an approximate index beside the exact one (IVF1024,Flat; HNSW32).
    """

    storage: Storage = "fp32"
    factory: str | None = None


@dataclass(frozen=True, kw_only=True)
class SearchOptions(ServerSettings):
    """How indexes are searched.

    Attributes:
        k: Passages per query.
        threads: CPU threads; all by default.
        k1: BM25's saturation of term frequency.
        b: BM25's normalization by length, from 0 to 1.
        encoder: Where the encoder of a dense index is now, if it has moved since the index was built.
        approximate: Search the approximate part of a dense index that was built with a factory
            string, with these FAISS parameters ("nprobe=16"; "" for FAISS's defaults), and print
            the share of the exact results that it finds. By default the search is exact.
        ignore_identical_ids: Leave out passages that have the id of their query, as BEIR does (ArguAna, Quora).
        trust_remote_code: Run Python code that comes with the encoder of a dense index that was built
            with it. That code can do whatever you can: read it first.
    """

    k: Positive = 10
    threads: Positive | None = None
    k1: Amount = 0.9
    b: Share = 0.4
    encoder: str | None = None
    approximate: str | None = None
    ignore_identical_ids: bool = False
    trust_remote_code: bool = False


# Wide: a corpus is read, divided, encoded and watched by functions of the caller's.
def build_index(
    scan: Scan,
    directory: str | Path,
    spec: EncoderSpec,
    options: IndexOptions = IndexOptions(),
    *,
    shard: int = encode.SHARD,
    on_progress: Progress = lambda done, total: None,
    on_event: OnEvent = silent,
    executor: encode.Executor | None = None,
    split: Split = lambda rows: [],
) -> Manifest:
    """Encode a corpus and make it searchable, reusing the shards of an earlier build.

    The corpus is read twice in constant memory: for its fingerprint and the missing shards, and for their texts. An
    existing index in ``directory`` stays whole and searchable until the new one is finished.

    Args:
        scan: starts reading the corpus; both times it must yield the same passages.
        options: how vectors are stored and computed. Few shards are encoded in this process, unless ``actors`` is set.
        shard: passages per shard.
        on_progress: called with the number of shards done and the total; first with the number reused.
        on_event: called with a line when nodes of the cluster come or go, or the build waits.
        executor: custom executor. It must return this encoder's vectors: shards are kept under the encoder's name.
        split: gives parts of the corpus that actors can read; none if this process has to read it.

    Raises:
        InputError: the directory holds something else, the corpus cannot be read or changed
            between the two passes, or FAISS does not know the factory string.
        EncodeError: vectors could not be computed.
    """
    directory = Path(directory).resolve()
    manifest.require_place(directory, "dense")
    if options.factory:
        empty_index(options.factory, spec.dimensions)
    (directory / encode.FOLDER).mkdir(parents=True, exist_ok=True)
    if not (directory / manifest.FILE).exists():
        (directory / manifest.UNFINISHED).touch()
    fingerprint = Fingerprint()

    cut = partial(encode.cut_shards, spec=spec, storage=options.storage, size=shard)
    keys = [piece.key for piece in cut(map(fingerprint.update, scan()))]
    missing = {key for key in keys if not encode.shard_path(directory, key).exists()}
    on_progress(len(keys) - len(missing), len(keys))
    if missing:
        scans = split(shard) or [(0, scan)]
        stops = [*(first // shard for first, _ in scans[1:]), len(keys)]
        parts = [
            Part(lacking, read, cut, anywhere=read is not scan)
            for (first, read), stop in zip(scans, stops, strict=True)
            if (lacking := [key for key in keys[first // shard : stop] if key in missing])
        ]
        run = executor or executor_for(options.pool(), len(missing), spec, on_event)
        for encoded in run(parts, len(missing), spec, options.storage):
            encode.write_shard(directory, encoded)
            missing.discard(encoded.key)
            on_progress(len(keys) - len(missing), len(keys))
        if missing:
            problem = "the corpus changed while it was indexed"
            raise InputError(problem, "run the command again", "index.stale", path=directory)
    index = _manifest(fingerprint, spec, options, shard, keys)
    _build_approximate(directory, index)
    manifest.write(index, directory)
    (directory / manifest.UNFINISHED).unlink(missing_ok=True)
    encode.prune(directory, keys)
    for path in directory.glob(f"*{_SUFFIX}"):
        if path != _faiss_file(directory, index):
            path.unlink()
    return index


def is_constant(directory: Path, index: Manifest) -> bool:
    """Whether an index has several vectors, all equal."""
    first = next(read_blocks(directory, index)).vectors[0]
    blocks = read_blocks(directory, index)
    return index.passages > 1 and not any((block.vectors != first).any() for block in blocks)


def length_ratio(directory: Path, index: Manifest) -> float:
    """Length of the longest vector over that of the shortest, at least 1; vectors of zeros do not count."""
    extremes = []
    for block in read_blocks(directory, index):
        lengths = np.linalg.norm(block.vectors.astype(np.float32, copy=False), axis=1)
        extremes += [lengths.max(), lengths[lengths > 0].min(initial=lengths.max())]
    known = [length for length in extremes if length > 0]
    return float(max(known) / min(known)) if known else 1.0


def _manifest(
    fingerprint: Fingerprint, spec: EncoderSpec, options: IndexOptions, shard: int, keys: list[str]
) -> Manifest:
    text = asdict(spec.text) | {"layers": list(spec.text.layers)}
    encoder = {name: getattr(spec, name) for name in _RECORDED}
    encoder |= {"text": text, "scaled": spec.text.normalize}
    if spec.code:  # absent if no code runs, as in earlier versions
        encoder["code"] = spec.code
    storage = {"storage": options.storage, "factory": options.factory}
    settings = {"encoder": encoder, **storage, "shard": shard, "shards": keys}
    versions = manifest.versions("faiss-cpu", "faiss-gpu", "torch", "transformers")
    return Manifest("dense", fingerprint.rows, fingerprint.hexdigest(), settings, versions)


def search(
    directory: str | Path,
    queries: pl.DataFrame,
    options: SearchOptions = SearchOptions(),
    *,
    name: str = "dense",
    block: int | None = None,
    on_event: OnEvent = silent,
) -> pl.DataFrame:
    """The run table of the passages of highest inner product for each query.

    Equal scores are ordered by document id. An index of fewer than ``k`` passages returns all, and a query whose vector
    is zeros none. If there are several GPUs, here or on the cluster of ``RAY_ADDRESS``, an actor per GPU encodes
    queries, reads the index and searches it; the run is the same.

    Args:
        queries: ``query_id`` and ``query``.
        options: options of the other kind of index are ignored.
        block: vectors in memory at a time; None for 32 MiB, or 256 MiB if GPUs search.
        on_event: called with a line when nodes of the cluster come or go, or the search waits.

    Raises:
        InputError: not a dense index, an encoder other than the index's, an encoder whose code may not run, or no
            approximate index.
        EncodeError: vectors could not be computed, or not be searched.
    """
    directory = Path(directory)
    index = manifest.read(directory, "dense")
    require("vector search", "retrieval", "faiss")
    spec = locate(encoder_of(index, options))
    if not spec.server and "scaled" not in index.settings["encoder"] and lacks_scaling(spec):
        problem = f"has inner products, and {spec.name} compares by the cosine, which earlier versions passed over"
        raise InputError(problem, "build the index again", "index.similarity", path=directory)
    texts = queries[QUERY].to_list()
    on_gpu = block or max(1, _GPU_BLOCK_NUMBERS // spec.dimensions)
    actors = _actors(spec, len(texts), _parts(directory, index, on_gpu), on_event)
    vectors = actors.queries(texts) if actors else encode.queries(texts, spec)
    if options.approximate is not None:
        parameters = options.approximate
        best = search_approximate(directory, index, vectors, k=options.k, parameters=parameters)
        return _as_run(best, queries, name, vectors)
    searcher: flat.Searcher | None = flat.on_gpu if flat.gpu_count() else None
    if actors and flat.is_gpu_build():
        searcher = actors
    elif actors:
        on_event("this build of FAISS has no GPU support: vectors are searched on the CPU")
    blocks = read_blocks(directory, index, block=on_gpu if searcher else block)
    best = flat.search_flat(blocks, vectors, k=options.k, searcher=searcher, on_event=on_event)
    return _as_run(best, queries, name, vectors)


def search_index(
    directory: Path,
    queries: pl.DataFrame,
    *,
    name: str,
    options: SearchOptions,
    on_event: OnEvent = silent,
) -> pl.DataFrame:
    """The best passages for each query, by ``bm25.search`` or ``search``; options of the other kind are ignored."""
    if options.ignore_identical_ids:
        deeper = replace(options, k=options.k + 1, ignore_identical_ids=False)
        run = search_index(directory, queries, name=name, options=deeper, on_event=on_event)
        return without_identical(run).filter(pl.col(RANK) <= options.k)
    if manifest.read(directory).kind == "bm25":
        used = {field: getattr(options, field) for field in ("k", "k1", "b", "threads")}
        return bm25.search(directory, queries, name=name, **used)
    return search(directory, queries, options, name=name, on_event=on_event)


def approximate_recall(
    run: pl.DataFrame, directory: Path, queries: pl.DataFrame, options: SearchOptions
) -> tuple[float, int]:
    """The share of exact results, in [0, 1], in a run of ``search_index``, and the number of queries."""
    sample = queries.head(_RECALL_QUERIES)
    exactly = replace(options, approximate=None)
    exact = search_index(directory, sample, name="exact", options=exactly)
    shared = exact.join(run, on=[QUERY_ID, DOC_ID], how="semi").height
    return shared / exact.height if exact.height else 1.0, sample.height


def _actors(
    spec: EncoderSpec, queries: int, parts: Sequence[ReadPart], on_event: OnEvent
) -> SearchOnRay | None:
    """Actors that encode and search, one per GPU; None for a single GPU, or a single part of work."""
    several = os.environ.get("RAY_ADDRESS") or device.gpu_count() > 1
    most = max(-(-queries // encode.SHARD), len(parts))
    if most > 1 and several and not spec.server and not PoolSettings().in_process:
        from engine.retrieval import distribute

        if (pool := distribute.pool_for(spec, most)) is not None:
            return distribute.SearchOnRay(pool, spec, parts, on_event)
    return None


def read_blocks(directory: Path, index: Manifest, *, block: int | None = None) -> Iterator[Block]:
    """The vectors of an index, in blocks of ``block`` vectors or up to a shard more."""
    block = block or max(1, _BLOCK_NUMBERS // index.settings["encoder"]["dimensions"])
    return (read() for read in _parts(directory, index, block))


def _parts(directory: Path, index: Manifest, block: int) -> list[ReadPart]:
    settings = index.settings
    keys, shards = settings["shards"], -(-block // settings["shard"])
    kind = settings["storage"], settings["encoder"]["dimensions"]
    parts = (keys[start : start + shards] for start in range(0, len(keys), shards))
    return [partial(encode.read_shards, directory, part, *kind) for part in parts]


def encoder_of(index: Manifest, options: SearchOptions) -> EncoderSpec:
    """The specification of an index's encoder; an InputError if it needs code that may not run."""
    recorded = index.settings["encoder"]
    code = recorded.get("code", "")
    if code and not options.trust_remote_code:
        raise model_files.needs_code(recorded["name"])
    settings = {name: recorded[name] for name in _RECORDED} | {"path": "", "code": code}
    settings |= {"source": options.encoder or recorded["source"], "threads": options.threads or 0}
    server = options.server() if is_api(recorded["name"]) else None
    return EncoderSpec(**settings, text=Preset(**recorded["text"]), server=server)


def executor_for(
    settings: PoolSettings, count: int, spec: EncoderSpec, on_event: OnEvent = silent
) -> encode.Executor:
    """The executor for ``count`` shards; ``settings`` as ``IndexOptions.pool`` gives them."""
    if (settings.gpus_per_actor or 0) > 1:
        problem = f"`gpus_per_actor` is {settings.gpus_per_actor:g}, but an encoder runs on one GPU"
        raise InputError(problem, "use 1 or a fraction", "cluster.idle")
    if spec.server:
        if settings.actors not in (None, 0, "0"):
            problem = f"`actors` with {spec.name}, which a server runs"
            raise InputError(problem, "use `concurrency`", "encoder.server")
        return encode.execute
    small = count <= _FEW and not os.environ.get("RAY_ADDRESS") and not spec.memory
    if settings.in_process or (settings == PoolSettings() and small):
        return encode.execute
    from engine.retrieval import distribute

    pool = distribute.pool_of(spec, settings)
    return partial(distribute.execute, pool=pool, on_event=on_event)


def _as_run(best: pl.DataFrame, queries: pl.DataFrame, name: str, vectors: Singles) -> pl.DataFrame:
    nonzero = pl.Series(vectors.any(axis=1)).arg_true()
    best = best.filter(pl.col(QUERY_ROW).is_in(nonzero.implode()))
    rows = best.sort(QUERY_ROW, SCORE, DOC_ID, descending=[False, True, False])
    rank = pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over(QUERY_ROW).alias(RANK)
    ids = queries[QUERY_ID].gather(rows[QUERY_ROW])
    rows = rows.with_columns(ids, rank, pl.lit(name).alias(RUN))
    return rows.select(list(tables.RUNS))


def _build_approximate(directory: Path, index: Manifest) -> None:
    """Build the approximate index of a factory, unless it is whole already; add its digest to the index's settings."""
    path = _faiss_file(directory, index)
    if path is None:
        return
    import faiss

    with contextlib.suppress(InputError, OSError):  # there is no earlier index, or no such file
        earlier = manifest.read(directory).settings.get(_DIGEST)
        if earlier == file_sha256(path):
            index.settings[_DIGEST] = earlier
            return
    factory, dimensions = index.settings["factory"], index.settings["encoder"]["dimensions"]
    faiss_index = empty_index(factory, dimensions)
    if not faiss_index.is_trained:
        stride = -(-index.passages // _TRAINING)
        start, strided = 0, []
        for block in read_blocks(directory, index):
            strided.append(block.vectors[start::stride])
            start = (start - len(block.vectors)) % stride
        sample = np.concatenate(strided)
        try:
            faiss_index.train(sample)
        except RuntimeError as error:
            problem = f"`factory` {factory} cannot be trained on {len(sample)} passages ({_reason(error)})"
            remedy = "use fewer cells, or leave `factory` out"
            raise InputError(problem, remedy, "index.factory") from None
    for block in read_blocks(directory, index):
        faiss_index.add(block.vectors)
    with atomic_path(path) as temporary:
        faiss.write_index(faiss_index, str(temporary))
        index.settings[_DIGEST] = file_sha256(temporary)


def search_approximate(
    directory: Path, index: Manifest, queries: Singles, *, k: int, parameters: str = ""
) -> pl.DataFrame:
    """The passages that FAISS finds: ``query_row``, ``doc_id`` and ``score``, as from ``flat.search_flat``.

    Args:
        queries: (queries, dimensions).
        parameters: such as ``nprobe=16`` or ``efSearch=64``.

    Raises:
        InputError: the index was built without a factory, is damaged, or does not have these parameters.
    """
    import faiss

    path = _faiss_file(directory, index)
    if path is None or not path.exists():
        remedy = "build it with `factory`, or search exactly"
        raise InputError("has no approximate index", remedy, "index.exact", path=directory)
    require_whole(path, index.settings.get(_DIGEST), _AGAIN)
    try:
        faiss_index = faiss.read_index(str(path))
    except (RuntimeError, MemoryError) as error:
        problem = f"cannot be read ({error})"
        raise InputError(problem, _AGAIN, "index.unreadable", path=path) from None
    if parameters:
        try:
            space: Any = faiss.ParameterSpace()  # the stub lacks a form of the next call
            space.set_index_parameters(faiss_index, parameters)
        except RuntimeError as error:
            problem = f"FAISS refuses the parameters {parameters!r} ({_reason(error)})"
            remedy = "write parameters of this index, like nprobe=16"
            raise InputError(problem, remedy, "index.parameters") from None
    scores, places = faiss_index.search(np.ascontiguousarray(queries), min(k, index.passages))
    filled = places >= 0  # a cell may hold fewer than k
    doc_ids = _doc_ids(directory, index, places[filled])
    scores = scores[filled].astype(np.float64)
    return pl.DataFrame({QUERY_ROW: np.nonzero(filled)[0], DOC_ID: doc_ids, SCORE: scores})


def _faiss_file(directory: Path, index: Manifest) -> Path | None:
    """The file, named by its content, so that a rebuild never takes an older one for its result."""
    factory = index.settings["factory"]
    if not factory:
        return None
    content = json.dumps([factory, index.settings["shards"]])
    return directory / f"{hashlib.sha256(content.encode()).hexdigest()[:20]}{_SUFFIX}"


def empty_index(factory: str, dimensions: int) -> Any:
    """The index of a factory string, without vectors; an InputError if FAISS rejects it for their length."""
    require("`factory`", "retrieval", "faiss")
    import faiss

    try:
        return faiss.index_factory(dimensions, factory, faiss.METRIC_INNER_PRODUCT)
    except RuntimeError as error:
        kind = f"an index {factory!r} of {dimensions} dimensions"
        problem = f"FAISS cannot build {kind} ({_reason(error)})"
        remedy = "use a factory string like IVF1024,Flat or HNSW32"
        raise InputError(problem, remedy, "index.factory") from None


def _doc_ids(directory: Path, index: Manifest, places: Any) -> pl.Series:
    """The ids at positions in the index; reads only the ids of the shards concerned."""
    keys, size = index.settings["shards"], index.settings["shard"]
    rows = pl.DataFrame({"place": places, "row": np.arange(len(places))})
    parts = [pl.DataFrame(schema={"row": pl.Int64, DOC_ID: pl.String})]
    for (number,), part in rows.group_by(pl.col("place") // size):
        with encode.readable(path := encode.shard_path(directory, keys[number])):
            column = pq.read_table(path, columns=[DOC_ID], **encode.CHECKED)
        ids = pl.Series(DOC_ID, column.column(DOC_ID).to_pylist(), dtype=pl.String)
        parts.append(part.select("row", ids.gather(part["place"] % size).alias(DOC_ID)))
    return pl.concat(parts).sort("row")[DOC_ID]


def _reason(error: RuntimeError) -> str:
    return str(error).rsplit(": ", 1)[-1].strip()[:200]
