"""Evaluations too large for one process, cut into shards of whole queries on disk.

What ``inputs.read_inputs`` gives as one value, ``partition`` lays into files, a few thousand pairs of
query and passage in each, in memory that does not depend on how many there are; ``read_shard`` gives the
inputs of one shard to whoever works on it. Everything is checked before: the errors are those of
``read_inputs``.
"""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from engine.errors import InputError, require_least
from engine.evaluation.clusters import with_clusters
from engine.evaluation.inputs import (
    EvaluationInputs,
    InputFiles,
    input_notes,
    read_queries_of,
    read_tables,
    with_empty,
)
from engine.evaluation.sharded.cut_lists import MOST_PARTS, list_runs, refuse_unknown
from engine.evaluation.sharded.files import from_bytes, to_bytes
from engine.evaluation.sharded.keys import corpus_key, key_of
from engine.evaluation.sharded.listed import look_up
from engine.evaluation.sharded.query_keys import query_keys
from engine.evaluation.sharded.ranges import Range
from engine.evaluation.sharded.shards import Cutter, Material
from engine.evaluation.shards import Shard, Within
from engine.notes import Note
from engine.sources.io.ahead import mapped
from engine.sources.io.files import reported_writing, write_parquet
from engine.sources.io.folders import Folder
from engine.sources.io.locations import Location
from engine.sources.io.temporary import temporary_directory
from engine.sources.passages.index import PassageIndex, index_corpus
from engine.sources.queries.read import QuerySet
from engine.sources.runs.edits import EditedRun, edited_runs, read_edits
from engine.sources.runs.read import write_run
from engine.sources.runs.size import bytes_of
from engine.sources.runs.texts import read_runs_with_texts
from engine.statistics.cells import Clusters, clusters_of
from engine.tables import CLUSTER, CORPUS, DOC_ID, QUERY_ID, RANK, RUN

PAIRS_PER_SHARD = 20_000
SHARD = "shard"
# Called with what is being done ("runs", "passages", "shards") and how much of it is done so far.
Progress = Callable[[str, int], None]

# Raise it when what shards hold changes; those of other versions are then made anew.
_VERSION = 2
_MANIFEST = "manifest.json"
_QUERIES = "queries.parquet"
# Bytes of runs, as they would be in TREC text, that are ordered at a time: some 200,000 rows.
_PART_BYTES = 8 << 20


@dataclass(frozen=True)
class Partition:
    """The inputs of an evaluation in shards, for any process on any machine that sees the folder.

    Attributes:
        folder: where the files of the shards are.
        shards: all of them; every query evaluated is in one.
        runs: the names of the runs in the order of their files, and then of the edited runs.
        k: the cutoff.
        notes: what was left out or is empty, of the evaluation as a whole.
        cut_runs: names of runs that list more passages than the cutoff keeps.
        edited: the edited runs.
        passages: the index of the corpus.
        listed: how many of its passages some run lists within the cutoff.
        queries_file: where the queries come from.
    """

    folder: Folder
    shards: tuple[Shard, ...]
    runs: tuple[str, ...]
    k: int
    notes: tuple[Note, ...]
    cut_runs: tuple[str, ...]
    edited: tuple[EditedRun, ...]
    passages: PassageIndex
    listed: int
    queries_file: Location

    def read(self, number: int, *, passages: bool = True) -> EvaluationInputs:
        """As ``InputShards.read``.

        Raises:
            InputError: a file of the partition, or the index, is gone or damaged.
        """
        return read_shard(self, number, passages=passages)

    def query_ids(self) -> pl.Series:
        return query_shards(self)[QUERY_ID]

    def clusters(self) -> Clusters:
        return clusters_of(query_shards(self))

    def within(self, k: int) -> Within:
        """As ``InputShards.within``; below the cutoff of the partition, every shard is looked through."""
        if k == self.k:
            return Within(self.listed, self.notes)
        bits = np.zeros(self.passages.passages, dtype=np.bool_)

        def places(number: int) -> pl.Series:
            runs = self.read(number, passages=False).runs
            listed = runs.filter(pl.col(RANK) <= k)[DOC_ID].unique()
            return self.passages.rows_of(listed)

        for rows in mapped(places, range(len(self.shards))):
            bits[rows.drop_nulls().to_numpy()] = True
        empty = int(bits[self.passages.empty_rows()].sum())
        return Within(int(bits.sum()), with_empty(self.notes, empty))


