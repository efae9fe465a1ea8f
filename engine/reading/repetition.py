"""Repeat a sample of a job's reads in other batches, to measure how much outputs depend on batching.

The last bits of a batch's arithmetic depend on its size and its padding, and greedy decoding turns some
of these differences into other words. How often that happens with a model, precision and device is
not known beforehand, but it can be measured: a sample is read again and the changes are counted.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import polars as pl

from engine import tables
from engine.machine import device
from engine.machine.batching import CPU_BATCH_TOKENS, GPU_BATCH_TOKENS
from engine.machine.pool import PoolSettings
from engine.messages.errors import ReadError
from engine.reading.backends import backend_for, reads_here
from engine.reading.local import Executor, Local
from engine.reading.plan import SIZE, MadePlans, ReadPlan, Unit
from engine.reading.protocol import ReaderSpec
from engine.tables import CONFIDENCE, DOC_IDS, FAILURE, OUTPUT, QUERY_ID, READ_KEY

# Changed reads that a certificate lists.
_LISTED = 10
# Reads that are repeated together in one unit of work, at most.
_TOGETHER = 256
_AGAIN = "output_repeated"
_CONFIDENCE_AGAIN = "confidence_repeated"


@dataclass(frozen=True)
class Sample:
    """How many of a job's reads are repeated, all where there are fewer, and the seed that they are drawn by."""

    size: int
    seed: int


@dataclass(frozen=True)
class BatchPolicy:
    """How reads were batched: padded tokens at most, and bytes (0: the device's default)."""

    tokens: int
    memory: int


@dataclass(frozen=True)
class Change:
    """A read whose output changed when it was repeated."""

    query_id: str
    doc_ids: list[str]
    output: str
    repeated: str


@dataclass(frozen=True, kw_only=True)
class RepeatabilityCheck:
    """How many of a sample of reads changed when they were repeated, and what was read.

    Attributes:
        alone: of these, in a batch of one; the others were read together, in random order.
        failed: reads that could not be done again; they are in no other count.
        changed_outputs: reads whose output is not the same to the letter.
        changed_labels: (query, read) pairs whose downstream value, or judge's label, differs.
        largest_confidence_difference: between the probabilities of the first choice, where the
            reader chooses; None where it writes.
        changes: the first changed reads.
        dtype, device: where and in what precision the reads were repeated. Stored reads may come
            from another device: their key holds the precision, not the device.
        batches, repeated_batches: the job's policy, and that of the repetition.
        sha256: of what was read and what read it: the model's files (``weights``), the settings
            that outputs depend on (``reader``), the exact texts of all reads (``reads``), the prompt
            template, and the contents of the input tables, whatever their order of rows and format. A
            reader behind an API, or a function, has no files.
        reproducible: whether what reads is known to the last bit; a server, or a function of the user's, may
            answer otherwise the next time, whatever did not change here.
    """

    repeated: int
    alone: int
    failed: int
    changed_outputs: int
    changed_labels: int
    largest_confidence_difference: float | None
    changes: list[Change]
    seed: int
    dtype: str
    device: str
    batches: BatchPolicy
    repeated_batches: BatchPolicy
    sha256: dict[str, str]
    reproducible: bool = True


