"""Getting reads: from the store where they are there, else by reading; the store grows as units end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from engine import tables
from engine.errors import ReadError
from engine.reading import device, store
from engine.reading import execute as in_process
from engine.reading.batching import CPU_BATCH_TOKENS, GPU_BATCH_TOKENS
from engine.reading.execute import UnitResult
from engine.reading.plan import Unit, cut_units, missing_reads
from engine.reading.protocol import ReaderSpec
from engine.tables import (
    DOC_IDS,
    OUTPUT,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    QUERY_ID,
    READ_KEY,
    TRUNCATED,
)

FAILURE = "failure"
_CHARACTERS_PER_TOKEN = 4  # of English text; a unit's size need not be exact

Progress = Callable[[int, int], None]
Executor = Callable[[pl.DataFrame, Sequence[Unit], ReaderSpec], Iterator[UnitResult]]


@dataclass
class ReadingCosts:
    """What a job's reads cost.

    Attributes:
        wanted: distinct reads that the job asked for.
        reused: those found in the store.
        done: those done now, failed ones included.
        failed: those that could not be done.
        seconds: wall-clock seconds of reading, start of the actors included.
        prompt_tokens, output_tokens: of the reads done now.
        padded_tokens: tokens that the device computed for the prompts, padding included.
        memory_halvings: batches halved because memory ran out.
        workers: peak memory in bytes of each actor.
    """

    wanted: int = 0
    reused: int = 0
    done: int = 0
    failed: int = 0
    seconds: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    padded_tokens: int = 0
    memory_halvings: int = 0
    workers: dict[str, int] = field(default_factory=dict)


def get_reads(
    wanted: pl.DataFrame,
    spec: ReaderSpec,
    directory: Path,
    *,
    actors: int | None,
    on_progress: Progress = lambda done, total: None,
    executor: Executor | None = None,
) -> tuple[pl.DataFrame, ReadingCosts]:
    """Have all wanted reads: reuse what the store holds, do what it lacks.

    Args:
        wanted: as ``plan.wanted_reads`` gives them.
        spec: the reader.
        directory: the read store.
        actors: actors on Ray; None for as many as the cluster has room for, 0 for none (the reads
            are done in this process).
        on_progress: called with the distinct reads done and wanted, first with what was reused.
        executor: does the units instead of the reader (tests).

    Returns:
        the reads table with one row per row of ``wanted`` in its order, and a further column
        ``failure`` (null, or why the read could not be done, and then ``output`` is empty); and
        what it cost. Failed reads are not stored.
    """
    start = time.perf_counter()
    stored = store.load(directory, spec.fingerprint).join(wanted, on=READ_KEY, how="semi")
    plan = missing_reads(wanted, stored)
    distinct = stored.height + plan.height
    costs = ReadingCosts(wanted=distinct, reused=stored.height)
    on_progress(stored.height, distinct)
    frames = [stored.with_columns(pl.lit(None, pl.String).alias(FAILURE))]
    if plan.height:
        units = cut_units(
            plan,
            characters=_unit_characters(),
            shared=len(spec.shared_prefix),
        )
        run = executor or _executor(actors)
        workers: dict[str, dict[str, Any]] = {}
        for result in run(plan, units, spec):
            done = _reads_table(plan, result)
            store.add(
                directory, spec.fingerprint, done.filter(pl.col(FAILURE).is_null()).drop(FAILURE)
            )
            frames.append(done)
            workers[result.worker] = result.stats
            costs.done += done.height
            on_progress(stored.height + costs.done, distinct)
        if costs.done != plan.height:
            raise ReadError(f"{plan.height - costs.done} reads were lost on the way; run again")
        fresh = pl.concat(frames[1:])
        costs.failed = fresh[FAILURE].count()
        costs.prompt_tokens = int(fresh[PROMPT_TOKENS].sum())
        costs.output_tokens = int(fresh[OUTPUT_TOKENS].sum())
        costs.padded_tokens = sum(stats["padded_tokens"] for stats in workers.values())
        costs.memory_halvings = sum(stats["memory_halvings"] for stats in workers.values())
        costs.workers = {name: stats["peak_memory"] for name, stats in workers.items()}
        costs.seconds = time.perf_counter() - start
    known = pl.concat(frames).drop(QUERY_ID, DOC_IDS)
    reads = wanted.select(READ_KEY, QUERY_ID, DOC_IDS).join(
        known, on=READ_KEY, how="left", maintain_order="left"
    )
    return reads.select([*tables.READS, FAILURE]), costs


def _unit_characters() -> int:
    """Some seconds of work: one device batch on a CPU, several on a GPU."""
    tokens = 4 * GPU_BATCH_TOKENS if device.machine_has_gpu() else CPU_BATCH_TOKENS
    return tokens * _CHARACTERS_PER_TOKEN


def _executor(actors: int | None) -> Executor:
    if actors == 0:
        return in_process.execute
    from engine.reading import pipeline

    def on_ray(
        plan: pl.DataFrame, units: Sequence[Unit], spec: ReaderSpec
    ) -> Iterator[UnitResult]:
        pipeline.start_ray()
        size = sum(path.stat().st_size for path in Path(spec.path).glob("*.safetensors"))
        pool = min(actors or pipeline.default_actors(size), len(units))
        return pipeline.execute(plan, units, spec, actors=pool)

    return on_ray


def _reads_table(plan: pl.DataFrame, result: UnitResult) -> pl.DataFrame:
    rows = plan.slice(result.unit.offset, result.unit.length)
    outputs = result.outputs
    return rows.select(READ_KEY, QUERY_ID, DOC_IDS).with_columns(
        pl.Series(OUTPUT, [o.output for o in outputs], dtype=pl.String),
        pl.Series(PROMPT_TOKENS, [o.prompt_tokens for o in outputs], dtype=pl.Int64),
        pl.Series(OUTPUT_TOKENS, [o.output_tokens for o in outputs], dtype=pl.Int64),
        pl.Series(TRUNCATED, [o.truncated for o in outputs], dtype=pl.Boolean),
        pl.Series(FAILURE, [o.failure for o in outputs], dtype=pl.String),
    )
