"""Count the costs of a job's reads: reads, tokens, time and memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import polars as pl

from engine import tables
from engine.machine.watch import PoolTotals
from engine.reading.plan import ReadPlan, Unit, output_columns
from engine.reading.protocol import ReadOutput
from engine.tables import DOC_IDS, FAILURE, OUTPUT_TOKENS, PROMPT_TOKENS, QUERY_ID, READ_KEY

# The kinds of reads: of at most one passage, and of several (a whole list).
SINGLE, WHOLE = "single", "whole"
_SEVERAL = pl.col(DOC_IDS).list.len() > 1
_NO_PLAN = ReadPlan(reads=pl.DataFrame(), wanted=0)


@dataclass(kw_only=True)
class KindCosts:
    """Costs of a job's reads of a kind, as in ``ReadingCosts``; tokens of readers during loading are left out.

    Both kinds are read together: a list begins like its first passage alone, and Fusion-in-Decoder encodes
    a passage once for both. Such a unit is split by tokens: ``split_seconds`` is this part of ``reader_seconds``.
    """

    wanted: int = 0
    reused: int = 0
    done: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    computed_tokens: int = 0
    padded_tokens: int = 0
    reader_seconds: float = 0.0
    split_seconds: float = 0.0
    seconds: float = 0.0

    def add(self, other: KindCosts) -> None:
        """Add the costs of other reads of the kind."""
        for name, value in asdict(other).items():
            setattr(self, name, getattr(self, name) + value)


Kinds = dict[str, KindCosts]


@dataclass(frozen=True)
class UnitResult:
    """The outputs and costs of the reads of a unit.

    The reader, or a user's program, fills the first seven fields; the others follow from the plan (``planned``).
    """

    unit: Unit
    outputs: Sequence[ReadOutput]  # of all reads, in order; empty if another process has them
    worker: str  # identifies the process
    seconds: float  # the reader's time on this unit
    stats: dict[str, int]  # its counters since it was loaded (``ReaderStats``)
    computed_tokens: int = 0  # of this unit alone
    padded_tokens: int = 0  # of this unit alone
    plan: ReadPlan = _NO_PLAN  # of its shard, without reads
    done: int = 0  # reads of this unit; 0 if the shard has nothing to read
    reads: pl.DataFrame | None = None  # successful ones; None if another process has them
    # Query id and reason of failed reads, by read key.
    failures: dict[str, tuple[str, str]] = field(default_factory=dict)
    prompt_tokens: int = 0
    output_tokens: int = 0
    kinds: Kinds = field(default_factory=dict)  # its costs
    file: str = ""  # the name of its file in the store, if stored

    @classmethod
    def without_reads(cls, plan: ReadPlan) -> UnitResult:
        """A placeholder result for a plan without units."""
        return cls(Unit(0, 0, 0, plan.role), (), "", 0.0, {}, plan=plan.head)

    def planned(self, plan: ReadPlan, reads: pl.DataFrame) -> UnitResult:
        """The result with all fields derived from the plan of its shard and the planned ``reads`` of this unit."""
        # Indexed by name: units are many and small, and ``select`` would start a thread.
        table = reads[[READ_KEY, QUERY_ID, DOC_IDS]].hstack(output_columns(self.outputs))
        succeeded, failures = table[[*tables.READS]], {}
        # Skipped for most units, since failed reads are rare and filtering takes time.
        if table[FAILURE].null_count() < table.height:
            succeeded = succeeded.filter(table[FAILURE].is_null())
            failed = table.filter(pl.col(FAILURE).is_not_null())[[READ_KEY, QUERY_ID, FAILURE]]
            failures = {key: (query, reason) for key, query, reason in failed.iter_rows()}
        return replace(
            self,
            plan=plan.head,
            done=table.height,
            reads=succeeded,
            failures=failures,
            prompt_tokens=int(table[PROMPT_TOKENS].sum()),
            output_tokens=int(table[OUTPUT_TOKENS].sum()),
            kinds=unit_kinds(table, self),
        )


@dataclass(kw_only=True)
class ReadingCosts:
    """Costs of a job's reads."""

    wanted: int = 0  # distinct reads that the job needs
    reused: int = 0  # reads found in the store
    done: int = 0  # reads done now, failed ones included
    failed: int = 0
    # Wall-clock seconds of reading, start of the actors included; for shared actors, this job's share by
    # ``reader_seconds``.
    seconds: float = 0.0
    reads_per_second: float = 0.0
    reader_seconds: float = 0.0  # time that the actors spent reading, in total
    prompt_tokens: int = 0  # of the reads done now
    output_tokens: int = 0  # of the reads done now
    computed_tokens: int = 0  # of prompts; a beginning that several prompts share counts once
    padded_tokens: int = 0  # the same with padding
    padding_share: float = 0.0
    memory_halvings: int = 0  # batches halved because memory ran out
    retried_requests: int = 0
    changed_servers: int = 0  # answers that named another model or fingerprint than the first
    unreported_answers: int = 0  # answers without a count of their tokens, which count as 0
    alone: int = 0  # reads done one at a time, since the model reads the padding of others
    workers: dict[str, int] = field(default_factory=dict)  # peak memory in bytes, by actor
    # Paths of damaged files of the store, now set aside; wanted reads in them were done again.
    damaged_files: list[str] = field(default_factory=list)
    lost_nodes: int = 0
    joined_nodes: int = 0
    restarted_actors: int = 0  # actors whose process ended and restarted
    repeated_units: int = 0  # units of work that began more than once
    waited_seconds: float = 0.0  # time without any node that an actor fits on
    kinds: Kinds = field(default_factory=dict)

    def described(self) -> dict[str, Any]:
        """Costs as in ``summary.json``: counts also appear under their names in tables."""
        summary = asdict(self)
        for costs in (summary, *summary["kinds"].values()):
            costs |= {"requested": costs["wanted"], "cached": costs["reused"], "new": costs["done"]}
        return summary

    def add(self, unit: UnitResult) -> None:
        """Add the costs of a unit."""
        self.done += unit.done
        self.damaged_files = list(dict.fromkeys([*self.damaged_files, *unit.plan.damaged]))
        self.prompt_tokens += unit.prompt_tokens
        self.output_tokens += unit.output_tokens
        self.reader_seconds += unit.seconds
        add_kinds(self.kinds, unit.kinds)


