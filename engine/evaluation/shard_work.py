"""What workers do with one shard of an evaluation: plan its reads, and judge it once they are done.

A shard is some of the queries, whole, with all that is known of them (``partition``). Its tables of
passages (labels, traces, reads) are files of the evaluation's folder, one for each shard; what the whole
needs of it (scores by query, notes, counts) is small, and stands in further files, which ``finished``
reads. The last of them is the shard's manifest: where it is, the shard is done.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import NamedTuple

import polars as pl

from engine import __version__, tables
from engine.errors import InputError, ReadError
from engine.evaluation.inputs import EvaluationInputs
from engine.evaluation.judge import Judged, judge
from engine.evaluation.partition import Partition, read_shard, shards_sha256
from engine.evaluation.prepare import lists_to_read, pairs_to_label, prepare
from engine.evaluation.read import Job, Reading, Request, refuse_written, requests_for
from engine.evaluation.settings import BOOTSTRAP_FIELDS, Settings
from engine.machine.batching import CPU_BATCH_TOKENS, GPU_BATCH_TOKENS
from engine.notes import Note
from engine.reading import store
from engine.reading.plan import INPUTS, SIZE, longest_first, missing_reads, wanted_reads
from engine.reading.protocol import ReadOutput
from engine.reading.reads import ReadingCosts, input_sizes, output_columns, unit_tokens
from engine.reading.stream import Failure, ShardPlan, UnitSizes
from engine.sources.io.folders import Folder
from engine.tables import DOC_IDS, FAILURE, OUTPUT, QUERY_ID, READ_KEY

# Changed when equal inputs and settings would give other tables.
_VERSION = 1
_MANIFESTS, _PLANS = "manifests", "plans"
# Tables of a shard, a file each, in folders of these names.
OF_PASSAGES = ("labels", "traces", "reads")
_OF_QUERIES = ("query_scores", "downstream", "undefined")
# Settings that change neither labels nor scores.
WITHOUT_EFFECT = (
    *BOOTSTRAP_FIELDS,
    "memory",
    "actors",
    "gpus_per_actor",
    "cpus_per_actor",
    "accelerator_type",
    "certify",
    "shard_pairs",
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

    @property
    def pairs(self) -> int:
        """Listed passages of all shards."""
        return sum(shard.pairs for shard in self.partition.shards)


def asked(settings: Settings) -> list[Request]:
    """What is asked of which role, whatever the inputs: the requests for one made-up query."""
    pairs = pl.DataFrame({QUERY_ID: [""], tables.DOC_ID: [""]})
    lists = pl.DataFrame({QUERY_ID: [""], DOC_IDS: [[""]]})
    return requests_for(pairs, lists, settings)


# Columns of a plan's file that say how it was made: for which pass over the shards (``store.Listing.made``),
# for which pace, and which reads were stored.
_PASS, _PACE, _STORED = "pass", "pace", "stored"


@dataclass(frozen=True)
class Planner:
    """Plans the reads of one role (``stream.Planner``); the file of a plan has what it was made by."""

    work: Work
    job: Job
    listing: store.Listing

    def __call__(self, shard: int, pace: float | None = None) -> ShardPlan:
        work, spec = self.work, self.job.spec
        inputs = read_shard(work.partition, shard)
        known = work.partition.shards[shard]
        wanted = wanted_reads(
            _lists_of(inputs, work.settings, self.job),
            inputs.queries,
            inputs.corpus,
            prompt=self.job.prompt,
            fingerprint=spec.fingerprint,
        )
        made = self._made(shard, wanted.drop(INPUTS), pace)
        pace = None if made.is_empty() else made[_PACE][0]
        missing = missing_reads(wanted, made.filter(_STORED))
        reused = wanted[READ_KEY].n_unique() - missing.height
        sizes = input_sizes(spec, missing[INPUTS].to_list())
        plan = longest_first(missing, sizes, lead=len(spec.shared_prefix))
        # As if all shards were like this one: units are as large as the whole evaluation lets them be.
        total = int(plan[SIZE].sum()) * max(1, work.pairs // max(1, known.pairs))
        usual = unit_tokens(total, actors=work.actors, gpu=work.gpu)
        least = min(usual, GPU_BATCH_TOKENS if work.gpu else CPU_BATCH_TOKENS)
        units = UnitSizes(least, usual, max(usual, total // (8 * work.actors)))
        last = shard == work.partition.shards[-1].number
        sharing = work.actors if last else 1
        return ShardPlan(plan, reused, units, known.span, pace, sharing)

    def _made(self, shard: int, identified: pl.DataFrame, pace: float | None) -> pl.DataFrame:
        """The plan's file: the one that this pass over the shards has written, else a new one."""
        folder = self.work.folder / _PLANS / self.job.ask.role.name
        if _file(shard) in folder.names():
            before = _read(folder, shard)
            if _PASS in before.columns and before[_PASS].first() == self.listing.made:
                return before
        span = self.work.partition.shards[shard].span
        found = store.find(self.listing, identified[READ_KEY].unique(), span=span)
        made = identified.with_columns(
            pl.col(READ_KEY).is_in(found.reads[READ_KEY].implode()).alias(_STORED),
            pl.lit(pace, pl.Float64).alias(_PACE),
            pl.lit(self.listing.made).alias(_PASS),
        )
        _write(made, folder, shard)
        return made


