"""Do the reads of an evaluation shard by shard; no process holds all of them.

A planner makes the prompts of a shard and leaves out the reads that are stored; the rest is cut into
units. A unit is read and committed to the store. Readers that share a model are loaded together, and read
shard by shard: each of them has a planner, and its place among them is its role. Of each unit the driver learns
only how many reads it had and what they cost. ``read_here`` does this in this process, by a model, by requests to a
server or by a user's program; ``stream_on_ray`` does it on Ray Data.
"""

from __future__ import annotations

import io
import os
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import polars as pl

from engine.machine.identity import refuse_other_versions
from engine.machine.log import log
from engine.machine.remote.api_settings import ApiSettings
from engine.machine.remote.limits import limits_of
from engine.messages.errors import InputError, ReadError, WriteError
from engine.reading import readers, store
from engine.reading.costs import Kinds, unit_kinds
from engine.reading.execute import Run, UnitResult, reads_table, run_unit, start
from engine.reading.identity import keep, records_of
from engine.reading.plan import INPUTS, SIZE, Unit, cut_units
from engine.reading.protocol import Finish, Reader, ReaderSpec, versions
from engine.reading.store_files import Span
from engine.sources.io.ahead import ahead, mapped
from engine.sources.io.folders import Folder
from engine.tables import DOC_IDS, FAILURE, OUTPUT_TOKENS, PROMPT_TOKENS, QUERY_ID, READ_KEY

# Numbers that a shard's units, and reads, have of their own in the whole job: one has fewer of either.
NUMBERS = 2**40
# A unit takes about so long, once it is known how fast actors read: little is lost with one, and what
# a unit costs the driver is little beside it. No unit of a steady reader takes more than five seconds then,
# unless there are more actors (190) than a driver can serve with such units.
UNIT_SECONDS = 4.75
# The slowest actor counts as this share of the mean at least, and units are not cut so small that actors
# together end more than so many a second: a driver has some 60 to 100 done in a second by a core.
_SLOWEST, _UNITS_A_SECOND = 1 / 8, 40.0
# Errors that say what a user can do; a worker's traceback would hide it.
USER_ERRORS = (InputError, WriteError, ReadError)


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


def shared_pace(paces: Sequence[float], actors: int = 0) -> float | None:
    """The pace for which units are cut that any of several actors may get: nearly that of the slowest.

    So no actor holds a unit for much longer than ``UNIT_SECONDS``. Faster actors then have more and smaller
    units, and each costs the driver: it is an eighth of the mean at least, and so much that all actors
    together end no more than 40 units a second. A thousand actors have units of 25 s so, and as much work is
    lost with each that ends. Paces are in sizes a second; actors beyond those whose pace is known have the mean.
    """
    if not paces:
        return None
    together = sum(paces) * max(1.0, actors / len(paces))
    slowest = max(min(paces), sum(paces) / len(paces) * _SLOWEST)
    return max(slowest, together / (_UNITS_A_SECOND * UNIT_SECONDS))


# The pace for which the unit of a number is cut, in sizes a second; None where it is unknown.
PaceOf = Callable[[int], float | None]


@dataclass(frozen=True)
class ShardPlan:
    """What is left to read of a shard.

    Attributes:
        reads: the plan, as ``plan.longest_first`` gives it; empty if everything is stored.
        reused: distinct reads that were found in the store, or that another role does.
        span: the buckets of its queries (``store.add``); None where they may be any.
        sharing: number of actors that read it; units shrink towards the end.
        behind: what they read after it, in sizes, about.
        cut: its units, where they were cut already.
        last: whether nothing else is read of the shard for this role, whatever these reads give.
    """

    reads: pl.DataFrame
    reused: int
    sizes: UnitSizes
    span: Span | None
    sharing: int = 1
    behind: int = 0
    damaged: tuple[str, ...] = ()
    cut: tuple[Unit, ...] | None = None
    last: bool = True

    @property
    def wanted(self) -> int:
        """Distinct reads of the role in the shard."""
        return self.reused + self.reads.height

    def unread(self, role: int, shard: int) -> UnitDone:
        """What is known of its units before they are read."""
        return UnitDone(
            role, shard, self.wanted, self.reused, self.damaged, self.span, last=self.last
        )

    def units(self, pace_of: PaceOf = lambda _: None) -> Iterator[Unit]:
        """Its units, each as large as an actor reads in some seconds at the pace that there is for its number."""
        for unit in self.cut or ():
            pace_of(unit.number)
            yield unit
        if self.cut is None:
            yield from cut_units(
                self.reads,
                lambda number: self.sizes.at(pace_of(number)),
                actors=self.sharing,
                behind=self.behind,
            )


class Planner(Protocol):
    """Plans a shard, on any worker.

    The units that a lost node held are made again, from a plan made again, while others of the same plan
    are done: so a shard that is planned again has the plan that it had, whatever came to the store. Whoever
    cuts it keeps the pace of each unit.
    """

    def __call__(self, shard: int) -> ShardPlan: ...


