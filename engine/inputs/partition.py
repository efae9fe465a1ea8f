"""Cut inputs that are too large for one process into shards of whole queries on disk.

Runs are streamed once, and scattered over parts by the buckets of their queries; part after part, they are
checked as ``read.read_inputs`` checks inputs that fit, by the same functions. The result lies in archives of Parquet
then, a few thousand pairs of query and passage for each shard.
"""

from __future__ import annotations

import hashlib
import io
import json
import tempfile
import zipfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from engine import tables
from engine.inputs.files import OUTPUTS, EvaluationInputs, InputFiles, with_empty
from engine.inputs.lists import (
    BUCKET,
    Lists,
    ScatteredParts,
    SortedTable,
    count_parts,
    pairs_by_bucket,
)
from engine.inputs.read import check_inputs
from engine.inputs.shards import FirstQueries, Shard
from engine.messages.checked import Positive, fitted
from engine.messages.errors import InputError
from engine.messages.notes import Note, count_note
from engine.messages.wording import quoted
from engine.sources.io.digests import digest, identity, sealed_json, unsealed_json
from engine.sources.io.files import reported_writing, temporary_directory, write_parquet
from engine.sources.io.folders import Folder
from engine.sources.io.locations import Location
from engine.sources.io.parallel import mapped
from engine.sources.io.parquet import read_parquet
from engine.sources.passages.index import Listed, PassageIndex, PassageMarks, index_corpus
from engine.sources.passages.read import scan_corpus
from engine.sources.queries.buckets import BUCKETS, Range, halved
from engine.sources.runs.scan import lists_at_least
from engine.sources.traces.read import named_file
from engine.tables import CLUSTER, DOC_ID, QUERY_ID, RANK, RUN, give_back_freed_memory

PAIRS_PER_SHARD = 20_000
# Called with the current step ("runs", "passages", "shards") and its progress so far.
Progress = Callable[[str, int], None]

# Raise it if the contents of shards change; shards of other versions are then rebuilt.
_VERSION = 5
_MANIFEST = "manifest.json"
_AGAIN = "delete the folders of shards and passages, and run again"
_QUERIES, _PASSAGES = "queries.parquet", "passages"
# Of a shard's number; and within it, of the numbers of runs and the names of tables.
_name, _run, _table = "shard-{:06d}.zip".format, "run-{}.parquet".format, "table-{}.parquet".format
# Listed passages from which on an evaluation is large: half a gigabyte of prompts, and a minute to make them.
LARGE = 200_000