def planner_for(work: Work, job: Job) -> Planner:
    """The planner of a role's reads, which knows what the store has of its reader now."""
    return Planner(work, job, store.listing(work.store, job.spec.fingerprint))


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
    readings = {job.ask.role.name: _reading(work, job, shard, failures) for job in work.jobs}
    judged = judge(prepared, readings)
    for name in OF_PASSAGES:
        _write(getattr(judged, name), work.folder / name, shard)
    for name, table in judged.further.items():
        _write(table, work.folder / name, shard)
    for name in _OF_QUERIES:
        _write(getattr(judged, name), work.folder / name, shard)
    (work.folder / _MANIFESTS).write(
        _manifest(work, shard, failed=bool(failures)), _content(judged, readings)
    )


class Finished(NamedTuple):
    """A shard that is done.

    Attributes:
        judged: without the tables of passages.
        reads: of each role, the distinct reads and how many of them failed.
    """

    judged: Judged
    reads: dict[str, tuple[int, int]]


def finished(work: Work, shard: int) -> Finished:
    """What is known of a shard that was judged.

    Raises:
        InputError: one of its files is gone, or damaged.
    """
    manifests = work.folder / _MANIFESTS
    try:
        written = manifests.read(_manifest(work, shard))
    except FileNotFoundError:
        with _whole(work.folder, shard):
            written = manifests.read(_manifest(work, shard, failed=True))
    with _whole(work.folder, shard):
        content = json.loads(written)
    judged = Judged(
        queries=content["queries"],
        passages=content["passages"],
        labels=pl.DataFrame(),
        traces=pl.DataFrame(),
        reads=pl.DataFrame(),
        further={},
        query_scores=_read(work.folder / "query_scores", shard),
        undefined=_read(work.folder / "undefined", shard),
        downstream=_read(work.folder / "downstream", shard),
        judged=content["judged"],
        real_valued=tuple(content["real_valued"]),
        exceeding=tuple(content["exceeding"]),
        truncated=content["truncated"],
        left_out=content["left_out"],
        cut_runs=tuple(content["cut_runs"]),
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
        if _manifest(work, shard.number) not in done or _file(shard.number) not in whole
    ]


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
        [job.ask.role.name, job.spec.fingerprint, job.prompt.digest, job.prompt.fused]
        for job in jobs
    ]
    known = [_VERSION, __version__, inputs, decisive, readers]
    content = json.dumps(known, sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:32]


def clear_plans(work: Work) -> None:
    """Remove what is only needed until all shards are judged."""
    for job in work.jobs:
        plans = work.folder / _PLANS / job.ask.role.name
        plans.delete(plans.names())


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


# The fields of ``Judged`` that a manifest has as they are.
_SMALL = (
    "queries",
    "passages",
    "judged",
    "real_valued",
    "exceeding",
    "truncated",
    "left_out",
    "cut_runs",
)


def _lists_of(inputs: EvaluationInputs, settings: Settings, job: Job) -> pl.DataFrame:
    """``query_id`` and ``doc_ids`` of what a role is asked to read of a shard."""
    pairs, lists = pairs_to_label(inputs), lists_to_read(inputs, settings)
    asked = {
        request.ask.role.name: request.lists for request in requests_for(pairs, lists, settings)
    }
    none = pl.DataFrame(schema={QUERY_ID: pl.String, DOC_IDS: pl.List(pl.String)})
    return asked.get(job.ask.role.name, none)


def _reading(work: Work, job: Job, shard: int, failures: Mapping[str, Failure]) -> Reading:
    """The reads of a role, as they were planned."""
    spec = job.spec
    asked = _read(work.folder / _PLANS / job.ask.role.name, shard).drop(_STORED, _PACE, _PASS)
    listing = store.listing(work.store, spec.fingerprint)
    keys = asked[READ_KEY].unique()
    found = store.find(listing, keys, span=work.partition.shards[shard].span)
    failed = pl.DataFrame({READ_KEY: list(failures)}, {READ_KEY: pl.String}).hstack(
        output_columns([ReadOutput.failed(one.reason) for one in failures.values()])
    )
    outputs = pl.concat(
        [
            found.reads.drop(QUERY_ID, DOC_IDS).with_columns(
                pl.lit(None, pl.String).alias(FAILURE)
            ),
            failed,
        ],
        how="diagonal",
    ).unique(READ_KEY, keep="first")
    reads = asked.join(outputs, on=READ_KEY, how="left", maintain_order="left")
    if lost := reads.filter(pl.col(OUTPUT).is_null()).height:
        raise ReadError(f"{lost} reads were lost on the way; run again")
    reads = reads.select([*tables.READS, FAILURE])
    refuse_written(reads, spec)
    lost = reads.filter(pl.col(FAILURE).is_not_null())[READ_KEY].n_unique()
    costs = ReadingCosts(wanted=len(keys), failed=lost)
    return Reading(job.ask, spec, job.prompt, asked, reads, costs)


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
        role: [reading.costs.wanted, reading.costs.failed] for role, reading in readings.items()
    }
    content["notes"] = [asdict(note) for note in judged.notes]
    return json.dumps(content, ensure_ascii=False).encode()


def _file(shard: int) -> str:
    return f"{shard:06d}.parquet"


def _write(table: pl.DataFrame, folder: Folder, shard: int) -> None:
    content = io.BytesIO()
    table.write_parquet(content)
    folder.write(_file(shard), content.getvalue())


def _read(folder: Folder, shard: int) -> pl.DataFrame:
    with _whole(folder, shard):
        return pl.read_parquet(io.BytesIO(folder.read(_file(shard))))


@contextlib.contextmanager
def _whole(folder: Folder, shard: int) -> Iterator[None]:
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
    raise InputError(folder.shown(), None, problem, remedy)