def repeat_sample(
    wanted: pl.DataFrame,
    reads: pl.DataFrame,
    spec: ReaderSpec,
    *,
    sample: Sample,
    score: Callable[[pl.DataFrame], pl.Series],
    sha256: Mapping[str, str],
    pool: PoolSettings,
    executor: Executor | None = None,
) -> RepeatabilityCheck:
    """Repeat a sample of a job's reads with a fresh reader and compare. Nothing is stored.

    Args:
        reads: their outputs, as ``evaluate`` gives them, failures included.
        score: the value of each row of a table of ``query_id``, ``doc_ids``, ``output`` and
            ``confidence``.
        pool: as in ``evaluate``; one of its actors does the repetition.
        executor: does the reads instead of the reader, as in ``evaluate``.

    Raises:
        ReadError: outputs were lost on the way.
    """
    plan = draw(wanted, reads, sample).with_columns(pl.lit(1).alias(SIZE))
    alone, units = cut(plan.height)
    one = pool if reads_here(pool, [spec]) else replace(pool, actors=1)
    size = int(plan.estimated_size())
    local = Local([spec], [None])
    backend = backend_for(one, local, executor, size=size) if units else local
    in_other_batches, tokens = spec, 0
    if spec.engine == "transformers":  # the others make their batches by themselves
        tokens = spec.batch_tokens or (GPU_BATCH_TOKENS if backend.gpu else CPU_BATCH_TOKENS)
        in_other_batches = replace(spec, batch_tokens=max(1, tokens // 2))
    local.specs = [in_other_batches]
    done = list(
        backend.read(MadePlans([ReadPlan(reads=plan, wanted=plan.height, cut=tuple(units))]))
    )
    if lost := plan.height - sum(unit.done for unit in done):
        raise ReadError(f"{lost} repeated reads were lost; run again")
    again = [tables.empty(tables.READS), *(u.reads for u in done if u.reads is not None)]
    compared = compare(plan, reads, pl.concat(again))
    changed = compared.filter(pl.col(OUTPUT) != pl.col(_AGAIN))
    difference = (compared[CONFIDENCE] - compared[_CONFIDENCE_AGAIN]).abs().max()
    return RepeatabilityCheck(
        repeated=plan.height,
        alone=alone,
        failed=sum(len(unit.failures) for unit in done),
        changed_outputs=changed[READ_KEY].n_unique(),
        changed_labels=_changed_labels(compared, score),
        largest_confidence_difference=None if difference is None else float(difference),  # type: ignore[arg-type]
        changes=[
            Change(*row)
            for row in changed.unique(READ_KEY, keep="first", maintain_order=True)
            .select(QUERY_ID, DOC_IDS, OUTPUT, _AGAIN)
            .head(_LISTED)
            .iter_rows()
        ],
        seed=sample.seed,
        dtype=spec.dtype if spec.is_reproducible else "unknown",
        device=spec.api.settings.host if spec.api else device.describe(gpu=backend.gpu),
        batches=BatchPolicy(tokens, spec.memory),
        repeated_batches=BatchPolicy(in_other_batches.batch_tokens, spec.memory),
        sha256={
            **({"weights": spec.weights} if spec.is_reproducible else {}),
            "reader": spec.fingerprint,
            "reads": hashlib.sha256("".join(wanted[READ_KEY].unique().sort()).encode()).hexdigest(),
            **sha256,
        },
        reproducible=spec.is_reproducible,
    )


def draw(wanted: pl.DataFrame, reads: pl.DataFrame, sample: Sample) -> pl.DataFrame:
    """A random sample of a job's distinct reads, in random order, over all kinds of reads.

    Kinds are reads of no passage, of one, and of several. Each kind gives the same share, or all that
    it has: whole lists are fewer than single passages, and longer. The sample depends on the seed and
    on which reads there are, not on their order.
    """
    kinds = pl.col(DOC_IDS).list.len().clip(upper_bound=2)
    distinct = (
        wanted.filter(reads[FAILURE].is_null())
        .unique(READ_KEY, keep="first", maintain_order=True)
        .sort(READ_KEY)
    )
    generator = np.random.default_rng(sample.seed)
    drawn: list[pl.DataFrame] = []
    groups = sorted(
        (group for _, group in distinct.group_by(kinds, maintain_order=True)),
        key=lambda group: (group.height, group[READ_KEY][0]),
    )
    for position, group in enumerate(groups):  # the smallest first: what it lacks, others give
        share = -(-(sample.size - sum(part.height for part in drawn)) // (len(groups) - position))
        drawn.append(group[generator.permutation(group.height)[:share]])
    chosen = pl.concat(drawn) if drawn else distinct
    return chosen[generator.permutation(chosen.height)]


def cut(reads: int) -> tuple[int, list[Unit]]:
    """How many of ``reads`` reads are repeated alone (the first half), and the units of all."""
    alone = (reads + 1) // 2
    edges = [*range(alone), *range(alone, reads, _TOGETHER), reads]
    return alone, [
        Unit(number, first, last - first)
        for number, (first, last) in enumerate(itertools.pairwise(edges))
    ]


def compare(plan: pl.DataFrame, reads: pl.DataFrame, again: pl.DataFrame) -> pl.DataFrame:
    """Rows of ``reads`` that were repeated, one per query, with the columns ``output_repeated`` and
    ``confidence_repeated``; without those whose repetition failed. In the order of the plan.

    Args:
        again: reads that did not fail when they were repeated, in any order.
    """
    repeated = again.select(
        READ_KEY, pl.col(OUTPUT).alias(_AGAIN), pl.col(CONFIDENCE).alias(_CONFIDENCE_AGAIN)
    )
    return (
        plan.select(READ_KEY)
        .join(repeated, on=READ_KEY, how="inner", maintain_order="left")
        .join(reads.drop(FAILURE), on=READ_KEY, how="left", maintain_order="left_right")
        .unique([READ_KEY, QUERY_ID], keep="first", maintain_order=True)
    )


def _changed_labels(compared: pl.DataFrame, score: Callable[[pl.DataFrame], pl.Series]) -> int:
    before = score(compared.select(QUERY_ID, DOC_IDS, OUTPUT, CONFIDENCE))
    again = pl.col(_AGAIN).alias(OUTPUT), pl.col(_CONFIDENCE_AGAIN).alias(CONFIDENCE)
    return int((before != score(compared.select(QUERY_ID, DOC_IDS, *again))).sum())