@dataclass(frozen=True)
class Partition:
    """The inputs of an evaluation in shards, for any process on any machine that sees the folder.

    Attributes:
        shards: all of them; every query evaluated is in one.
        runs: the names of the runs in the order of their files.
        unmatchable: the first queries whose gold articles cannot be matched, if any.
        tables: names of the inputs of annotators.
        passages: the index of the corpus's passages.
        listed: number of passages that some run lists within the cutoff.
        only: the queries that count; None for all.
    """

    folder: Folder
    shards: tuple[Shard, ...]
    runs: tuple[str, ...]
    k: int
    notes: tuple[Note, ...]
    cut_runs: tuple[str, ...]
    unmatchable: tuple[str, ...]
    tables: tuple[str, ...]
    passages: PassageIndex
    listed: int
    queries_file: Location
    only: FirstQueries | None = None

    def read(self, number: int, *, passages: bool = True) -> EvaluationInputs:
        """As ``InputShards.read``.

        Raises:
            InputError: a file of the partition, or the index, is gone or damaged.
        """
        name = _name(number)
        path = self.folder.place(name)
        fault = partial(InputError, path=path)
        try:
            archive = self.folder.read(name)
        except FileNotFoundError:
            raise fault("no such file", "run the same command again", "files.missing") from None
        if self.digest(archive) != self.shards[number].digest:
            raise fault("a damaged shard", _AGAIN, "inputs.shard")
        with zipfile.ZipFile(io.BytesIO(archive)) as content:
            names = content.namelist()
            parts = {name: read_parquet(path, content=content.read(name)) for name in names}
        nothing, corpus = tables.empty(tables.RUNS), tables.empty(tables.CORPUS)
        by_run = (parts.get(_run(number), nothing) for number in range(len(self.runs)))
        runs = pl.concat(rows.sort(QUERY_ID, RANK) for rows in by_run)
        if passages:
            corpus = self.passages.find(runs[DOC_ID])
            lost = runs.join(corpus, on=DOC_ID, how="anti").sort(RUN, QUERY_ID, RANK)
            for query_id, doc_id in lost.select(QUERY_ID, DOC_ID).iter_rows():
                more = f" and {n - 1} more" if (n := lost[DOC_ID].n_unique()) > 1 else ""
                where = f"not in the corpus {self.passages.folder.place(self.passages.name)}"
                problem = f"document {quoted(doc_id)} of query {quoted(query_id)}{more} {where}"
                raise fault(problem, _AGAIN, "inputs.passage")
        inputs = EvaluationInputs(
            queries=parts[_QUERIES],
            corpus=corpus,
            runs=runs,
            k=self.k,
            tables={table: parts[_table(table)] for table in self.tables},
            cut_runs=self.cut_runs,
            queries_file=self.queries_file,
            names=self.runs,
            is_whole=len(self.shards) == 1,
        )
        return inputs if self.only is None else self.only.of(inputs)

    def digest(self, archive: bytes) -> str:
        return _digest(archive, self.passages.fingerprint, self.k, self.cut_runs)

    def queries(self, columns: Collection[str] | None = None) -> pl.DataFrame:
        queries = read_parquet(self.folder.place(_QUERIES), columns)
        return queries if self.only is None else self.only.among(queries)

    def first(self, queries: FirstQueries) -> Partition:
        return replace(self, only=queries)

    def within(self, k: int) -> tuple[int, tuple[Note, ...]]:
        """As ``InputShards.within``; below the cutoff of the partition, this reads every shard."""
        if k == self.k and self.only is None:
            return self.listed, self.notes
        marked = PassageMarks(self.passages)

        def documents(number: int) -> pl.Series:
            runs = self.read(number, passages=False).runs
            return runs.filter(pl.col(RANK) <= k)[DOC_ID].unique()

        for ids in mapped(documents, range(len(self.shards))):
            marked.look_up(ids)
        return marked.count(), with_empty(self.notes, marked.count_empty())


def partition(
    files: InputFiles,
    folder: Folder,
    *,
    k: int,
    pairs_per_shard: int = PAIRS_PER_SHARD,
    on_progress: Progress = lambda what, done: None,
) -> Partition:
    """Cut the inputs of an evaluation into shards of whole queries, or reuse existing shards.

    A shard has the queries of a range of buckets, at most ``pairs_per_shard`` pairs unless a single bucket has more,
    and about 0.7 times as many on average (``buckets.halved``). Unfinished files of a killed process are rewritten.

    Memory: about 1 KB a query, two bytes a passage of the corpus, one part of the runs (some hundred MB), and inputs
    that cannot be streamed: runs in JSON, judgments and other tables, titles of gold articles, and documents whose
    texts stand for ids or come with the runs.

    Args:
        folder: of the partition and the index of the corpus, under names that change with the files, beside others.
        pairs_per_shard: upper bound on a shard's pairs and queries.

    Raises:
        InputError: as ``read.read_inputs``, or a setting out of range.
        WriteError: the disk is full, or the folder cannot be written.
    """
    fitted("k", k, Positive)
    fitted("pairs_per_shard", pairs_per_shard, Positive)
    try:
        key = _key(files, k, pairs_per_shard)
    except (InputError, OSError):
        key = ""  # some file cannot be opened; which one is named first is for its reader to say
    damaged: list[str] = []
    if key and (known := _taken_up(files, folder, key, damaged)) is not None:
        return known
    work = folder.at if isinstance(folder.at, Path) else Path(tempfile.gettempdir())
    with reported_writing(work / "partition"), temporary_directory(work / "partition") as temporary:

        def parts_of(queries: pl.DataFrame) -> ScatteredParts:
            return ScatteredParts(queries, temporary, count_parts(files.run))

        def passages_of(carried: pl.DataFrame | None) -> Listed:
            if carried is not None:
                write_parquet(carried, temporary / "corpus.parquet")
            give_back_freed_memory()  # of reading the runs
            index = index_corpus(
                files.corpus or temporary / "corpus.parquet",
                folder / _PASSAGES,
                key if files.corpus is None else _corpus_key(files.corpus),
                skip_bad=files.skip_bad,
                on_passages=partial(on_progress, "passages"),
            )
            give_back_freed_memory()  # SQLite's
            return PassageMarks(index)

        on_rows = partial(on_progress, "runs")
        inputs, lists, passages = check_inputs(
            files, k=k, parts_of=parts_of, passages_of=passages_of, on_rows=on_rows
        )
        key = key or _key(files, k, pairs_per_shard)
        assert isinstance(passages, PassageMarks)
        place = folder / key
        manifest = _write(inputs, lists, passages, place, pairs_per_shard, on_progress)
    place.write(_MANIFEST, sealed_json(manifest))
    give_back_freed_memory()
    written = _opened(manifest, place, folder / _PASSAGES, files)
    what = "damaged file[|s] of inputs in shards [was|were] made again: check the disk"
    again = [count_note("damaged_inputs", len(damaged), what)] if damaged else []
    return replace(written, notes=(*again, *written.notes))


