"""Plan reads: list wanted reads, find missing ones, and cut them into units."""

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
# Prompts alike in their first characters count as beginning with the same passage; the most prompts of a group.
_ALIKE, _TOGETHER = 160, 16
# With several actors, a unit is at most this part of an actor's share of the rest. The smallest is at least
# this part of the largest, since every unit costs some milliseconds.
_SHARE, _SMALLEST = 4, 8
# The fewest tokens of a unit: its answers are written together, and a step takes as long for one read as for several.
_LEAST = 1024
# Seconds of a unit at a measured pace: short, so that a crash loses little; long beside the driver's work per unit.
UNIT_SECONDS = 4.75
# The slowest actor counts as this share of the mean at least. All actors together end at most so many units a
# second: a driver handles some 60 to 100 a second on a core. A thousand actors have units of 25 s.
_SLOWEST, _UNITS_A_SECOND = 1 / 8, 40.0

# The pace for which a unit is cut, by its number and role, in sizes a second; None if unknown.
PaceOf = Callable[[int, int], float | None]
REQUESTED: tables.Schema = {name: tables.READS[name] for name in (READ_KEY, QUERY_ID, DOC_IDS)}
REQUESTED[INPUTS] = pl.List(pl.String())
_KNOWN = tables.READS | {FAILURE: pl.String()}
OUTPUT_COLUMNS: tables.Schema = {column.name: _KNOWN[column.name] for column in fields(ReadOutput)}


@dataclass(frozen=True)
class Unit:
    """Rows of a plan for the reader of this role: a task, a commit, and the most that a crash can lose per actor."""

    number: int
    offset: int
    length: int
    reader: int = 0


def read_key(fingerprint: str, inputs: Sequence[str]) -> str:
    """The identity of a read: SHA-256 of the reader's fingerprint and its exact input texts."""
    content = json.dumps([fingerprint, list(inputs)], ensure_ascii=False)
    return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()


def requested_reads(
    lists: pl.DataFrame,
    queries: pl.DataFrame,
    corpus: pl.DataFrame,
    *,
    prompt: Prompt,
    fingerprint: str,
    targets: Mapping[str, Sequence[str]] | None = None,
) -> pl.DataFrame:
    """The reads of ``lists``, one row each (``REQUESTED``); one row for each target of the query if targets are scored.

    Args:
        lists: ``query_id`` and ``doc_ids``, best first; an empty list is a read without passages.
        targets: texts to score, by query id; None if the reader writes or chooses.
    """
    texts = dict(queries.select(QUERY_ID, QUERY).iter_rows())
    passages = {row[0]: row[1:] for row in corpus.select(DOC_ID, TITLE, TEXT).iter_rows()}
    rows = []
    for query_id, doc_ids in lists.select(QUERY_ID, DOC_IDS).iter_rows():
        rendered = prompt.render(texts[query_id], [passages[doc_id] for doc_id in doc_ids])
        for target in [()] if targets is None else [(text,) for text in targets[query_id]]:
            inputs = [*rendered, *target]
            rows.append((read_key(fingerprint, inputs), query_id, doc_ids, inputs))
    return pl.DataFrame(rows, schema=REQUESTED, orient="row")


def missing_reads(requested: pl.DataFrame, stored: pl.DataFrame) -> pl.DataFrame:
    """Distinct requested reads missing from the store, in their order."""
    is_stored = pl.col(READ_KEY).is_in(stored[READ_KEY].implode())
    return requested.unique(READ_KEY, keep="first", maintain_order=True).filter(~is_stored)


def with_outputs(requested: pl.DataFrame, outputs: pl.DataFrame) -> pl.DataFrame:
    """Requested reads, in their order, with their first outputs (the columns of ``outputs``), null if missing."""
    known = outputs.drop(QUERY_ID, DOC_IDS, strict=False).unique(READ_KEY, keep="first")
    reads = requested.select(READ_KEY, QUERY_ID, DOC_IDS)
    return reads.join(known, on=READ_KEY, how="left", maintain_order="left")


def output_columns(outputs: Sequence[ReadOutput]) -> pl.DataFrame:
    """Outputs of reads as a table with the columns ``OUTPUT_COLUMNS``, one row each."""
    columns = {name: [getattr(output, name) for output in outputs] for name in OUTPUT_COLUMNS}
    return pl.DataFrame(columns, schema=OUTPUT_COLUMNS)


