"""Reading the probe of a plan: with what the evaluation would be read, into the store that it would use."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import polars as pl

from engine.evaluation.context import Context
from engine.machine.pool import PoolSettings
from engine.messages.errors import WriteError
from engine.planning import probe
from engine.planning.counts import Counted
from engine.planning.forecast import PlanSettings, Probe
from engine.planning.probe import ProbeBackend, Timed
from engine.reading import store
from engine.reading.protocol import ReaderSpec


@dataclass
class Group:
    """Jobs whose readers share a model, and the batches of the probe that these did."""

    jobs: Sequence[Counted]
    backend: ProbeBackend | None = None
    timed: list[Timed] = field(default_factory=list)

    @property
    def room(self) -> int:
        return self.backend.room if self.backend else 1

    def of(self, job: int) -> list[Timed]:
        """The batches of a job, by its place."""
        return [one for one in self.timed if one.batch.stratum.job == job]


@dataclass
class Prober:
    """Reads the probe, and keeps its reads.

    Attributes:
        unstored: why they are not in the store; empty where they are.
        seconds: of the whole probe.
        done: reads so far.
    """

    context: Context
    asked: PlanSettings
    pool: PoolSettings
    unstored: str = ""
    seconds: float = 0.0
    done: int = 0

    def read(self, jobs: Sequence[Counted], share: float, *, seed: int) -> Group:
        """Do the part of the probe that falls to the readers of a model."""
        if self.asked.probe_reads == 0 or not any(one.left.height for one in jobs):
            return Group(jobs)
        begun = time.perf_counter()
        specs = [one.job.spec for one in jobs]
        backend = probe.backend_for(self.pool, specs, self.context.executor)
        wanted = self.asked.probe_reads or probe.default_reads(backend)
        batches = probe.choose(
            [one.left for one in jobs], round(wanted * share), actors=backend.actors, seed=seed
        )
        total = self.done + sum(batch.reads.height for batch in batches)
        self.context.on_progress(self.done, total)
        group = Group(jobs, backend)
        for timed in probe.read_batches(
            batches, specs, backend.backend, begun, self.context.on_event
        ):
            group.timed.append(timed)
            self._keep(specs[timed.batch.stratum.job], timed.outputs)
            self.done += timed.done.reads
            self.context.on_progress(self.done, total)
        self.seconds += time.perf_counter() - begun
        return group

    def _keep(self, spec: ReaderSpec, reads: pl.DataFrame) -> None:
        if not spec.is_kept:
            what = "version" if spec.function and self.context.executor is None else "name"
            self.unstored = f"a function without a {what} makes them"
        if self.unstored:
            return
        try:
            store.add(self.context.place, spec.fingerprint, reads)
        except WriteError as error:
            self.unstored = str(error)

    def made(self, groups: Sequence[Group]) -> Probe | None:
        """What the probe was; None where nothing was read."""
        backends = [group.backend for group in groups if group.backend is not None]
        if not backends:
            return None
        done = [timed.done for group in groups for timed in group.timed]
        failed = [failure.reason for one in done for failure in one.failures.values()]
        return Probe(
            reads=sum(one.reads for one in done),
            actors=max(one.actors for one in backends),
            share=backends[0].share,
            room=min(one.room for one in backends),
            seconds=self.seconds,
            failed=len(failed),
            failure=next(iter(failed), ""),
            unstored=self.unstored,
        )