def partition(
    files: InputFiles,
    folder: Folder,
    *,
    k: int,
    pairs_per_shard: int = PAIRS_PER_SHARD,
    on_progress: Progress = lambda what, done: None,
) -> Partition:
    """Cut the inputs of an evaluation into shards of whole queries, or take up those that are there.

    A shard has the queries of a range of buckets, at most ``pairs_per_shard`` pairs unless they are all of
    one bucket, and about 0.7 times as many on average; see ``ranges.halved``. Files that were not finished,
    because the process was killed, are written anew.

    Memory: about 1 KB a query, two bytes a passage of the corpus, one part of the runs (some hundred
    MB), and what cannot be streamed, which is held as a whole: runs in JSON, edits with the lists that
    they are about, judgments and other tables, titles of gold articles, and documents that are given
    by their texts or come with the runs.

    Args:
        files: as in ``inputs.read_inputs``.
        folder: holds the partition and the index of the corpus, each under a name that changes with
            the files; partitions of other evaluations may lie in it too.
        k: passages per query at most.
        pairs_per_shard: how large a shard may be, in pairs and in queries.
        on_progress: called now and then.

    Raises:
        InputError: as ``inputs.read_inputs``, or a setting out of range.
        WriteError: the disk is full, or the folder cannot be written.
    """
    require_least("k", k, 1)
    require_least("pairs_per_shard", pairs_per_shard, 1)
    try:
        key = key_of(files, k, pairs_per_shard, version=_VERSION)
    except (InputError, OSError):
        key = ""  # some file cannot be opened; which one is named first is for its reader to say
    if key and (known := _taken_up(files, folder, key, k)) is not None:
        return known
    work = folder.at if isinstance(folder.at, Path) else Path(tempfile.gettempdir())
    with (
        reported_writing(work / "partition"),
        temporary_directory(work / "partition") as temporary,
    ):
        query_set = read_queries_of(files)
        given = files if files.corpus is not None else _texts_as_files(files, temporary)
        index = key if files.corpus is None else corpus_key(files.corpus)
        with _named_as_given(given, files):
            material = _read(given, query_set, folder, index, temporary, k, on_progress)
        key = key or key_of(files, k, pairs_per_shard, version=_VERSION)
        made = _write(material, folder / key, files, query_set, pairs_per_shard, k, on_progress)
    made.folder.write(_MANIFEST, json.dumps(_manifest(made), indent=1).encode())
    return made


def _texts_as_files(files: InputFiles, folder: Path) -> InputFiles:
    """The files with a corpus of the texts that the runs carry, and with runs that name them by id.

    Raises:
        InputError: as ``read_runs_with_texts``.
    """
    runs, corpus = read_runs_with_texts(files.run)
    write_parquet(corpus, folder / "corpus.parquet")
    paths = []
    for number, name in enumerate(runs[RUN].unique(maintain_order=True)):
        paths.append(folder / f"run-{number}.parquet")
        write_run(runs.filter(pl.col(RUN) == name), paths[-1])
    return replace(files, corpus=folder / "corpus.parquet", run=tuple(paths))


@contextlib.contextmanager
def _named_as_given(files: InputFiles, given: InputFiles) -> Iterator[None]:
    """Have errors name the user's files instead of those that were made of them."""
    try:
        yield
    except InputError as error:
        own = dict(zip(files.run, given.run, strict=True))
        if files is given or error.path not in own:
            raise
        raise InputError(error.problem, error.remedy, path=own[error.path]) from None


def _read(
    files: InputFiles,
    query_set: QuerySet,
    folder: Folder,
    index_name: str,
    temporary: Path,
    k: int,
    on_progress: Progress,
) -> Material:
    """Read and check everything, in the order of ``inputs.read_inputs``, so that errors are its own."""
    assert files.corpus is not None
    lists = list_runs(
        files,
        query_keys(query_set.table, files.limit),
        temporary,
        k=k,
        parts=count_parts(files.run),
        on_rows=lambda rows: on_progress("runs", rows),
    )
    index = index_corpus(
        files.corpus,
        folder / "passages",
        index_name,
        skip_bad=files.skip_bad,
        on_passages=lambda passages: on_progress("passages", passages),
    )
    documents = mapped(lambda part: lists.read(part)[DOC_ID].unique(), range(lists.parts))
    listed = look_up(index, documents)
    refuse_unknown(files, lists, listed)
    evaluated = query_set.table.head(lists.keys.evaluated)
    queries, unmatchable = listed.match(evaluated, query_set.titles)
    queries, clustered = with_clusters(queries, query_set.groups, files.cluster)
    return Material(
        lists=lists,
        listed=listed,
        queries=queries,
        tables=read_tables(files, queries),
        unmatchable=frozenset(unmatchable),
        clustered=clustered,
    )


