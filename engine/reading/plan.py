"""Plan reads: which are wanted, which are missing, and in which units they are done.

Without Ray, torch or files. A unit takes some seconds: little is lost with one that a crash ends, and it costs the
driver little beside the reading.
"""

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
# Prompts that agree on this many characters are taken to begin with the same passage.
_ALIKE = 160
# At most this many of them form a group, so that units of work stay small.
_TOGETHER = 16
# Where several actors share the units: a unit is at most this part of what each of them has left, and
# the smallest at least this part of the largest, since every unit costs some milliseconds.
_SHARE, _SMALLEST = 4, 8
# Tokens that no unit is made smaller than: answers of a unit are written together, and a step takes as long
# for one read as for several.
_LEAST = 1024
# A unit takes about so long, once it is known how fast actors read. No unit of a steady reader takes more than five
# seconds then, unless there are more actors (190) than a driver can serve with such units.
UNIT_SECONDS = 4.75
# The slowest actor counts as this share of the mean at least, and units are not cut so small that actors
# together end more than so many a second: a driver has some 60 to 100 done in a second by a core.
_SLOWEST, _UNITS_A_SECOND = 1 / 8, 40.0

# The pace for which the unit of a number is cut, in sizes a second; None where it is unknown.
PaceOf = Callable[[int], float | None]
WANTED: tables.Schema = {
    READ_KEY: pl.String(),
    QUERY_ID: pl.String(),
    DOC_IDS: pl.List(pl.String()),
    INPUTS: pl.List(pl.String()),
}
_NO_READS = pl.DataFrame()
# A read's output as columns.
_COLUMNS: tables.Schema = {**tables.READS, FAILURE: pl.String()}
OUTPUT_COLUMNS: tables.Schema = {field.name: _COLUMNS[field.name] for field in fields(ReadOutput)}


@dataclass(frozen=True)
class Unit:
    """A piece of work: the rows ``offset`` to ``offset + length`` of the plan.

    A unit is one task, one commit to the store, and the most that a crash can lose per actor. ``reader``
    says which of the readers does it that share an actor, by its place.
    """

    number: int
    offset: int
    length: int
    reader: int = 0


