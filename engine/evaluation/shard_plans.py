"""Plan the reads of a shard on workers, and fetch them from the store once they are done.

The plan of a shard for a job is kept until all shards are scored. It has all reads at once; or, where labels are
lazy, those of the rounds so far: a decider names what the labels so far leave open, as long as the store has it, so
that an evaluation that was stopped goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import polars as pl

from engine import tables
from engine.evaluation.inputs import EvaluationInputs, cut_inputs
from engine.evaluation.lazy import next_pairs
from engine.evaluation.parts import InMemory
from engine.evaluation.prepare import pairs_to_label
from engine.evaluation.read_jobs import IDENTITY, Job, Reading, alone, refuse_written
from engine.evaluation.workload import Workload
from engine.machine.batching import CPU_BATCH_TOKENS, GPU_BATCH_TOKENS
from engine.messages.errors import ReadError
from engine.ranking.ties import reordered_lists
from engine.reading import store
from engine.reading.costs import ReadingCosts, set_wanted, wanted_kinds
from engine.reading.execute import output_columns
from engine.reading.executors import input_sizes, unit_tokens
from engine.reading.identity import earlier_reads
from engine.reading.plan import INPUTS, SIZE, WANTED, answered, longest_first, missing_reads
from engine.reading.protocol import ReadOutput
from engine.reading.store_files import Span
from engine.reading.stream import Failure, ShardPlan, UnitSizes
from engine.tables import DOC_ID, DOC_IDS, FAILURE, LABEL, OUTPUT, QUERY_ID, READ_KEY, RUN, TEXT

# Columns of a plan that say how it was made: for which pass over the shards (``store.Listing.made``),
# which reads are stored or done by another job, which files of the store were damaged, and whether it is the
# last of its shard.
_PASS, _STORED, _DAMAGED, _LAST = "pass", "stored", "damaged", "last"

# By a reader's fingerprint, the files of the store that may have its reads of a shard.
Files = Mapping[str, store.Listing]


@dataclass(frozen=True)
class Planner:
    """Plans the reads of one job (``stream.Planner``).

    Attributes:
        place: of the job, among those of ``work``.
        listing: what the store had when this pass over the shards began.
        left: shards of this pass, in their order.
        actors: for which units are cut, and whether these have GPUs.
        restarts: whether each round of lazy labels starts processes.
        failures: by shard, the reads that failed in earlier rounds, by their keys: no answer, and not read again.
    """

    work: Workload
    place: int
    listing: store.Listing
    left: tuple[int, ...]
    actors: int = 1
    gpu: bool = False
    restarts: bool = False
    failures: Mapping[int, Mapping[str, Failure]] = field(default_factory=dict)

    def __call__(self, shard: int) -> ShardPlan:
        self.work.refuse_others()
        job, known = self.work.jobs[self.place], self.work.shards.shards
        spec = job.spec
        inputs = self.work.shards.read(shard)
        wanted, last = self._asked(shard, inputs)
        # Of lazy labels nobody knows which reads another job will do.
        before = () if self.work.is_lazy(job) else self.work.before(job)
        earlier = [self.work.wanted(other, inputs)[[READ_KEY]] for other in before]
        shard_plan = self._made(shard, wanted.drop(INPUTS), earlier, last)
        damaged = () if shard_plan.is_empty() else tuple(shard_plan[_DAMAGED][0])
        missing = missing_reads(wanted, shard_plan.filter(_STORED))
        reused = wanted[READ_KEY].n_unique() - missing.height
        sizes = input_sizes(spec, missing[INPUTS].to_list())
        plan = longest_first(missing, sizes, lead=len(spec.shared_prefix))
        # As if all shards were like this one: units are as large as all that is left lets them be.
        tokens, own = int(plan[SIZE].sum()), max(1, known[shard].pairs)
        pairs = [known[one].pairs for one in self.left]
        total = tokens * max(1, sum(pairs) // own)
        behind = tokens * sum(pairs[self.left.index(shard) + 1 :]) // own
        alone = spec.function is not None and self.actors == 1
        units = unit_sizes(total, actors=self.actors, gpu=self.gpu, alone=alone)
        span = known[shard].span
        return ShardPlan(plan, reused, units, span, self.actors, behind, damaged, last=last)

    def _asked(self, shard: int, inputs: EvaluationInputs) -> tuple[pl.DataFrame, bool]:
        """The reads that are asked for (``plan.WANTED``), and whether these are all that will be."""
        job = self.work.jobs[self.place]
        if not self.work.is_lazy(job):
            return self._adopted(self.work.wanted(job, inputs)), True
        before = self.work.parts[0].plan(plan_name(self.work, job), shard)
        cut = cut_inputs(inputs, self.work.conditions[0].ranking.k)
        both, singles = self.work.lists(job, cut, 0), alone(pairs_to_label(cut))
        decide = self._decider(cut)
        lists = both.unique(IDENTITY, maintain_order=True)
        whole = both.slice(singles.height)  # comes after single passages, and is read in any case
        new = whole if before is None else whole.join(before, on=IDENTITY, how="anti")
        if job.prompt.fused and self.work.conditions[0].bootstrap.samples and new.height:
            # What is encoded for a list is labelled with it: a later round would have to encode it again.
            passages = alone(new.explode(DOC_IDS).rename({DOC_IDS: DOC_ID}))
            first = decide(self._answered(shard, self._wanted(whole.clear(), inputs)))
            now = singles.join(pl.concat([passages, first]), on=IDENTITY, how="semi")
            whole = pl.concat([whole, now])
        known = whole if before is None else pl.concat([whole, before.select(whole.columns)])
        wanted = self._wanted(lists.join(known, on=IDENTITY, how="semi"), inputs)
        if before is not None and before[_PASS].first() == self.listing.made:
            return wanted, bool(before[_LAST].first())
        asked, reads = wanted.join(singles, on=IDENTITY, how="semi"), []
        while True:
            answers = self._answered(shard, asked)
            if answers.height < asked.height:
                is_last = wanted.height == lists.height
                break
            reads.append(answers)
            needed = singles.join(decide(pl.concat(reads)), on=IDENTITY, how="semi")
            asked = self._wanted(needed.join(wanted, on=IDENTITY, how="anti"), inputs)
            if is_last := asked.is_empty():
                break
            wanted = pl.concat([wanted, asked])
        in_order = lists.join(wanted, on=IDENTITY, how="inner", maintain_order="left")
        return in_order.select(list(WANTED)), is_last

    def _wanted(self, lists: pl.DataFrame, inputs: EvaluationInputs) -> pl.DataFrame:
        return self._adopted(
            self.work.jobs[self.place].wanted(lists, inputs.queries, inputs.corpus)
        )

    def _adopted(self, wanted: pl.DataFrame) -> pl.DataFrame:
        """The reads that are asked for, once those that the store has under earlier keys stand under theirs."""
        spec = self.work.jobs[self.place].spec
        store.add(self.work.store, spec.fingerprint, earlier_reads(spec, self.work.store, wanted))
        return wanted

    def _answered(self, shard: int, asked: pl.DataFrame) -> pl.DataFrame:
        """Those of the reads that are done, or failed."""
        found = self._found(asked.drop(INPUTS), self.work.shards.shards[shard].span)
        reads = with_failures(asked, found.reads, self.failures.get(shard, {}))
        return reads.filter(pl.col(OUTPUT).is_not_null())

    def _decider(self, cut: EvaluationInputs) -> Callable[[pl.DataFrame], pl.DataFrame]:
        """Gives the reads that the labels of others leave open: ``query_id`` and ``doc_ids``."""
        settings, job = self.work.conditions[0], self.work.jobs[self.place]
        # What equal scores would give in another order is reported, too.
        others = (
            rows.join(changed, on=[RUN, QUERY_ID], how="semi")
            for _, rows, changed in reordered_lists(cut.runs)
        )
        lists = [cut.runs, *others]
        name = next(n for n, ask in settings.resolved.asks.items() if ask.role == job.ask.role)
        whys = zip(settings.resolved.measures, settings.resolved.reasons(name), strict=True)
        measures = [measure for measure, why in whys if not why]
        own_list = settings.relevant(len(cut.run_names)) == "list"
        # Half of a batch for each actor of this shard, or as many requests as are under way at a time.
        size = max(1, int(cut.corpus[TEXT].str.len_chars().sum()) // 4)
        batch = GPU_BATCH_TOKENS if self.gpu else CPU_BATCH_TOKENS
        least = -(-self.actors // len(self.left)) * batch * cut.corpus.height // (2 * size)
        if job.spec.api:
            least = job.spec.api.settings.concurrency

        def decide(reads: pl.DataFrame) -> pl.DataFrame:
            document = pl.col(DOC_IDS).list.first().alias(DOC_ID)
            labels = job.ask.value(reads, cut.queries).alias(LABEL)
            known = reads.select(QUERY_ID, document, labels)
            return alone(
                next_pairs(
                    lists, known, measures, own_list=own_list, least=least, doubles=self.restarts
                )
            )

        return decide

    def _made(
        self,
        shard: int,
        identified: pl.DataFrame,
        earlier: Sequence[pl.DataFrame],
        last: bool,
    ) -> pl.DataFrame:
        """The plan that this pass over the shards has made, else a new one."""
        parts, name = self.work.parts[0], plan_name(self.work, self.work.jobs[self.place])
        before = parts.plan(name, shard)
        if before is not None and before[_PASS].first() == self.listing.made:
            return before
        span = self.work.shards.shards[shard].span
        found = self._found(identified, span)
        # What failed in an earlier round is not read again.
        failed = pl.DataFrame({READ_KEY: list(self.failures.get(shard, ()))}, {READ_KEY: pl.String})
        stored = pl.concat([found.reads[[READ_KEY]], failed, *earlier])
        plan = identified.with_columns(
            pl.col(READ_KEY).is_in(stored[READ_KEY].implode()).alias(_STORED),
            pl.lit(self.listing.made).alias(_PASS),
            pl.lit(last).alias(_LAST),
            pl.lit(list(found.damaged), pl.List(pl.String)).alias(_DAMAGED),
        )
        parts.keep_plan(name, shard, plan)
        return plan

    def _found(self, identified: pl.DataFrame, span: Span | None) -> store.Stored:
        """The stored reads among these; held where everything is, so that they are fetched once."""
        parts, job = self.work.parts[0], self.work.jobs[self.place]
        listing = self.listing
        if job.spec.earlier:  # what came from there is not listed yet
            names = store.listing(self.work.store, job.spec.fingerprint).names
            listing = replace(listing, names=names)
        if not isinstance(parts, InMemory):
            return store.find(listing, identified[READ_KEY].unique(), span=span)
        held = parts.outputs[job.spec.fingerprint]
        if not held:
            known = store.load(self.work.store, job.spec.fingerprint)
            reads = known.reads.join(identified, on=READ_KEY, how="semi")
            held.append(reads)
            return known._replace(reads=reads)
        known = store.find(listing, identified[READ_KEY].unique(), span=span)
        held.append(known.reads.join(pl.concat(held), on=READ_KEY, how="anti"))
        return known._replace(reads=pl.concat(held).join(identified, on=READ_KEY, how="semi"))


def plan_name(work: Workload, job: Job) -> str:
    """The name that the plans of a job have."""
    place = work.jobs.index(job)
    return f"{job.ask.role.name}-{place}" if len(work.conditions) > 1 else job.ask.role.name


def unit_sizes(total: int, *, actors: int, gpu: bool, alone: bool = False) -> UnitSizes:
    """How large units are of an evaluation of so many tokens, for so many actors."""
    first = unit_tokens(total, actors=actors, gpu=gpu, alone=alone)
    if alone:
        return UnitSizes(first, first, first)
    return UnitSizes(max(1, first // 4), first, max(first, total // (8 * actors)))


def planner_for(work: Workload, job: Job, shards: Sequence[int], **how: Any) -> Planner:
    """The planner of a job's reads in these shards, which knows what the store has of its reader now."""
    listing = store.listing(work.place(job) or work.store, job.spec.fingerprint)
    return Planner(work, work.jobs.index(job), listing, tuple(shards), **how)


