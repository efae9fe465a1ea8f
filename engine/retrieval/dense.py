"""Dense retrieval: an index of vectors built from a streamed corpus, and exact search in it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import polars as pl

from engine import tables
from engine.errors import InputError
from engine.machine import device, model_files
from engine.retrieval import approximate, encode, flat, manifest, shards
from engine.retrieval.encoders import EncoderSpec, Preset
from engine.retrieval.manifest import Manifest
from engine.retrieval.shards import Shard, Storage
from engine.sources.io.fingerprint import Fingerprint
from engine.tables import DOC_ID, QUERY, QUERY_ID, RANK, RUN, SCORE

# Begins the corpus anew: batches of the corpus table.
Scan = Callable[[], Iterator[pl.DataFrame]]
Progress = Callable[[int, int], None]

# Shards that are encoded in this process unless told otherwise: Ray takes longer to start.
_FEW = 4

# Numbers of vectors that are in memory at a time in a search: 32 MiB.
_BLOCK_NUMBERS = 2**23


def build_index(
    scan: Scan,
    directory: str | Path,
    spec: EncoderSpec,
    *,
    storage: Storage = "fp32",
    factory: str | None = None,
    actors: int | None = None,
    shard: int = shards.SHARD,
    on_progress: Progress = lambda done, total: None,
    executor: encode.Executor | None = None,
) -> Manifest:
    """Encode a corpus and make it searchable; what an earlier build has done is not done again.

    The corpus is read twice in constant memory: for its fingerprint and the shards that are
    missing, and for the texts of these. An index that stands in ``directory`` stays whole and
    searchable until the new one is finished.

    Args:
        scan: begins the corpus; both times it must give the same passages.
        directory: of the index.
        spec: the encoder.
        storage: precision in which vectors are kept.
        factory: of FAISS's index strings, for approximate search; None for exact search alone.
        actors: actors on Ray; None for as many as the cluster has room for, or for this process alone
            where there is next to nothing to do; 0 for this process.
        shard: passages of a shard.
        on_progress: called with shards done and wanted, first with what was there.
        executor: encodes instead (tests).

    Raises:
        InputError: the directory holds something else, the corpus cannot be read or changed
            meanwhile, or a factory string that FAISS does not know.
        EncodeError: vectors could not be made.
    """
    directory = Path(directory).resolve()
    manifest.require_place(directory, "dense")
    if factory:
        approximate.require_factory(factory, spec.dimensions)
    (directory / shards.FOLDER).mkdir(parents=True, exist_ok=True)
    if not (directory / manifest.FILE).exists():
        (directory / manifest.UNFINISHED).touch()
    fingerprint = Fingerprint()
    keys = [one.key for one in shards.cut(_watched(scan, fingerprint), spec, storage, size=shard)]
    missing = {key for key in keys if not shards.path(directory, key).exists()}
    on_progress(len(keys) - len(missing), len(keys))
    if missing:

        def wanted() -> Iterator[Shard]:
            return (s for s in shards.cut(scan(), spec, storage, size=shard) if s.key in missing)

        run = executor or executor_for(actors, len(missing), spec)
        left = set(missing)
        for done in run(wanted, len(missing), spec, storage):
            shards.write(directory, done.key, done.doc_ids, done.vectors)
            left.discard(done.key)
            on_progress(len(keys) - len(left), len(keys))
        if left:
            raise InputError(
                directory, None, "the corpus changed while it was indexed", "run the command again"
            )
    made = Manifest(
        kind="dense",
        passages=fingerprint.passages,
        corpus=fingerprint.hexdigest(),
        settings={
            "encoder": {
                "name": spec.name,
                "source": spec.source,
                "digest": spec.digest,
                "dtype": spec.dtype,
                "dimensions": spec.dimensions,
                "text": asdict(spec.text),
            },
            "storage": storage,
            "factory": factory,
            "shard": shard,
            "shards": keys,
        },
        versions=manifest.versions("faiss-cpu", "faiss-gpu", "torch", "transformers"),
    )
    if factory:
        approximate.build(directory, made, lambda: read_blocks(directory, made))
    manifest.write(made, directory)
    (directory / manifest.UNFINISHED).unlink(missing_ok=True)
    shards.prune(directory, keys)
    approximate.prune(directory, made)
    return made


def search(
    directory: str | Path,
    queries: pl.DataFrame,
    *,
    k: int,
    name: str = "dense",
    encoder: str | None = None,
    exact: bool = True,
    parameters: str = "",
    threads: int = 0,
    block: int | None = None,
) -> pl.DataFrame:
    """The run table of the ``k`` passages of highest inner product for each query.

    Equal scores are ordered by document id. Where the index has fewer than ``k`` passages, all come.

    Args:
        directory: an index made by ``build_index``.
        queries: ``query_id`` and ``query``.
        k: passages per query, 1 or more.
        name: the system's name in the run.
        encoder: where the encoder is now; None for where the index was built.
        exact: False searches the approximate index that the build's ``factory`` made.
        parameters: FAISS's own string of settings for approximate search (``nprobe=16``).
        threads: CPU threads of the encoder; 0 for all.
        block: vectors in memory at a time; None for 32 MiB of them.

    Raises:
        InputError: no dense index, another encoder than it was built by, or no approximate index.
    """
    directory = Path(directory)
    found = manifest.read(directory)
    manifest.require_kind(found, ["dense"], directory)
    vectors = query_vectors(found, queries[QUERY].to_list(), encoder=encoder, threads=threads)
    best = (
        flat.search(read_blocks(directory, found, block=block), vectors, k=k, gpus=flat.gpu_count())
        if exact
        else approximate.search(directory, found, vectors, k=k, parameters=parameters)
    )
    return _as_run(best, queries, name)


def read_blocks(
    directory: Path, index: Manifest, *, block: int | None = None
) -> Iterator[shards.Block]:
    """The vectors of an index, ``block`` or a shard more at a time."""
    settings = index.settings
    dimensions = settings["encoder"]["dimensions"]
    return shards.blocks(
        directory,
        settings["shards"],
        settings["storage"],
        dimensions,
        size=block or max(1, _BLOCK_NUMBERS // dimensions),
    )


def encoder_of(index: Manifest, *, encoder: str | None = None, threads: int = 0) -> EncoderSpec:
    """The specification of the encoder that an index was built by.

    Args:
        encoder: where it is now, as its files must show; None for where it was.
    """
    known = index.settings["encoder"]
    return EncoderSpec(
        name=known["name"],
        source=encoder or known["source"],
        path="",
        digest=known["digest"],
        text=Preset(**known["text"]),
        dtype=known["dtype"],
        dimensions=known["dimensions"],
        threads=threads,
    )


def query_vectors(
    index: Manifest, texts: list[str], *, encoder: str | None = None, threads: int = 0
) -> Any:
    """Vectors of queries by the encoder of an index; (queries, dimensions) in fp32."""
    from engine.retrieval.encoder import Encoder

    return Encoder(encoder_of(index, encoder=encoder, threads=threads)).queries(texts)


def executor_for(actors: int | None, count: int, spec: EncoderSpec) -> encode.Executor:
    """What encodes so many shards; ``actors`` as in ``build_index``."""
    small = count <= _FEW and not os.environ.get("RAY_ADDRESS") and not spec.memory
    if actors == 0 or (actors is None and small):
        return encode.execute
    from engine.machine import cluster
    from engine.retrieval import distribute

    cluster.start_ray()
    weights = device.weight_bytes(model_files.parameters(Path(spec.path)), spec.dtype)
    needed = spec.memory or device.default_actor_memory(weights)
    pool = min(actors or cluster.default_actors(needed), count)

    def on_ray(
        wanted: Callable[[], Iterator[Shard]], count: int, spec: EncoderSpec, storage: Storage
    ) -> Iterator[encode.Encoded]:
        return distribute.execute(wanted, count, spec, storage, actors=pool)

    return on_ray


def _watched(scan: Scan, fingerprint: Fingerprint) -> Iterator[pl.DataFrame]:
    for batch in scan():
        fingerprint.update(batch)
        yield batch


def _as_run(best: pl.DataFrame, queries: pl.DataFrame, name: str) -> pl.DataFrame:
    rows = best.sort(flat.QUERY_ROW, SCORE, DOC_ID, descending=[False, True, False])
    return rows.select(
        queries[QUERY_ID].gather(rows[flat.QUERY_ROW]).alias(QUERY_ID),
        DOC_ID,
        pl.int_range(1, pl.len() + 1, dtype=pl.Int64).over(flat.QUERY_ROW).alias(RANK),
        SCORE,
        pl.lit(name).alias(RUN),
    ).select(list(tables.RUNS))
