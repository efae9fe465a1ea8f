"""Reads without an evaluation: planned, done and taken from a store by the engine's own parts."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import polars as pl

from engine import tables
from engine.machine.pool import PoolSettings
from engine.machine.watch import PoolTotals
from engine.reading import store
from engine.reading.backends import Progress, backend_for
from engine.reading.costs import ReadingCosts, add_counters, share_costs
from engine.reading.local import Executor, Local
from engine.reading.plan import (
    PlansInMemory,
    ReadPlan,
    longest_first,
    missing_reads,
    output_columns,
    with_outputs,
)
from engine.reading.protocol import ReaderSpec, ReadOutput
from engine.sources.io.folders import Folder, folder_at
from engine.sources.io.locations import Location
from engine.tables import FAILURE, READ_KEY


class Wanted(NamedTuple):
    """Reads of a reader, as ``plan.requested_reads`` returns them."""

    reads: pl.DataFrame
    spec: ReaderSpec


def get_reads(
    wanted: pl.DataFrame,
    spec: ReaderSpec,
    directory: Location,
    *,
    pool: PoolSettings,
    executor: Executor | None = None,
    host: type[Local] = Local,
    on_progress: Progress = lambda done, total: None,
) -> tuple[pl.DataFrame, ReadingCosts]:
    """Get all wanted reads of a reader: from the store, or by reading.

    Args:
        host: as in ``get_all_reads``.

    Returns:
        the reads table, a row for each wanted read, with the column ``failure``; and the cost.
    """
    (got,) = get_all_reads(
        [Wanted(wanted, spec)], directory,
        pool=pool, executor=executor, host=host, on_progress=on_progress,
    )  # fmt: skip
    return got


def get_all_reads(
    asked: Sequence[Wanted],
    directory: Location,
    *,
    pool: PoolSettings,
    executor: Executor | None = None,
    host: type[Local] = Local,
    on_progress: Progress = lambda done, total: None,
) -> list[tuple[pl.DataFrame, ReadingCosts]]:
    """As ``get_reads``, for readers that share a model.

    Args:
        host: hosts the readers.
    """
    place = folder_at(directory)
    plans: list[ReadPlan] = []
    for number, one in enumerate(asked):
        earlier = [other.reads for other in asked[:number] if other.spec == one.spec]
        plans.append(replace(_plan(one, place, earlier), role=number))
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
        local = host(specs, [place] * len(specs), executor=executor)
        backend = backend_for(pool, local, size=int(whole.estimated_size()), totals=totals)
        made = PlansInMemory(plans).sized(backend.actors, backend.gpu, backend.alone)
        for unit in backend.read(made):
            of_role, role = costs[unit.plan.role], unit.plan.role
            of_role.add(unit)
            of_role.failed += len(unit.failures)
            failed[role] |= {key: reason for key, (_, reason) in unit.failures.items()}
            got += unit.done
            on_progress(got, wanted)
            if unit.worker:
                workers[role][unit.worker] = unit.stats
    for of_role, counters in zip(costs, workers, strict=True):
        add_counters(of_role, counters)
    share_costs(costs, time.perf_counter() - begun, totals)
    return [
        (_answers(one, place, failures), of_role)
        for one, failures, of_role in zip(asked, failed, costs, strict=True)
    ]


def _plan(one: Wanted, place: Folder, earlier: Sequence[pl.DataFrame]) -> ReadPlan:
    tidied = store.tidy(place, one.spec.fingerprint)
    found = store.find(store.listing(place, one.spec.fingerprint), one.reads[READ_KEY].unique())
    known = pl.concat([found.reads[[READ_KEY]], *(reads[[READ_KEY]] for reads in earlier)])
    missing = missing_reads(one.reads, known)
    plan = longest_first(missing, one.spec)
    reused = one.reads[READ_KEY].n_unique() - plan.height
    damaged = (*tidied, *found.damaged)
    return ReadPlan(reads=plan, wanted=reused + plan.height, reused=reused, damaged=damaged)


def _answers(one: Wanted, place: Folder, failures: dict[str, str]) -> pl.DataFrame:
    found = store.find(store.listing(place, one.spec.fingerprint), one.reads[READ_KEY].unique())
    failed = pl.DataFrame({READ_KEY: list(failures)}, {READ_KEY: pl.String}).hstack(
        output_columns([ReadOutput.failed(reason) for reason in failures.values()])
    )
    done = found.reads.with_columns(pl.lit(None, pl.String).alias(FAILURE))
    outputs = pl.concat([done, failed], how="diagonal")
    return with_outputs(one.reads, outputs).select([*tables.READS, FAILURE])
