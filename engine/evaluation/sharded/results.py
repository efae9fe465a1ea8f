"""What is written of a shard that was judged, and what the whole needs of it.

Tables of passages (labels, traces, reads) are files of the evaluation's folder; what the whole needs of a
shard (scores by query, notes, counts) is small, and stands in further files, which ``finished`` reads. The
last of them is the shard's manifest: where it is, the shard is done.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import NamedTuple

import polars as pl

from engine.errors import WriteError
from engine.evaluation.judge import Judged, judge
from engine.evaluation.prepare import prepare
from engine.evaluation.read import Reading
from engine.evaluation.sharded.partition import read_shard
from engine.evaluation.sharded.plans import planned_reading
from engine.evaluation.sharded.work import Work, all_there, file_of, read_table, write_table
from engine.notes import Note
from engine.reading import store
from engine.reading.stream import Failure
from engine.sources.io.folders import Folder

_MANIFESTS = "manifests"
# Tables of a shard, a file each, in folders of these names.
OF_PASSAGES = ("labels", "traces", "reads")
_OF_QUERIES = ("query_scores", "reordered", "downstream", "undefined")
# The fields of ``Judged`` that a manifest has as they are.
_SMALL = (
    "queries",
    "passages",
    "judged",
    "real_valued",
    "largest",
    "truncated",
    "left_out",
    "cut_runs",
    "lengths",
)


def judge_shard(work: Work, shard: int, failures: Mapping[str, Failure]) -> None:
    """Label and score a shard whose reads are in the store, and write its tables.

    Args:
        failures: reads that failed, by their keys.

    Raises:
        InputError: as ``judge``.
        ReadError: reads are lost, or a reader wrote where it had to choose.
    """
    inputs = read_shard(work.partition, shard)
    prepared = prepare(inputs, work.settings, part=True)
    readings = {job.ask.role.name: planned_reading(work, job, shard, failures) for job in work.jobs}
    judged = judge(prepared, readings)
    for name in OF_PASSAGES:
        write_table(getattr(judged, name), work.folder / name, shard)
    for name, table in judged.further.items():
        write_table(table, work.folder / name, shard)
    for name in _OF_QUERIES:
        write_table(getattr(judged, name), work.folder / name, shard)
    (work.folder / _MANIFESTS).write(
        _manifest(work, shard, failed=bool(failures)), _content(judged, readings)
    )
    _compact(work, shard)


def _compact(work: Work, shard: int) -> None:
    """Merge the files of a shard's units, a file for each reader, now that they were read for the last time."""
    span = work.partition.shards[shard].span
    for fingerprint in {job.spec.fingerprint for job in work.jobs}:
        names = store.listing(work.store, fingerprint).inside(span).names
        # Where files can be written and not deleted, they stay as they are.
        with contextlib.suppress(WriteError):
            store.compact(work.store, fingerprint, names, span)


class Finished(NamedTuple):
    """A shard that is done.

    Attributes:
        judged: without the tables of passages.
        reads: of each role, the distinct reads by kind, and how many failed.
    """

    judged: Judged
    reads: dict[str, tuple[dict[str, int], int]]


def finished(work: Work, shard: int) -> Finished:
    """What is known of a shard that was judged.

    Raises:
        InputError: one of its files is gone, or damaged.
    """
    manifests = work.folder / _MANIFESTS
    try:
        written = manifests.read(_manifest(work, shard))
    except FileNotFoundError:
        with all_there(work.folder, shard):
            written = manifests.read(_manifest(work, shard, failed=True))
    with all_there(work.folder, shard):
        content = json.loads(written)
    judged = Judged(
        queries=content["queries"],
        passages=content["passages"],
        labels=pl.DataFrame(),
        traces=pl.DataFrame(),
        reads=pl.DataFrame(),
        further={},
        query_scores=read_table(work.folder / "query_scores", shard),
        reordered=read_table(work.folder / "reordered", shard),
        undefined=read_table(work.folder / "undefined", shard),
        downstream=read_table(work.folder / "downstream", shard),
        judged=content["judged"],
        real_valued=tuple(content["real_valued"]),
        largest=content["largest"],
        truncated=content["truncated"],
        left_out=content["left_out"],
        cut_runs=tuple(content["cut_runs"]),
        lengths=tuple((run, length, lists) for run, length, lists in content["lengths"]),
        notes=tuple(Note(**{**note, "about": tuple(note["about"])}) for note in content["notes"]),
    )
    reads = {role: (wanted, failed) for role, (wanted, failed) in content["reads"].items()}
    return Finished(judged, reads)


def unfinished(work: Work) -> list[int]:
    """The numbers of the shards that are not judged yet, or without reads that failed.

    A shard is judged where its manifest and all of its tables are there: who removes an evaluation, and
    is stopped half-way, may leave manifests alone.
    """
    folder = work.folder
    done = set((folder / _MANIFESTS).names())
    further = (made.further_tables for made in work.settings.labels.listed())
    names = [
        *OF_PASSAGES,
        *_OF_QUERIES,
        *(table.name for tables_of in further for table in tables_of),
    ]
    whole = set.intersection(*(set((folder / name).names()) for name in names))
    return [
        shard.number
        for shard in work.partition.shards
        if _manifest(work, shard.number) not in done or file_of(shard.number) not in whole
    ]


def shard_tables(folder: Folder, *, other_than: str) -> Iterator[str]:
    """The names, in ``folder``, of all tables and manifests of evaluations, but for one of them.

    Whatever else is there, they do not have the names of.
    """
    for evaluation in folder.folders():
        if evaluation == other_than or not re.fullmatch(r"[0-9a-f]{16}", evaluation):
            continue
        for name in (folder / evaluation).folders():
            for file in (folder / evaluation / name).names():
                if re.fullmatch(r"\d{6}(-[0-9a-f]{32}(-failed)?\.json|\.parquet)", file):
                    yield f"{evaluation}/{name}/{file}"


def _manifest(work: Work, shard: int, *, failed: bool = False) -> str:
    """The name of a shard's manifest.

    It holds the digest of the inputs, so that a listing tells what is done, and whether reads failed,
    which are tried again.
    """
    digest = work.partition.shards[shard].digest[:32]
    return f"{shard:06d}-{digest}{'-failed' if failed else ''}.json"


def _content(judged: Judged, readings: Mapping[str, Reading]) -> bytes:
    content = {name: getattr(judged, name) for name in _SMALL}
    content["reads"] = {
        role: [
            {kind: costs.wanted for kind, costs in reading.costs.kinds.items()},
            reading.costs.failed,
        ]
        for role, reading in readings.items()
    }
    content["notes"] = [asdict(note) for note in judged.notes]
    return json.dumps(content, ensure_ascii=False).encode()
