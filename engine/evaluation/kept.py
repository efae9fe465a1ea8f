"""Keep the plans and the scores of shards in a folder, at a path, at an address, or in memory.

Tables of passages (labels, traces, reads) are files, one for each shard. Small results for the conclusion (scores by
query, notes, counts) are further files. A shard's last file is its manifest, with the digests of the others: it
marks a finished shard.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import polars as pl

from engine import tables
from engine.evaluation.score import ShardScores
from engine.inputs.shards import Shard
from engine.messages.errors import InputError
from engine.messages.notes import Note
from engine.reading.outputs import OutputCounts
from engine.sources.io.digests import digest, sealed_json, unsealed_json
from engine.sources.io.files import flush
from engine.sources.io.folders import Folder
from engine.sources.io.locations import Location
from engine.sources.io.parallel import mapped
from engine.sources.io.parquet import read_parquet

# Prefix of file names in the delivered folder of a table of passages.
_PART = "part-"
_PLANS, _MANIFESTS = "plans", "manifests"
# The folder of reads that no later evaluation may look up; it has the layout of a store.
UNKEPT = "unkept"
_OWN = r"\d{6}(-[0-9a-f]{32}(-failed)?\.json|\.parquet)"
_NO_PASSAGES = {
    "labels": tables.empty(tables.LABELS),
    "traces": tables.empty(tables.TRACES),
    "reads": tables.empty(tables.READS),
}
_DIGESTS = "digests"
_OF_QUERIES = ("query_scores", "reordered", "downstream", "undefined", "label_lists")
# Fields of ``ShardScores`` that a manifest has unchanged, and their keys.
_AS_NAMED = ("queries", "passages", "real_valued", "largest", "truncated", "left_out", "cut_runs")
_SMALL = {"labelled_queries": "judged", **{name: name for name in (*_AS_NAMED, "lengths")}}


@dataclass(frozen=True)
class ShardFolder:
    """Plans and scores of an evaluation's shards, in a folder that all planning and scoring processes see.

    Attributes:
        further: names of the annotators' further tables; the conclusion needs ``merged`` as a whole.
        is_lasting: whether another evaluation may reuse the shards.
        is_whole: whether scores include the tables of passages, as in an evaluation held in memory.
    """

    folder: Folder
    further: tuple[str, ...] = ()
    merged: tuple[str, ...] = ()
    is_lasting: bool = True
    is_whole: bool = False

    @property
    def name(self) -> str:
        """The name of the folder."""
        return str(self.folder).rsplit("/", 1)[-1]

    def plan(self, job: str, shard: int) -> pl.DataFrame | None:
        folder, file = self.folder / _PLANS / job, _file(shard)
        # The plan of a stopped pass names the first reads: a new plan replaces a damaged one.
        with contextlib.suppress(FileNotFoundError, InputError):
            return read_parquet(folder.place(file), content=folder.read(file))
        return None

    def needed_plan(self, job: str, shard: int) -> pl.DataFrame:
        """The plan of a job, which must exist."""
        return self._needed(f"{_PLANS}/{job}", shard)

    def keep_plan(self, job: str, shard: int, plan: pl.DataFrame) -> None:
        (self.folder / _PLANS / job).write(_file(shard), _content(plan))

    def clear_plans(self) -> None:
        for job in (self.folder / _PLANS).folders():
            plans = self.folder / _PLANS / job
            plans.delete(plans.names())

    def keep(self, shard: Shard, scores: ShardScores) -> None:
        """Keep the scores of a shard, the manifest last."""
        whole = {name: getattr(scores, name) for name in (*_NO_PASSAGES, *_OF_QUERIES)}
        digests = {}
        for name, table in {**whole, **scores.further}.items():
            (self.folder / name).write(_file(shard.number), table_content := _content(table))
            digests[name] = digest(table_content)
        failed = any(failed for _, failed in scores.role_reads.values())
        content = {key: getattr(scores, name) for name, key in _SMALL.items()}
        content |= {"reads": scores.role_reads, "of_jobs": scores.job_reads}
        content |= {"outputs": asdict(scores.outputs), "notes": [*map(asdict, scores.notes)]}
        manifest = sealed_json(content | {_DIGESTS: digests})
        (self.folder / _MANIFESTS).write(_manifest(shard, failed=failed), manifest)

    def scores(self, shard: Shard) -> ShardScores:
        """The scores of a scored shard."""
        manifests, number = self.folder / _MANIFESTS, shard.number
        try:
            written = manifests.read(_manifest(shard))
        except FileNotFoundError:
            with all_there(self.folder, number):
                written = manifests.read(_manifest(shard, failed=True))
        with all_there(self.folder, number):
            content = unsealed_json(written)
        names = (*_NO_PASSAGES, *_OF_QUERIES) if self.is_whole else _OF_QUERIES
        scored = {name: self._needed(name, number) for name in names}
        small = {name: _unlisted(content[key]) for name, key in _SMALL.items()}
        known: dict[str, Any] = {**_NO_PASSAGES, **scored, **small}
        notes = (Note(**{**note, "about": tuple(note["about"])}) for note in content["notes"])
        return ShardScores(
            **known,
            further={name: self._needed(name, number) for name in self.merged},
            outputs=OutputCounts(**content["outputs"]),
            notes=tuple(notes),
            role_reads={role: tuple(counts) for role, counts in content["reads"].items()},
            job_reads={key: tuple(counts) for key, counts in content["of_jobs"].items()},
        )

    @property
    def tables(self) -> tuple[str, ...]:
        """The names of the tables of passages."""
        return (*_NO_PASSAGES, *(name for name in self.further if name not in self.merged))

    def table(self, name: str, shards: Sequence[Shard]) -> Iterator[pl.DataFrame]:
        """A table of passages, shard by shard."""
        return (self._needed(name, shard.number) for shard in shards)

    def deliver(self, name: str, shards: Sequence[Shard], folder: Path) -> None:
        """Put a table of passages into an empty folder, a file for each shard; files are hard links if possible."""
        folder.mkdir(parents=True)
        source = self.folder / name
        for shard in shards:
            file = _file(shard.number)
            with all_there(source, shard.number):
                part = folder / f"{_PART}{file}"
                if not _linked(source.place(file), part):
                    source.download(file, part)
                    flush(part)

    def remove(self) -> None:
        """Remove all tables and manifests."""
        self.folder.delete(_own_files(self.folder))

    def _needed(self, name: str, shard: int) -> pl.DataFrame:
        with all_there(self.folder / name, shard):
            return pl.read_parquet(io.BytesIO((self.folder / name).read(_file(shard))))

    def unfinished(self, shards: Sequence[Shard]) -> dict[int, bool]:
        """Shards to score, by number: True if tables differ from the manifest, else reads failed or it is missing."""
        names = set((self.folder / _MANIFESTS).names())
        scored = [shard for shard in shards if _manifest(shard) in names]
        checked = dict(zip(scored, mapped(self._is_whole, scored), strict=True))
        return {s.number: s in checked for s in shards if not checked.get(s)}

    def _is_whole(self, shard: Shard) -> bool:
        file = _file(shard.number)
        with contextlib.suppress(FileNotFoundError, ValueError):
            manifest = unsealed_json((self.folder / _MANIFESTS).read(_manifest(shard)))
            digests = manifest[_DIGESTS].items()
            return all(digest((self.folder / name).read(file)) == one for name, one in digests)
        return False


def _linked(file: Location, target: Path) -> bool:
    with contextlib.suppress(OSError):
        if isinstance(file, Path):
            os.link(file, target)
            return True
    return False


def delivered(folder: Folder) -> Iterator[str]:
    """The names of the files that ``ShardFolder.deliver`` put into the folder of a table."""
    yield from (name for name in folder.names() if re.fullmatch(rf"{_PART}\d{{6}}\.parquet", name))


def shard_tables(folder: Folder, *, other_than: Sequence[str]) -> Iterator[str]:
    """The names, in ``folder``, of tables and manifests of all evaluations but ``other_than``."""
    for evaluation in folder.folders():
        if evaluation in other_than or not re.fullmatch(r"[0-9a-f]{16}", evaluation):
            continue
        yield from (f"{evaluation}/{name}" for name in _own_files(folder / evaluation))


def _own_files(folder: Folder) -> Iterator[str]:
    for name in folder.folders():
        for place in (name, *(f"{name}/{job}" for job in (folder / name).folders())):
            for file in (folder / place).names():
                unkept = place.startswith(f"{UNKEPT}/") and file.endswith(".parquet")
                if unkept or re.fullmatch(_OWN, file):
                    yield f"{place}/{file}"


def _manifest(shard: Shard, *, failed: bool = False) -> str:
    """The name of a shard's manifest: a listing shows finished shards, and shards with failed reads to retry."""
    return f"{shard.number:06d}-{shard.digest[:32]}{'-failed' if failed else ''}.json"


def _unlisted(value: object) -> object:
    """A field of ``ShardScores``, with tuples for JSON's lists."""
    return tuple(map(_unlisted, value)) if isinstance(value, list) else value


def _file(shard: int) -> str:
    return f"{shard:06d}.parquet"


def _content(table: pl.DataFrame) -> bytes:
    content = io.BytesIO()
    table.write_parquet(content)
    return content.getvalue()


@contextlib.contextmanager
def all_there(folder: Folder, shard: int) -> Iterator[None]:
    """Turn errors on a file of the evaluation into an InputError with a remedy."""
    try:
        yield
    except FileNotFoundError:
        problem = f"files of shard {shard} are gone, as where another evaluation replaces this one"
        remedy = "run again, or give each evaluation a place of its own"
    except (pl.exceptions.PolarsError, ValueError):
        problem, remedy = f"files of shard {shard} are damaged", "delete this folder, and run again"
    else:
        return
    raise InputError(problem, remedy, "results.damaged", path=folder.shown())
