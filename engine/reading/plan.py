"""Plan reads: which are wanted, which are missing, and in which units they are done."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Protocol

import polars as pl

from engine import tables
from engine.machine.batching import CPU_BATCH_TOKENS, GPU_BATCH_TOKENS
from engine.reading.prompting.prompts import Prompt
from engine.reading.protocol import ReaderSpec, ReadOutput
from engine.sources.queries.buckets import Range
from engine.tables import DOC_ID, DOC_IDS, FAILURE, QUERY, QUERY_ID, READ_KEY, TEXT, TITLE

INPUTS = "inputs"
SIZE = "size"  # about how many tokens a read costs
GROUP = "group"  # reads that share a part of their inputs have the same
# Prompts alike in so many characters are taken to begin with the same passage; so many form a group at most.
_ALIKE, _TOGETHER = 160, 16
# With several actors, a unit is at most this part of an actor's share of the rest, and the smallest at least
# this part of the largest, since every unit costs some milliseconds.
_SHARE, _SMALLEST = 4, 8
# Tokens of a unit at least: its answers are written together, and a step takes as long for one read as for several.
_LEAST = 1024
# Seconds of a unit, once the pace is known: a crash loses little, and a unit costs the driver little beside it.
UNIT_SECONDS = 4.75
# The slowest actor counts as this share of the mean at least; actors together end at most so many units a
# second: a driver has some 60 to 100 done in a second by a core.
_SLOWEST, _UNITS_A_SECOND = 1 / 8, 40.0

# The pace for which a unit is cut, by its number and role, in sizes a second; None where it is unknown.
PaceOf = Callable[[int, int], float | None]
WANTED: tables.Schema = {
    READ_KEY: pl.String(),
    QUERY_ID: pl.String(),
    DOC_IDS: pl.List(pl.String()),
    INPUTS: pl.List(pl.String()),
}
_KNOWN = tables.READS | {FAILURE: pl.String()}
OUTPUT_COLUMNS: tables.Schema = {column.name: _KNOWN[column.name] for column in fields(ReadOutput)}


@dataclass(frozen=True)
class Unit:
    """The rows ``offset`` to ``offset + length`` of a plan, by the reader of this role: one task and one commit to the
    store, and the most that a crash can lose per actor.
    """

    number: int
    offset: int
    length: int
    reader: int = 0


def read_key(fingerprint: str, inputs: Sequence[str]) -> str:
    """The identity of a read: SHA-256 of the reader's fingerprint and the exact texts that it is given."""
    content = json.dumps([fingerprint, list(inputs)], ensure_ascii=False)
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


def wanted_reads(
    lists: pl.DataFrame,
    queries: pl.DataFrame,
    corpus: pl.DataFrame,
    *,
    prompt: Prompt,
    fingerprint: str,
    targets: Mapping[str, Sequence[str]] | None = None,
) -> pl.DataFrame:
    """The reads of ``lists``, one row each (``WANTED``); or one for each target of the query, where these are scored.

    Args:
        lists: ``query_id`` and ``doc_ids``, best first; an empty list is a read without passages.
        targets: by query id, the texts that are scored; None where the reader writes or chooses.
    """
    texts = dict(queries.select(QUERY_ID, QUERY).iter_rows())
    passages = {row[0]: row[1:] for row in corpus.select(DOC_ID, TITLE, TEXT).iter_rows()}
    rows = []
    for query_id, doc_ids in lists.select(QUERY_ID, DOC_IDS).iter_rows():
        rendered = prompt.render(texts[query_id], [passages[doc_id] for doc_id in doc_ids])
        for target in [()] if targets is None else [(text,) for text in targets[query_id]]:
            inputs = [*rendered, *target]
            rows.append((read_key(fingerprint, inputs), query_id, doc_ids, inputs))
    return pl.DataFrame(rows, schema=WANTED, orient="row")


