"""Doing the reads of a large evaluation as a stream, shard by shard; nobody holds all of them.

A planner makes the prompts of a shard and leaves out the reads that are stored; the rest is cut into
units. A host reads a unit and commits it to the store. Readers that share a model share the hosts, shard
by shard: each of them has a planner, and its place among them is its role. The driver is told of each unit
only how many reads it had and what they cost. ``read_here`` does this in this process, ``stream_on_ray`` on Ray Data.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import polars as pl

from engine import tables
from engine.errors import InputError, ReadError, WriteError
from engine.reading import readers, store
from engine.reading.costs import Kinds, unit_kinds
from engine.reading.execute import Asked, Loaded, UnitResult, asked_of, run_unit
from engine.reading.plan import DECIDED_KEY, INPUTS, REFERENCES, SIZE, Unit, cut_units
from engine.reading.protocol import Reader, ReaderSpec
from engine.reading.reads import reads_table
from engine.sources.io.folders import Folder
from engine.tables import DOC_IDS, FAILURE, OUTPUT_TOKENS, PROMPT_TOKENS, QUERY_ID, READ_KEY

_MOST = 2**40
# A unit takes about so long, once it is known how fast actors read: little is lost with one, and what
# a unit costs the driver is little beside it. No unit of a steady reader takes more than five seconds then.
UNIT_SECONDS = 4.75
# The slowest actor counts as this share of the mean at least, and units are not cut for it so small that
# actors together end more than so many a second: a driver has some 60 to 85 done in a second by a core.
_SLOWEST, _UNITS_A_SECOND = 1 / 8, 40.0
# Errors that say what a user can do; a worker's traceback would hide it.
TOLD = (InputError, WriteError, ReadError)


class UnitSizes(NamedTuple):
    """How large a unit is, in the plan's sizes: the least, what it is while the pace is unknown, and the most."""

    least: int
    first: int
    most: int

    def at(self, pace: float | None) -> int:
        """The size that takes some seconds at a pace, in sizes a second; the first one where it is unknown."""
        if pace is None:
            return self.first
        return max(1, min(self.most, max(self.least, int(pace * UNIT_SECONDS))))


def shared_pace(paces: Sequence[float]) -> float | None:
    """The pace for which units are cut that any of several actors may get: nearly that of the slowest.

    So nobody holds a unit for much longer than ``UNIT_SECONDS``. Faster actors then have more and smaller
    units, and each costs the driver: it is an eighth of the mean at least, and so much that all actors
    together end no more than 40 units a second, unless they would with units for the mean.

    Args:
        paces: of the actors, in sizes a second; none where it is not known of any.
    """
    if not paces:
        return None
    together = sum(paces)
    mean = together / len(paces)
    least = max(mean * _SLOWEST, together / (_UNITS_A_SECOND * UNIT_SECONDS))
    return min(mean, max(min(paces), least))


@dataclass(frozen=True)
class ShardPlan:
    """What is left to read of a shard.

    Attributes:
        reads: the plan, as ``plan.longest_first`` gives it; empty if everything is stored.
        reused: distinct reads that were found in the store.
        sizes: of its units.
        span: the buckets of its queries (``store.add``).
        pace: for which they are cut, in sizes a second; None where it is unknown.
        sharing: actors that end with this shard, so that its units become smaller towards the end; 1 where
            others come after it.
        damaged: where the files of the store are that were found damaged.
    """

    reads: pl.DataFrame
    reused: int
    sizes: UnitSizes
    span: tuple[int, int]
    pace: float | None = None
    sharing: int = 1
    damaged: tuple[str, ...] = ()


class Planner(Protocol):
    """Plans a shard, on any worker.

    The units that a lost node held are made again, from a plan made again, while others of the same plan
    are done: so a shard that is planned again has the plan that it had, whatever the pace is by then and
    whatever came to the store.
    """

    def __call__(self, shard: int, pace: float | None = None) -> ShardPlan: ...


class Failure(NamedTuple):
    """A read that could not be done: of which query, and why."""

    query_id: str
    reason: str


@dataclass(frozen=True)
class UnitDone:
    """What the driver is told of a unit.

    Attributes:
        role: the place of the reader.
        shard: the shard's number.
        units: how many units the shard has for the role; 0 if there is nothing to read, which a single row
            says.
        wanted: distinct reads of the role in the whole shard.
        reused: those of them that were in the store.
        reads: reads of this unit.
        failures: reads that failed, by their keys; the others are in the store.
        prompt_tokens, output_tokens: of its reads; ``decided`` of them ended early.
        worker, seconds, stats: as in ``execute.UnitResult``.
        damaged: of the whole shard, as in ``ShardPlan``.
        kinds: what it cost, by kind of reads.
    """

    role: int
    shard: int
    units: int
    wanted: int
    reused: int
    reads: int = 0
    failures: dict[str, Failure] = field(default_factory=dict)
    prompt_tokens: int = 0
    output_tokens: int = 0
    decided: int = 0
    worker: str = ""
    seconds: float = 0.0
    stats: dict[str, int] = field(default_factory=dict)
    damaged: tuple[str, ...] = ()
    kinds: Kinds = field(default_factory=dict)