@dataclass(frozen=True)
class Ready:
    """The planner of the only shard, whose plan is made already."""

    plan: ShardPlan

    def __call__(self, shard: int) -> ShardPlan:
        return self.plan


class Failure(NamedTuple):
    """A read that could not be done: of which query, and why."""

    query_id: str
    reason: str


@dataclass(frozen=True)
class UnitDone:
    """A unit, as it goes through the stages: what is known of its shard, and what came of its reads.

    Attributes:
        wanted: distinct reads of the role in the whole shard.
        reused: those of them that were in the store; the others are in its units.
        damaged, span: of the whole shard, as in ``ShardPlan``.
        number: of the unit, among those of the role in the shard.
        reads: reads of this unit; 0 if the shard has nothing to read, which a single row says.
        failures: reads that failed, by their keys; the others are in the store, if they are kept.
        outputs: the others, where this process holds the inputs or read.
        kinds: what it cost, by kind of reads.
        file: its name, where it came to the store.
    """

    role: int
    shard: int
    wanted: int
    reused: int
    damaged: tuple[str, ...] = ()
    span: Span | None = None
    number: int = 0
    reads: int = 0
    failures: dict[str, Failure] = field(default_factory=dict)
    outputs: pl.DataFrame | None = None
    prompt_tokens: int = 0
    output_tokens: int = 0
    worker: str = ""
    seconds: float = 0.0
    stats: dict[str, int] = field(default_factory=dict)
    kinds: Kinds = field(default_factory=dict)
    last: bool = True
    file: str = ""


class UnitRow(NamedTuple):
    """A unit on its way to a host.

    Attributes:
        unread: what is known of it before it is read.
        unit: with numbers of its own in the whole job.
        size: of its reads, in the plan's sizes.
        reads: an Arrow stream, since a table that is a slice of another would be pickled with all of it; None
            where a shard has nothing to read.
    """

    unread: UnitDone
    unit: Unit = Unit(0, 0, 0)
    size: int = 0
    reads: bytes | None = None


class ShardRole(NamedTuple):
    """What is planned at once: a shard for a role, of so many."""

    shard: int
    role: int = 0
    roles: int = 1

    @property
    def number(self) -> int:
        """Its number, in the whole job."""
        return self.shard * self.roles + self.role


def unit_rows(shard_role: ShardRole, plan: ShardPlan, pace_of: PaceOf) -> Iterator[UnitRow]:
    """The units of a shard for a role, one at least, each cut when it is asked for, by its number in the whole job."""
    unread = plan.unread(shard_role.role, shard_role.shard)
    unit: Unit | None = None
    needed = plan.reads.select(READ_KEY, QUERY_ID, DOC_IDS, INPUTS)
    before = shard_role.number * NUMBERS
    for unit in plan.units(lambda number: pace_of(before + number)):
        content = io.BytesIO()
        reads = needed.slice(unit.offset, unit.length)
        # Newer layouts of texts would be written with all texts of the table that this is a slice of.
        reads.write_ipc_stream(content, compat_level=pl.CompatLevel.oldest())
        yield UnitRow(
            replace(unread, number=unit.number),
            Unit(before + unit.number, before + unit.offset, unit.length, shard_role.role),
            int(plan.reads[SIZE].slice(unit.offset, unit.length).sum()),
            content.getvalue(),
        )
    if unit is None:
        yield UnitRow(unread, Unit(before, before, 0, shard_role.role))


ReadUnit = Callable[[Reader, Unit, Sequence[Sequence[str]]], UnitResult]