def planned_reading(
    work: Workload, job: Job, shard: int, failures: Mapping[str, Failure], files: Files
) -> Reading:
    """The reads of a job, as they were planned, from the store.

    Raises:
        ReadError: reads are lost, or a reader wrote where it had to choose.
    """
    plan = work.parts[0].needed_plan(plan_name(work, job), shard)
    wanted = plan.select(name for name in WANTED if name != INPUTS)
    spec, parts, span = job.spec, work.parts[0], work.shards.shards[shard].span
    if isinstance(parts, InMemory):
        outputs = pl.concat([tables.empty(tables.READS), *parts.outputs[spec.fingerprint]])
    else:  # what came from earlier keys has no unit
        listed = store.listing(work.store, spec.fingerprint) if spec.earlier else None
        outputs = store.find(listed or files[spec.fingerprint], wanted[READ_KEY], span=span).reads
    reads = with_failures(wanted, outputs, failures)
    if lost := reads.filter(pl.col(OUTPUT).is_null()).height:
        raise ReadError(f"{lost} reads were lost on the way; run again")
    reads = reads.select([*tables.READS, FAILURE])
    refuse_written(reads, spec)
    lost = reads.filter(pl.col(FAILURE).is_not_null())[READ_KEY].n_unique()
    total = wanted[READ_KEY].n_unique()
    costs = ReadingCosts(wanted=total, reused=total - lost, failed=lost)
    set_wanted(costs, wanted_kinds(wanted))
    return Reading(job.ask, spec, job.prompt, wanted, reads, costs)


def with_failures(
    wanted: pl.DataFrame, outputs: pl.DataFrame, failures: Mapping[str, Failure]
) -> pl.DataFrame:
    """Each wanted read with its output or ``failure`` (``plan.answered``)."""
    failed = pl.DataFrame({READ_KEY: list(failures)}, {READ_KEY: pl.String}).hstack(
        output_columns([ReadOutput.failed(failure.reason) for failure in failures.values()])
    )
    whole = outputs.with_columns(pl.lit(None, pl.String).alias(FAILURE))
    return answered(wanted, pl.concat([whole, failed], how="diagonal"))
