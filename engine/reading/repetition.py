"""Repeat a sample of a job's reads in other batches, to measure how much outputs depend on batching.

The last bits of a batch's arithmetic depend on its size and its padding, and greedy decoding turns some
differences into other words. Only a measurement shows how often, for a model, precision and device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl

from engine import tables
from engine.machine import device
from engine.machine.batching import CPU_BATCH_TOKENS, GPU_BATCH_TOKENS
from engine.machine.pool import PoolSettings
from engine.messages.errors import ReadError
from engine.reading.backends import Backend, backend_for, reads_here
from engine.reading.local import Executor, Local
from engine.reading.plan import GROUP, SIZE, PlansInMemory, ReadPlan, with_outputs
from engine.reading.protocol import ReaderSpec
from engine.sources.io.digests import digest
from engine.tables import CONFIDENCE, DOC_IDS, FAILURE, OUTPUT, QUERY_ID, READ_KEY

_LISTED = 10  # the most changed reads in the list
_TOGETHER = 256  # the most reads that are repeated together in a unit


def repeat_sample(
    requested: pl.DataFrame,
    reads: pl.DataFrame,
    spec: ReaderSpec,
    *,
    size: int,
    seed: int,
    score: Callable[[pl.DataFrame], pl.Series],
    pool: PoolSettings,
    executor: Executor | None = None,
) -> dict[str, Any]:
    """Repeat a sample of a job's reads with a fresh reader, and report changes (docs/formats.md). Stores nothing.

    Args:
        reads: their outputs, with ``failure``.
        size, seed: as in ``draw``.
        score: values by row for a table of ``query_id``, ``doc_ids``, ``output`` and ``confidence``.
        pool: a single actor of the pool does the repetition.
        executor: does the reads instead of the reader.
    """
    plan, place = draw(requested, reads, size, seed), pl.int_range(pl.len())
    alone = (plan.height + 1) // 2
    # Each group is a unit: half of the reads alone, the others together.
    group = pl.when(place < alone).then(place).otherwise(alone + (place - alone) // _TOGETHER)
    plan = plan.with_columns(pl.lit(1).alias(SIZE), group.alias(GROUP))
    single = pool if reads_here(pool, spec) else replace(pool, actors=1)
    backend: Backend = (local := Local([spec], [None], executor=executor))
    if not plan.is_empty():
        backend = backend_for(single, local, size=int(plan.estimated_size()))
    in_other_batches, tokens = spec, 0
    if spec.engine == "transformers":  # other engines make their own batches
        tokens = spec.batch_tokens or (GPU_BATCH_TOKENS if backend.gpu else CPU_BATCH_TOKENS)
        in_other_batches = replace(spec, batch_tokens=max(1, tokens // 2))
    local.specs = [in_other_batches]
    units = list(backend.read(PlansInMemory([ReadPlan(reads=plan, wanted=plan.height)])))
    if lost := plan.height - sum(unit.done for unit in units):
        raise ReadError(f"{lost} repeated reads were lost; run again")
    outputs = (unit.reads for unit in units if unit.reads is not None)
    again = pl.concat([tables.empty(tables.READS), *outputs])
    # One row per query, without failed repetitions, in the order of the plan.
    keys = plan.select(READ_KEY).join(again, on=READ_KEY, how="semi", maintain_order="left")
    before = keys.join(reads, on=READ_KEY, how="left", maintain_order="left_right")
    before = before.unique([READ_KEY, QUERY_ID], keep="first", maintain_order=True)
    after = with_outputs(before, again)
    changed = before.with_columns(repeated=after[OUTPUT]).filter(before[OUTPUT] != after[OUTPUT])
    changes = changed.unique(READ_KEY, keep="first", maintain_order=True)
    return {
        "repeated": plan.height,
        "alone": alone,
        "failed": sum(len(unit.failures) for unit in units),
        "changed_outputs": changes.height,
        "changed_labels": int((score(before) != score(after)).sum()),
        "largest_confidence_difference": (before[CONFIDENCE] - after[CONFIDENCE]).abs().max(),
        "changes": changes.select(QUERY_ID, DOC_IDS, OUTPUT, "repeated").head(_LISTED).to_dicts(),
        "seed": seed,
        "dtype": spec.dtype if spec.is_reproducible else "unknown",
        "device": spec.api.settings.host if spec.api else device.describe(gpu=backend.gpu),
        "batches": {"tokens": tokens, "memory": spec.memory},
        "repeated_batches": {"tokens": in_other_batches.batch_tokens, "memory": spec.memory},
        "sha256": {
            **({"weights": spec.weights} if spec.is_reproducible else {}),
            "reader": spec.fingerprint,
            "reads": digest("".join(requested[READ_KEY].unique().sort()).encode()),
        },
        "reproducible": spec.is_reproducible,
    }


def draw(requested: pl.DataFrame, reads: pl.DataFrame, size: int, seed: int) -> pl.DataFrame:
    """Draw ``size`` of a job's distinct reads at random, in random order; all reads if there are fewer.

    Each kind (reads of no passage, a single one, several) gives the same share, or all its reads. The sample depends on
    the seed and the set of reads, not on their order.
    """
    kinds = pl.col(DOC_IDS).list.len().clip(upper_bound=2)
    succeeded = requested.filter(reads[FAILURE].is_null())
    distinct = succeeded.unique(READ_KEY, keep="first", maintain_order=True).sort(READ_KEY)
    generator, drawn = np.random.default_rng(seed), distinct.clear()
    groups = [group for _, group in distinct.group_by(kinds, maintain_order=True)]
    groups.sort(key=lambda group: (group.height, group[READ_KEY][0]))
    for position, group in enumerate(groups):  # the smallest first: larger groups make up for it
        share = -(-(size - drawn.height) // (len(groups) - position))
        drawn = drawn.vstack(group[generator.permutation(group.height)[:share]])
    return drawn[generator.permutation(drawn.height)]