class Host:
    """Hosts readers that share a model; reads units and commits them. Each is loaded for its first unit.

    Attributes:
        places: of each, the store that its reads go to; None where they are not kept.
        held: whether the driver holds the inputs. Actors then give it what they read, and it commits.
        bounds: what the driver takes the bounds of all reads from.
    """

    bounds = ApiSettings()

    def __init__(
        self, specs: Sequence[ReaderSpec], places: Sequence[Folder | None], *, held: bool = False
    ) -> None:
        self.specs, self.places, self.held = specs, places, held
        self.worker = f"process {os.getpid()}"
        self._versions = versions(specs)
        self._readers: dict[int, Reader] = {}
        self._told: defaultdict[int, set[str]] = defaultdict(set)

    def load(self, spec: ReaderSpec) -> Reader:
        """A reader that is hosted."""
        return readers.load(spec)

    @property
    def loaded(self) -> Collection[int]:
        """The roles whose readers are loaded."""
        return self._readers.keys()

    def reader(self, role: int) -> Reader:
        """The reader of a role, loaded where it is not yet."""
        if role not in self._readers:
            refuse_other_versions(self._versions, versions(self.specs), self.worker)
            spec, start = self.specs[role], time.perf_counter()
            log("load_started", reader=spec.name)
            self._readers[role] = self.load(spec)
            log("load_ended", reader=spec.name, seconds=round(time.perf_counter() - start, 1))
        return self._readers[role]

    def run(
        self, plan: pl.DataFrame, units: Sequence[Unit], specs: Sequence[ReaderSpec]
    ) -> Iterator[UnitResult]:
        """Read the units of a plan in this process, in order (``execute.Run``); one is started while another is read."""
        for role in {unit.reader for unit in units}:
            self.reader(role)  # in the thread that reads

        def started() -> Iterator[tuple[Reader, Unit, list[list[str]], Finish]]:
            for unit in units:
                inputs = plan[INPUTS].slice(unit.offset, unit.length).to_list()
                yield (reader := self.reader(unit.reader)), unit, inputs, start(reader, inputs)

        for reader, unit, inputs, finish in ahead(started()):
            yield run_unit(reader, unit, inputs, worker=self.worker, finish=finish)

    def done(self, row: UnitRow, read: ReadUnit) -> UnitDone:
        """Have one unit read, and commit it where the driver does not."""
        if row.reads is None:
            return row.unread
        planned = pl.read_ipc_stream(io.BytesIO(row.reads))
        reader = self.reader(row.unit.reader)
        done = done_of(row.unread, planned, read(reader, row.unit, planned[INPUTS].to_list()))
        # Who reads the store needs no outputs from another process.
        return done if self.held else replace(self.commit(done), outputs=None)

    def commit(self, done: UnitDone) -> UnitDone:
        """Put the outputs of a unit into the store of their reader, if it has one."""
        if done.outputs is not None and (place := self.places[done.role]) is not None:
            spec = self.specs[done.role]
            for record in records_of(spec) - self._told[done.role] if done.outputs.height else ():
                keep(place / spec.fingerprint, record)
                self._told[done.role].add(record)
            file = store.add(place, spec.fingerprint, done.outputs, span=done.span)
            return replace(done, file=file)
        return done


def done_of(unread: UnitDone, planned: pl.DataFrame, result: UnitResult) -> UnitDone:
    """A unit whose reads were done."""
    reads = reads_table(planned, result.outputs)
    whole, failures = reads, {}
    # A unit costs time beside its reads, and hardly one has a read that failed.
    if reads[FAILURE].null_count() < reads.height:
        whole = reads.filter(pl.col(FAILURE).is_null())
        failed = reads.filter(pl.col(FAILURE).is_not_null())[[READ_KEY, QUERY_ID, FAILURE]]
        failures = {key: Failure(*of_query) for key, *of_query in failed.iter_rows()}
    return replace(
        unread,
        reads=reads.height,
        failures=failures,
        outputs=whole.drop(FAILURE),
        prompt_tokens=int(reads[PROMPT_TOKENS].sum()),
        output_tokens=int(reads[OUTPUT_TOKENS].sum()),
        worker=result.worker,
        seconds=result.seconds,
        stats=result.stats,
        kinds=unit_kinds(reads, result),
    )


def _bounded(results: Iterable[UnitResult], reads: int, host: Host) -> Iterator[UnitResult]:
    """The results of so many reads; none is begun that would pass a bound, which requests see to themselves."""
    limits, asks = limits_of(host.bounds), host.specs[0].api and not host.specs[0].executor
    limits.see(1)
    if not asks:
        limits.require()
    for result in results:
        limits.took.append(result.seconds)
        yield result
        reads -= result.unit.length
        if reads and not asks:
            limits.require()


def read_here(
    shards: Iterable[int], planners: Sequence[Planner], host: Host, run: Run | None = None
) -> Iterator[UnitDone]:
    """Read shards in this process, in order; results are yielded as units end.

    Args:
        run: does the units of a shard, of all readers together; by default the host's own readers do.

    Raises:
        ReadError: reads were lost on the way.
        BoundError: the next unit would pass a bound.
    """
    size, seconds = [0] * len(planners), [0.0] * len(planners)
    for shard in shards:
        plans = [planner(shard) for planner in planners]
        units: list[Unit] = []
        unread: list[UnitDone] = []
        offset = 0
        for role, plan in enumerate(plans):
            first = len(units)
            pace = size[role] / seconds[role] if seconds[role] else None
            for unit in plan.units(lambda _, pace=pace: pace):  # type: ignore[misc]
                units.append(Unit(len(units), offset + unit.offset, unit.length, role))
                unread.append(replace(plan.unread(role, shard), number=unit.number))
            offset += plan.reads.height
            size[role] += int(plan.reads[SIZE].sum())
            if len(units) == first:
                yield plan.unread(role, shard)
        if not units:
            continue
        whole, left = pl.concat([plan.reads for plan in plans]), offset
        read = (
            done_of(unread[one.unit.number], whole.slice(one.unit.offset, one.unit.length), one)
            for one in _bounded((run or host.run)(whole, units, host.specs), offset, host)
        )
        # A thread commits a unit while the next one is read; requests are under way without that.
        for done in map(host.commit, read) if run else mapped(host.commit, read, to_the_end=True):
            seconds[done.role] += done.seconds
            left -= done.reads
            yield done
        if left:
            raise ReadError(f"{left} reads were lost on the way; run again")