def read_key(fingerprint: str, inputs: Sequence[str]) -> str:
    """The identity of a read: a hash of the reader's fingerprint and the exact text that it is given."""
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
        lists: ``query_id`` and ``doc_ids`` in rank order, best first; an empty list is a read
            without passages.
        targets: by query id, the texts that are scored; None where the reader writes or chooses.
    """
    texts = dict(queries.select(QUERY_ID, QUERY).iter_rows())
    passages = {row[0]: row[1:] for row in corpus.select(DOC_ID, TITLE, TEXT).iter_rows()}

    def rows() -> Iterator[tuple[str, str, list[str], list[str]]]:
        for query_id, doc_ids in lists.select(QUERY_ID, DOC_IDS).iter_rows():
            rendered = prompt.render(texts[query_id], [passages[doc_id] for doc_id in doc_ids])
            own = [()] if targets is None else [(text,) for text in targets[query_id]]
            for target in own:
                inputs = [*rendered, *target]
                yield read_key(fingerprint, inputs), query_id, doc_ids, inputs

    return pl.DataFrame(list(rows()), schema=WANTED, orient="row")


def missing_reads(wanted: pl.DataFrame, stored: pl.DataFrame) -> pl.DataFrame:
    """The distinct wanted reads that are not stored, in their order."""
    is_stored = pl.col(READ_KEY).is_in(stored[READ_KEY].implode())
    return wanted.unique(READ_KEY, keep="first", maintain_order=True).filter(~is_stored)


def answered(wanted: pl.DataFrame, outputs: pl.DataFrame) -> pl.DataFrame:
    """Each wanted read with its output, in their order: the columns of ``outputs``.

    Null, but for what identifies the read, where there is none.

    Args:
        outputs: reads by ``read_key``, each once or several times: the first counts.
    """
    known = outputs.drop(QUERY_ID, DOC_IDS, strict=False).unique(READ_KEY, keep="first")
    return wanted.select(READ_KEY, QUERY_ID, DOC_IDS).join(
        known, on=READ_KEY, how="left", maintain_order="left"
    )


def output_columns(outputs: Sequence[ReadOutput]) -> pl.DataFrame:
    """The outputs of reads as a table with the columns ``OUTPUT_COLUMNS``, one row each."""
    return pl.DataFrame(
        {name: [getattr(output, name) for output in outputs] for name in OUTPUT_COLUMNS},
        schema=OUTPUT_COLUMNS,
    )


def longest_first(missing: pl.DataFrame, spec: ReaderSpec) -> pl.DataFrame:
    """The plan: the missing reads with columns ``size`` and ``group``, the longest first.

    Reads of which a reader computes a part once for all stand together as a group: where reads have
    several inputs, those of a query, which share inputs (Fusion-in-Decoder) or the query before the
    passages; else those that begin with the same passage, some at a time. The largest group comes
    first, so that no actor waits for a long one at the end. The order depends on the reads alone.
    """
    lead = len(spec.shared_prefix)
    # A quarter of the characters beyond the shared prefix: texts are tokenized once, by their reader.
    sizes = [max(1, (sum(map(len, texts)) - lead) // 4) for texts in missing[INPUTS].to_list()]
    shared = bool((missing[INPUTS].list.len() > 1).any())
    begins = pl.col(INPUTS).list.first().str.slice(lead, _ALIKE)
    group = pl.col(QUERY_ID)
    if not shared:
        many = pl.int_range(pl.len()).over(begins, order_by=READ_KEY) // _TOGETHER
        group = pl.struct(begins.alias("begins"), many.alias("part")).hash().cast(pl.String)
    return (
        missing.with_columns(pl.Series(SIZE, sizes, dtype=pl.Int64), group.alias(GROUP))
        .with_columns(
            pl.col(SIZE).sum().over(GROUP).alias("_of_group"),
            pl.col(READ_KEY).min().over(GROUP).alias("_first"),
        )
        .sort("_of_group", "_first", SIZE, READ_KEY, descending=[True, False, True, False])
        .drop("_of_group", "_first")
    )


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
        least, first, most: how large a unit is, in sizes: at least, while the pace is unknown, and at most.
        sharing: number of actors that read it; units shrink towards the end.
        behind: what they read after it, in sizes, about.
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
        return replace(self, reads=_NO_READS)

    @property
    def size(self) -> int:
        """Of all reads, in the plan's sizes."""
        return int(self.reads[SIZE].sum())

    def sized(self, total: int, *, actors: int, gpu: bool, alone: bool = False) -> ReadPlan:
        """The plan with units as large as ``total``, of all that is left, lets them be for so many actors."""
        first = unit_tokens(total, actors=actors, gpu=gpu, alone=alone)
        least = first if alone else max(1, first // 4)
        most = first if alone else max(first, total // (8 * actors))
        return replace(self, least=least, first=first, most=most)

    def unit_size(self, pace: float | None) -> int:
        """The size of a unit that takes some seconds at a pace, in sizes a second; the first one where it is unknown."""
        if pace is None:
            return self.first
        return max(1, min(self.most, max(self.least, int(pace * UNIT_SECONDS))))

    def units(self, pace_of: PaceOf = lambda _: None) -> Iterator[Unit]:
        """Its units, cut when they are asked for: each of at least one group of reads, and else at most as large as
        an actor reads in some seconds at the pace that there is for its number.

        Where several actors share them, units become smaller towards the end, each at most a part of what is
        left (guided self-scheduling: Polychronopoulos & Kuck 1987), so that actors of different speed end
        together: what a slow one still holds when the others have nothing left to do is little.
        """
        groups = self.reads.group_by(GROUP, maintain_order=True).agg(
            pl.len().alias("reads"), pl.col(SIZE).sum()
        )
        left = self.behind + int(groups[SIZE].sum())
        number, offset, filled, length, most = 0, 0, 0, 0, 0
        for reads, tokens in groups.select("reads", SIZE).iter_rows():
            share = max(_LEAST, most // _SMALLEST, left // (_SHARE * self.sharing))
            if length and filled + tokens > (most if self.sharing == 1 else min(most, share)):
                yield Unit(number, offset, length)
                left -= filled
                number, offset, filled, length = number + 1, offset + length, 0, 0
            if not length:
                most = self.unit_size(pace_of(number))
            filled, length = filled + tokens, length + reads
        if length:
            yield Unit(number, offset, length)


class Plans(Protocol):
    """Plans the reads of shards, on any worker, for readers that share a model.

    The units that a lost node held are made again, from a plan made again, while others of the same plan
    are done: so a shard that is planned again has the plan that it had, whatever came to the store. Whoever
    cuts it keeps the pace of each unit.
    """

    @property
    def shards(self) -> Sequence[int]:
        """The shards, in the order in which they are read."""

    def __call__(self, shard: int, role: int) -> ReadPlan: ...


@dataclass(frozen=True)
class MadePlans:
    """The plans of the only shard, a role each, where the driver holds the inputs and has made them."""

    made: Sequence[ReadPlan]
    shards: tuple[int, ...] = (0,)

    def __call__(self, shard: int, role: int) -> ReadPlan:
        return self.made[role]

    def sized(self, actors: int, gpu: bool, alone: bool) -> MadePlans:
        """The plans with units as large as all of them together let them be; those of the last one become smaller."""
        actors = max(1, min(actors, sum(plan.reads.height for plan in self.made)))
        total = sum(plan.size for plan in self.made)
        size = unit_tokens(total, actors=actors, gpu=gpu, alone=alone)
        *others, last = (replace(plan, least=size, first=size, most=size) for plan in self.made)
        return MadePlans([*others, replace(last, sharing=actors)])


def unit_tokens(total: int, *, actors: int, gpu: bool, alone: bool = False) -> int:
    """Size of a unit: one device batch on a CPU, half of one on a GPU, and never so much that an actor has
    fewer than eight of them: the last ones end together.

    Nobody knows how fast a GPU reads. Half a batch takes a slow one (1,000 tokens a second) half a minute,
    and a fast one has soon done it; smaller ones are more than two cores can handle for 64 actors.
    Where one process reads ``alone`` nobody waits for it: a function is given many prompts in each call, the first included.
    """
    most = GPU_BATCH_TOKENS // 2 if gpu else CPU_BATCH_TOKENS
    if alone:
        return most
    return max(1, min(most, total // (8 * actors)))


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
