"""Plan the reads of a shard: its lists and passages, and the reads that are left to do.

The plan of a shard for a job is kept until all shards are scored. It has all reads at once, or, with lazy labels, the
reads of the rounds so far: a chooser names the next reads from the labels so far. While the store has these reads, the
chooser goes on at once, so a stopped evaluation resumes there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import polars as pl

from engine import tables
from engine.evaluation.jobs import NO_LISTS, Job, Run
from engine.evaluation.score import IDENTITY, alone, pairs_to_label
from engine.evaluation.settings import Settings
from engine.inputs.files import OUTPUTS, EvaluationInputs
from engine.machine.batching import CPU_BATCH_TOKENS, GPU_BATCH_TOKENS
from engine.messages.errors import ReadError
from engine.reading import store
from engine.reading.identity import earlier_reads
from engine.reading.plan import (
    INPUTS,
    PlansInMemory,
    ReadPlan,
    longest_first,
    missing_reads,
    output_columns,
    with_outputs,
)
from engine.reading.protocol import ReaderSpec, ReadOutput
from engine.sources.queries.buckets import Range
from engine.statistics.runs import drawn_share, is_drawn
from engine.tables import DOC_ID, DOC_IDS, FAILURE, OUTPUT, QUERY_ID, RANK, READ_KEY, RUN, TEXT


def lists_to_read(inputs: EvaluationInputs, settings: Settings) -> pl.DataFrame:
    """``run``, ``query_id``, ``doc_ids`` of lists to read whole, or with recorded outputs; inputs as of ``settings.cut_for``."""
    runs = inputs.runs
    rows, key = runs.sort(RUN, QUERY_ID, RANK).filter(settings.is_given), [RUN, QUERY_ID]
    listed = rows.group_by(key, maintain_order=True).agg(pl.col(DOC_ID).alias(DOC_IDS))
    lists = inputs.lists().join(inputs.unread, on=key, how="anti", maintain_order="left")
    lists = lists.join(listed, on=key, how="left", maintain_order="left")
    lists = lists.with_columns(pl.col(DOC_IDS).fill_null([]))
    if (outputs := inputs.tables.get(OUTPUTS)) is not None:  # a sample, for a plan, has none
        lists = lists.join(outputs, on=key, how="semi", maintain_order="left")
    if share := settings.bootstrap.lists:
        lists = lists.filter(is_drawn(lists[QUERY_ID], settings.bootstrap.seed, share))
    if settings.ranking.missing == "skip":
        return lists.join(runs, on=key, how="semi", maintain_order="left")
    return lists


def with_share(settings: Settings, query_ids: pl.Series, each: float = 1) -> Settings:
    """The settings with lists as a share of the queries; each of ``query_ids`` stands for ``each`` queries."""
    lists, seed = settings.bootstrap.lists, settings.bootstrap.seed
    if lists is None:
        return settings
    number = lists if lists < 1 else max(1, round(lists / each))
    return settings.but(lists=drawn_share(query_ids, seed, number))


def needed_reads(run: Run, job: Job, inputs: EvaluationInputs, condition: int) -> pl.DataFrame:
    """``query_id`` and ``doc_ids`` of the reads of a shard that a condition needs from a job."""
    own = run.roles[condition].get(job.ask.role.name)
    if own is None or own.identity != job.identity:
        return NO_LISTS
    return own.lists(pairs_to_label(inputs), lists_to_read(inputs, run.conditions[condition]))


def shard_reads(run: Run, job: Job, shard: Sequence[EvaluationInputs]) -> pl.DataFrame:
    """The reads of a shard that any condition needs from a job (``reading.plan.REQUESTED``)."""
    lists = [needed_reads(run, job, inputs, number) for number, inputs in enumerate(shard)]
    distinct = lists[0] if len(lists) == 1 else pl.concat(lists).unique(maintain_order=True)
    deepest = max(shard, key=lambda inputs: inputs.corpus.height)  # has the others' passages
    return job.requested(distinct, deepest.queries, deepest.corpus)


# Columns of a plan on its origin: the pass over the shards (``store.Listing.uid``), whether a read is stored or done
# by another job, the damaged files of the store, and whether the plan is the last of its shard.
_PASS, _STORED, _DAMAGED, _LAST = "pass", "stored", "damaged", "last"
# Failed reads, by key: the query's id, and the reason.
Failures = Mapping[str, tuple[str, str]]
# Files of the store that may have a reader's reads of a shard, by the reader's fingerprint.
Files = Mapping[str, store.Listing]


@dataclass(frozen=True)
class ShardPlans:
    """Plans the reads of jobs that share a model (``reading.plan.Plans``).

    Attributes:
        places: indices of the jobs in ``run.jobs``.
        listings: by job, the files in the store when this pass over the shards began.
        shards: numbers of the shards of this pass, in order.
        failures: by job and shard, failed reads of earlier rounds: no answer, and not read again.
        actors: the number of actors, which decides the size of units.
        gpu: whether actors have GPUs.
        restarts: whether each round of lazy labels starts processes.
    """

    run: Run
    places: tuple[int, ...]
    listings: tuple[store.Listing, ...]
    shards: tuple[int, ...]
    failures: tuple[Mapping[int, Failures], ...]
    actors: int = 1
    gpu: bool = False
    restarts: bool = False

    def __call__(self, shard: int, role: int) -> ReadPlan:
        """The plan of a shard for the job at ``places[role]``: its reads less those in the store, longest first."""
        self.run.refuse_others()
        job, known = self.run.jobs[self.places[role]], self.run.shards.shards
        inputs = self.run.read(shard)
        earlier: list[pl.DataFrame] = []
        if is_lazy(self.run, job):  # the reads of other jobs are not known yet
            requested, last = self._chosen(shard, role, inputs[0])
        else:
            requested, last = self._adopted(job, shard_reads(self.run, job, inputs)), True
            earlier = [shard_reads(self.run, other, inputs) for other in self.run.before(job)]
        shard_plan = self._shard_plan(shard, role, requested.drop(INPUTS), earlier, last)
        missing = missing_reads(requested, shard_plan.filter(_STORED))
        plan = ReadPlan(
            reads=longest_first(missing, job.spec),
            wanted=(distinct := requested[READ_KEY].n_unique()),
            reused=distinct - missing.height,
            shard=shard,
            role=role,
            span=known[shard].span,
            damaged=() if shard_plan.is_empty() else tuple(shard_plan[_DAMAGED][0]),
            last=last,
        )
        # Units are as large as the remaining reads allow, if all shards were like this one.
        tokens, own = plan.size, max(1, known[shard].pairs)
        pairs = [known[number].pairs for number in self.shards]
        behind = tokens * sum(pairs[self.shards.index(shard) + 1 :]) // own
        total = tokens * max(1, sum(pairs) // own)
        alone = job.spec.function is not None and self.actors == 1
        plan = replace(plan, sharing=self.actors, behind=behind)
        return plan.sized(total, actors=self.actors, gpu=self.gpu, alone=alone)

    def in_memory(self) -> PlansInMemory:
        """The plans of the only shard, computed in this process, which holds the inputs."""
        return PlansInMemory([self(self.shards[0], role) for role in range(len(self.places))])

    def _chosen(self, shard: int, role: int, inputs: EvaluationInputs) -> tuple[pl.DataFrame, bool]:
        """The reads that a chooser names from the labels so far, and whether they are final."""
        from engine.adaptive.labels import decider, next_reads

        run, job, settings = self.run, self.run.jobs[self.places[role]], self.run.conditions[0]
        before = run.parts[0].plan(plan_name(run, job), shard)
        # Half a batch for each actor of this shard, or as many requests as the server gets at a time.
        size = max(1, int(inputs.corpus[TEXT].str.len_chars().sum()) // 4)
        batch = GPU_BATCH_TOKENS if self.gpu else CPU_BATCH_TOKENS
        least = -(-self.actors // len(self.shards)) * batch * inputs.corpus.height // (2 * size)
        if job.spec.api:
            least = job.spec.api.settings.concurrency
        name = next(n for n, ask in settings.resolved.asks.items() if ask.role == job.ask.role)
        whys = zip(settings.resolved.measures, settings.resolved.reasons(name), strict=True)
        decide = decider(
            inputs.runs,
            [measure for measure, why in whys if not why],
            lambda reads: job.ask.value(reads, inputs.queries),
            own_list=settings.relevant(len(inputs.run_names)) == "list",
            least=least,
            doubles=self.restarts,
        )

        def adopted(lists: pl.DataFrame) -> pl.DataFrame:
            return self._adopted(job, job.requested(lists, inputs.queries, inputs.corpus))

        def answered(lists: pl.DataFrame) -> pl.DataFrame:
            requested = adopted(lists)
            stored = self._stored_reads(role, requested, run.shards.shards[shard].span)
            reads = with_failures(requested, stored.reads, self.failures[role].get(shard, {}))
            return reads.filter(pl.col(OUTPUT).is_not_null())

        lists = needed_reads(run, job, inputs, 0)
        if before is not None and before[_PASS].first() == self.listings[role].uid:
            lists = lists.unique(IDENTITY, maintain_order=True)
            lists = lists.join(before, on=IDENTITY, how="semi", maintain_order="left")
            return adopted(lists), bool(before[_LAST].first())
        fused = job.prompt.fused and bool(settings.bootstrap.samples)
        singles = alone(pairs_to_label(inputs))
        lists, last = next_reads(
            lists, singles, before, answered=answered, decide=decide, fused=fused
        )
        return adopted(lists), last

    def _adopted(self, job: Job, requested: pl.DataFrame) -> pl.DataFrame:
        """The requested reads, after stored reads with earlier keys are copied to the current keys."""
        spec, place = job.spec, self.run.store
        store.add(place, spec.fingerprint, earlier_reads(spec, place, requested))
        return requested

    def _shard_plan(
        self,
        shard: int,
        role: int,
        identified: pl.DataFrame,
        earlier: Sequence[pl.DataFrame],
        last: bool,
    ) -> pl.DataFrame:
        parts, name = self.run.parts[0], plan_name(self.run, self.run.jobs[self.places[role]])
        before, uid = parts.plan(name, shard), self.listings[role].uid
        if before is not None and before[_PASS].first() == uid:
            return before
        known = self._stored_reads(role, identified, self.run.shards.shards[shard].span)
        # Failed reads of earlier rounds are not read again.
        failed = pl.Series(READ_KEY, list(self.failures[role].get(shard, ())), pl.String)
        stored = pl.concat([known.reads[READ_KEY], failed, *(reads[READ_KEY] for reads in earlier)])
        plan = identified.with_columns(
            pl.col(READ_KEY).is_in(stored.implode()).alias(_STORED),
            pl.lit(uid).alias(_PASS),
            pl.lit(last).alias(_LAST),
            pl.lit(list(known.damaged), pl.List(pl.String)).alias(_DAMAGED),
        )
        parts.keep_plan(name, shard, plan)
        return plan

    def _stored_reads(
        self, role: int, reads: pl.DataFrame, span: Range | None
    ) -> store.StoredReads:
        listing, spec = self.listings[role], self.run.jobs[self.places[role]].spec
        if spec.earlier:  # reads copied from earlier keys are not listed yet
            names = store.listing(self.run.store, spec.fingerprint).names
            listing = replace(listing, names=names)
        return store.find(listing, reads[READ_KEY].unique(), span=span)


def is_lazy(run: Run, job: Job) -> bool:
    """Whether a job reads only the single passages whose labels are needed."""
    settings = run.conditions[0]
    asking = [ask.role for ask in settings.resolved.asks.values()]
    return settings.running.lazy and job.ask.role in asking


def plan_name(run: Run, job: Job) -> str:
    """The name of a job's plans."""
    name = job.ask.role.name
    return f"{name}-{run.jobs.index(job)}" if len(run.conditions) > 1 else name


