"""Check repeatability: read a sample of each role's reads again."""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from engine.evaluation.digest import inputs_sha256
from engine.evaluation.passes import Pass, failures_of
from engine.evaluation.read_jobs import Job
from engine.evaluation.workload import Workload, digest_of_shards
from engine.reading.executors import Executor
from engine.reading.plan import answered
from engine.reading.repetition import RepeatabilityCheck, Sample, repeat_sample
from engine.tables import FAILURE, READ_KEY


def check_repeatability(
    work: Workload, passes: Sequence[Pass], executor: Executor | None
) -> list[dict[str, RepeatabilityCheck]]:
    """Repeat a sample of every role's reads under each condition, as many as ``certify`` says."""
    return [
        {role: _check_role(work, condition, job, passes, executor) for role, job in jobs.items()}
        if work.conditions[condition].running.certify
        else {}
        for condition, jobs in enumerate(work.roles)
    ]


def _check_role(
    work: Workload, condition: int, job: Job, passes: Sequence[Pass], executor: Executor | None
) -> RepeatabilityCheck:
    settings = work.conditions[condition]
    wanted: list[pl.DataFrame] = []
    reads: list[pl.DataFrame] = []
    queries: list[pl.DataFrame] = []
    enough = settings.running.certify
    # Queries are in shards by a hash of their texts: the first ones with enough reads are a random sample.
    for shard in work.shards.shards:
        inputs = work.shards.read(shard.number)
        of_shard = job.wanted(work.lists(job, inputs, condition), inputs.queries, inputs.corpus)
        failed = {key: why.reason for key, why in failures_of(passes, shard.number).items()}
        # The store may be another one than that which the shard was read into; not all labels may be needed.
        known = work.parts[condition].reads(shard)
        of_shard = of_shard.join(known, on=READ_KEY, how="semi", maintain_order="left")
        reasons = pl.Series(FAILURE, map(failed.get, known[READ_KEY]), dtype=pl.String)
        wanted.append(of_shard)
        reads.append(answered(of_shard, known.with_columns(reasons)))
        queries.append(inputs.queries)
        enough -= of_shard[READ_KEY].n_unique()
        if enough <= 0:
            break
    of_queries = pl.concat(queries)
    digests = {"shards": digest_of_shards(work.shards)}
    if work.prepared:
        digests = inputs_sha256(work.prepared[condition].inputs)
    return repeat_sample(
        pl.concat(wanted),
        pl.concat(reads),
        job.spec,
        sample=Sample(settings.running.certify, settings.bootstrap.seed),
        score=lambda some: job.ask.value(some, of_queries),
        sha256={"prompt": job.prompt.digest, **digests},
        pool=settings.running.pool(),
        executor=executor,
    )