def _write(
    material: Material,
    place: Folder,
    files: InputFiles,
    query_set: QuerySet,
    most: int,
    k: int,
    on_progress: Progress,
) -> Partition:
    """Write all shards; the partition that they make, which still lacks its manifest."""
    lists, index = material.lists, material.listed.index
    further = (index.fingerprint, str(k), repr(lists.edited))
    shards: list[Shard] = []
    cut_runs: set[str] = set()
    cutter = Cutter(material, most)

    def make(numbered: tuple[int, tuple[Range, pl.DataFrame]]) -> tuple[Shard, tuple[str, ...]]:
        number, (span, rows) = numbered
        piece = cutter.piece(span, rows)
        content = piece.content
        place.write(_name(number), to_bytes(content))
        digest = content.hexdigest(*further)
        shard = Shard(number, content.queries.height, piece.pairs, span, digest)
        return shard, content.cut_runs

    for shard, cut in mapped(make, enumerate(cutter.rows())):
        shards.append(shard)
        cut_runs.update(cut)
        on_progress("shards", len(shards))
    # Spans ascend, and every query is in one.
    starts = [low for shard in shards for low, _ in [shard.span or (0, 0)]]
    buckets = lists.keys.buckets[: lists.keys.evaluated]
    numbers = np.searchsorted(starts, buckets, side="right").astype(np.uint32) - 1
    known = pl.col(QUERY_ID, f"^{CLUSTER}$")
    of_queries = material.queries.select(known).with_columns(pl.Series(SHARD, numbers))
    parquet = io.BytesIO()
    of_queries.write_parquet(parquet)
    place.write(_QUERIES, parquet.getvalue())
    return Partition(
        folder=place,
        shards=tuple(shards),
        runs=lists.names,
        k=k,
        notes=input_notes(
            skipped=index.skipped,
            unanswerable=query_set.unanswerable,
            empty=material.listed.count_empty(),
            ignored=lists.ignored,
            clustered=material.clustered,
        ),
        cut_runs=tuple(name for name in lists.names if name in cut_runs),
        edited=lists.edited,
        passages=index,
        listed=material.listed.count(),
        queries_file=files.queries,
    )


def read_shard(partition: Partition, number: int, *, passages: bool = True) -> EvaluationInputs:
    """What ``inputs.read_inputs`` gives, of the queries of one shard.

    Runs are in the order of the partition's, though some may list nothing here; passages are in the
    order of the corpus, or left out. Notes are those of the partition, so there are none here.

    Raises:
        InputError: a file of the partition, or the index, is gone or damaged.
    """
    name = _name(number)
    path = f"{partition.folder}/{name}"
    try:
        content = from_bytes(partition.folder.read(name), path)
    except FileNotFoundError:
        raise InputError("no such file", "run the same command again", path=path) from None
    listed = content.runs[DOC_ID].unique() if passages else content.runs[DOC_ID].clear()
    corpus = partition.passages.find(listed) if passages else pl.DataFrame(schema=CORPUS)
    if lost := len(listed) - corpus.height:
        problem = f"{lost} listed passages are not in the index of the corpus"
        raise InputError(problem, "delete the folder of passages, and run again", path=path)
    return EvaluationInputs(
        queries=content.queries,
        corpus=corpus,
        runs=content.runs,
        k=partition.k,
        tables=content.tables,
        cut_runs=content.cut_runs,
        edited=partition.edited,
        queries_file=partition.queries_file,
        unmatchable=content.unmatchable,
        names=partition.runs,
    )


def query_shards(partition: Partition) -> pl.DataFrame:
    """``query_id``, ``shard``, and ``cluster`` if any, of every query evaluated, in the order of the queries file."""
    return pl.read_parquet(partition.folder.read(_QUERIES))


def _name(number: int) -> str:
    return f"shard-{number:06d}.zip"


def count_parts(runs: Sequence[Location]) -> int:
    """How many parts of all runs are about as large as may be ordered at a time."""
    try:
        needed = sum(bytes_of(path) for path in runs) // _PART_BYTES
    except InputError:
        return 1  # one of them cannot be read
    return min(1 << needed.bit_length(), MOST_PARTS)


def _manifest(made: Partition) -> dict[str, object]:
    """What is known of a partition but for its files, which those who take it up give."""
    return {
        "version": _VERSION,
        "runs": made.runs,
        "k": made.k,
        "notes": [asdict(note) for note in made.notes],
        "cut_runs": made.cut_runs,
        "listed": made.listed,
        "passages": {
            name: value for name, value in asdict(made.passages).items() if name != "folder"
        },
        "shards": [[s.queries, s.pairs, *(s.span or ()), s.digest] for s in made.shards],
    }


def _taken_up(files: InputFiles, folder: Folder, key: str, k: int) -> Partition | None:
    """The partition of this name, if it was finished and nothing of it is gone."""
    place, passages = folder / key, folder / "passages"
    try:
        manifest = json.loads(place.read(_MANIFEST))
    except (FileNotFoundError, ValueError):
        return None
    if manifest["version"] != _VERSION:
        return None
    shards = tuple(
        Shard(number, queries, pairs, (low, high), digest)
        for number, (queries, pairs, low, high, digest) in enumerate(manifest["shards"])
    )
    needed = {_QUERIES, *(_name(shard.number) for shard in shards)}
    index = PassageIndex(folder=passages, **manifest["passages"])
    if not needed <= set(place.names()) or index.name not in passages.names():
        return None
    names = tuple(manifest["runs"])
    edited: tuple[EditedRun, ...] = ()
    if files.edits is not None:
        originals = names[: len(files.run)]
        edited = edited_runs(read_edits(files.edits), originals, path=files.edits)
    return Partition(
        folder=place,
        shards=shards,
        runs=names,
        k=k,
        notes=tuple(Note(**{**note, "about": tuple(note["about"])}) for note in manifest["notes"]),
        cut_runs=tuple(manifest["cut_runs"]),
        edited=edited,
        passages=index,
        listed=manifest["listed"],
        queries_file=files.queries,
    )