def requested_kinds(reads: pl.DataFrame) -> dict[str, int]:
    """Count distinct reads by kind in a table with ``read_key`` and ``doc_ids``."""
    distinct = reads.select(READ_KEY, _SEVERAL.alias("several")).unique(READ_KEY)
    several = int(distinct["several"].sum())
    counts = {SINGLE: distinct.height - several, WHOLE: several}
    return {kind: count for kind, count in counts.items() if count}


def unit_kinds(reads: pl.DataFrame, result: UnitResult) -> Kinds:
    """Costs of a unit by kind."""
    # Row by row: units are many and small.
    own: Kinds = {}
    tokens = reads.select(PROMPT_TOKENS, OUTPUT_TOKENS, _SEVERAL.alias("several"))
    for prompt, output, several in tokens.iter_rows():
        kind_costs = own.setdefault(WHOLE if several else SINGLE, KindCosts())
        kind_costs.done += 1
        kind_costs.prompt_tokens += prompt
        kind_costs.output_tokens += output
    together = sum(costs.prompt_tokens + costs.output_tokens for costs in own.values())
    for costs in own.values():
        part = costs.prompt_tokens + costs.output_tokens
        share = part / together if together else costs.done / reads.height
        costs.computed_tokens = round(share * result.computed_tokens)
        costs.padded_tokens = round(share * result.padded_tokens)
        costs.reader_seconds = share * result.seconds
        costs.split_seconds = costs.reader_seconds if len(own) > 1 else 0.0
    return own


def add_kinds(into: Kinds, kinds: Mapping[str, KindCosts]) -> None:
    """Add costs by kind to others."""
    for kind, costs in kinds.items():
        into.setdefault(kind, KindCosts()).add(costs)


def merge_kinds(several: Iterable[Kinds]) -> Kinds:
    """The costs of several jobs together, by kind."""
    merged: Kinds = {}
    for kinds in several:
        add_kinds(merged, kinds)
    return merged


def set_requested(costs: ReadingCosts, counts: Mapping[str, int]) -> None:
    """Set ``wanted`` by kind in the costs, and ``reused`` as the difference to ``done``."""
    for kind, count in counts.items():
        kind_costs = costs.kinds.setdefault(kind, KindCosts())
        kind_costs.wanted, kind_costs.reused = count, count - kind_costs.done


def share_costs(costs: Sequence[ReadingCosts], seconds: float, totals: PoolTotals) -> None:
    """Split a pool's time between the costs of its jobs by their readers' time; the first gets the pool's totals."""
    busy = sum(cost.reader_seconds for cost in costs)
    for cost in costs:
        cost.seconds = seconds * (cost.reader_seconds / busy if busy else 1 / len(costs))
        if cost.done and cost.seconds:
            cost.reads_per_second = cost.done / cost.seconds
        for kind_costs in cost.kinds.values() if cost.reader_seconds else ():
            kind_costs.seconds = cost.seconds * kind_costs.reader_seconds / cost.reader_seconds
    for name, value in asdict(totals).items():
        if hasattr(costs[0], name):
            setattr(costs[0], name, value)


def add_counters(costs: ReadingCosts, workers: Mapping[str, Mapping[str, Any]]) -> None:
    """Set costs from the last counters (``ReaderStats``) of all actors."""
    costs.computed_tokens = sum(stats["prompt_tokens"] for stats in workers.values())
    costs.padded_tokens = sum(stats["padded_tokens"] for stats in workers.values())
    costs.memory_halvings = sum(stats["memory_halvings"] for stats in workers.values())
    # Counters of a user's executor may lack these keys.
    costs.retried_requests = sum(stats.get("retried", 0) for stats in workers.values())
    costs.changed_servers = sum(stats.get("changed_servers", 0) for stats in workers.values())
    costs.unreported_answers = sum(stats.get("unreported", 0) for stats in workers.values())
    costs.alone = costs.done * any(stats.get("alone", 0) for stats in workers.values())
    costs.workers = {name: stats["peak_memory"] for name, stats in workers.items()}
    if costs.padded_tokens:
        costs.padding_share = 1 - costs.computed_tokens / costs.padded_tokens
