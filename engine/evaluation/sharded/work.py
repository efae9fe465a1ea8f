"""What is known of an evaluation in shards to all who work on it, and the files of its shards.

A shard is some of the queries, whole, with all that is known of them (``partition``). Its tables are
files of the evaluation's folder, one for each shard.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import polars as pl

from engine import __version__, tables
from engine.errors import InputError
from engine.evaluation.read import Job, Request, requests_for
from engine.evaluation.settings import BOOTSTRAP_FIELDS, Settings
from engine.evaluation.sharded.partition import Partition, shards_sha256
from engine.reading.api.settings import ApiSettings
from engine.sources.io.folders import Folder
from engine.tables import DOC_IDS, QUERY_ID

# Changed when equal inputs and settings would give other tables, or manifests.
_VERSION = 3
# Settings that change neither labels nor scores.
WITHOUT_EFFECT = (
    *BOOTSTRAP_FIELDS,
    "engine",  # what it came to is in the readers' fingerprints
    "memory",
    "actors",
    "gpus_per_actor",
    "cpus_per_actor",
    "accelerator_type",
    "certify",
    "decide",
    "shard_pairs",
    *(field.name for field in fields(ApiSettings)),  # what they decide is in the fingerprints, too
)


@dataclass(frozen=True)
class Work:
    """What workers need to know to do any shard of an evaluation.

    Attributes:
        partition: the shards.
        settings: what to do with them.
        jobs: who reads what, one for each role, without lists.
        folder: where the tables of this evaluation go.
        store: the read store.
        actors: for which units are cut, and whether these have GPUs.
    """

    partition: Partition
    settings: Settings
    jobs: tuple[Job, ...]
    folder: Folder
    store: Folder
    actors: int = 1
    gpu: bool = False


def asked(settings: Settings) -> list[Request]:
    """What is asked of which role, whatever the inputs: the requests for one made-up query."""
    pairs = pl.DataFrame({QUERY_ID: [""], tables.DOC_ID: [""]})
    lists = pl.DataFrame({QUERY_ID: [""], DOC_IDS: [[""]]})
    return requests_for(pairs, lists, settings)


def evaluation_digest(partition: Partition, settings: Settings, jobs: Sequence[Job]) -> str:
    """A digest of all that decides labels and scores: inputs, settings, and who reads with which prompt.

    The names of all runs count apart from the shards: one that lists nothing for a shard's queries
    is not in its files, and has scores for them.
    """
    decisive = {
        name: value for name, value in settings.flat().items() if name not in WITHOUT_EFFECT
    }
    inputs = [partition.runs, shards_sha256(partition)]
    readers = [
        # What reads are ended early by is not a setting: others decide whether they are.
        [job.ask.role.name, job.spec.fingerprint, job.prompt.digest, job.prompt.fused]
        + ([job.spec.metric] if job.spec.metric else [])
        for job in jobs
    ]
    known = [_VERSION, __version__, inputs, decisive, readers]
    content = json.dumps(known, sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def file_of(shard: int) -> str:
    """The name of a shard's file, in the folder of a table."""
    return f"{shard:06d}.parquet"


def write_table(table: pl.DataFrame, folder: Folder, shard: int) -> None:
    """Write a shard's table, whole or not at all."""
    content = io.BytesIO()
    table.write_parquet(content)
    folder.write(file_of(shard), content.getvalue())


def read_table(folder: Folder, shard: int) -> pl.DataFrame:
    """A shard's table.

    Raises:
        InputError: it is gone, or damaged.
    """
    with all_there(folder, shard):
        return found_table(folder, shard)


def found_table(folder: Folder, shard: int) -> pl.DataFrame:
    """A shard's table, where it may be missing.

    Raises:
        FileNotFoundError: it is.
    """
    return pl.read_parquet(io.BytesIO(folder.read(file_of(shard))))


@contextlib.contextmanager
def all_there(folder: Folder, shard: int) -> Iterator[None]:
    """Turn what is wrong with a file of an evaluation's own into an error that says what to do."""
    try:
        yield
    except FileNotFoundError:
        problem = f"files of shard {shard} are gone, as where another evaluation replaces this one"
        remedy = "run again, or give each evaluation a place of its own"
    except (pl.exceptions.PolarsError, ValueError):
        problem, remedy = f"files of shard {shard} are damaged", "delete this folder, and run again"
    else:
        return
    raise InputError(problem, remedy, path=folder.shown())