def planned_reads(run: Run, job: Job, shard: int, failures: Failures, files: Files) -> pl.DataFrame:
    """The planned reads of a job, from the store (``tables.READS`` and ``failure``).

    Raises:
        ReadError: reads are lost, or a reader that had to choose wrote text.
    """
    requested = run.parts[0].needed_plan(plan_name(run, job), shard)
    # Reads copied from earlier keys belong to no unit.
    listed = store.listing(run.store, job.spec.fingerprint) if job.spec.earlier else None
    listing, span = listed or files[job.spec.fingerprint], run.shards.shards[shard].span
    outputs = store.find(listing, requested[READ_KEY], span=span).reads
    reads = with_failures(requested, outputs, failures)
    if lost := reads.filter(pl.col(OUTPUT).is_null()).height:
        raise ReadError(f"{lost} reads were lost on the way; run again")
    reads = reads.select([*tables.READS, FAILURE])
    _refuse_written(reads, job.spec)
    return reads


def with_failures(
    requested: pl.DataFrame, outputs: pl.DataFrame, failures: Failures
) -> pl.DataFrame:
    """Each requested read with its output or ``failure`` (``reading.plan.with_outputs``)."""
    reasons = output_columns([ReadOutput.failed(reason) for _, reason in failures.values()])
    failed = pl.DataFrame({READ_KEY: list(failures)}, {READ_KEY: pl.String}).hstack(reasons)
    whole = outputs.with_columns(pl.lit(None, pl.String).alias(FAILURE))
    return with_outputs(requested, pl.concat([whole, failed], how="diagonal"))


def _refuse_written(reads: pl.DataFrame, spec: ReaderSpec) -> None:
    """Refuse choices without a probability: null would count as no, NaN as yes."""
    unsure = reads[tables.CONFIDENCE].is_null() | reads[tables.CONFIDENCE].is_nan().fill_null(False)
    written = reads[FAILURE].is_null() & unsure
    if (spec.choices or spec.scores) and written.any():
        task = f"choose between {', '.join(map(repr, spec.choices))}" * bool(spec.choices)
        calls = f"{written.sum()} of {reads.height} LLM calls"
        task = task or "give log-probabilities"
        raise ReadError(f"{spec.name!r} generated text in {calls} where it had to {task}")