def longest_first(missing: pl.DataFrame, spec: ReaderSpec) -> pl.DataFrame:
    """The plan: the missing reads with columns ``size`` and ``group``, the longest first.

    Reads that share a computed part form a group: reads of a query if they have several inputs, else some reads
    that begin with the same passage. The largest comes first, so that no actor waits for it at the end.
    """
    lead, inputs = len(spec.shared_prefix), pl.col(INPUTS).list
    # A quarter of the characters beyond the shared prefix: only the reader tokenizes texts.
    size = ((inputs.join("").str.len_chars().cast(pl.Int64) - lead) // 4).clip(1)
    begins = inputs.first().str.slice(lead, _ALIKE)
    part = pl.int_range(pl.len()).over(begins, order_by=READ_KEY) // _TOGETHER
    alike = pl.struct(begins.alias("begins"), part.alias("part")).hash().cast(pl.String)
    group = pl.col(QUERY_ID) if (missing[INPUTS].list.len() > 1).any() else alike
    plan = missing.with_columns(size.alias(SIZE), group.alias(GROUP))
    together = pl.col(SIZE).sum().over(GROUP), pl.col(READ_KEY).min().over(GROUP)
    return plan.sort(*together, SIZE, READ_KEY, descending=[True, False, True, False])


@dataclass(frozen=True, kw_only=True)
class ReadPlan:
    """A shard's missing reads for a reader; units have ``least`` to ``most`` tokens, ``first`` at an unknown pace."""

    reads: pl.DataFrame  # as ``longest_first`` gives them; empty if everything is stored
    wanted: int  # distinct reads of the reader in the shard
    reused: int = 0  # the part of these that is stored, or that another reader does
    shard: int = 0
    role: int = 0  # the place of the reader among the readers that share a model
    span: Range | None = None  # the buckets of the shard's queries (``store.add``); None for any
    damaged: tuple[str, ...] = ()
    last: bool = True  # this reader reads nothing else of the shard, whatever these outputs are
    least: int = 1
    first: int = 1
    most: int = 1
    sharing: int = 1  # number of actors that read it; units shrink towards the end
    behind: int = 0  # approximate size of the reads after it

    @property
    def head(self) -> ReadPlan:
        """The plan without its reads."""
        return replace(self, reads=pl.DataFrame())

    @property
    def size(self) -> int:
        """Total size of its reads."""
        return int(self.reads[SIZE].sum())

    def sized(self, total: int, *, actors: int, gpu: bool, alone: bool = False) -> ReadPlan:
        """The plan with units for so many actors, which read ``total`` (in sizes) together."""
        first = unit_tokens(total, actors=actors, gpu=gpu, alone=alone)
        if alone:
            return replace(self, least=first, first=first, most=first)
        most = max(first, total // (8 * actors))
        return replace(self, least=max(1, first // 4), first=first, most=most)

    def unit_size(self, pace: float | None) -> int:
        """The size of a unit that takes ``UNIT_SECONDS`` at a pace, in sizes a second."""
        if pace is None:
            return self.first
        return min(self.most, max(self.least, int(pace * UNIT_SECONDS)))

    def units(
        self, pace_of: PaceOf = lambda number, role: None, *, number: int = 0, offset: int = 0
    ) -> Iterator[Unit]:
        """Its units, the first with this number and offset; a unit is cut on demand.

        A unit has at least one group, otherwise at most ``unit_size``, and at most a part of the rest if several
        actors share them, so that all end together (guided self-scheduling: Polychronopoulos & Kuck 1987).
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
    """Plans the reads of shards for readers that share a model, on any worker; again the same for a lost node."""

    @property
    def shards(self) -> Sequence[int]:
        """Shards in reading order."""

    def __call__(self, shard: int, role: int) -> ReadPlan: ...


@dataclass(frozen=True)
class PlansInMemory:
    """The plans of the only shard, one per role, made by the driver, which holds the inputs."""

    by_role: Sequence[ReadPlan]
    shards: tuple[int, ...] = (0,)

    def __call__(self, shard: int, role: int) -> ReadPlan:
        return self.by_role[role]

    def sized(self, actors: int, gpu: bool, alone: bool) -> PlansInMemory:
        """The plans with units for so many actors, which shrink towards the end of the last one."""
        actors = max(1, min(actors, sum(plan.reads.height for plan in self.by_role)))
        total = sum(plan.size for plan in self.by_role)
        size = unit_tokens(total, actors=actors, gpu=gpu, alone=alone)
        *others, last = (replace(plan, least=size, first=size, most=size) for plan in self.by_role)
        return PlansInMemory([*others, replace(last, sharing=actors)])


def unit_tokens(total: int, *, actors: int, gpu: bool, alone: bool = False) -> int:
    """Size of a unit at an unknown pace: a device batch on a CPU, half a batch on a GPU; an actor has eight at least.

    Half a batch takes a slow GPU (1,000 tokens a second) half a minute; smaller units for 64 actors are too many for
    two cores. A function that reads ``alone`` takes a full unit per call, since no actor waits for it.
    """
    most = GPU_BATCH_TOKENS // 2 if gpu else CPU_BATCH_TOKENS
    return most if alone else max(1, min(most, total // (8 * actors)))


def shared_pace(paces: Sequence[float], actors: int = 0) -> float | None:
    """The slowest actor's pace, in sizes a second, for units of any actor; an unknown pace counts as the mean."""
    if not paces:
        return None
    mean, actors = sum(paces) / len(paces), max(actors, len(paces))
    return max(min(paces), mean * _SLOWEST, mean * actors / (_UNITS_A_SECOND * UNIT_SECONDS))