def _write(
    inputs: EvaluationInputs,
    lists: Lists,
    passages: PassageMarks,
    place: Folder,
    most: int,
    on_progress: Progress,
) -> dict[str, Any]:
    parts, index = lists.parts, passages.index
    assert isinstance(parts, ScatteredParts)
    buckets = parts.buckets[: inputs.queries.height]
    spans = halved(pairs_by_bucket(lists), np.bincount(buckets, minlength=BUCKETS), most)
    # Clusters change no shard, and are left out: they lie beside the shards, for all queries together.
    queries = SortedTable(inputs.queries.drop(CLUSTER), buckets)
    table_rows = {
        name: SortedTable(table, parts.buckets[parts.places.of(table[QUERY_ID]).to_numpy()])
        for name, table in inputs.tables.items()
    }

    def write(numbered: tuple[int, tuple[Range, pl.DataFrame]]) -> Shard:
        number, (span, rows) = numbered
        content = {_QUERIES: queries.within(span)}
        content |= {_table(name): table.within(span) for name, table in table_rows.items()}
        rows_by_run = rows.partition_by(RUN, as_dict=True, maintain_order=True)
        content |= {_run(lists.names.index(name)): own for (name,), own in rows_by_run.items()}
        archive = _archive(content)
        place.write(_name(number), archive)
        pairs = rows.height if len(lists.names) == 1 else rows.select(QUERY_ID, DOC_ID).n_unique()
        own = _digest(archive, index.fingerprint, lists.k, inputs.cut_runs)
        return Shard(number, content[_QUERIES].height, pairs, span, own)

    shards: list[Shard] = []
    for shard in mapped(write, enumerate(_rows(lists, parts, spans))):
        shards.append(shard)
        on_progress("shards", len(shards))
    place.write(_QUERIES, table := _parquet(inputs.queries))
    return {
        "version": _VERSION,
        "runs": lists.names,
        "k": lists.k,
        "notes": [asdict(note) for note in inputs.notes],
        "cut_runs": inputs.cut_runs,
        "unmatchable": inputs.unmatchable[:1],
        "listed": passages.count(),
        "passages": {name: value for name, value in asdict(index).items() if name != "folder"},
        "shards": [[s.queries, s.pairs, *(s.span or ()), s.digest] for s in shards],
        _QUERIES: digest(table),
    }


def _opened(
    manifest: Mapping[str, Any], place: Folder, passages: Folder, files: InputFiles
) -> Partition:
    return Partition(
        folder=place,
        shards=tuple(
            Shard(number, queries, pairs, (low, high), digest)
            for number, (queries, pairs, low, high, digest) in enumerate(manifest["shards"])
        ),
        runs=tuple(manifest["runs"]),
        k=manifest["k"],
        notes=tuple(Note(**{**note, "about": tuple(note["about"])}) for note in manifest["notes"]),
        cut_runs=tuple(manifest["cut_runs"]),
        unmatchable=tuple(manifest["unmatchable"]),
        tables=(*files.tables, *[OUTPUTS] * bool(files.outputs)),
        passages=PassageIndex(folder=passages, **manifest["passages"]),
        listed=manifest["listed"],
        queries_file=files.queries,
    )