@dataclass(frozen=True)
class UnitRow:
    """A unit on its way to a host; without reads where a shard has nothing to read.

    ``reads`` is an Arrow stream: a table that is a slice of another would be pickled with all of it.
    """

    role: int
    shard: int
    units: int
    wanted: int
    reused: int
    number: int = 0
    offset: int = 0
    size: int = 0
    span: tuple[int, int] = (0, 0)
    reads: bytes | None = None
    damaged: tuple[str, ...] = ()


class Piece(NamedTuple):
    """What is planned at once: a shard for a role, of so many."""

    shard: int
    role: int = 0
    roles: int = 1

    @property
    def number(self) -> int:
        """The number of the piece, in the whole job."""
        return self.shard * self.roles + self.role


def pieces(shards: Iterable[int], roles: int) -> Iterator[Piece]:
    """All pieces: a shard for all roles, one behind the other, and then the next shard."""
    for shard in shards:
        for role in range(roles):
            yield Piece(shard, role, roles)


def unit_rows(piece: Piece, plan: ShardPlan) -> Iterator[UnitRow]:
    """The units of a piece, one at least; as large as an actor reads in some seconds at the plan's pace."""
    units = cut_units(plan.reads, plan.sizes.at(plan.pace), actors=plan.sharing)
    wanted = plan.reused + plan.reads.height
    if not units:
        yield UnitRow(piece.role, piece.shard, 0, wanted, plan.reused, damaged=plan.damaged)
        return
    needed = plan.reads.select(READ_KEY, QUERY_ID, DOC_IDS, INPUTS, REFERENCES, DECIDED_KEY)
    for unit in units:
        yield UnitRow(
            piece.role,
            piece.shard,
            len(units),
            wanted,
            plan.reused,
            # Numbers of their own in the whole job: a piece has fewer units, and fewer reads, than this.
            number=piece.number * _MOST + unit.number,
            offset=piece.number * _MOST + unit.offset,
            size=int(plan.reads[SIZE].slice(unit.offset, unit.length).sum()),
            span=plan.span,
            reads=_packed(needed.slice(unit.offset, unit.length)),
            damaged=plan.damaged,
        )


def _packed(reads: pl.DataFrame) -> bytes:
    content = io.BytesIO()
    # Newer layouts of texts would be written with all texts of the table that this is a slice of.
    reads.write_ipc_stream(content, compat_level=pl.CompatLevel.oldest())
    return content.getvalue()


ReadUnit = Callable[[Reader, Unit, Sequence[Asked]], UnitResult]


class Host:
    """Hosts readers that share a model; reads units and commits them. Each is loaded for its first unit.

    Attributes:
        specs: of the readers.
        place: the read store.
        worker: names this process.
    """

    def __init__(self, specs: Sequence[ReaderSpec], place: Folder) -> None:
        self.specs, self.place = specs, place
        self.worker = f"process {os.getpid()}"
        self._loaded = Loaded(specs, self.load)

    def load(self, spec: ReaderSpec) -> Reader:
        """A reader that is hosted."""
        return readers.load(spec)

    @property
    def is_loaded(self) -> bool:
        """Whether one of the readers is loaded, and so the model."""
        return self._loaded.any

    def reader(self, role: int) -> Reader:
        """The reader of a role, loaded where it is not yet."""
        return self._loaded[role]

    def done(self, row: UnitRow, read: ReadUnit | None = None) -> UnitDone:
        """Read and commit one unit.

        Args:
            row: the unit.
            read: reads it; by default ``execute.run_unit``.
        """
        told = UnitDone(row.role, row.shard, row.units, row.wanted, row.reused, damaged=row.damaged)
        if row.reads is None:
            return told
        planned = pl.read_ipc_stream(io.BytesIO(row.reads))
        unit = Unit(row.number, row.offset, planned.height, row.role)
        result = (read or self._read)(self.reader(row.role), unit, asked_of(planned))
        reads = reads_table(planned, result.outputs)
        whole, failures = reads, {}
        # A unit costs time beside its reads, and hardly one has a read that failed.
        if reads[FAILURE].null_count() < reads.height:
            whole = reads.filter(pl.col(FAILURE).is_null())
            failed = reads.filter(pl.col(FAILURE).is_not_null())
            failures = {
                key: Failure(query_id, reason)
                for key, query_id, reason in failed.select(READ_KEY, QUERY_ID, FAILURE).iter_rows()
            }
        store.add(self.place, self.specs[row.role].fingerprint, whole, span=row.span)
        return replace(
            told,
            reads=reads.height,
            failures=failures,
            prompt_tokens=int(reads[PROMPT_TOKENS].sum()),
            output_tokens=int(reads[OUTPUT_TOKENS].sum()),
            decided=int(reads[tables.DECIDED].sum()),
            worker=result.worker,
            seconds=result.seconds,
            stats=result.stats,
            kinds=unit_kinds(reads, result),
        )

    def _read(self, reader: Reader, unit: Unit, asked: Sequence[Asked]) -> UnitResult:
        return run_unit(reader, unit, asked, worker=self.worker)


def read_here(shards: Iterable[int], planners: Sequence[Planner], host: Host) -> Iterator[UnitDone]:
    """Read shards with one host in this process, in order; results are yielded as units end."""
    size, seconds = [0] * len(planners), [0.0] * len(planners)
    for piece in pieces(shards, len(planners)):
        role = piece.role
        pace = size[role] / seconds[role] if seconds[role] else None
        for row in unit_rows(piece, planners[role](piece.shard, pace)):
            done = host.done(row)
            size[role] += row.size
            seconds[role] += done.seconds
            yield done