def missing_reads(wanted: pl.DataFrame, stored: pl.DataFrame) -> pl.DataFrame:
    """The distinct wanted reads that are not stored, in their order."""
    is_stored = pl.col(READ_KEY).is_in(stored[READ_KEY].implode())
    return wanted.unique(READ_KEY, keep="first", maintain_order=True).filter(~is_stored)


def answered(wanted: pl.DataFrame, outputs: pl.DataFrame) -> pl.DataFrame:
    """Each wanted read, in their order, with its first output (the columns of ``outputs``), null where it has none."""
    known = outputs.drop(QUERY_ID, DOC_IDS, strict=False).unique(READ_KEY, keep="first")
    return wanted.select(READ_KEY, QUERY_ID, DOC_IDS).join(
        known, on=READ_KEY, how="left", maintain_order="left"
    )


def output_columns(outputs: Sequence[ReadOutput]) -> pl.DataFrame:
    """The outputs of reads as a table with the columns ``OUTPUT_COLUMNS``, one row each."""
    columns = {name: [getattr(output, name) for output in outputs] for name in OUTPUT_COLUMNS}
    return pl.DataFrame(columns, schema=OUTPUT_COLUMNS)


def longest_first(missing: pl.DataFrame, spec: ReaderSpec) -> pl.DataFrame:
    """The plan: the missing reads with columns ``size`` and ``group``, the longest first.

    Reads of which a reader computes a part once stand together as a group: reads of a query, where they have several
    inputs; else reads that begin with the same passage, some at a time. The largest group comes first, so that no
    actor waits for a long one at the end. The order depends on the reads alone.
    """
    lead, inputs = len(spec.shared_prefix), pl.col(INPUTS).list
    # A quarter of the characters beyond the shared prefix: texts are tokenized once, by their reader.
    size = ((inputs.join("").str.len_chars().cast(pl.Int64) - lead) // 4).clip(1)
    begins = inputs.first().str.slice(lead, _ALIKE)
    part = pl.int_range(pl.len()).over(begins, order_by=READ_KEY) // _TOGETHER
    alike = pl.struct(begins.alias("begins"), part.alias("part")).hash().cast(pl.String)
    group = pl.col(QUERY_ID) if (missing[INPUTS].list.len() > 1).any() else alike
    plan = missing.with_columns(size.alias(SIZE), group.alias(GROUP))
    of_group = pl.col(SIZE).sum().over(GROUP), pl.col(READ_KEY).min().over(GROUP)
    return plan.sort(*of_group, SIZE, READ_KEY, descending=[True, False, True, False])


@dataclass(frozen=True, kw_only=True)
class ReadPlan:
    """The reads of a shard that are left to a reader, and how they are cut into units.

    Attributes:
        reads: as ``longest_first`` gives them; empty if everything is stored.
        wanted: distinct reads of the reader in the shard.
        reused: those of them that are stored, or that another reader of the evaluation does.
        role: the place of the reader among those that share a model.
        span: the buckets of the shard's queries (``store.add``); None where they may be any.
        damaged: files of the store that were damaged.
        last: whether nothing else is read of the shard by this reader, whatever these reads give.
        least, first, most: sizes of a unit: at least, while the pace is unknown, and at most.
        sharing: number of actors that read it; units shrink towards the end.
        behind: about the size of the reads after it.
    """

    reads: pl.DataFrame
    wanted: int
    reused: int = 0
    shard: int = 0
    role: int = 0
    span: Range | None = None
    damaged: tuple[str, ...] = ()
    last: bool = True
    least: int = 1
    first: int = 1
    most: int = 1
    sharing: int = 1
    behind: int = 0

    @property
    def head(self) -> ReadPlan:
        """What is known of its units, without the reads."""
        return replace(self, reads=pl.DataFrame())

    @property
    def size(self) -> int:
        """Of all reads, in the plan's sizes."""
        return int(self.reads[SIZE].sum())

    def sized(self, total: int, *, actors: int, gpu: bool, alone: bool = False) -> ReadPlan:
        """The plan with units for so many actors that have ``total`` to read, in sizes."""
        first = unit_tokens(total, actors=actors, gpu=gpu, alone=alone)
        least = first if alone else max(1, first // 4)
        most = first if alone else max(first, total // (8 * actors))
        return replace(self, least=least, first=first, most=most)

    def unit_size(self, pace: float | None) -> int:
        """The size of a unit that takes ``UNIT_SECONDS`` at a pace, in sizes a second."""
        if pace is None:
            return self.first
        return max(1, min(self.most, max(self.least, int(pace * UNIT_SECONDS))))

    def units(
        self, pace_of: PaceOf = lambda number, role: None, *, number: int = 0, offset: int = 0
    ) -> Iterator[Unit]:
        """Its units, the first with this number and offset; each is cut when it is asked for.

        A unit has at least one group, and else at most ``unit_size`` at its pace. Where several actors share them, it is
        at most a part of what is left, so that actors of different speed end together (guided self-scheduling:
        Polychronopoulos & Kuck 1987).
        """
        groups = self.reads.group_by(GROUP, maintain_order=True).agg(pl.len(), pl.col(SIZE).sum())
        left, filled, length, most = self.behind + self.size, 0, 0, 0
        for _, reads, tokens in groups.iter_rows():
            share = max(_LEAST, most // _SMALLEST, left // (_SHARE * self.sharing))
            if length and filled + tokens > (most if self.sharing == 1 else min(most, share)):
                yield Unit(number, offset, length, self.role)
                left -= filled
                number, offset, filled, length = number + 1, offset + length, 0, 0
            if not length:
                most = self.unit_size(pace_of(number, self.role))
            filled, length = filled + tokens, length + reads
        if length:
            yield Unit(number, offset, length, self.role)


class Plans(Protocol):
    """Plans the reads of shards, on any worker, for readers that share a model.

    A shard that is planned again, for the units that a lost node held, has the plan that it had, whatever came to
    the store meanwhile. Whoever cuts it keeps the pace of each unit.
    """

    @property
    def shards(self) -> Sequence[int]:
        """In the order in which they are read."""

    def __call__(self, shard: int, role: int) -> ReadPlan: ...


@dataclass(frozen=True)
class MadePlans:
    """The plans of the only shard, a role each, made by the driver, which holds the inputs."""

    made: Sequence[ReadPlan]
    shards: tuple[int, ...] = (0,)

    def __call__(self, shard: int, role: int) -> ReadPlan:
        return self.made[role]

    def sized(self, actors: int, gpu: bool, alone: bool) -> MadePlans:
        """The plans with units for so many actors, which shrink towards the end of the last one."""
        actors = max(1, min(actors, sum(plan.reads.height for plan in self.made)))
        total = sum(plan.size for plan in self.made)
        size = unit_tokens(total, actors=actors, gpu=gpu, alone=alone)
        *others, last = (replace(plan, least=size, first=size, most=size) for plan in self.made)
        return MadePlans([*others, replace(last, sharing=actors)])


def unit_tokens(total: int, *, actors: int, gpu: bool, alone: bool = False) -> int:
    """Size of a unit at an unknown pace: a device batch on a CPU, half of one on a GPU; an actor has eight at least.

    Half a batch takes a slow GPU (1,000 tokens a second) half a minute; smaller units are more than two cores can
    handle for 64 actors. A function that reads ``alone`` is given as much in each call, since nobody waits for it.
    """
    most = GPU_BATCH_TOKENS // 2 if gpu else CPU_BATCH_TOKENS
    return most if alone else max(1, min(most, total // (8 * actors)))


def shared_pace(paces: Sequence[float], actors: int = 0) -> float | None:
    """The pace, in sizes a second, for which units are cut that any of several actors may get: that of the slowest.

    It is an eighth of the mean at least, and so much that all actors together end no more than 40 units a second,
    since each costs the driver: a thousand actors have units of 25 s. Actors of unknown pace have the mean.
    """
    if not paces:
        return None
    mean, actors = sum(paces) / len(paces), max(actors, len(paces))
    return max(min(paces), mean * _SLOWEST, mean * actors / (_UNITS_A_SECOND * UNIT_SECONDS))
