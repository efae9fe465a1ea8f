"""Reads without an evaluation around them: planned, done and taken from a store by the engine's own parts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import polars as pl

from engine import tables
from engine.machine.pool import PoolSettings
from engine.machine.watch import PoolTotals
from engine.reading import executors, store
from engine.reading.costs import ReadingCosts, add_counters, add_kinds, share_costs
from engine.reading.execute import output_columns
from engine.reading.plan import INPUTS, SIZE, answered, longest_first, missing_reads
from engine.reading.protocol import ReaderSpec, ReadOutput
from engine.reading.stream import Host, Ready, ShardPlan, UnitSizes
from engine.sources.io.folders import Folder, folder_at
from engine.sources.io.locations import Location
from engine.tables import FAILURE, READ_KEY


class Wanted(NamedTuple):
    """Reads, as ``plan.wanted_reads`` gives them, of a reader."""

    reads: pl.DataFrame
    spec: ReaderSpec


def get_reads(
    wanted: pl.DataFrame,
    spec: ReaderSpec,
    directory: Location,
    *,
    pool: PoolSettings,
    executor: executors.Executor | None = None,
    backend: executors.Backend | None = None,
    host: type[Host] = Host,
    on_progress: executors.Progress = lambda done, total: None,
) -> tuple[pl.DataFrame, ReadingCosts]:
    """Get all wanted reads of one reader: those in the store, and the others by reading.

    Args:
        backend, host: as in ``get_all_reads``.

    Returns:
        the reads table, a row for each wanted read, with the column ``failure``; and what it cost.
    """
    (got,) = get_all_reads(
        [Wanted(wanted, spec)], directory,
        pool=pool, executor=executor, backend=backend, host=host, on_progress=on_progress,
    )  # fmt: skip
    return got


def get_all_reads(
    asked: Sequence[Wanted],
    directory: Location,
    *,
    pool: PoolSettings,
    executor: executors.Executor | None = None,
    backend: executors.Backend | None = None,
    host: type[Host] = Host,
    on_progress: executors.Progress = lambda done, total: None,
) -> list[tuple[pl.DataFrame, ReadingCosts]]:
    """As ``get_reads``, of readers that share a model.

    Args:
        backend: what to use instead of ``executors.backend_for``.
        host: hosts the readers.
    """
    place = folder_at(directory)
    plans: list[ShardPlan] = []
    for number, one in enumerate(asked):
        earlier = [other.reads for other in asked[:number] if other.spec == one.spec]
        plans.append(_plan(one, place, earlier))
    specs, totals = [one.spec for one in asked], PoolTotals()
    costs = [
        ReadingCosts(wanted=plan.wanted, reused=plan.reused, damaged_files=[*plan.damaged])
        for plan in plans
    ]
    workers: list[dict[str, dict[str, int]]] = [{} for _ in asked]
    failed: list[dict[str, str]] = [{} for _ in asked]
    whole = pl.concat([plan.reads for plan in plans])
    begun = time.perf_counter()
    wanted, got = sum(plan.wanted for plan in plans), sum(plan.reused for plan in plans)
    on_progress(got, wanted)
    if whole.height:
        backend = backend or executors.backend_for(
            pool, specs, executor, size=int(whole.estimated_size())
        )
        actors = min(backend.actors, whole.height)
        size = executors.unit_tokens(int(whole[SIZE].sum()), actors=actors, gpu=backend.gpu)
        sizes = UnitSizes(size, size, size)
        ready = [Ready(replace(plan, sizes=sizes, sharing=actors)) for plan in plans]
        hosting = host(specs, [place] * len(specs), held=True)
        for done in backend.read([0], ready, hosting, totals=totals):
            of_role = costs[done.role]
            of_role.done += done.reads
            of_role.failed += len(done.failures)
            of_role.prompt_tokens += done.prompt_tokens
            of_role.output_tokens += done.output_tokens
            of_role.reader_seconds += done.seconds
            add_kinds(of_role.kinds, done.kinds)
            failed[done.role] |= {key: failure.reason for key, failure in done.failures.items()}
            got += done.reads
            on_progress(got, wanted)
            if done.worker:
                workers[done.role][done.worker] = done.stats
    for of_role, counters in zip(costs, workers, strict=True):
        add_counters(of_role, counters)
    share_costs(costs, time.perf_counter() - begun, totals)
    return [
        (_answers(one, place, failures), of_role)
        for one, failures, of_role in zip(asked, failed, costs, strict=True)
    ]


def _plan(one: Wanted, place: Folder, earlier: Sequence[pl.DataFrame]) -> ShardPlan:
    tidied = store.tidy(place, one.spec.fingerprint)
    found = store.find(store.listing(place, one.spec.fingerprint), one.reads[READ_KEY].unique())
    known = pl.concat([found.reads[[READ_KEY]], *(reads[[READ_KEY]] for reads in earlier)])
    missing = missing_reads(one.reads, known)
    sizes = executors.input_sizes(one.spec, missing[INPUTS].to_list())
    plan = longest_first(missing, sizes, lead=len(one.spec.shared_prefix))
    reused = one.reads[READ_KEY].n_unique() - plan.height
    return ShardPlan(plan, reused, UnitSizes(1, 1, 1), None, damaged=(*tidied, *found.damaged))


def _answers(one: Wanted, place: Folder, failures: dict[str, str]) -> pl.DataFrame:
    found = store.find(store.listing(place, one.spec.fingerprint), one.reads[READ_KEY].unique())
    failed = pl.DataFrame({READ_KEY: list(failures)}, {READ_KEY: pl.String}).hstack(
        output_columns([ReadOutput.failed(reason) for reason in failures.values()])
    )
    done = found.reads.with_columns(pl.lit(None, pl.String).alias(FAILURE))
    outputs = pl.concat([done, failed], how="diagonal")
    return answered(one.reads, outputs).select([*tables.READS, FAILURE])