def _rows(
    lists: Lists, parts: ScatteredParts, spans: Sequence[Range]
) -> Iterator[tuple[Range, pl.DataFrame]]:
    """Yield each range of buckets, which ascend, with its rows of the run table."""
    part, rows = 0, tables.empty({**tables.RUNS, BUCKET: pl.Int64()})
    for span in spans:
        while part < parts.count and (part == 0 or parts.end(part - 1) < span[1]):
            rows = pl.concat([rows, parts.with_buckets(part, lists.read(part))])
            part += 1
        yield span, rows.filter(pl.col(BUCKET).is_between(*span, closed="left")).drop(BUCKET)
        rows = rows.filter(pl.col(BUCKET) >= span[1])


def _digest(archive: bytes, corpus: str, k: int, cut_runs: tuple[str, ...]) -> str:
    # The empty tuple, which stood for edited runs, keeps the shards of earlier versions valid.
    return hashlib.sha256(repr((corpus, k, (), cut_runs)).encode() + archive).hexdigest()


def _archive(content: Mapping[str, pl.DataFrame]) -> bytes:
    """Tables by the names of their files; equal ones give equal bytes."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for name, table in content.items():
            archive.writestr(zipfile.ZipInfo(name), _parquet(table))
    return whole.getvalue()


def _parquet(table: pl.DataFrame) -> bytes:
    content = io.BytesIO()
    table.rechunk().write_parquet(content, statistics=False)
    return content.getvalue()


def _key(files: InputFiles, k: int, pairs_per_shard: int) -> str:
    content = {
        "version": _VERSION,
        "k": k,
        "pairs_per_shard": pairs_per_shard,
        "limit": files.limit,
        "skip_bad": files.skip_bad,
        "queries": identity(files.queries),
        "answers": None if files.answers is None else identity(files.answers),
        "need_answers": files.need_answers,
        "cluster": files.cluster,
        "corpus": None if files.corpus is None else identity(files.corpus),
        "runs": [identity(path) for path in files.run],
        "edits": None,  # an option of earlier versions, whose partitions keep their names
        "tables": {name: identity(file.path) for name, file in files.tables.items()},
    }
    # Settings that earlier versions lacked; omitted if unset, so partitions keep their names.
    later: dict[str, Any] = {
        "corpora": [identity(path) for path in files.corpora],
        "judged": {n: identity(f.corpus) for n, f in files.tables.items() if f.corpus is not None},
        "ignore_identical_ids": files.ignore_identical_ids,
        "outputs": [(name, identity(file)) for name, file in map(named_file, files.outputs)],
    }
    content |= {name: value for name, value in later.items() if value}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:32]


def _corpus_key(corpus: Location) -> str:
    try:
        return identity(corpus)[:32]
    except (InputError, OSError):
        for _ in scan_corpus(corpus):  # reports the error
            pass
        raise


def _taken_up(files: InputFiles, folder: Folder, key: str, damaged: list[str]) -> Partition | None:
    """The partition of this name if it is finished and complete; ``damaged`` receives names of damaged files."""
    place, passages = folder / key, folder / _PASSAGES
    try:
        manifest = unsealed_json(place.read(_MANIFEST))
    except FileNotFoundError:
        return None
    except ValueError:
        damaged.append(_MANIFEST)
        return None
    known = _opened(manifest, place, passages, files)
    needed = {_QUERIES: manifest[_QUERIES], **{_name(s.number): s.digest for s in known.shards}}
    index = known.passages
    if not needed.keys() <= set(place.names()) or index.name not in passages.names():
        return None
    for name, content in place.read_each(needed):
        digest_of = digest if name == _QUERIES else known.digest
        if content is None or digest_of(content) != needed[name]:
            damaged.append(name)
    if not index.is_whole():
        damaged.append(index.name)
    return None if damaged else known


def shard_pairs(files: InputFiles, pairs: int | None, *, k: int) -> int:
    """Listed passages of a shard, as ``pairs`` or for an evaluation that is too large to be held; else 0."""
    if pairs is not None:
        return pairs
    return PAIRS_PER_SHARD if lists_at_least(files.run, LARGE, k=k) else 0
